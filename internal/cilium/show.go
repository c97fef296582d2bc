package cilium

import (
	"context"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/balancer"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/elastic"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/exact"
)

// poolChanges are the planned writes: deletions are pools that are empty, and that Cilium has applied as empty.
type poolChanges struct {
	deletions []*Pool
	updates   []poolUpdate
}

// poolUpdate is the desired and the observed state of a pool; observed is nil if there is none.
type poolUpdate struct {
	desired  elastic.DesiredPool
	observed *Pool
}

func (c *poolChanges) HasPoolChanges() bool { return len(c.deletions)+len(c.updates) > 0 }

// PlanChanges plans the writes. A pool that contains no block any more is emptied, and deleted after Cilium has
// applied that: nothing acknowledges the deletion of a pool.
func (o *observedCluster) PlanChanges(want []elastic.DesiredPool) balancer.PoolChanges {
	out := &poolChanges{}
	for i := range o.pools {
		p := &o.pools[i]
		unwanted := !slices.ContainsFunc(want, func(d elastic.DesiredPool) bool { return d.Name == p.Name })
		switch {
		case !unwanted || !balancer.IsManaged(p) || p.DeletionTimestamp != nil:
		case len(p.Spec.Blocks) > 0:
			out.updates = append(out.updates, poolUpdate{elastic.DesiredPool{Name: p.Name}, p})
		case p.isApplied():
			out.deletions = append(out.deletions, p)
		}
	}
	for _, d := range want {
		switch p := o.findPool(d.Name); {
		case p == nil && d.Draining:
		case p != nil && d.Draining && len(p.Spec.Blocks) == 0: // another manager has emptied it already
		case p == nil, balancer.IsManaged(p) && !p.matchesDesired(&d):
			out.updates = append(out.updates, poolUpdate{d, p})
		}
	}
	return out
}

// ApplyChanges applies removals of addresses first: of two overlapping pools, Cilium assigns no address of the
// younger one.
func (c *poolChanges) ApplyChanges(ctx context.Context, tenant client.Client) error {
	for _, p := range c.deletions {
		if err := client.IgnoreNotFound(exact.DeleteWithPreconditions(ctx, tenant, p)); err != nil {
			return fmt.Errorf("deleting CiliumLoadBalancerIPPool %s: %w", p.Name, err)
		}
	}
	for _, s := range c.updates {
		if err := s.applyUpdate(ctx, tenant); err != nil {
			return err
		}
	}
	return nil
}

func (s poolUpdate) applyUpdate(ctx context.Context, tenant client.Client) error {
	if s.observed == nil {
		now := &Pool{}
		return balancer.CreatePool(ctx, tenant, newPoolObject(&s.desired, ""), poolResource, now, func() bool { return now.matchesDesired(&s.desired) })
	}
	u := newPoolObject(&s.desired, s.nextFirstLastIPs())
	u.SetUID(s.observed.UID)
	u.SetResourceVersion(s.observed.ResourceVersion)
	return balancer.ApplyObject(ctx, tenant, u)
}

// nextFirstLastIPs returns the next of three values of allowFirstLastIPs that mean the same here: the field applies
// to CIDRs, and our pools have none. Cilium ignores a pool that equals its last known state, and does not acknowledge
// it, so a pool is never written as it was before a write that Cilium may have missed.
func (s poolUpdate) nextFirstLastIPs() string {
	return map[string]string{"": "Yes", "Yes": "No", "No": ""}[s.observed.Spec.AllowFirstLastIPs]
}

// newPoolObject returns the applied content of a pool.
func newPoolObject(d *elastic.DesiredPool, spelling string) *unstructured.Unstructured {
	blocks := make([]any, 0, len(d.Ranges))
	for _, b := range blocksFromRanges(d.Ranges) {
		blocks = append(blocks, map[string]any{"start": b.Start, "stop": b.Stop})
	}
	spec := map[string]any{"blocks": blocks, "disabled": !d.AutoAssign}
	if spelling != "" {
		spec["allowFirstLastIPs"] = spelling
	}
	u := &unstructured.Unstructured{Object: map[string]any{"spec": spec}}
	u.SetGroupVersionKind(GroupVersion.WithKind(poolKind))
	u.SetName(d.Name)
	u.SetLabels(map[string]string{balancer.ManagedByLabel: balancer.ManagedByValue})
	return u
}
