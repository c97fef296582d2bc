package grants_test

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/grantstest"
)

// TestRefusalNamesReason checks that the refusal of a requested address names why that address is not available.
func TestRefusalNamesReason(t *testing.T) {
	p := grantstest.NewPool(t, "10.0.0.0/24", func(o *v1alpha1.NetworkPool) {
		o.Spec.Gateway = "10.0.0.1"
		o.Spec.Reserved = []v1alpha1.ReservedRange{{Addresses: "10.0.0.9", Description: "printer"}}
	})
	for address, why := range map[string]string{
		"10.0.0.9": "reserved by spec.reserved[0] (10.0.0.9: printer)", "10.0.0.1": "the gateway (spec.gateway)",
		"10.0.0.0": "the first address of the network 10.0.0.0/24, which hosts do not use", "10.9.0.1": "outside the pool",
		"fd00::1": "of another address family than the pool",
	} {
		_, refusal := p.Planner.ChooseRange(grantstest.ObserveClaim(p, "x-"+strings.ReplaceAll(address, ":", "-"), 0, grantstest.WithRequestedAddress(address)))
		if refusal == nil || !strings.Contains(refusal.Message, "NetworkPool ns/pool does not hand out the requested address "+address+": it is "+why+"; ask for another") {
			t.Errorf("%s: %+v", address, refusal)
		}
	}
	_, refusal := p.Planner.ChooseRange(grantstest.ObserveAllocation(p, "b", 0, grantstest.WithPinnedRange("10.0.0.8", "10.0.0.10")))
	if refusal == nil || !strings.Contains(refusal.Message, "does not hand out, such as 10.0.0.9, which is reserved by spec.reserved[0] (10.0.0.9: printer); ") {
		t.Errorf("a block: %+v", refusal)
	}
}

func TestRefusalNamesForeignFinalizers(t *testing.T) {
	p := grantstest.NewPool(t, "10.0.0.1-10.0.0.9")
	grantstest.ObserveAddress(p, "c", "10.0.0.4", "uid-before")
	a := *p.Addresses.ByName[types.NamespacedName{Namespace: "ns", Name: "c"}]
	a.ResourceVersion, a.Deleting, a.OtherFinalizers = "2", true, []string{"example.com/hold"}
	p.ObserveAddress(&a)
	if _, refusal := p.Planner.ChooseRange(grantstest.ObserveClaim(p, "c", 0)); refusal == nil || !strings.Contains(refusal.Message, "have to remove: example.com/hold") {
		t.Errorf("%+v", refusal)
	}
}

// TestPoolWithoutAllocatableAddressReportsIt checks that a pool without an allocatable address reports that itself, and
// not only on claims.
func TestPoolWithoutAllocatableAddressReportsIt(t *testing.T) {
	p := grantstest.NewPool(t, "10.0.0.0/28", func(o *v1alpha1.NetworkPool) { o.Spec.Reserved = []v1alpha1.ReservedRange{{Addresses: "10.0.0.0/28"}} })
	all := p.Status.PoolConditions(p.Space.Ledger.Counts(), grantstest.Noon)
	ready := meta.FindStatusCondition(all, v1alpha1.ReadyCondition)
	if ready.Status != "False" || ready.Reason != v1alpha1.PoolExhaustedReason || !strings.Contains(ready.Message, "all of its 16 addresses are reserved") {
		t.Errorf("%+v", ready)
	}
	for condition, want := range map[string]bool{
		v1alpha1.CapacityWarningCondition: false, v1alpha1.CapacityCriticalCondition: false, v1alpha1.CapacityExhaustedCondition: true,
	} {
		if meta.IsStatusConditionTrue(all, condition) != want {
			t.Errorf("%s: %v", condition, !want)
		}
	}
}

// TestPoolOfPreAllocationsNamesThem checks that a pool whose preAllocations keep all of its addresses says so to claims
// of other names, and that these are served after either step that the message names (W29).
func TestPoolOfPreAllocationsNamesThem(t *testing.T) {
	refusalFor := func(addresses string, pins map[string]string, names ...string) string {
		p := grantstest.NewPool(t, addresses, func(o *v1alpha1.NetworkPool) { o.Spec.PreAllocations = pins })
		var message string
		for _, name := range names {
			if _, refusal := p.Planner.ChooseRange(grantstest.ObserveClaim(p, name, 0)); refusal != nil {
				message = refusal.Reason + ": " + refusal.Message
			}
		}
		return message
	}
	both := map[string]string{"a": "10.0.0.1", "b": "10.0.0.2"}
	const want = "PoolExhausted: NetworkPool ns/pool has no free address: spec.preAllocations keep all that it hands out for claims of other names; " +
		"add addresses to the pool, or remove entries of its spec.preAllocations"
	if got := refusalFor("10.0.0.1-10.0.0.2", both, "c"); got != want {
		t.Errorf("%q", got)
	}
	if got := refusalFor("10.0.0.1-10.0.0.2", both, "a", "b"); got != "" {
		t.Errorf("claims of these names: %s", got)
	}
	if got := refusalFor("10.0.0.1-10.0.0.3", both, "c"); got != "" {
		t.Errorf("with more addresses: %s", got)
	}
	if got := refusalFor("10.0.0.1-10.0.0.2", map[string]string{"a": "10.0.0.1"}, "c"); got != "" {
		t.Errorf("with fewer preAllocations: %s", got)
	}
	if got := refusalFor("10.0.0.1-10.0.0.3", both, "c", "d"); !strings.Contains(got, "all are allocated, reserved or resting") {
		t.Errorf("with a claim that has the rest: %q", got)
	}
}

// TestReadyNamesClaimsOutsideSpec checks that Ready names the claims whose addresses an edit of the spec has left
// outside, and those whose address is kept for another name.
func TestReadyNamesClaimsOutsideSpec(t *testing.T) {
	p := grantstest.NewPool(t, "10.0.0.0/24", func(o *v1alpha1.NetworkPool) {
		o.Spec.PreAllocations = map[string]string{"vip": "10.0.0.9", "own": "10.0.0.10", "free": "10.0.0.11"}
	})
	ready := func() string {
		return meta.FindStatusCondition(p.Status.PoolConditions(p.Space.Ledger.Counts(), grantstest.Noon), v1alpha1.ReadyCondition).Message
	}
	grantstest.ObserveClaim(p, "own", 0)
	grantstest.ObserveAddress(p, "own", "10.0.0.10", "uid-own")
	if got := ready(); !strings.HasSuffix(got, "(1 allocation)") {
		t.Error(got)
	}
	grantstest.ObserveClaim(p, "other", 0)
	grantstest.ObserveAddress(p, "other", "10.0.0.9", "uid-other")
	if got := ready(); !strings.HasSuffix(got, "(2 allocations); spec.preAllocations[vip] 10.0.0.9 is held by IPAddressClaim ns/other, and free for that name when it is released") {
		t.Error(got)
	}
	for _, address := range []string{"10.9.0.1", "10.9.0.2", "10.9.0.3", "10.9.0.4"} {
		grantstest.ObserveAddress(p, "x"+address, address, "gone")
	}
	if got := ready(); !strings.Contains(got, "; 4 addresses in use stay outside the spec until released: 10.9.0.1 of IPAddress ns/x10.9.0.1 (without a claim), ") || !strings.Contains(got, ", ...; spec.preAllocations[vip]") {
		t.Error(got)
	}
}
