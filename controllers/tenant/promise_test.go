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

func (w *world) services() []*corev1.Service { return faults.ListObjects[*corev1.Service](w.work) }

func (w *world) allocations() []*v1alpha1.IPAllocation {
	return faults.ListObjects[*v1alpha1.IPAllocation](w.mgmt)
}

func (w *world) pools() []*v1alpha1.NetworkPool {
	return faults.ListObjects[*v1alpha1.NetworkPool](w.mgmt)
}

// pool returns the pool of a name, nil if there is none.
func (w *world) pool(name string) *v1alpha1.NetworkPool {
	for _, p := range w.pools() {
		if p.Name == name {
			return p
		}
	}
	return nil
}

// shownRanges returns the ranges of each pool in the workload cluster.
func (w *world) shownRanges() (out [][]string) {
	for _, p := range faults.ListObjects[*metallbv1beta1.IPAddressPool](w.work) {
		out = append(out, p.Spec.Addresses)
	}
	for _, p := range faults.ListObjects[*cilium.Pool](w.work) {
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
	for _, text := range w.history.CheckMoment(w.objects()) {
		w.Failf("%s", text)
	}
	var held []netipx.IPRange
	total := int64(0)
	for _, a := range w.allocations() {
		if r, ok := allocatedRange(a); ok {
			held = append(held, r)
		}
		if a.Status.Phase != v1alpha1.AllocationFailed {
			total += int64(*a.Spec.Count)
		}
	}
	for _, p := range w.pools() {
		for _, h := range p.Status.Held { // nor are held addresses granted to others
			held = append(held, netipx.IPRangeFrom(netip.MustParseAddr(h.First), netip.MustParseAddr(h.Last)))
		}
	}
	if w.quota > 0 && total > w.quota {
		w.Failf("the Cluster has, or asks for, %d addresses; its quota is %d", total, w.quota)
	}
	if w.ended {
		return // nothing runs there
	}
	// What no IPAllocation has may belong to another Cluster at once.
	covered := func(r netipx.IPRange) bool {
		return slices.ContainsFunc(held, func(h netipx.IPRange) bool { return h.Contains(r.From()) && h.Contains(r.To()) })
	}
	for _, s := range w.services() {
		if a := addressOf(s); a.IsValid() && !covered(netipx.IPRangeFrom(a, a)) {
			w.Failf("Service %s has %s, which was released", s.Name, a)
		}
	}
	for _, p := range w.lb.loadedPools() {
		for _, r := range p.ranges {
			if !covered(r) {
				w.Failf("the load balancer works with %s of %s, which was released", r, p.name)
			}
		}
	}
}

// hasConfigLabel reports whether the Cluster names a ProviderConfig: one that does not gets nothing more.
func (w *world) hasConfigLabel() bool {
	return slices.ContainsFunc(faults.ListObjects[*clusterv1.Cluster](w.mgmt), func(c *clusterv1.Cluster) bool {
		return c.Labels[v1alpha1.ProviderConfigLabel] != ""
	})
}

// reportsRemaining reports whether a condition of the Cluster shows that it keeps IPAllocations.
func (w *world) reportsRemaining() bool {
	return slices.ContainsFunc(faults.ListObjects[*clusterv1.Cluster](w.mgmt), func(c *clusterv1.Cluster) bool {
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

// examine checks the end: every Service that can be served is, nothing unused is kept, and the load balancer has the
// existing blocks.
func (w *world) examine() {
	for _, text := range w.history.CheckAtRest(w.objects()) {
		w.Failf("%s", text)
	}
	var shown []string
	var blocks []netipx.IPRange
	room, unshown := w.quota, false
	for _, a := range w.allocations() {
		r, ok := allocatedRange(a)
		switch {
		case a.DeletionTimestamp != nil:
			w.Failf("%s is still being deleted", a.Name)
		case !ok && !w.hasConfigLabel():
			w.Failf("%s is asked for still, for a Cluster that gets nothing more", a.Name)
		case !ok && a.Status.Phase != v1alpha1.AllocationFailed:
			w.Failf("%s is still waiting", a.Name)
		case tenancy.IsDrainingOrDeleting(a):
			w.Failf("%s is still draining", a.Name)
		case ok && !tenancy.IsProjected(a) && w.hasConfigLabel():
			w.Failf("%s is not shown, and was never to be", a.Name)
		}
		if !ok {
			continue
		}
		room -= a.Status.AllocatedCount
		if !w.hasConfigLabel() && !tenancy.IsProjected(a) {
			unshown = true // it was granted before the label was gone, and the workload cluster is not read any more
			continue
		}
		blocks = append(blocks, r)
		shown = append(shown, r.String())
		if tenancy.RoleForAllocation(a) == v1alpha1.GrowthRole && !slices.ContainsFunc(w.services(), func(s *corev1.Service) bool { return r.Contains(addressOf(s)) }) {
			w.Failf("%s is kept, and no Service uses it", a.Name)
		}
	}
	if unshown && !w.reportsRemaining() {
		w.Failf("the Cluster keeps a block, and does not say so")
	}
	if w.ended {
		if len(w.allocations())+len(w.mgmt.List(faults.Clusters)) > 0 {
			w.Failf("the Cluster is gone, and left %s", w.outcome())
		}
		return
	}
	var current []string
	for _, ranges := range w.shownRanges() {
		current = append(current, ranges...)
	}
	slices.Sort(current)
	slices.Sort(shown)
	if !slices.Equal(current, shown) {
		w.Failf("the load balancer is shown %v, not %v", current, shown)
	}
	waiting := 0
	used := map[netip.Addr]bool{}
	for _, s := range w.services() {
		a := addressOf(s)
		if !a.IsValid() {
			waiting++
		} else if used[a] || !slices.ContainsFunc(blocks, func(r netipx.IPRange) bool { return r.Contains(a) }) {
			w.Failf("Service %s has %s, which it shares or which is in no block", s.Name, a)
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
	if waiting > 0 && !full && w.hasConfigLabel() {
		w.Failf("%d Services have no address, and there is room", waiting)
	}
}

// outcome is the result of a run, whichever addresses and moments it chose, and in however many blocks. What a Cluster
// keeps that names no ProviderConfig any more is what was granted in time, and its blocks have the conditions of then.
func (w *world) outcome() string {
	if !w.ended && !w.hasConfigLabel() {
		return "the Cluster names no ProviderConfig"
	}
	var out []string
	for _, c := range faults.ListObjects[*clusterv1.Cluster](w.mgmt) {
		out = append(out, fmt.Sprintf("Cluster %v %v %s", c.Finalizers, c.Annotations, conditionsOf(c.GetConditions())))
	}
	total := map[string]int64{}
	for _, a := range w.allocations() {
		total[tenancy.RoleForAllocation(a)] += a.Status.AllocatedCount
		out = append(out, fmt.Sprintf("%s %s %v %s", tenancy.RoleForAllocation(a), a.Status.Phase, a.Finalizers, conditionsOf(a.Status.Conditions)))
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
			continue // it was drained once, and is not any more
		}
		out = append(out, fmt.Sprintf("%s=%s/%s", c.Type, c.Status, c.Reason))
	}
	slices.Sort(out)
	return strings.Join(out, " ")
}
