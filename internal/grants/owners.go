package grants

import (
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// Owners records whether the owners of IPAllocations, Clusters and carved pools, were seen, and when the next check
// for claimants without an owner is due.
type Owners struct {
	// NextSweep is when the next check for claimants without their owner is due.
	NextSweep time.Time
	// UnseenClusters are the Clusters of IPAllocations that were never seen.
	UnseenClusters map[types.NamespacedName]struct{}

	claimants *Claimants
	queues    *Queues
	term      *TermState
}

// RequestSweep makes the next check for claimants without their owner due at once.
func (ow *Owners) RequestSweep() { ow.NextSweep = time.Time{} }

// BeginSweep records that a check begins, and when the next one is due.
func (ow *Owners) BeginSweep(next time.Time) {
	ow.NextSweep = next
	clear(ow.UnseenClusters)
}

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

// RecordOwnerSeen records an observation of the owner of an IPAllocation. An owner that was seen does not become
// OwnerNeverSeen because it was gone before the status showed it. If the status shows a pause and the owner is gone,
// the pause stays: what this manager saw may be older.
func (ow *Owners) RecordOwnerSeen(c *Claimant, found OwnerSeen) {
	known := ow.claimants.ByUID[c.Owner.UID]
	if known == nil {
		return
	}
	switch {
	case found == OwnerNeverSeen && known.ObservedOwnerSeen == OwnerSeenPaused:
		known.ObservedOwnerSeen = OwnerLeftPaused
	case found == OwnerNeverSeen && known.ObservedOwnerSeen == OwnerSeenAlive && known.PublishedOwnerSeen == OwnerSeenPaused:
		known.ObservedOwnerSeen = OwnerNeverSeen
		ow.queues.QueueClaimant(known)
	default:
		known.ObservedOwnerSeen = known.ObservedOwnerSeen.mergeObserved(found)
	}
	ow.AwaitCluster(known)
}

// ownerKey returns the key of the owner in byOwner, by which a pause of the owner is found: the Cluster, or
// the namespace of a carved pool.
func (c *Claimant) ownerKey() types.NamespacedName {
	if c.ChildPool != nil {
		return types.NamespacedName{Namespace: c.ChildPool.Namespace}
	}
	return c.Cluster
}

// RecordClusterSeen records an observation of a Cluster for its IPAllocations and, if it is paused, for those of the
// carved pools in its namespace. It reports whether the next sweep has to write a status because of that, and makes
// the sweep due then. serves reports whether a claimant is served by this manager.
func (ow *Owners) RecordClusterSeen(cluster types.NamespacedName, found OwnerSeen, serves func(*Claimant) bool) (changed bool) {
	note := func(c *Claimant) {
		// The sweep checks a Cluster that was resumed: the state on record may be newer than this observation.
		resumed := found == OwnerSeenAlive && max(c.PublishedOwnerSeen, c.ObservedOwnerSeen) >= OwnerSeenPaused
		// If the watch is behind, a running Cluster may be an older version than the IPAllocation.
		if found == OwnerSeenPaused {
			ow.RecordOwnerSeen(c, found)
		}
		needsUpdate := resumed || c.NeedsOwnerPausedUpdate() || c.NeedsOwnerSeenUpdate()
		changed = changed || (needsUpdate && ow.term.Holder && !c.Deleting && !c.Moved && c.HasRecord() && serves(c))
	}
	for _, c := range ow.claimants.byOwner[cluster] {
		note(c)
	}
	if found == OwnerSeenPaused {
		for _, c := range ow.claimants.byOwner[types.NamespacedName{Namespace: cluster.Namespace}] {
			if max(c.PublishedOwnerSeen, c.ObservedOwnerSeen) >= OwnerSeenAlive {
				note(c)
			}
		}
	}
	if changed {
		ow.NextSweep = time.Time{}
	}
	return changed
}

// AwaitCluster registers the Cluster of a claimant if it was never seen, so that the next sweep checks it once it
// exists.
func (ow *Owners) AwaitCluster(c *Claimant) {
	if c.NextOwnerSeen(c.ObservedOwnerSeen) >= OwnerSeenAlive || c.ChildPool != nil {
		return
	}
	if ow.UnseenClusters == nil {
		ow.UnseenClusters = map[types.NamespacedName]struct{}{}
	}
	ow.UnseenClusters[c.Cluster] = struct{}{}
}

// TakeAwaitedCluster reports whether a Cluster was awaited. In that case it removes the Cluster from the awaited ones
// and makes the next sweep due.
func (ow *Owners) TakeAwaitedCluster(cluster types.NamespacedName) bool {
	_, awaited := ow.UnseenClusters[cluster]
	if awaited {
		delete(ow.UnseenClusters, cluster)
		ow.NextSweep = time.Time{}
	}
	return awaited
}

// SetOwnerMissingSince records when a live read first showed that the owner does not exist; the zero time means that it
// exists, or that it is not known.
func (c *Claimant) SetOwnerMissingSince(at time.Time) { c.OwnerMissingSince = at }
