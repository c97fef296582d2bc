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
)

// then is what is known where something was found after something else: once seen is not Unseen for having gone.
func (s Sighting) then(found Sighting) Sighting {
	if found == Unlooked || (found == Unseen && s > Unseen) {
		return s
	}
	return found
}

// SaysAfter is what the status of an IPAllocation is to say when its Cluster was found so: once seen is seen for good. That it is
// paused matters only where it was seen before.
func (c *Claimant) SaysAfter(found Sighting) Sighting {
	if found == Paused && c.Told != Seen {
		return c.Told
	}
	return c.Told.then(found)
}

// OwesSighting reports whether the status does not say yet what was found. A pause is said apart: nothing else is written then.
func (c *Claimant) OwesSighting() bool {
	says := c.SaysAfter(c.Found)
	return says != c.Told && says != Paused
}

// OwesPause reports whether the status does not say yet that the Cluster was paused when it was last seen.
func (c *Claimant) OwesPause() bool { return c.Told != Paused && c.SaysAfter(c.Found) == Paused }

// NoteSighting remembers what was found of the Cluster of an IPAllocation: what was found once is not Unseen for having
// gone before the status said so.
func (m *Memory) NoteSighting(c *Claimant, found Sighting) {
	if known := m.Claimants[c.Owner.UID]; known != nil {
		known.Found = known.Found.then(found)
		m.Await(known)
	}
}

// NotePausedCluster remembers of the IPAllocations of a Cluster that is paused, and of those for pools of its namespace, that it was
// so when it was seen. It reports whether that is news.
func (m *Memory) NotePausedCluster(cluster types.NamespacedName) (news bool) {
	if !m.HasAny(func(t *Traits) bool { return t.EndsWithOwner }) {
		return false
	}
	for _, c := range m.Claimants {
		concerns := c.Cluster == cluster
		if c.Child != nil {
			concerns = c.Child.Namespace == cluster.Namespace
		}
		if concerns && c.Kind.Traits().EndsWithOwner {
			m.NoteSighting(c, Paused)
			news = news || c.OwesPause()
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
