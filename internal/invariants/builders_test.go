package invariants

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
)

// claim returns a claim whose UID is its name.
func claim(name string) ipamv1.IPAddressClaim {
	return ipamv1.IPAddressClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID(name)}}
}

// address returns the IPAddress that a claim of pool "p" was granted.
func address(claim, ip string, edits ...func(*ipamv1.IPAddress)) ipamv1.IPAddress {
	a := ipamv1.IPAddress{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "ns", Name: claim,
			OwnerReferences: []metav1.OwnerReference{
				{Kind: v1alpha1.NetworkPoolKind, Name: "p", UID: "pool"},
				{Kind: "IPAddressClaim", Name: claim, UID: types.UID(claim)},
			},
		},
		Spec: ipamv1.IPAddressSpec{
			ClaimRef: ipamv1.IPAddressClaimReference{Name: claim},
			PoolRef:  ipamv1.IPPoolReference{APIGroup: v1alpha1.GroupVersion.Group, Kind: v1alpha1.NetworkPoolKind, Name: "p"},
			Address:  ip,
		},
	}
	for _, edit := range edits {
		edit(&a)
	}
	return a
}

func named(name string) func(*ipamv1.IPAddress) {
	return func(a *ipamv1.IPAddress) { a.Name = name }
}

func inNamespace(namespace string) func(*ipamv1.IPAddress) {
	return func(a *ipamv1.IPAddress) { a.Namespace = namespace }
}

func ofPool(group, kind, name string) func(*ipamv1.IPAddress) {
	return func(a *ipamv1.IPAddress) {
		a.Spec.PoolRef = ipamv1.IPPoolReference{APIGroup: group, Kind: kind, Name: name}
	}
}

func ofGlobal(a *ipamv1.IPAddress) {
	ofPool(v1alpha1.GroupVersion.Group, v1alpha1.GlobalNetworkPoolKind, "p")(a)
}

// withoutOwners makes an IPAddress one that a user created, or that has lost its claim.
func withoutOwners(a *ipamv1.IPAddress) { a.OwnerReferences = nil }

// counting returns the pool "p" with a status that counts addresses.
func counting(allocated, outOfRange int64, grants ...v1alpha1.Grant) *v1alpha1.NetworkPool {
	return &v1alpha1.NetworkPool{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p"},
		Status: v1alpha1.NetworkPoolStatus{
			AllocatedIPs: allocated, OutOfRangeIPs: outOfRange,
			Allocator: &v1alpha1.AllocatorStatus{InFlight: grants},
		},
	}
}

// ending returns a pool that is being deleted, with the finalizer that keeps it.
func ending(p *v1alpha1.NetworkPool, finalizer string) *v1alpha1.NetworkPool {
	p.DeletionTimestamp, p.Finalizers = ptr.To(metav1.Now()), []string{finalizer}
	return p
}

// keptMetadata returns the metadata of a deleted object that was released, and that the finalizer of another
// controller keeps.
func keptMetadata(name, record string) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Namespace: "ns", Name: name, UID: types.UID(name), DeletionTimestamp: ptr.To(metav1.Now()), Finalizers: []string{"example.com/kept"},
		Annotations: map[string]string{v1alpha1.AddressAnnotation: record},
	}
}

// keptAllocation returns an allocation of the pool "p" with keptMetadata, keptLease a lease.
func keptAllocation(name, cidr string) v1alpha1.IPAllocation {
	return v1alpha1.IPAllocation{
		ObjectMeta: keptMetadata(name, cidr), Spec: v1alpha1.IPAllocationSpec{PoolRef: v1alpha1.PoolReference{Name: "p"}},
		Status: v1alpha1.IPAllocationStatus{Phase: v1alpha1.AllocationReleased, CIDR: cidr},
	}
}

func keptLease(name, address string) v1alpha1.IPLease {
	return v1alpha1.IPLease{
		ObjectMeta: keptMetadata(name, address), Spec: v1alpha1.IPLeaseSpec{PoolRef: v1alpha1.PoolReference{Name: "p"}},
		Status: v1alpha1.IPLeaseStatus{Address: address},
	}
}

func global(allocated int64) *v1alpha1.GlobalNetworkPool {
	return &v1alpha1.GlobalNetworkPool{
		ObjectMeta: metav1.ObjectMeta{Name: "p"},
		Status:     v1alpha1.NetworkPoolStatus{AllocatedIPs: allocated},
	}
}
