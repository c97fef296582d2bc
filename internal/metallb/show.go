package metallb

import (
	"context"
	"slices"

	metallbv1beta1 "go.universe.tf/metallb/api/v1beta1"
	"go4.org/netipx"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/balancer"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/elastic"
)

// formatRanges returns the entries of spec.addresses: first-last, also for a single address.
func formatRanges(ranges []netipx.IPRange) []string {
	out := make([]string, 0, len(ranges))
	for _, r := range ranges {
		out = append(out, r.From().String()+"-"+r.To().String())
	}
	return out
}

// matchesDesired reports whether an IPAddressPool is in its desired state.
func matchesDesired(p *metallbv1beta1.IPAddressPool, d *elastic.DesiredPool) bool {
	return slices.Equal(formatRanges(d.Ranges), p.Spec.Addresses) && ptr.Deref(p.Spec.AutoAssign, true) == d.AutoAssign && p.Labels[balancer.ManagedByLabel] == balancer.ManagedByValue
}

// PoolChanges are the writes that project blocks to a workload cluster; they are empty if its pools are in their
// desired state.
type PoolChanges struct {
	deletions []*metallbv1beta1.IPAddressPool
	updates   []poolUpdate
	// needsAdvertisement reports whether the L2Advertisement is missing, or not in its desired state. advertisement
	// is its observed state, nil if there is none.
	needsAdvertisement bool
	advertisement      *metallbv1beta1.L2Advertisement
}

// poolUpdate is the desired and the observed state of an IPAddressPool; observed is nil if there is none.
type poolUpdate struct {
	desired  *elastic.DesiredPool
	observed *metallbv1beta1.IPAddressPool
}

// HasPoolChanges reports whether the changes affect the addresses that the workload cluster has.
func (c *PoolChanges) HasPoolChanges() bool { return len(c.deletions)+len(c.updates) > 0 }

// PlanChanges plans the writes after which a workload cluster has the desired pools. It leaves alone pools of other
// names without our label. It creates no pool for a block that is being withdrawn: a write that was decided earlier
// and lands late would project the block again.
func (o *ObservedCluster) PlanChanges(want []elastic.DesiredPool) PoolChanges {
	out := PoolChanges{needsAdvertisement: len(want) > 0 && o.needsAdvertisement(want), advertisement: o.advertisement}
	for i := range o.pools {
		if p := &o.pools[i]; o.isObsoletePool(p, want) {
			out.deletions = append(out.deletions, p)
		}
	}
	for i := range want {
		d := &want[i]
		if p := o.findPool(d.Name); (p == nil && !d.Draining) || (p != nil && isWritable(p) && !matchesDesired(p, d)) {
			out.updates = append(out.updates, poolUpdate{d, p})
		}
	}
	return out
}

// isObsoletePool reports whether an IPAddressPool must be deleted. A pool that was handed over is taken over when
// there is a block to put into it, not before.
func (o *ObservedCluster) isObsoletePool(p *metallbv1beta1.IPAddressPool, want []elastic.DesiredPool) bool {
	gone := !slices.ContainsFunc(want, func(d elastic.DesiredPool) bool { return d.Name == p.Name })
	return p.Labels[balancer.ManagedByLabel] == balancer.ManagedByValue && gone && p.DeletionTimestamp == nil
}

// findPool returns the IPAddressPool of a name, nil if there is none.
func (o *ObservedCluster) findPool(name string) *metallbv1beta1.IPAddressPool {
	if at := slices.IndexFunc(o.pools, func(p metallbv1beta1.IPAddressPool) bool { return p.Name == name }); at >= 0 {
		return &o.pools[at]
	}
	return nil
}

// ApplyChanges writes the changes, deletions first: MetalLB refuses its whole configuration while two pools overlap.
func (c *PoolChanges) ApplyChanges(ctx context.Context, tenant client.Client) error {
	for _, p := range c.deletions {
		if err := deleteOrRestorePool(ctx, tenant, p); err != nil {
			return err
		}
	}
	for _, s := range c.updates {
		if err := s.applyUpdate(ctx, tenant); err != nil {
			return err
		}
	}
	if !c.needsAdvertisement {
		return nil
	}
	return applyAdvertisement(ctx, tenant, c.advertisement)
}

// applyAdvertisement makes MetalLB announce the pools of blocks. It creates an L2Advertisement that was not observed,
// and does not apply it: an existing one may belong to another owner.
func applyAdvertisement(ctx context.Context, tenant client.Client, current *metallbv1beta1.L2Advertisement) error {
	u := newObject("L2Advertisement", DefaultPool, map[string]any{
		"ipAddressPoolSelectors": []any{map[string]any{"matchLabels": map[string]any{balancer.ManagedByLabel: balancer.ManagedByValue}}},
	})
	if current != nil {
		u.SetUID(current.UID)
		u.SetResourceVersion(current.ResourceVersion)
		return balancer.ApplyObject(ctx, tenant, u)
	}
	return balancer.CreateObject(ctx, tenant, u, "l2advertisements")
}

func (s poolUpdate) applyUpdate(ctx context.Context, tenant client.Client) error {
	if s.observed == nil {
		now := &metallbv1beta1.IPAddressPool{}
		return balancer.CreatePool(ctx, tenant, newPoolObject(s.desired, formatRanges(s.desired.Ranges)), "ipaddresspools", now, func() bool { return matchesDesired(now, s.desired) })
	}
	to, wait, err := nextCountableAddresses(ctx, tenant, s.observed, formatRanges(s.desired.Ranges))
	if wait || err != nil {
		return err // a change of its count, or of avoidBuggyIPs (see CheckReleased), triggers a reconcile
	}
	u := newPoolObject(s.desired, to)
	if err := recordOriginalPool(u, s.observed); err != nil {
		return err
	}
	u.SetUID(s.observed.UID)
	u.SetResourceVersion(s.observed.ResourceVersion)
	return balancer.ApplyObject(ctx, tenant, u)
}

// newPoolObject returns the applied content of an IPAddressPool with these addresses.
func newPoolObject(d *elastic.DesiredPool, addresses []string) *unstructured.Unstructured {
	return newObject("IPAddressPool", d.Name, map[string]any{"addresses": toAnySlice(addresses), "autoAssign": d.AutoAssign})
}

func toAnySlice(texts []string) []any {
	out := make([]any, 0, len(texts))
	for _, t := range texts {
		out = append(out, t)
	}
	return out
}

// nextAddresses returns the next entries of a pool on the way to want. MetalLB acknowledges a change by counting the
// addresses of the pool, so no entry is added together with a removal, nor before MetalLB has counted that.
func nextAddresses(p *metallbv1beta1.IPAddressPool, want []string) []string {
	var stays, added []string
	for _, a := range want {
		if slices.Contains(p.Spec.Addresses, a) {
			stays = append(stays, a)
		} else {
			added = append(added, a)
		}
	}
	if len(stays) == 0 || len(added) == 0 || (len(stays) == len(p.Spec.Addresses) && isCounted(p)) {
		return want
	}
	return stays
}

// nextCountableAddresses returns the next entries of a pool (see nextAddresses). wait reports that the change has to
// wait while MetalLB's earlier count would pass for the count of what is left: until MetalLB has counted, or reports
// that it refuses its configuration. It reads live.
func nextCountableAddresses(ctx context.Context, live client.Reader, current *metallbv1beta1.IPAddressPool, want []string) (to []string, wait bool, err error) {
	to = nextAddresses(current, want)
	if !removesAddresses(current, to) || !isCountAmbiguous(current, to) {
		return to, false, nil
	}
	refused, err := DescribeRefusal(ctx, live)
	switch {
	case err != nil || !isCounted(current):
		return to, refused == "", err
	case slices.ContainsFunc(to, func(a string) bool { return !slices.Contains(current.Spec.Addresses, a) }):
		// None of the wanted entries exists yet: add them first.
		return slices.Compact(slices.Sorted(slices.Values(slices.Concat(current.Spec.Addresses, want)))), false, nil
	}
	to, wait = nextCountableRemoval(current, to)
	return to, wait, nil
}

// isCountAmbiguous reports whether no count would show that MetalLB has applied these addresses to an IPAddressPool:
// MetalLB has reported the same count before; or it has not counted the current addresses yet and, with
// avoidBuggyIPs, fewer addresses may count as more, because MetalLB subtracts an address that is a network of its own
// twice.
func isCountAmbiguous(current *metallbv1beta1.IPAddressPool, to []string) bool {
	return matchesReportedCount(current, to) || (current.Spec.AvoidBuggyIPs && !isCounted(current))
}

// nextCountableRemoval returns the next entries of an IPAddressPool that MetalLB has counted, on the way to fewer
// entries. If MetalLB would count as many addresses for to, a single entry is removed whose removal the count shows;
// if there is none, the removal waits.
func nextCountableRemoval(current *metallbv1beta1.IPAddressPool, to []string) (next []string, wait bool) {
	before, _ := reportedCount(current)
	if n, ok := expectedCount(to, current.Spec.AvoidBuggyIPs); ok && n != before {
		return to, false // the count shows it, unless a user changes avoidBuggyIPs meanwhile
	}
	for _, gone := range current.Spec.Addresses {
		left := slices.DeleteFunc(slices.Clone(current.Spec.Addresses), func(a string) bool { return a == gone })
		if !slices.Contains(to, gone) && !matchesReportedCount(current, left) {
			return left, false
		}
	}
	return to, true
}

// removesAddresses reports whether an IPAddressPool has an entry that is not in to.
func removesAddresses(p *metallbv1beta1.IPAddressPool, to []string) bool {
	return slices.ContainsFunc(p.Spec.Addresses, func(a string) bool { return !slices.Contains(to, a) })
}

// newObject returns the applied content of an object of MetalLB.
func newObject(kind, name string, spec map[string]any) *unstructured.Unstructured {
	u := &unstructured.Unstructured{Object: map[string]any{"spec": spec}}
	u.SetGroupVersionKind(metallbv1beta1.GroupVersion.WithKind(kind))
	u.SetNamespace(Namespace)
	u.SetName(name)
	u.SetLabels(map[string]string{balancer.ManagedByLabel: balancer.ManagedByValue})
	return u
}
