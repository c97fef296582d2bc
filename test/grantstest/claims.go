package grantstest

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/grants"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/kinds/claims"
)

// WithPoolRef sets the pool that a claim names.
func WithPoolRef(ref ipamv1.IPPoolReference) func(*ipamv1.IPAddressClaim) {
	return func(c *ipamv1.IPAddressClaim) { c.Spec.PoolRef = ref }
}

// MovedAddress returns the IPAddress of a claim, which clusterctl has moved and is deleting.
func MovedAddress(name, address string, change ...func(*ipamv1.IPAddress)) *grants.Address {
	o := &ipamv1.IPAddress{ObjectMeta: metav1.ObjectMeta{
		Namespace: "ns", Name: name, UID: types.UID("address-" + name), ResourceVersion: "7", Finalizers: []string{v1alpha1.AddressFinalizer},
		Annotations: map[string]string{v1alpha1.DeleteForMoveAnnotation: ""}, DeletionTimestamp: &metav1.Time{Time: Noon},
	}}
	o.Spec.ClaimRef.Name, o.Spec.PoolRef, o.Spec.Address = name, PoolKey.PoolReference(), address
	o.OwnerReferences = []metav1.OwnerReference{{APIVersion: ipamv1.GroupVersion.String(), Kind: "IPAddressClaim", Name: name, UID: types.UID("uid-" + name)}}
	for _, f := range change {
		f(o)
	}
	return claims.NewAddress(o)
}

// MarkedAsMoved sets the annotation of an object that clusterctl has moved.
func MarkedAsMoved(c *ipamv1.IPAddressClaim) { c.Annotations[v1alpha1.DeleteForMoveAnnotation] = "" }

// WithUID sets the UID and the resourceVersion of a claim.
func WithUID(u types.UID, version string) func(*ipamv1.IPAddressClaim) {
	return func(c *ipamv1.IPAddressClaim) { c.UID, c.ResourceVersion = u, version }
}

// SetPausedAnnotation pauses an object.
func SetPausedAnnotation(o metav1.Object) {
	o.SetAnnotations(map[string]string{clusterv1.PausedAnnotation: ""})
}

// ObserveClaim feeds a pool a claim that was created so many seconds after noon.
func ObserveClaim(p *grants.PoolState, name string, second int, change ...func(*ipamv1.IPAddressClaim)) *grants.Claimant {
	c := NewClaim(name, second, change...)
	p.ObserveClaimant(claims.NewClaimant(c))
	return p.Claimants.ByUID[c.UID]
}

// NewClaim returns a claim that was created so many seconds after noon.
func NewClaim(name string, second int, change ...func(*ipamv1.IPAddressClaim)) *ipamv1.IPAddressClaim {
	c := &ipamv1.IPAddressClaim{ObjectMeta: metav1.ObjectMeta{
		Namespace: "ns", Name: name, UID: types.UID("uid-" + name), ResourceVersion: "1",
		CreationTimestamp: metav1.NewTime(Noon.Add(time.Duration(second) * time.Second)), Annotations: map[string]string{},
	}}
	c.Spec.PoolRef = PoolKey.PoolReference()
	for _, f := range change {
		f(c)
	}
	return c
}

// WithRecordedAddress sets the record of a claim, and our finalizer.
func WithRecordedAddress(address string) func(*ipamv1.IPAddressClaim) {
	return func(c *ipamv1.IPAddressClaim) {
		c.Annotations[v1alpha1.AddressAnnotation], c.Finalizers = address, []string{v1alpha1.ClaimFinalizer}
	}
}

// WithRequestedAddress requests an address for a claim.
func WithRequestedAddress(address string) func(*ipamv1.IPAddressClaim) {
	return func(c *ipamv1.IPAddressClaim) { c.Annotations[v1alpha1.RequestedAddressAnnotation] = address }
}

// ObserveAddress feeds a pool an IPAddress of a claim UID.
func ObserveAddress(p *grants.PoolState, name, address string, claimUID types.UID) {
	a := &ipamv1.IPAddress{ObjectMeta: metav1.ObjectMeta{
		Namespace: "ns", Name: name, UID: types.UID("address-" + name), ResourceVersion: "1", Finalizers: []string{v1alpha1.AddressFinalizer},
		OwnerReferences: []metav1.OwnerReference{{Kind: claims.IPAddressClaimKind, Name: name, UID: claimUID}},
	}}
	a.Spec = ipamv1.IPAddressSpec{ClaimRef: ipamv1.IPAddressClaimReference{Name: name}, PoolRef: PoolKey.PoolReference(), Address: address}
	p.ObserveAddress(claims.NewAddress(a))
}

// OfCluster sets the Cluster of a claim.
func OfCluster(name string) func(*ipamv1.IPAddressClaim) {
	return func(c *ipamv1.IPAddressClaim) { c.Spec.ClusterName = name }
}

// WithVersion sets the resourceVersion of a claim.
func WithVersion(v string) func(*ipamv1.IPAddressClaim) {
	return func(c *ipamv1.IPAddressClaim) { c.ResourceVersion = v }
}

// WithDeletionTimestamp marks a claim as being deleted.
func WithDeletionTimestamp(c *ipamv1.IPAddressClaim) { c.DeletionTimestamp = &c.CreationTimestamp }

// EndClaim ends a claim and its IPAddress.
func EndClaim(p *grants.PoolState, c *grants.Claimant) {
	p.ForgetAddress("address-"+types.UID(c.Owner.Name), grants.NamespacedNameFromOwner(c.Owner))
	p.ForgetClaimant(c.Owner.UID)
}

// WithReadyStatus sets the status of a served claim, in both generations of conditions.
func WithReadyStatus(c *ipamv1.IPAddressClaim) {
	c.Status.AddressRef.Name = c.Name
	c.Status.Conditions = []metav1.Condition{{Type: ipamv1.IPAddressClaimReadyCondition, Status: metav1.ConditionTrue, Reason: "Allocated"}}
	c.SetV1Beta1Conditions(clusterv1.Conditions{{Type: clusterv1.ReadyV1Beta1Condition, Status: "True"}})
}

// OfMachine makes a claim one of a Machine whose name is its failure domain.
func OfMachine(domain string) func(*ipamv1.IPAddressClaim) {
	return func(c *ipamv1.IPAddressClaim) {
		c.OwnerReferences = []metav1.OwnerReference{{APIVersion: "infrastructure.cluster.x-k8s.io/v1", Kind: "VM", Name: "vm-in-" + domain, UID: types.UID("vm-" + c.Name)}}
	}
}
