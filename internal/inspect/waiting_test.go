package inspect

import (
	"fmt"
	"slices"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"
)

func TestListWaiting(t *testing.T) {
	at := func(name string, second int64) metav1.ObjectMeta {
		return metav1.ObjectMeta{Namespace: "ns", Name: name, CreationTimestamp: metav1.Time{Time: time.Unix(second, 0)}}
	}
	newCondition := func(condition string, status metav1.ConditionStatus, reason string) metav1.Condition {
		return metav1.Condition{Type: condition, Status: status, Reason: reason, Message: "m"}
	}
	claim := func(name string, second int64, group, kind string, conditions ...metav1.Condition) ipamv1.IPAddressClaim {
		return ipamv1.IPAddressClaim{
			ObjectMeta: at(name, second), Spec: ipamv1.IPAddressClaimSpec{PoolRef: ipamv1.IPPoolReference{APIGroup: group, Kind: kind, Name: "p"}},
			Status: ipamv1.IPAddressClaimStatus{Conditions: conditions},
		}
	}
	const ours, foreign = "butler.butlerlabs.dev", "ipam.cluster.x-k8s.io"
	deleted := claim("deleted", 1, ours, "NetworkPool")
	deleted.DeletionTimestamp = &metav1.Time{Time: time.Unix(2, 0)}
	mirror, _ := pools.KeyFromIPPoolReference("ns", ipamv1.IPPoolReference{APIGroup: foreign, Kind: "InClusterIPPool", Name: "p"})
	o := pools.Objects{
		Pools: []v1alpha1.Pool{&v1alpha1.NetworkPool{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: mirror.Name}}},
		Claims: []ipamv1.IPAddressClaim{
			claim("unseen", 9, ours, "NetworkPool"),
			claim("served", 1, ours, "NetworkPool", newCondition("Ready", metav1.ConditionTrue, "Ready")),
			claim("full", 8, ours, "GlobalNetworkPool", newCondition("Ready", metav1.ConditionFalse, "PoolExhausted")),
			claim("paused", 7, ours, "NetworkPool", newCondition("Ready", metav1.ConditionFalse, "PoolExhausted"), newCondition("Paused", metav1.ConditionTrue, "Paused")),
			claim("resumed", 6, ours, "NetworkPool", newCondition("Ready", metav1.ConditionFalse, "PoolExhausted"), newCondition("Paused", metav1.ConditionFalse, "NotPaused")),
			claim("mistyped", 5, ours, "Networkpool", newCondition("Ready", metav1.ConditionFalse, "PoolNotReady")),
			claim("mirrored", 4, foreign, "InClusterIPPool"),
			claim("foreign", 4, foreign, "GlobalInClusterIPPool"),
			deleted,
		},
		Allocations: []v1alpha1.IPAllocation{{ObjectMeta: at("block", 3), Spec: v1alpha1.IPAllocationSpec{PoolRef: v1alpha1.PoolReference{Name: "p"}}}},
		Leases:      []v1alpha1.IPLease{{ObjectMeta: at("lease", 2), Spec: v1alpha1.IPLeaseSpec{PoolRef: v1alpha1.PoolReference{Kind: "GlobalNetworkPool", Name: "p"}}}},
	}
	var got []string
	for _, w := range ListWaiting(o) {
		got = append(got, fmt.Sprintf("%s %s/%s, %s: %s", w.Kind, w.Namespace, w.Name, w.Pool, w.Reason))
	}
	want := []string{
		"IPLease ns/lease, GlobalNetworkPool p: ",
		"IPAllocation ns/block, NetworkPool ns/p: ",
		"IPAddressClaim ns/mirrored, " + mirror.String() + ": ",
		"IPAddressClaim ns/mistyped, Networkpool ns/p: PoolNotReady",
		"IPAddressClaim ns/resumed, NetworkPool ns/p: PoolExhausted",
		"IPAddressClaim ns/paused, NetworkPool ns/p: Paused",
		"IPAddressClaim ns/full, GlobalNetworkPool p: PoolExhausted",
		"IPAddressClaim ns/unseen, NetworkPool ns/p: ",
	}
	if !slices.Equal(got, want) {
		t.Errorf("%q\nwant\n%q", got, want)
	}
}
