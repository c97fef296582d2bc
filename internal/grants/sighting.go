package grants

import (
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// Sighting says whether that was ever seen alive which an IPAllocation is for: its Cluster, or a carved pool. Only what
// was seen can be gone: a platform may ask for the blocks of a Cluster before it makes the Cluster.
type Sighting int

const (
	// Unlooked means that nobody has looked, or nothing may be concluded from what was found.
	Unlooked Sighting = iota
	// Unseen means that the Cluster does not exist, and nobody has seen it yet.
	Unseen
	// Seen means that the Cluster was alive once.
	Seen
	// Paused means that the Cluster was alive, and paused when it was last seen: clusterctl pauses what it moves, and takes it
	// away. So its end says nothing.
	Paused
	// Left means that it was Paused, and is not there. No status says so.
	Left
)

// then is what is known where something was found after something else: once seen is not Unseen for having gone.
func (s Sighting) then(found Sighting) Sighting {
	if found == Unlooked || (found == Unseen && s > Unseen) {
		return s
	}
	return found
}

// SaysAfter is what the status of an IPAllocation is to say when its Cluster was found so: once seen is seen for good. That a
// Cluster is paused matters only where it was seen before. Of a carved pool it is said at once: one of its name may be carved
// from another pool later, and that is no sign of its end then.
func (c *Claimant) SaysAfter(found Sighting) Sighting {
	switch {
	case found < Paused:
		return c.Told.then(found)
	case c.Child != nil || c.Told >= Seen:
		return Paused
	case found == Left:
		return Unseen
	}
	return c.Told
}

// OwesSighting reports whether the status does not say yet what was found. A pause is said apart: nothing else is written then.
func (c *Claimant) OwesSighting() bool {
	says := c.SaysAfter(c.Found)
	return says != c.Told && says != Paused
}

// OwesPause reports whether the status does not say yet that the Cluster was paused when it was last seen.
func (c *Claimant) OwesPause() bool { return c.Told != Paused && c.SaysAfter(c.Found) == Paused }

// KeepSighting carries over what was found of the Cluster of an IPAllocation. Another manager may have seen it paused since this
// one saw it run.
func (c *Claimant) KeepSighting(old *Claimant) {
	c.Found = old.Found
	if c.Told == Paused && old.Told != Paused && c.Found == Seen {
		c.Found = Unlooked
	}
}

// NoteSighting remembers what was found of the Cluster of an IPAllocation: what was found once is not Unseen for having
// gone before the status said so. Where the status says Paused and the Cluster is gone, that stays: what this manager saw may be
// older.
func (m *Memory) NoteSighting(c *Claimant, found Sighting) {
	known := m.Claimants[c.Owner.UID]
	if known == nil {
		return
	}
	switch {
	case found == Unseen && known.Found == Paused:
		known.Found = Left
	case found == Unseen && known.Found == Seen && known.Told == Paused:
		known.Found = Unseen
		m.Sort(known)
	default:
		known.Found = known.Found.then(found)
	}
	m.Await(known)
}

// endsWith is what an IPAllocation is for, as its pause is looked up: its Cluster, or the namespace of its pool.
func (c *Claimant) endsWith() types.NamespacedName {
	if c.Child != nil {
		return types.NamespacedName{Namespace: c.Child.Namespace}
	}
	return c.Cluster
}

// index has a claimant be found by what it ends with, or not any more.
func (m *Memory) index(c *Claimant, is bool) {
	if !c.Kind.Traits().EndsWithOwner {
		return
	}
	key := c.endsWith()
	of := m.endingWith[key]
	switch {
	case is && of == nil:
		m.endingWith[key] = map[types.UID]*Claimant{c.Owner.UID: c}
	case is:
		of[c.Owner.UID] = c
	default:
		if delete(of, c.Owner.UID); len(of) == 0 {
			delete(m.endingWith, key)
		}
	}
}

// NoteCluster remembers of the IPAllocations of a Cluster that is paused, and of those for pools of its namespace, that it was seen
// so. It reports whether the sweep has something to write for that, of one that is served.
func (m *Memory) NoteCluster(cluster types.NamespacedName, found Sighting, serves func(*Claimant) bool) (news bool) {
	note := func(c *Claimant) {
		resumed := found == Seen && max(c.Told, c.Found) >= Paused // for the sweep to find out: what was found may be newer
		// One that runs may be of before the IPAllocation, where the watch is behind.
		if found == Paused {
			m.NoteSighting(c, found)
		}
		owes := resumed || c.OwesPause() || c.OwesSighting()
		news = news || (owes && m.Holder && !c.Deleting && !c.Moved && c.HasRecord() && serves(c))
	}
	for _, c := range m.endingWith[cluster] {
		note(c)
	}
	if found == Paused {
		for _, c := range m.endingWith[types.NamespacedName{Namespace: cluster.Namespace}] {
			if max(c.Told, c.Found) >= Seen {
				note(c)
			}
		}
	}
	if news {
		m.NextSweep = time.Time{}
	}
	return news
}

// Await remembers the Clusters that nobody has seen, to look for them when they come.
func (m *Memory) Await(c *Claimant) {
	if c.SaysAfter(c.Found) >= Seen || c.Child != nil {
		return
	}
	if m.Awaited == nil {
		m.Awaited = map[types.NamespacedName]struct{}{}
	}
	m.Awaited[c.Cluster] = struct{}{}
}

// Awaits reports whether a Cluster is one that nobody has seen. Then the next reconcile looks for it.
func (m *Memory) Awaits(cluster types.NamespacedName) bool {
	_, awaited := m.Awaited[cluster]
	if awaited {
		delete(m.Awaited, cluster)
		m.NextSweep = time.Time{}
	}
	return awaited
}
