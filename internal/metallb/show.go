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

// addresses are the entries of spec.addresses: first-last, a single address too.
func addresses(ranges []netipx.IPRange) []string {
	out := make([]string, 0, len(ranges))
	for _, r := range ranges {
		out = append(out, r.From().String()+"-"+r.To().String())
	}
	return out
}

// asDesired reports whether an IPAddressPool is as it is to be.
func asDesired(p *metallbv1beta1.IPAddressPool, d *elastic.Desired) bool {
	return slices.Equal(addresses(d.Ranges), p.Spec.Addresses) && ptr.Deref(p.Spec.AutoAssign, true) == d.AutoAssign && p.Labels[balancer.ManagedLabel] == balancer.ManagedValue
}

// Changes are what is to be written so that a workload cluster is shown its blocks; none, if it is.
type Changes struct {
	remove []*metallbv1beta1.IPAddressPool
	set    []setting
	// advertise: the L2Advertisement is missing, or is not as it is to be; advertised is how it was observed, nil if there is
	// none.
	advertise  bool
	advertised *metallbv1beta1.L2Advertisement
}

// setting is an IPAddressPool as it is to be, and as it was observed; nil: there is none.
type setting struct {
	to  *elastic.Desired
	was *metallbv1beta1.IPAddressPool
}

// OfPools reports whether the addresses that the workload cluster has are about to change.
func (c *Changes) OfPools() bool { return len(c.remove)+len(c.set) > 0 }

// Changes decides what is to be written so that a workload cluster is shown these pools. Those of other names and
// without our label are left alone. No pool is made for a block that is being taken away: a write that was decided upon
// earlier, and comes late, would show it again.
func (o *Observed) Changes(want []elastic.Desired) Changes {
	out := Changes{advertise: len(want) > 0 && o.advertisable(want), advertised: o.advertisement}
	for i := range o.pools {
		if p := &o.pools[i]; o.leaves(p, want) {
			out.remove = append(out.remove, p)
		}
	}
	for i := range want {
		d := &want[i]
		if p := o.find(d.Name); (p == nil && !d.Leaving) || (p != nil && mayWrite(p) && !asDesired(p, d)) {
			out.set = append(out.set, setting{d, p})
		}
	}
	return out
}

// leaves reports whether an IPAddressPool is to go. One that was handed over is taken over when there is something to show
// in it, not before.
func (o *Observed) leaves(p *metallbv1beta1.IPAddressPool, want []elastic.Desired) bool {
	gone := !slices.ContainsFunc(want, func(d elastic.Desired) bool { return d.Name == p.Name })
	return p.Labels[balancer.ManagedLabel] == balancer.ManagedValue && gone && p.DeletionTimestamp == nil
}

// find returns the IPAddressPool of a name, nil if there is none.
func (o *Observed) find(name string) *metallbv1beta1.IPAddressPool {
	if at := slices.IndexFunc(o.pools, func(p metallbv1beta1.IPAddressPool) bool { return p.Name == name }); at >= 0 {
		return &o.pools[at]
	}
	return nil
}

// Show writes changes: what is to go first, as MetalLB refuses the whole configuration while two pools overlap.
func (c *Changes) Show(ctx context.Context, tenant client.Client) error {
	for _, p := range c.remove {
		if err := giveUp(ctx, tenant, p); err != nil {
			return err
		}
	}
	for _, s := range c.set {
		if err := s.write(ctx, tenant); err != nil {
			return err
		}
	}
	if !c.advertise {
		return nil
	}
	return advertise(ctx, tenant, c.advertised)
}

// advertise has MetalLB announce the pools that show blocks. An L2Advertisement that was not observed is created: if there
// is one nevertheless, it may be somebody else's.
func advertise(ctx context.Context, tenant client.Client, was *metallbv1beta1.L2Advertisement) error {
	u := object("L2Advertisement", DefaultPool, map[string]any{
		"ipAddressPoolSelectors": []any{map[string]any{"matchLabels": map[string]any{balancer.ManagedLabel: balancer.ManagedValue}}},
	})
	if was != nil {
		u.SetUID(was.UID)
		u.SetResourceVersion(was.ResourceVersion)
		return balancer.Apply(ctx, tenant, u)
	}
	return balancer.CreateNew(ctx, tenant, u, "l2advertisements")
}

func (s setting) write(ctx context.Context, tenant client.Client) error {
	if s.was == nil {
		now := &metallbv1beta1.IPAddressPool{}
		return balancer.CreatePool(ctx, tenant, pool(s.to, addresses(s.to.Ranges)), "ipaddresspools", now, func() bool { return asDesired(now, s.to) })
	}
	to, wait, err := next(ctx, tenant, s.was, addresses(s.to.Ranges))
	if wait || err != nil {
		return err // a change of the pool wakes who shows: its count, or that of avoidBuggyIPs, where no count would show it (LetGo says so)
	}
	u := pool(s.to, to)
	if err := keepBefore(u, s.was); err != nil {
		return err
	}
	u.SetUID(s.was.UID)
	u.SetResourceVersion(s.was.ResourceVersion)
	return balancer.Apply(ctx, tenant, u)
}

// pool is what is said of an IPAddressPool that has these addresses.
func pool(d *elastic.Desired, addresses []string) *unstructured.Unstructured {
	return object("IPAddressPool", d.Name, map[string]any{"addresses": list(addresses), "autoAssign": d.AutoAssign})
}

func list(texts []string) []any {
	out := make([]any, 0, len(texts))
	for _, t := range texts {
		out = append(out, t)
	}
	return out
}

// step is what a pool is to have next. MetalLB acknowledges a change by counting the addresses of the pool: so
// nothing is added together with what is taken away, nor before that is counted.
func step(p *metallbv1beta1.IPAddressPool, want []string) []string {
	var stays, added []string
	for _, a := range want {
		if slices.Contains(p.Spec.Addresses, a) {
			stays = append(stays, a)
		} else {
			added = append(added, a)
		}
	}
	if len(stays) == 0 || len(added) == 0 || (len(stays) == len(p.Spec.Addresses) && counted(p)) {
		return want
	}
	return stays
}

// next is what a pool is to have next (step); or that this has to wait, while MetalLB's count of before would be taken for
// that of what is left: until that count is made, or MetalLB says that it refuses what it would count. It reads live.
func next(ctx context.Context, live client.Reader, was *metallbv1beta1.IPAddressPool, want []string) (to []string, wait bool, err error) {
	to = step(was, want)
	if !takesAway(was, to) || !mistakable(was, to) {
		return to, false, nil
	}
	refused, err := Refusal(ctx, live)
	switch {
	case err != nil || !counted(was):
		return to, refused == "", err
	case slices.ContainsFunc(to, func(a string) bool { return !slices.Contains(was.Spec.Addresses, a) }):
		// All of them are other ones: the new ones first.
		return slices.Compact(slices.Sorted(slices.Values(slices.Concat(was.Spec.Addresses, want)))), false, nil
	}
	to, wait = without(was, to)
	return to, wait, nil
}

// mistakable reports whether nothing would show that MetalLB has taken these addresses for those of an IPAddressPool: it has
// counted as many before; or it has yet to count what the pool has now, and with avoidBuggyIPs fewer addresses may count as
// more, as MetalLB subtracts an address that is a network of its own twice.
func mistakable(was *metallbv1beta1.IPAddressPool, to []string) bool {
	return seemsCounted(was, to) || (was.Spec.AvoidBuggyIPs && !counted(was))
}

// without is what an IPAddressPool, which MetalLB has counted, is to have next on the way to fewer entries. Where MetalLB
// counts as many then, one entry goes alone, if the count shows that; if none does, this waits.
func without(was *metallbv1beta1.IPAddressPool, to []string) (next []string, wait bool) {
	before, _ := countedBy(was)
	if n, ok := countOf(to, was.Spec.AvoidBuggyIPs); ok && n != before {
		return to, false // the count shows it, unless a person changes avoidBuggyIPs meanwhile
	}
	for _, gone := range was.Spec.Addresses {
		left := slices.DeleteFunc(slices.Clone(was.Spec.Addresses), func(a string) bool { return a == gone })
		if !slices.Contains(to, gone) && !seemsCounted(was, left) {
			return left, false
		}
	}
	return to, true
}

// takesAway reports whether an IPAddressPool has an address that it is not to have any more.
func takesAway(p *metallbv1beta1.IPAddressPool, to []string) bool {
	return slices.ContainsFunc(p.Spec.Addresses, func(a string) bool { return !slices.Contains(to, a) })
}

// object is what is said of an object of MetalLB's.
func object(kind, name string, spec map[string]any) *unstructured.Unstructured {
	u := &unstructured.Unstructured{Object: map[string]any{"spec": spec}}
	u.SetGroupVersionKind(metallbv1beta1.GroupVersion.WithKind(kind))
	u.SetNamespace(Namespace)
	u.SetName(name)
	u.SetLabels(map[string]string{balancer.ManagedLabel: balancer.ManagedValue})
	return u
}
