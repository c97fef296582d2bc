package tenant

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	metallbv1beta1 "go.universe.tf/metallb/api/v1beta1"
	"go4.org/netipx"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/cilium"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/tenancy"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/faults"
)

func listed[O any](at *faults.Server, kind faults.Kind) (out []O) {
	for _, o := range at.List(kind) {
		if o, is := o.(O); is {
			out = append(out, o)
		}
	}
	return out
}

func (w *world) services() []*corev1.Service { return listed[*corev1.Service](w.work, faults.Services) }

func (w *world) allocations() []*v1alpha1.IPAllocation {
	return listed[*v1alpha1.IPAllocation](w.mgmt, faults.Allocations)
}

func (w *world) pools() []*v1alpha1.NetworkPool {
	return listed[*v1alpha1.NetworkPool](w.mgmt, faults.Pools)
}

// pool is the pool of a name, nil if there is none.
func (w *world) pool(name string) *v1alpha1.NetworkPool {
	for _, p := range w.pools() {
		if p.Name == name {
			return p
		}
	}
	return nil
}

// showing are the ranges of each pool that the workload cluster has.
func (w *world) showing() (out [][]string) {
	for _, p := range listed[*metallbv1beta1.IPAddressPool](w.work, faults.MetalLBPools) {
		out = append(out, p.Spec.Addresses)
	}
	for _, p := range listed[*cilium.Pool](w.work, faults.CiliumPools) {
		var ranges []string
		for _, b := range p.Spec.Blocks {
			ranges = append(ranges, b.Start+"-"+b.Stop)
		}
		out = append(out, ranges)
	}
	return out
}

// check checks what must hold at any moment.
func (w *world) check() {
	for _, text := range w.history.Moment(w.objects()) {
		w.Wrongf("%s", text)
	}
	var held []netipx.IPRange
	total := int64(0)
	for _, a := range w.allocations() {
		if r, has := recordOf(a); has {
			held = append(held, r)
		}
		if a.Status.Phase != v1alpha1.AllocationFailed {
			total += int64(*a.Spec.Count)
		}
	}
	for _, p := range w.pools() {
		for _, h := range p.Status.Held { // nor is that given to others
			held = append(held, netipx.IPRangeFrom(netip.MustParseAddr(h.First), netip.MustParseAddr(h.Last)))
		}
	}
	if w.quota > 0 && total > w.quota {
		w.Wrongf("the Cluster has, or asks for, %d addresses; its quota is %d", total, w.quota)
	}
	if w.ended {
		return // nothing runs there
	}
	// Whatever no IPAllocation holds may be another Cluster's at once.
	covered := func(r netipx.IPRange) bool {
		return slices.ContainsFunc(held, func(h netipx.IPRange) bool { return h.Contains(r.From()) && h.Contains(r.To()) })
	}
	for _, s := range w.services() {
		if a := addressOf(s); a.IsValid() && !covered(netipx.IPRangeFrom(a, a)) {
			w.Wrongf("Service %s has %s, which was given back", s.Name, a)
		}
	}
	for _, p := range w.lb.works() {
		for _, r := range p.ranges {
			if !covered(r) {
				w.Wrongf("the load balancer works with %s of %s, which was given back", r, p.name)
			}
		}
	}
}

// labelled reports whether the Cluster names a ProviderConfig: one that does not gets nothing more.
func (w *world) labelled() bool {
	return slices.ContainsFunc(listed[*clusterv1.Cluster](w.mgmt, faults.Clusters), func(c *clusterv1.Cluster) bool {
		return c.Labels[v1alpha1.ProviderConfigLabel] != ""
	})
}

// saysRemain reports whether the Cluster says that it keeps IPAllocations.
func (w *world) saysRemain() bool {
	return slices.ContainsFunc(listed[*clusterv1.Cluster](w.mgmt, faults.Clusters), func(c *clusterv1.Cluster) bool {
		return strings.Contains(conditionsOf(c.GetConditions()), v1alpha1.AllocationsRemainReason)
	})
}

func (w *world) objects() pools.Objects {
	out := pools.Objects{}
	for _, p := range w.pools() {
		out.Pools = append(out.Pools, p)
	}
	for _, a := range w.allocations() {
		out.Allocations = append(out.Allocations, *a)
	}
	return out
}

// examine checks the end: who can be served is, nothing is kept that nobody uses, and the load balancer has what there is.
func (w *world) examine() {
	for _, text := range w.history.AtRest(w.objects()) {
		w.Wrongf("%s", text)
	}
	var shown []string
	var blocks []netipx.IPRange
	room, unshown := w.quota, false
	for _, a := range w.allocations() {
		r, has := recordOf(a)
		switch {
		case a.DeletionTimestamp != nil:
			w.Wrongf("%s is still being deleted", a.Name)
		case !has && !w.labelled():
			w.Wrongf("%s is asked for still, for a Cluster that gets nothing more", a.Name)
		case !has && a.Status.Phase != v1alpha1.AllocationFailed:
			w.Wrongf("%s is still waiting", a.Name)
		case tenancy.Leaving(a):
			w.Wrongf("%s is still draining", a.Name)
		case has && !tenancy.Projected(a) && w.labelled():
			w.Wrongf("%s is not shown, and was never to be", a.Name)
		}
		if !has {
			continue
		}
		room -= a.Status.AllocatedCount
		if !w.labelled() && !tenancy.Projected(a) {
			unshown = true // it was granted before that was known, and the workload cluster is not looked at any more
			continue
		}
		blocks = append(blocks, r)
		shown = append(shown, r.String())
		if tenancy.Role(a) == v1alpha1.GrowthRole && !slices.ContainsFunc(w.services(), func(s *corev1.Service) bool { return r.Contains(addressOf(s)) }) {
			w.Wrongf("%s is kept, and no Service uses it", a.Name)
		}
	}
	if unshown && !w.saysRemain() {
		w.Wrongf("the Cluster keeps a block, and does not say so")
	}
	if w.ended {
		if len(w.allocations())+len(w.mgmt.List(faults.Clusters)) > 0 {
			w.Wrongf("the Cluster is gone, and left %s", w.outcome())
		}
		return
	}
	var is []string
	for _, ranges := range w.showing() {
		is = append(is, ranges...)
	}
	slices.Sort(is)
	slices.Sort(shown)
	if !slices.Equal(is, shown) {
		w.Wrongf("the load balancer is shown %v, not %v", is, shown)
	}
	waiting := 0
	used := map[netip.Addr]bool{}
	for _, s := range w.services() {
		a := addressOf(s)
		if !a.IsValid() {
			waiting++
		} else if used[a] || !slices.ContainsFunc(blocks, func(r netipx.IPRange) bool { return r.Contains(a) }) {
			w.Wrongf("Service %s has %s, which it shares or which is in no block", s.Name, a)
		}
		used[a] = true
	}
	available := int64(0)
	for _, p := range w.pools() {
		if closedBy(p) == "" {
			available += p.Status.AvailableIPs
		}
	}
	full := (w.quota > 0 && room <= 0) || available == 0
	if waiting > 0 && !full && w.labelled() {
		w.Wrongf("%d Services have no address, and there is room", waiting)
	}
}

// outcome is what a run comes to, whichever addresses and moments it chose, and in however many blocks. What a Cluster keeps that
// names no ProviderConfig any more is what was granted in time, and its blocks say what they said then.
func (w *world) outcome() string {
	if !w.ended && !w.labelled() {
		return "the Cluster names no ProviderConfig"
	}
	var out []string
	for _, c := range listed[*clusterv1.Cluster](w.mgmt, faults.Clusters) {
		out = append(out, fmt.Sprintf("Cluster %v %v %s", c.Finalizers, c.Annotations, conditionsOf(c.GetConditions())))
	}
	total := map[string]int64{}
	for _, a := range w.allocations() {
		total[tenancy.Role(a)] += a.Status.AllocatedCount
		out = append(out, fmt.Sprintf("%s %s %v %s", tenancy.Role(a), a.Status.Phase, a.Finalizers, conditionsOf(a.Status.Conditions)))
	}
	for _, s := range w.services() {
		out = append(out, fmt.Sprintf("Service %s served=%v", s.Name, addressOf(s).IsValid()))
	}
	slices.Sort(out)
	return strings.Join(append(slices.Compact(out), fmt.Sprint("addresses ", total)), "\n")
}

func conditionsOf(all []metav1.Condition) string {
	var out []string
	for _, c := range all {
		if c.Type == v1alpha1.DrainingCondition && c.Status == metav1.ConditionFalse {
			continue // it was drained once, and is not
		}
		out = append(out, fmt.Sprintf("%s=%s/%s", c.Type, c.Status, c.Reason))
	}
	slices.Sort(out)
	return strings.Join(out, " ")
}
