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
)

// SaysAfter is what the status of an IPAllocation is to say when its Cluster was found so: once seen is seen for good.
func (c *Claimant) SaysAfter(found Sighting) Sighting {
	if c.Told == Seen || found == Unlooked {
		return c.Told
	}
	return found
}

// OwesSighting reports whether the status does not say yet what was found.
func (c *Claimant) OwesSighting() bool { return c.SaysAfter(c.Found) != c.Told }

// NoteSighting remembers what was found of the Cluster of an IPAllocation: what was found once is not Unseen for having
// gone before the status said so.
func (m *Memory) NoteSighting(c *Claimant, found Sighting) {
	if known := m.Claimants[c.Owner.UID]; known != nil {
		known.Found = max(known.Found, found)
		m.Await(known)
	}
}

// Await remembers the Clusters that nobody has seen, to look for them when they come.
func (m *Memory) Await(c *Claimant) {
	if c.SaysAfter(c.Found) == Seen || c.Child != nil {
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
