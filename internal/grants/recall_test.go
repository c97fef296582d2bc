package grants_test

import (
	"net/netip"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/grants"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/kinds/claims"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/ledger"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/grantstest"
)

// TestClaimRegainsForcedAddress checks a manager that has just taken a pool over and sees the IPAddress of a claim, and
// that it was forced away, before it sees what the manager before it recorded on the claim.
func TestClaimRegainsForcedAddress(t *testing.T) {
	tests := map[string]struct {
		had    string
		then   func(p *grants.PoolState)
		a, b   string
		reason string
	}{
		"TheRecordIsLate":   {had: "10.0.0.1", a: "10.0.0.1", b: "10.0.0.2", reason: "the IPAddress shows what is on record"},
		"AnotherEventFirst": {had: "10.0.0.1", then: func(p *grants.PoolState) { grantstest.ObserveClaim(p, "a", 5, grantstest.WithVersion("2")) }, a: "10.0.0.1", b: "10.0.0.2", reason: "it is older than the record"},
		"TheRecordComes": {had: "10.0.0.1", then: func(p *grants.PoolState) {
			grantstest.ObserveClaim(p, "a", 5, grantstest.WithVersion("2"), grantstest.WithRecordedAddress("10.0.0.1"))
		}, a: "10.0.0.1", b: "10.0.0.2", reason: "both say the same"},
		"ByHand": {had: "10.9.9.9", a: "10.0.0.2", b: "10.0.0.1", reason: "no manager gave it that"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			p := grantstest.NewPool(t, "10.0.0.1-10.0.0.2")
			a := grantstest.ObserveClaim(p, "a", 5)
			grantstest.ObserveAddress(p, "a", tc.had, "uid-a")
			p.ForgetAddress("address-a", grants.NamespacedNameFromOwner(a.Owner))
			if tc.then != nil {
				tc.then(p)
			}
			grantstest.ObserveClaim(p, "b", 0)
			p.Planner.PlanGrants(grantstest.Noon, 9, grantstest.AdmitAll)
			for uid, want := range map[types.UID]string{"uid-a": tc.a, "uid-b": tc.b} {
				if g := p.Grants.ByClaimant[uid]; g == nil || grantstest.AddressText(g.Range) != want {
					t.Errorf("%s is granted %v, not %s: %s", uid, g, want, tc.reason)
				}
			}
		})
	}
}

// TestIsAdoptable checks that an IPAddress of an earlier claim of the name is adopted by the claim whose record is its
// address, unless another claim was granted the address since.
func TestIsAdoptable(t *testing.T) {
	tests := map[string]struct {
		others func(t *testing.T, p *grants.PoolState)
		want   bool
	}{
		"NoClaim": {want: true},
		"ItsFormerClaim": {others: func(_ *testing.T, p *grants.PoolState) {
			grantstest.ObserveClaim(p, "a", 0, grantstest.WithUID("dead", "0"))
		}},
		"ARecord": {others: func(_ *testing.T, p *grants.PoolState) {
			grantstest.ObserveClaim(p, "b", -1, grantstest.WithRecordedAddress("10.0.0.1"))
		}},
		"AYoungerRecord": {others: func(_ *testing.T, p *grants.PoolState) {
			grantstest.ObserveClaim(p, "b", 9, grantstest.WithRecordedAddress("10.0.0.1"))
		}, want: true},
		"AnIPAddress": {others: func(_ *testing.T, p *grants.PoolState) {
			grantstest.ObserveClaim(p, "b", 0)
			grantstest.ObserveAddress(p, "b", "10.0.0.1", "uid-b")
		}},
		"AStray": {others: func(_ *testing.T, p *grants.PoolState) { grantstest.ObserveAddress(p, "b", "10.0.0.1", "dead-too") }},
		"ABlock": {others: func(_ *testing.T, p *grants.PoolState) {
			grantstest.ObserveAllocation(p, "x", 4, grantstest.WithBlock("10.0.0.0/30"))
		}},
		"AGrantToAnother": {others: func(_ *testing.T, p *grants.PoolState) {
			granted(p, ledger.Owner{Namespace: "ns", Name: "b", UID: "uid-b"})
		}},
		"AGrantOfBefore": {others: func(_ *testing.T, p *grants.PoolState) {
			granted(p, ledger.Owner{Namespace: "ns", Name: "a", UID: "dead"})
		}, want: true},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			p := grantstest.NewPool(t, "10.0.0.1-10.0.0.9")
			grantstest.ObserveAddress(p, "a", "10.0.0.1", "dead")
			if tc.others != nil {
				tc.others(t, p)
			}
			c := claims.NewClaimant(grantstest.NewClaim("a", 1, grantstest.WithUID("new", "5"), grantstest.WithRecordedAddress("10.0.0.1")))
			if got := p.Inventory.IsAdoptable(c, p.Addresses.ByName[grants.NamespacedNameFromOwner(c.Owner)]); got != tc.want {
				t.Errorf("adoptable: %v, want %v", got, tc.want)
			}
		})
	}
}

// granted adds a fact that 10.0.0.1 is granted.
func granted(p *grants.PoolState, o ledger.Owner) {
	p.Space.Ledger.AddFact(ledger.Fact{Key: ledger.Key{Source: ledger.SourceGrant, UID: o.UID}, Owner: o, Range: p.Space.Ledger.UnitRange(netip.MustParseAddr("10.0.0.1"))})
}
