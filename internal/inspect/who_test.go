package inspect

import (
	"net/netip"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/allocator"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/incluster"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"
)

// TestDescribeAddressOfMirroredPool checks that an address of a pool of the in-cluster provider is listed once: in its
// mirror, where there is one.
func TestDescribeAddressOfMirroredPool(t *testing.T) {
	mirror := &v1alpha1.NetworkPool{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: incluster.PoolKinds[0].MirrorName("p"), UID: "mirror"},
		Spec:       v1alpha1.NetworkPoolSpec{CIDR: "10.0.0.0/24"},
	}
	address := ipamv1.IPAddress{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "c", UID: "address"}, Spec: ipamv1.IPAddressSpec{
		Address: "10.0.0.5", ClaimRef: ipamv1.IPAddressClaimReference{Name: "c"},
		PoolRef: ipamv1.IPPoolReference{APIGroup: incluster.GroupVersion.Group, Kind: incluster.IPPoolKind, Name: "p"},
	}}
	for name, tc := range map[string]struct {
		pools  []v1alpha1.Pool
		detail string
	}{
		"Mirrored": {pools: []v1alpha1.Pool{mirror}},
		"Alone":    {detail: "the pool belongs to another provider"},
	} {
		t.Run(name, func(t *testing.T) {
			got := DescribeAddress(pools.Objects{Pools: tc.pools, Addresses: []ipamv1.IPAddress{address}}, netip.MustParsePrefix("10.0.0.5/32"))
			if len(got) != 1 || got[0].State != StateUsed || got[0].Detail != tc.detail {
				t.Errorf("it is listed as %+v", got)
			}
		})
	}
}

// poolOfTwo returns a pool with two IPAddresses.
func poolOfTwo() (o pools.Objects) {
	o.Pools = []v1alpha1.Pool{&v1alpha1.NetworkPool{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p", UID: "pool"}, Spec: v1alpha1.NetworkPoolSpec{CIDR: "10.0.0.0/24"},
	}}
	for name, text := range map[string]string{"a": "10.0.0.5", "b": "10.0.0.6"} {
		o.Addresses = append(o.Addresses, ipamv1.IPAddress{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID(name)},
			Spec: ipamv1.IPAddressSpec{
				Address: text, ClaimRef: ipamv1.IPAddressClaimReference{Name: name},
				PoolRef: ipamv1.IPPoolReference{APIGroup: v1alpha1.GroupVersion.Group, Kind: v1alpha1.NetworkPoolKind, Name: "p"},
			},
		})
	}
	return o
}

// TestDescribeAddressOfDeletedIPAddress checks that an IPAddress that a user deleted while its claim lives is reported
// as such, even if nothing else happens for years.
func TestDescribeAddressOfDeletedIPAddress(t *testing.T) {
	const kept = "IPAddress ns/a was deleted, and stays as long as the claim: the finalizer ipam.cluster.x-k8s.io/ProtectAddress keeps it"
	gone := ptr.To(metav1.Unix(1, 0))
	for name, tc := range map[string]struct {
		address, claim *metav1.Time
		detail         string
	}{
		"neither is deleted":         {},
		"the IPAddress is deleted":   {address: gone, detail: kept},
		"it ends with its claim":     {address: gone, claim: gone},
		"the claim ends before that": {claim: gone},
	} {
		t.Run(name, func(t *testing.T) {
			o := poolOfTwo()
			for i := range o.Addresses {
				a := &o.Addresses[i]
				a.OwnerReferences = []metav1.OwnerReference{{Kind: "IPAddressClaim", Name: a.Name, UID: "claim-" + types.UID(a.Name)}}
				if a.Name == "a" {
					a.DeletionTimestamp = tc.address
				}
			}
			o.Claims = []ipamv1.IPAddressClaim{{
				ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "a", UID: "claim-a", DeletionTimestamp: tc.claim, Finalizers: []string{v1alpha1.ClaimFinalizer}},
				Spec:       ipamv1.IPAddressClaimSpec{PoolRef: o.Addresses[0].Spec.PoolRef},
			}}
			got := DescribeAddress(o, netip.MustParsePrefix("10.0.0.5/32"))
			if len(got) != 1 || got[0].State != StateUsed || got[0].Detail != tc.detail {
				t.Errorf("it is listed as %+v", got)
			}
		})
	}
}

// TestDescribeAddressOnRecordOfTwoClaims checks that a claim with an address on record that another claim has, as after
// a move or a copy, is named and holds nothing.
func TestDescribeAddressOnRecordOfTwoClaims(t *testing.T) {
	o := poolOfTwo()
	for _, name := range []string{"a", "left"} {
		o.Claims = append(o.Claims, ipamv1.IPAddressClaim{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: "ns", Name: name, UID: types.UID("claim-" + name),
				Annotations: map[string]string{v1alpha1.AddressAnnotation: "10.0.0.5"},
			},
			Spec: ipamv1.IPAddressClaimSpec{PoolRef: o.Addresses[0].Spec.PoolRef},
		})
	}
	for i := range o.Addresses {
		a := &o.Addresses[i]
		a.OwnerReferences = []metav1.OwnerReference{{Kind: "IPAddressClaim", Name: a.Name, UID: "claim-" + types.UID(a.Name)}}
	}
	got := DescribeAddress(o, netip.MustParsePrefix("10.0.0.5/32"))
	if len(got) != 1 || len(got[0].Holders) != 1 || got[0].Holders[0].Name != "a" || got[0].State != StateUsed {
		t.Fatalf("it is listed as %+v", got)
	}
	if want := "IPAddressClaim ns/left remembers it too, and is refused it; find out which of them uses it, and delete the other"; got[0].Detail != want {
		t.Errorf("it says %q, not %q", got[0].Detail, want)
	}
	// Without an IPAddress it is not decidable which claim has the address.
	o.Addresses = nil
	if got := DescribeAddress(o, netip.MustParsePrefix("10.0.0.5/32")); len(got) != 1 || len(got[0].Holders) != 2 {
		t.Errorf("without an IPAddress it is listed as %+v", got)
	}
}

// TestDescribeAddressOfDisownedIPAddress checks that an IPAddress whose owner references do not name its claim counts
// as that of the claim of its name: the garbage collector removes a claim that is deleted in the foreground from the
// owners of its IPAddress, and a restore gives claims new UIDs. There is no second claim that could be deleted.
func TestDescribeAddressOfDisownedIPAddress(t *testing.T) {
	pool := metav1.OwnerReference{APIVersion: v1alpha1.GroupVersion.String(), Kind: v1alpha1.NetworkPoolKind, Name: "p", UID: "pool"}
	before := metav1.OwnerReference{APIVersion: ipamv1.GroupVersion.String(), Kind: "IPAddressClaim", Name: "a", UID: "before"}
	for name, tc := range map[string]struct {
		owners  []metav1.OwnerReference
		deleted *metav1.Time
	}{
		"its claim is deleted in the foreground": {owners: []metav1.OwnerReference{pool}, deleted: ptr.To(metav1.Unix(1, 0))},
		"its claim lives":                        {owners: []metav1.OwnerReference{pool}},
		"its claim was restored":                 {owners: []metav1.OwnerReference{pool, before}},
	} {
		t.Run(name, func(t *testing.T) {
			o := poolOfTwo()
			for i := range o.Addresses {
				o.Addresses[i].OwnerReferences, o.Addresses[i].Finalizers = tc.owners, []string{v1alpha1.AddressFinalizer}
			}
			o.Claims = []ipamv1.IPAddressClaim{{
				ObjectMeta: metav1.ObjectMeta{
					Namespace: "ns", Name: "a", UID: "claim-a", DeletionTimestamp: tc.deleted, Finalizers: []string{v1alpha1.ClaimFinalizer},
					Annotations: map[string]string{v1alpha1.AddressAnnotation: "10.0.0.5"},
				},
				Spec: ipamv1.IPAddressClaimSpec{PoolRef: o.Addresses[0].Spec.PoolRef},
			}}
			got := DescribeAddress(o, netip.MustParsePrefix("10.0.0.5/32"))
			if len(got) != 1 || len(got[0].Holders) != 1 || got[0].Holders[0].Kind != "IPAddressClaim" || got[0].State != StateUsed || got[0].Detail != "" {
				t.Errorf("it is listed as %+v", got)
			}
		})
	}
}

// TestDescribeAddressOfGonePool checks that an address of a pool that does not exist is in use if an IPAddress, a block
// or a lease has it.
func TestDescribeAddressOfGonePool(t *testing.T) {
	o := poolOfTwo()
	o.Pools = nil
	o.Addresses[0].Spec.Address, o.Addresses[1].Spec.Address = "10.0.0.5", "10.0.0.6"
	o.Addresses[1].Spec.PoolRef.Kind = "Networkpool"
	block := v1alpha1.IPAllocation{ObjectMeta: metav1.ObjectMeta{
		Namespace: "ns", Name: "lb", UID: "lb", Finalizers: []string{v1alpha1.IPAllocationFinalizer}, Annotations: map[string]string{v1alpha1.AddressAnnotation: "10.0.0.7-10.0.0.9"},
	}}
	block.Spec.PoolRef.Name = "p"
	o.Allocations = append(o.Allocations, block)
	lease := v1alpha1.IPLease{ObjectMeta: metav1.ObjectMeta{
		Namespace: "ns", Name: "web", UID: "web", Finalizers: []string{v1alpha1.IPLeaseFinalizer}, Annotations: map[string]string{v1alpha1.AddressAnnotation: "10.0.0.10"},
	}}
	lease.Spec.PoolRef = v1alpha1.PoolReference{Kind: v1alpha1.GlobalNetworkPoolKind, Name: "g"}
	o.Leases = append(o.Leases, lease)
	for asked, want := range map[string]string{
		"10.0.0.5/32":  "NetworkPool ns/p IPAddress " + o.Addresses[0].Name,
		"10.0.0.6/32":  "Networkpool p IPAddress " + o.Addresses[1].Name,
		"10.0.0.8/32":  "NetworkPool ns/p IPAllocation lb",
		"10.0.0.10/32": "GlobalNetworkPool g IPLease web",
	} {
		t.Run(asked, func(t *testing.T) {
			got := DescribeAddress(o, netip.MustParsePrefix(asked))
			if len(got) != 1 || got[0].State != StateUsed || got[0].Detail != poolMissingDetail {
				t.Fatalf("it is listed as %+v", got)
			}
			if first := got[0].Pool + " " + got[0].Holders[0].Kind + " " + got[0].Holders[0].Name; first != want {
				t.Errorf("it is of %s, not %s", first, want)
			}
		})
	}
	if got := DescribeAddress(o, netip.MustParsePrefix("10.0.0.11/32")); len(got) != 0 {
		t.Errorf("an address without a user is listed as %+v", got)
	}
}

// TestDescribeUnusedAddress checks that an address which no object has is not reported as free where its pool grants
// nothing, and that a gateway is named even where the pool does not declare its address.
func TestDescribeUnusedAddress(t *testing.T) {
	pool := func(status metav1.ConditionStatus) *v1alpha1.NetworkPool {
		return &v1alpha1.NetworkPool{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p", UID: "pool"},
			Spec:       v1alpha1.NetworkPoolSpec{Addresses: []string{"10.0.0.10-10.0.0.20"}, Gateway: "10.0.0.1", Prefix: ptr.To[int32](24)},
			Status: v1alpha1.NetworkPoolStatus{Conditions: []metav1.Condition{
				{Type: v1alpha1.ReadyCondition, Status: status, Reason: v1alpha1.OverlapReason, Message: "m"},
			}},
		}
	}
	for name, tc := range map[string]struct {
		status        metav1.ConditionStatus
		asked         string
		state, detail string
	}{
		"Free":       {metav1.ConditionTrue, "10.0.0.12/32", StateFree, ""},
		"Closed":     {metav1.ConditionFalse, "10.0.0.12/32", StateNotGranted, "no object has it, and the pool grants nothing now (Overlap): m"},
		"AllClosed":  {metav1.ConditionFalse, "10.0.0.12/30", StateNotGranted, "no object has any of it, and the pool grants nothing now (Overlap): m"},
		"ItsGateway": {metav1.ConditionTrue, "10.0.0.1/32", StateReserved, "the gateway (spec.gateway)"},
		"Outside":    {metav1.ConditionTrue, "10.0.0.2/32", "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			got := DescribeAddress(pools.Objects{Pools: []v1alpha1.Pool{pool(tc.status)}}, netip.MustParsePrefix(tc.asked))
			if tc.state == "" && len(got) == 0 {
				return
			}
			if len(got) != 1 || got[0].State != tc.state || got[0].Detail != tc.detail {
				t.Errorf("it is listed as %+v", got)
			}
		})
	}
}

// TestDescribeAddressKeptByAnotherPool checks that an address that a claim keeps of a narrowed pool is not free in
// another pool of the network, which does not grant it.
func TestDescribeAddressKeptByAnotherPool(t *testing.T) {
	o := poolOfTwo()
	o.Pools[0].PoolSpec().CIDR = "10.9.0.0/24"
	o.Pools = append(o.Pools, &v1alpha1.NetworkPool{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "next", UID: "next", CreationTimestamp: metav1.Unix(1, 0)}, Spec: v1alpha1.NetworkPoolSpec{CIDR: "10.0.0.0/24"},
	})
	got := DescribeAddress(o, netip.MustParsePrefix("10.0.0.5/32"))
	if len(got) != 2 || got[0].State != StateUsed || got[1].State != StateShared || got[1].Detail != "NetworkPool ns/p has it too, or may give it: this pool does not give it meanwhile" {
		t.Errorf("it is listed as %+v", got)
	}
	v := allocator.NewSnapshots(&o).ForPool(pools.KeyForPool(o.Pools[1]))
	if n := v.Counts().Available; n != 252 {
		t.Errorf("%d addresses are free, not 252", n)
	}
}
