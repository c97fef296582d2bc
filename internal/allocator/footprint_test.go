package allocator

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"runtime"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/uuid"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
)

// What is remembered of a claim that has its address, and of its IPAddress.
func BenchmarkFootprint(b *testing.B) {
	const n = 50_000
	for b.Loop() {
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		a := with(claimed(b, 0))
		ip := netip.MustParseAddr("10.0.0.1")
		for i := range n {
			claim, addr := servedClaim(i, ip)
			a.ObserveClaim(decoded(b, claim))
			a.ObserveAddress(decoded(b, addr))
			ip = ip.Next()
		}
		runtime.GC()
		runtime.ReadMemStats(&after)
		b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/n, "B/claim")
		runtime.KeepAlive(a)
	}
}

// decoded is an object as an answer of the API server makes it: no two of its texts share memory.
func decoded[T any](b *testing.B, o *T) *T {
	b.Helper()
	text, err := json.Marshal(o)
	if err != nil {
		b.Fatal(err)
	}
	out := new(T)
	if err := json.Unmarshal(text, out); err != nil {
		b.Fatal(err)
	}
	return out
}

// servedClaim is a claim of the fleet and its IPAddress.
func servedClaim(i int, ip netip.Addr) (*ipamv1.IPAddressClaim, *ipamv1.IPAddress) {
	claim := &ipamv1.IPAddressClaim{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "ns", Name: fmt.Sprintf("cluster-7-md-0-%05d-eth0", i), UID: uuid.NewUUID(), ResourceVersion: fmt.Sprint(100000 + i),
			CreationTimestamp: metav1.NewTime(noon), Annotations: map[string]string{v1alpha1.AddressAnnotation: ip.String()},
			Labels: map[string]string{clusterv1.ClusterNameLabel: "cluster-7"}, Finalizers: []string{ClaimFinalizer},
		},
		Spec: ipamv1.IPAddressClaimSpec{PoolRef: testKey.ref(), ClusterName: "cluster-7"},
	}
	claim.Status.AddressRef.Name = claim.Name
	claim.Status.Conditions = []metav1.Condition{{Type: ipamv1.IPAddressClaimReadyCondition, Status: metav1.ConditionTrue}}
	claim.SetV1Beta1Conditions(clusterv1.Conditions{{Type: clusterv1.ReadyV1Beta1Condition, Status: "True"}})
	addr := &ipamv1.IPAddress{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "ns", Name: claim.Name, UID: uuid.NewUUID(), ResourceVersion: fmt.Sprint(200000 + i), Finalizers: []string{AddressFinalizer},
			OwnerReferences: []metav1.OwnerReference{
				{Kind: claimKind, Name: claim.Name, UID: claim.UID}, {Kind: testKey.Kind, Name: testKey.Name, UID: "pool-uid"},
			},
		},
		Spec: ipamv1.IPAddressSpec{Address: ip.String(), PoolRef: testKey.ref(), ClaimRef: ipamv1.IPAddressClaimReference{Name: claim.Name}},
	}
	return claim, addr
}
