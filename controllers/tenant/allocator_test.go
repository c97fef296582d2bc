package tenant

import (
	"fmt"
	"slices"

	"go4.org/netipx"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/poolutil"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/faults"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/sim"
)

// allocated returns the next step of the allocator. It is a minimal substitute for internal/allocator, whose faults are
// enumerated in its own package: it records before it shows, as the real one does, grants at once what is released,
// takes the lowest addresses, and collects the blocks of a Cluster that is gone.
func allocated(w *world) *sim.Step {
	var held []netipx.IPRange
	for _, a := range w.allocations() {
		if r, ok := allocatedRange(a); ok {
			held = append(held, r)
		}
	}
	for _, a := range w.allocations() {
		r, ok := allocatedRange(a)
		switch {
		case a.DeletionTimestamp != nil && slices.Equal(a.Finalizers, []string{v1alpha1.IPAllocationFinalizer}):
			return w.allocates(a, "releases", false, func(a *v1alpha1.IPAllocation) { a.Finalizers = nil })
		case a.DeletionTimestamp != nil:
		case len(w.mgmt.List(faults.Clusters)) == 0:
			return &sim.Step{Class: allocating, Text: "the allocator collects " + a.Name, Run: func() {
				w.writeByHand("the allocator collects "+a.Name, func() error { return w.mgmt.Delete(faults.RefForObject(a), false) })
			}}
		case !ok:
			p := w.pool(a.Spec.PoolRef.Name)
			if p == nil || closedBy(p) != "" {
				continue
			}
			if free := firstFit(p.Spec.Addresses, held, int64(*a.Spec.Count)); free.IsValid() {
				return w.allocates(a, "grants", false, func(a *v1alpha1.IPAllocation) {
					a.Finalizers = append(a.Finalizers, v1alpha1.IPAllocationFinalizer)
					metav1.SetMetaDataAnnotation(&a.ObjectMeta, v1alpha1.AddressAnnotation, poolutil.FormatRange(free))
				})
			}
			if a.Status.Phase != v1alpha1.AllocationFailed {
				return w.allocates(a, "refuses", true, func(a *v1alpha1.IPAllocation) {
					a.Status.Phase = v1alpha1.AllocationFailed
					meta.SetStatusCondition(&a.Status.Conditions, metav1.Condition{Type: v1alpha1.ReadyCondition, Status: metav1.ConditionFalse, Reason: v1alpha1.PoolExhaustedReason})
				})
			}
		case a.Status.Phase != v1alpha1.AllocationAllocated:
			return w.allocates(a, "shows", true, func(a *v1alpha1.IPAllocation) {
				s := &a.Status
				s.Phase, s.CIDR, s.AllocatedCount = v1alpha1.AllocationAllocated, poolutil.FormatRange(r), poolutil.Size(r)
				s.StartAddress, s.EndAddress = r.From().String(), r.To().String()
				meta.SetStatusCondition(&s.Conditions, metav1.Condition{Type: v1alpha1.ReadyCondition, Status: metav1.ConditionTrue, Reason: v1alpha1.ReadyReason})
			})
		}
	}
	for _, p := range w.pools() {
		if s := countAddresses(w, p, held); s != nil {
			return s
		}
	}
	return nil
}

// closedBy returns why a pool grants nothing; empty if it grants.
func closedBy(p *v1alpha1.NetworkPool) string {
	if p.DeletionTimestamp != nil {
		return v1alpha1.DeletingReason
	}
	return p.Annotations[closedAnnotation]
}

// closedAnnotation represents what closes a pool: another one that has its addresses, or an invalid spec.
const closedAnnotation = "closed"

// countAddresses updates the counts of a pool, and whether it grants anything.
func countAddresses(w *world, p *v1alpha1.NetworkPool, held []netipx.IPRange) *sim.Step {
	status := p.Status
	status.AllocatedIPs, status.LargestFreeBlock, status.AvailableIPs = 0, 0, 0
	for _, r := range held {
		if slices.ContainsFunc(p.Spec.Addresses, func(text string) bool { return netipx.MustParseIPRange(text).Overlaps(r) }) {
			status.AllocatedIPs += poolutil.Size(r)
		}
	}
	for n := int64(1); firstFit(p.Spec.Addresses, held, n).IsValid(); n++ {
		status.LargestFreeBlock = n
	}
	for _, text := range p.Spec.Addresses {
		status.AvailableIPs += poolutil.Size(netipx.MustParseIPRange(text))
	}
	status.AvailableIPs -= status.AllocatedIPs
	ready := metav1.Condition{Type: v1alpha1.ReadyCondition, Status: metav1.ConditionTrue, Reason: v1alpha1.ReadyReason}
	if why := closedBy(p); why != "" {
		ready.Status, ready.Reason = metav1.ConditionFalse, why
	}
	was := meta.FindStatusCondition(p.Status.Conditions, v1alpha1.ReadyCondition)
	if status.AllocatedIPs == p.Status.AllocatedIPs && status.LargestFreeBlock == p.Status.LargestFreeBlock && was != nil && was.Reason == ready.Reason {
		return nil
	}
	return &sim.Step{Class: allocating, Text: "the allocator counts", Run: func() {
		w.management("the allocator counts", func() error {
			return faults.EditStatus(w.mgmt, faults.RefForObject(p), func(p *v1alpha1.NetworkPool) {
				p.Status = status
				meta.SetStatusCondition(&p.Status.Conditions, ready)
			})
		})
	}}
}

func (w *world) allocates(a *v1alpha1.IPAllocation, verb string, status bool, change func(*v1alpha1.IPAllocation)) *sim.Step {
	text := fmt.Sprintf("the allocator %s %s", verb, a.Name)
	edit := w.mgmt.EditObject
	if status {
		edit = w.mgmt.EditStatus
	}
	return &sim.Step{Class: allocating, Text: text, Run: func() {
		w.management(text, func() error {
			return edit(faults.RefForObject(a), func(o client.Object) {
				if a, ok := o.(*v1alpha1.IPAllocation); ok {
					change(a)
				}
			})
		})
	}}
}

// allocatedRange returns what an allocation has, until it is gone.
func allocatedRange(a *v1alpha1.IPAllocation) (netipx.IPRange, bool) {
	r, err := poolutil.ParseRange(a.Annotations[v1alpha1.AddressAnnotation])
	return r, err == nil && slices.Contains(a.Finalizers, v1alpha1.IPAllocationFinalizer)
}

// firstFit returns the first n addresses in a row that are not held.
func firstFit(ranges []string, held []netipx.IPRange, n int64) netipx.IPRange {
	for _, text := range ranges {
		all := netipx.MustParseIPRange(text)
		for from := all.From(); all.Contains(from); from = from.Next() {
			to := from
			for range n - 1 {
				to = to.Next()
			}
			if r := netipx.IPRangeFrom(from, to); all.Contains(to) && !slices.ContainsFunc(held, r.Overlaps) {
				return r
			}
		}
	}
	return netipx.IPRange{}
}
