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

// changes are what is to be written: pools that are empty, and known to be, go.
type changes struct {
	remove []*Pool
	set    []setting
}

// setting is a pool as it is to be, and as it was observed; nil: there is none.
type setting struct {
	to  elastic.Desired
	was *Pool
}

func (c *changes) OfPools() bool { return len(c.remove)+len(c.set) > 0 }

// Changes decides what is to be written. A pool that shows no block any more is emptied, and deleted when Cilium has taken
// that: nothing acknowledges that a pool was deleted.
func (o *observed) Changes(want []elastic.Desired) balancer.Changes {
	out := &changes{}
	for i := range o.pools {
		p := &o.pools[i]
		unwanted := !slices.ContainsFunc(want, func(d elastic.Desired) bool { return d.Name == p.Name })
		switch {
		case !unwanted || !balancer.Made(p) || p.DeletionTimestamp != nil:
		case len(p.Spec.Blocks) > 0:
			out.set = append(out.set, setting{elastic.Desired{Name: p.Name}, p})
		case p.taken():
			out.remove = append(out.remove, p)
		}
	}
	for _, d := range want {
		switch p := o.find(d.Name); {
		case p == nil && d.Leaving:
		case p != nil && d.Leaving && len(p.Spec.Blocks) == 0: // another manager is further
		case p == nil, balancer.Made(p) && !p.asDesired(&d):
			out.set = append(out.set, setting{d, p})
		}
	}
	return out
}

// Show writes what takes addresses away first: Cilium gives nobody an address of the younger one of two pools that overlap.
func (c *changes) Show(ctx context.Context, tenant client.Client) error {
	for _, p := range c.remove {
		if err := client.IgnoreNotFound(exact.Delete(ctx, tenant, p)); err != nil {
			return fmt.Errorf("deleting CiliumLoadBalancerIPPool %s: %w", p.Name, err)
		}
	}
	for _, s := range c.set {
		if err := s.write(ctx, tenant); err != nil {
			return err
		}
	}
	return nil
}

func (s setting) write(ctx context.Context, tenant client.Client) error {
	if s.was == nil {
		now := &Pool{}
		return balancer.CreatePool(ctx, tenant, object(&s.to, ""), resource, now, func() bool { return now.asDesired(&s.to) })
	}
	u := object(&s.to, s.spelling())
	u.SetUID(s.was.UID)
	u.SetResourceVersion(s.was.ResourceVersion)
	return balancer.Apply(ctx, tenant, u)
}

// spelling is the next of three ways to say the same of a pool: the field is of CIDRs, and a pool of ours has none. Cilium
// leaves a pool alone that is as it knows it, and does not say that it has seen it, so a pool is never written as it was
// before a write that Cilium may have missed.
func (s setting) spelling() string {
	return map[string]string{"": "Yes", "Yes": "No", "No": ""}[s.was.Spec.AllowFirstLastIPs]
}

// object is what is said of a pool.
func object(d *elastic.Desired, spelling string) *unstructured.Unstructured {
	blocks := make([]any, 0, len(d.Ranges))
	for _, b := range blocksOf(d.Ranges) {
		blocks = append(blocks, map[string]any{"start": b.Start, "stop": b.Stop})
	}
	spec := map[string]any{"blocks": blocks, "disabled": !d.AutoAssign}
	if spelling != "" {
		spec["allowFirstLastIPs"] = spelling
	}
	u := &unstructured.Unstructured{Object: map[string]any{"spec": spec}}
	u.SetGroupVersionKind(GroupVersion.WithKind(kind))
	u.SetName(d.Name)
	u.SetLabels(map[string]string{balancer.ManagedLabel: balancer.ManagedValue})
	return u
}
