package grants

import (
	"k8s.io/apimachinery/pkg/types"
)

// OwnerSeen is whether the owner of an IPAllocation, its Cluster or a carved pool, was ever seen alive. Only an owner
// that was seen can be gone: a platform may create the IPAllocations of a Cluster before the Cluster.
type OwnerSeen int

const (
	// OwnerUnknown means that the owner was not checked, or that the check allows no conclusion.
	OwnerUnknown OwnerSeen = iota
	// OwnerNeverSeen means that the owner does not exist and was never seen.
	OwnerNeverSeen
	// OwnerSeenAlive means that the owner was seen alive.
	OwnerSeenAlive
	// OwnerSeenPaused means that the owner was alive, and paused when it was last seen. clusterctl pauses a Cluster
	// that it moves, and then deletes it, so the absence of the owner proves nothing. For a carved pool it means that
	// a Cluster of its namespace was paused.
	OwnerSeenPaused
	// OwnerLeftPaused means that the owner was OwnerSeenPaused and does not exist any more. No status shows this
	// state.
	OwnerLeftPaused
)

// mergeObserved returns the state after a new observation: an owner that was seen does not become OwnerNeverSeen
// because it is gone.
func (s OwnerSeen) mergeObserved(found OwnerSeen) OwnerSeen {
	if found == OwnerUnknown || (found == OwnerNeverSeen && s > OwnerNeverSeen) {
		return s
	}
	return found
}

// NextOwnerSeen returns the state for the status of an IPAllocation after an observation of its owner. An owner that
// was seen stays seen. A paused Cluster is shown only if it was seen before. For a carved pool a pause is shown at
// once: a pool of the same name may be carved from another pool later, and that must not count as the end of this
// one.
func (c *Claimant) NextOwnerSeen(found OwnerSeen) OwnerSeen {
	switch {
	case found < OwnerSeenPaused:
		return c.PublishedOwnerSeen.mergeObserved(found)
	case c.ChildPool != nil || c.PublishedOwnerSeen >= OwnerSeenAlive:
		return OwnerSeenPaused
	case found == OwnerLeftPaused:
		return OwnerNeverSeen
	}
	return c.PublishedOwnerSeen
}

// NeedsOwnerSeenUpdate reports whether the status does not show the observed state of the owner yet. A pause does not
// count here: it is written separately, because nothing else is written during a pause.
func (c *Claimant) NeedsOwnerSeenUpdate() bool {
	seen := c.NextOwnerSeen(c.ObservedOwnerSeen)
	return seen != c.PublishedOwnerSeen && seen != OwnerSeenPaused
}

// NeedsOwnerPausedUpdate reports whether the status does not show yet that the owner was paused when it was last
// seen.
func (c *Claimant) NeedsOwnerPausedUpdate() bool {
	return c.PublishedOwnerSeen != OwnerSeenPaused && c.NextOwnerSeen(c.ObservedOwnerSeen) == OwnerSeenPaused
}

// CarryOverOwnerSeen copies the observed state of the owner from the previous state of the claimant. It drops the
// state if the new status shows a pause: another manager may have seen the owner paused after this one saw it
// running.
func (c *Claimant) CarryOverOwnerSeen(old *Claimant) {
	c.ObservedOwnerSeen = old.ObservedOwnerSeen
	if c.PublishedOwnerSeen == OwnerSeenPaused && old.PublishedOwnerSeen != OwnerSeenPaused && c.ObservedOwnerSeen == OwnerSeenAlive {
		c.ObservedOwnerSeen = OwnerUnknown
	}
}

// ownerKey returns the key of the owner in byOwner, by which a pause of the owner is found: the Cluster, or
// the namespace of a carved pool.
func (c *Claimant) ownerKey() types.NamespacedName {
	if c.ChildPool != nil {
		return types.NamespacedName{Namespace: c.ChildPool.Namespace}
	}
	return c.Cluster
}
