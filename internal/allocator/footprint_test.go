package allocator

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"runtime"
	"runtime/debug"
	"slices"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/uuid"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/kinds/claims"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/grantstest"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/sim"
)

// mostBytes is the limit of the bytes that may be remembered of a claim that has its address, and of its IPAddress: the
// measured size, which docs/performance.md and the limits of config/manager rely on, plus a fifth.
const mostBytes = 1440 * 6 / 5

func BenchmarkFootprint(b *testing.B) {
	for b.Loop() {
		b.ReportMetric(footprint(b, 50_000), "B/claim")
	}
}

// TestMemoryPerClaimIsBounded checks that the memory of the manager does not grow unnoticed (W17).
func TestMemoryPerClaimIsBounded(t *testing.T) {
	if info, ok := debug.ReadBuildInfo(); ok && slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"}) {
		t.Skip("the race detector remembers more")
	}
	if perClaim := footprint(t, 10_000); perClaim > mostBytes {
		t.Errorf("%.0f bytes are remembered of each claim, and %d at most were", perClaim, mostBytes)
	}
}

// footprint returns the bytes that are remembered of each of n claims and of its IPAddress.
func footprint(tb testing.TB, n int) float64 {
	tb.Helper()
	before := sim.HeapInUse()
	a := newAllocatorWith(grantstest.NewPoolWithClaims(tb, 0))
	ip := netip.MustParseAddr("10.0.0.1")
	for i := range n {
		claim, addr := servedClaim(i, ip)
		a.ObserveObject(decoded(tb, claim))
		a.ObserveObject(decoded(tb, addr))
		ip = ip.Next()
	}
	perClaim := float64(sim.HeapInUse()-before) / float64(n)
	runtime.KeepAlive(a)
	return perClaim
}

// decoded returns an object as it is decoded from an answer of the API server: no two of its strings share memory.
func decoded[T any](tb testing.TB, o *T) *T {
	tb.Helper()
	text, err := json.Marshal(o)
	if err != nil {
		tb.Fatal(err)
	}
	out := new(T)
	if err := json.Unmarshal(text, out); err != nil {
		tb.Fatal(err)
	}
	return out
}

// servedClaim returns a claim of the fleet and its IPAddress.
func servedClaim(i int, ip netip.Addr) (*ipamv1.IPAddressClaim, *ipamv1.IPAddress) {
	claim := &ipamv1.IPAddressClaim{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "ns", Name: fmt.Sprintf("cluster-7-md-0-%05d-eth0", i), UID: uuid.NewUUID(), ResourceVersion: fmt.Sprint(100000 + i),
			CreationTimestamp: metav1.NewTime(grantstest.Noon), Annotations: map[string]string{v1alpha1.AddressAnnotation: ip.String()},
			Labels: map[string]string{clusterv1.ClusterNameLabel: "cluster-7"}, Finalizers: []string{v1alpha1.ClaimFinalizer},
		},
		Spec: ipamv1.IPAddressClaimSpec{PoolRef: grantstest.PoolKey.PoolReference(), ClusterName: "cluster-7"},
	}
	claim.Status.AddressRef.Name = claim.Name
	claim.Status.Conditions = []metav1.Condition{{Type: ipamv1.IPAddressClaimReadyCondition, Status: metav1.ConditionTrue}}
	claim.SetV1Beta1Conditions(clusterv1.Conditions{{Type: clusterv1.ReadyV1Beta1Condition, Status: "True"}})
	addr := &ipamv1.IPAddress{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "ns", Name: claim.Name, UID: uuid.NewUUID(), ResourceVersion: fmt.Sprint(200000 + i), Finalizers: []string{v1alpha1.AddressFinalizer},
			OwnerReferences: []metav1.OwnerReference{
				{Kind: claims.IPAddressClaimKind, Name: claim.Name, UID: claim.UID}, {APIVersion: v1alpha1.GroupVersion.String(), Kind: grantstest.PoolKey.Kind, Name: grantstest.PoolKey.Name, UID: "pool-uid"},
			},
		},
		Spec: ipamv1.IPAddressSpec{Address: ip.String(), PoolRef: grantstest.PoolKey.PoolReference(), ClaimRef: ipamv1.IPAddressClaimReference{Name: claim.Name}},
	}
	return claim, addr
}
