package demand

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/tenancy"
)

// epoch is the time at which every test begins.
var epoch = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

var tenant = v1alpha1.ClusterReference{Namespace: "team", Name: "prod"}

type change func(*v1alpha1.IPAllocation)

// newAllocation returns a block of count addresses that is requested from pool a: the first block of the Cluster for
// n = 0, else one that is added on demand.
func newAllocation(n int, count int32, changes ...change) *v1alpha1.IPAllocation {
	a := &v1alpha1.IPAllocation{Spec: v1alpha1.IPAllocationSpec{
		PoolRef: v1alpha1.PoolReference{Name: "a"}, TenantClusterRef: tenant, Type: v1alpha1.LoadBalancerAllocation, Count: &count,
	}}
	a.Name = tenancy.InitialBlockName(tenant)
	if n > 0 {
		a.Name = tenancy.GrowthBlockName(tenant, n)
	}
	a.Labels = map[string]string{v1alpha1.ProviderConfigLabel: "config"}
	a.Status.Phase = v1alpha1.AllocationPending
	for _, c := range changes {
		c(a)
	}
	return a
}

// withRange grants a range.
func withRange(first, last string, count int64) change {
	return func(a *v1alpha1.IPAllocation) {
		s := &a.Status
		s.Phase, s.StartAddress, s.EndAddress, s.AllocatedCount = v1alpha1.AllocationAllocated, first, last, count
	}
}

func from(pool string) change { return func(a *v1alpha1.IPAllocation) { a.Spec.PoolRef.Name = pool } }

func withCondition(kind string, status metav1.ConditionStatus, reason string) change {
	return func(a *v1alpha1.IPAllocation) {
		a.Status.Conditions = append(a.Status.Conditions, metav1.Condition{
			Type: kind, Status: status, Reason: reason, LastTransitionTime: metav1.NewTime(epoch),
		})
	}
}

func failed(a *v1alpha1.IPAllocation) {
	a.Status.Phase = v1alpha1.AllocationFailed
	withCondition(v1alpha1.ReadyCondition, metav1.ConditionFalse, v1alpha1.PoolExhaustedReason)(a)
}

func deleted(a *v1alpha1.IPAllocation) { a.DeletionTimestamp = ptr.To(metav1.NewTime(epoch)) }

func pinned(a *v1alpha1.IPAllocation) {
	a.Spec.PinnedRange = &v1alpha1.PinnedRange{StartAddress: "10.0.0.1", EndAddress: "10.0.0.1"}
}
