package invariants

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
)

// claim has its name for a UID.
func claim(name string) ipamv1.IPAddressClaim {
	return ipamv1.IPAddressClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID(name)}}
}

// address is what a claim of pool "p" was given.
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

// unowned is made by hand, or has lost its claim.
func unowned(a *ipamv1.IPAddress) { a.OwnerReferences = nil }

// counting is the pool "p" with a status that counts addresses.
func counting(allocated, outOfRange int64, grants ...v1alpha1.Grant) *v1alpha1.NetworkPool {
	return &v1alpha1.NetworkPool{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p"},
		Status: v1alpha1.NetworkPoolStatus{
			AllocatedIPs: allocated, OutOfRangeIPs: outOfRange,
			Allocator: &v1alpha1.AllocatorStatus{InFlight: grants},
		},
	}
}

func global(allocated int64) *v1alpha1.GlobalNetworkPool {
	return &v1alpha1.GlobalNetworkPool{
		ObjectMeta: metav1.ObjectMeta{Name: "p"},
		Status:     v1alpha1.NetworkPoolStatus{AllocatedIPs: allocated},
	}
}
