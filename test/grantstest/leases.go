package grantstest

import (
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/grants"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/kinds/leases"
)

// WithAnnounced sets the condition Announced of a lease.
func WithAnnounced(status metav1.ConditionStatus, reason string) func(*v1alpha1.IPLease) {
	return func(o *v1alpha1.IPLease) {
		meta.SetStatusCondition(&o.Status.Conditions, metav1.Condition{Type: v1alpha1.AnnouncedCondition, Status: status, Reason: reason})
	}
}

// WithLeaseDeletion marks a lease as being deleted.
func WithLeaseDeletion(o *v1alpha1.IPLease) { o.DeletionTimestamp = ptr.To(metav1.NewTime(Noon)) }

// ObserveLease feeds an IPLease to a pool.
func ObserveLease(p *grants.PoolState, name string, change ...func(*v1alpha1.IPLease)) *grants.Claimant {
	o := &v1alpha1.IPLease{ObjectMeta: metav1.ObjectMeta{
		Namespace: "ns", Name: name, UID: types.UID("uid-" + name), ResourceVersion: "1", Generation: 1, CreationTimestamp: metav1.NewTime(Noon),
	}}
	o.Spec.PoolRef = v1alpha1.PoolReference{Name: PoolKey.Name}
	for _, f := range change {
		f(o)
	}
	p.ObserveClaimant(leases.ClaimantKind.NewClaimant(o))
	return p.Claimants.ByUID[o.UID]
}

// WithLeasedAddress sets an address in the record and in the status of a lease.
func WithLeasedAddress(address string) func(*v1alpha1.IPLease) {
	return func(o *v1alpha1.IPLease) {
		o.Annotations, o.Finalizers = map[string]string{v1alpha1.AddressAnnotation: address}, []string{v1alpha1.IPLeaseFinalizer}
		o.Status.Address = address
	}
}

// WithLeaseAddress requests an address for a lease.
func WithLeaseAddress(address string) func(*v1alpha1.IPLease) {
	return func(o *v1alpha1.IPLease) { o.Spec.Address = address }
}

// WithShownAddress sets the address in the status of a lease.
func WithShownAddress(address string) func(*v1alpha1.IPLease) {
	return func(o *v1alpha1.IPLease) { o.Status.Address = address }
}
