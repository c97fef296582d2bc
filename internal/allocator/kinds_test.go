package allocator

import (
	"slices"
	"strings"
	"testing"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/grantstest"
)

func TestKeyForClaim(t *testing.T) { // C3
	const ours = "butler.butlerlabs.dev"
	for name, c := range map[string]struct {
		group, kind string
		want        pools.Key // empty: the claim is another provider's
		pool        bool
		wantRefusal string // the refusal of an unknown kind
	}{
		"a pool":                         {group: ours, kind: "NetworkPool", want: pools.Key{Kind: "NetworkPool", Namespace: "ns", Name: "pool"}, pool: true},
		"a global pool":                  {group: ours, kind: "GlobalNetworkPool", want: pools.Key{Kind: "GlobalNetworkPool", Name: "pool"}, pool: true},
		"another group":                  {group: "example.com", kind: "NetworkPool"},
		"another group with its version": {group: ours + "/v1alpha1", kind: "NetworkPool"},
		"the in-cluster provider's":      {group: "ipam.cluster.x-k8s.io", kind: "InClusterIPPool"},
		"the case of a kind":             {group: ours, kind: "Networkpool", want: pools.Key{Kind: "Networkpool", Namespace: "ns", Name: "pool"}, wantRefusal: "kind Networkpool, which the group " + ours + " does not have; poolRef is immutable, so create the claim again with kind NetworkPool"},
		"the case of a global kind":      {group: ours, kind: "globalNetworkpool", want: pools.Key{Kind: "globalNetworkpool", Namespace: "ns", Name: "pool"}, wantRefusal: "create the claim again with kind GlobalNetworkPool"},
		"another kind of ours":           {group: ours, kind: "IPAllocation", want: pools.Key{Kind: "IPAllocation", Namespace: "ns", Name: "pool"}, wantRefusal: "create the claim again with kind NetworkPool"},
	} {
		t.Run(name, func(t *testing.T) {
			claim := grantstest.NewClaim("c", 0)
			claim.Spec.PoolRef.APIGroup, claim.Spec.PoolRef.Kind = c.group, c.kind
			a := New(Options{})
			_, key := a.scope.resourceKindForObject(claim)
			if key != c.want || key.IsPoolKind() != c.pool {
				t.Errorf("%v", key)
			}
			refusal := a.scope.refusalIfUnserved(key, nil)
			if (refusal != nil) != (c.wantRefusal != "") && c.want != (pools.Key{}) {
				t.Errorf("unserved: %v", refusal)
			}
			if refusal != nil && c.wantRefusal != "" && (!strings.Contains(refusal.Message, c.wantRefusal) || refusal.Reason != "PoolNotReady") {
				t.Errorf("%s: %s", refusal.Reason, refusal.Message)
			}
		})
	}
}

// TestUnknownPoolKindIsForgotten checks that the state for an unknown pool kind goes with the claim that names it.
func TestUnknownPoolKindIsForgotten(t *testing.T) {
	claim := grantstest.NewClaim("c", 0)
	claim.Spec.PoolRef.Kind = "Networkpool"
	a := New(Options{})
	key, wake := a.ObserveObject(claim)
	if !wake || a.pools.findPool(key) == nil {
		t.Fatalf("%v is not reconciled", key)
	}
	a.ForgetObject(claim)
	if _, err := a.Reconcile(t.Context(), key, nil); err != nil || a.pools.findPool(key) != nil {
		t.Errorf("%v is remembered: %v", key, err)
	}
}

// TestKindsOfTests checks that the pools of tests have the kinds of claimants of the allocator.
func TestKindsOfTests(t *testing.T) {
	if !slices.Equal(claimantKinds, grantstest.ClaimantKinds) || blockKind != grantstest.BlockKind {
		t.Errorf("tests have the kinds %v and %v, the allocator %v and %v", grantstest.ClaimantKinds, grantstest.BlockKind, claimantKinds, blockKind)
	}
}
