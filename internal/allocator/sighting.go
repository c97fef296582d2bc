package allocator

import (
	"context"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
)

// sighting says whether the Cluster of an IPAllocation was ever seen alive. Only a Cluster that was can be gone: a
// platform may ask for the blocks of a Cluster before it makes the Cluster.
type sighting int

const (
	// unlooked: nobody has looked, or nothing may be concluded from what was found.
	unlooked sighting = iota
	// unseen: the Cluster does not exist, and nobody has seen it yet.
	unseen
	// seen: the Cluster was alive once.
	seen
)

// sightingIn reads what the conditions of an IPAllocation say of its Cluster. They are the record: they outlive
// the manager, and neither a move nor a restore takes them along, so what arrives before its Cluster waits for it.
func sightingIn(conditions []metav1.Condition) sighting {
	switch c := meta.FindStatusCondition(conditions, v1alpha1.ClusterSeenCondition); {
	case c == nil:
		return unlooked
	case c.Status == metav1.ConditionTrue:
		return seen
	}
	return unseen
}

// look finds out from the cache whether the Cluster of an IPAllocation is alive. While the Cluster is paused nothing
// is written, so nothing is to be said.
func (a *Allocator) look(ctx context.Context, c *claimant) sighting {
	key := c.cluster
	if a.Namespace != "" && key.Namespace != a.Namespace {
		return unlooked // not ours to see
	}
	switch a.gateOf(ctx, key) {
	case open:
		return seen
	case absent:
		return unseen
	case paused, unknown:
	}
	return unlooked
}

// saysAfter is what the status of an IPAllocation is to say when its Cluster was found so: once seen is seen for good.
func (c *claimant) saysAfter(found sighting) sighting {
	if c.told == seen || found == unlooked {
		return c.told
	}
	return found
}

// owesSighting reports whether the status does not say yet what was found.
func (c *claimant) owesSighting() bool { return c.saysAfter(c.found) != c.told }

// noteSighting remembers what a job has found of the Cluster of an IPAllocation. It is called with the pool locked.
func (p *memory) noteSighting(c *claimant, found sighting) {
	if known := p.claimants[c.owner.UID]; known != nil {
		known.found = found
		p.await(known)
	}
}

// await remembers the Clusters that nobody has seen, to look for them when they come.
func (p *memory) await(c *claimant) {
	if c.saysAfter(c.found) == seen {
		return
	}
	if p.awaited == nil {
		p.awaited = map[types.NamespacedName]struct{}{}
	}
	p.awaited[c.cluster] = struct{}{}
}

// awaits reports whether a Cluster is one that nobody has seen. Then the next reconcile looks for it.
func (p *memory) awaits(cluster types.NamespacedName) bool {
	_, awaited := p.awaited[cluster]
	if awaited {
		delete(p.awaited, cluster)
		p.nextSweep = time.Time{}
	}
	return awaited
}

// clusterSeen is the condition that says whether the Cluster was seen; nil where there is nothing to say.
func clusterSeen(cluster types.NamespacedName, says sighting) *metav1.Condition {
	c := &metav1.Condition{Type: v1alpha1.ClusterSeenCondition, Status: metav1.ConditionTrue, Reason: v1alpha1.SeenReason}
	switch says {
	case unlooked:
		return nil
	case unseen:
		c.Status, c.Reason = metav1.ConditionFalse, v1alpha1.NotSeenReason
		c.Message = fmt.Sprintf("%s; the addresses are kept for it", doesNotExistYet(cluster))
	case seen:
		c.Message = fmt.Sprintf("Cluster %s was seen; this allocation is deleted when that Cluster is gone", cluster)
	}
	return c
}

// doesNotExistYet says that a Cluster was not made yet.
func doesNotExistYet(cluster types.NamespacedName) string {
	return fmt.Sprintf("Cluster %s does not exist yet", cluster)
}
