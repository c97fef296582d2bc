package grants_test

import (
	"testing"

	"go4.org/netipx"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/grants"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/grantstest"
)

// TestUnresolvedGrants checks that a grant of another manager that leaves the status counts as in use until its claim
// shows what became of it, or a list does (R11).
func TestUnresolvedGrants(t *testing.T) {
	const address = "10.0.0.5"
	reason := v1alpha1.YieldedPool{Name: "younger"}
	for name, tc := range map[string]struct {
		holder     bool
		then       func(p *grants.PoolState)
		unresolved bool
		used       bool
		vanished   int
	}{
		"still in flight": {then: func(p *grants.PoolState) { observeInFlight(p, 12, map[string]string{"c": address}) }, used: true},
		"left":            {then: func(p *grants.PoolState) { observeInFlight(p, 12, nil) }, unresolved: true, used: true, vanished: 1},
		"older version":   {then: func(p *grants.PoolState) { observeInFlight(p, 10, nil) }, used: true},
		"of this manager": {holder: true, then: func(p *grants.PoolState) { observeInFlight(p, 12, nil) }},
		"its claim has it": {then: func(p *grants.PoolState) {
			observeInFlight(p, 12, nil)
			grantstest.ObserveClaim(p, "c", 0, grantstest.WithRecordedAddress(address))
		}, used: true, vanished: 1},
		"its claim ended": {then: func(p *grants.PoolState) {
			observeInFlight(p, 12, nil)
			grantstest.ObserveClaim(p, "c", 0)
			p.ForgetClaimant("uid-c")
		}, vanished: 1},
		"listed": {then: func(p *grants.PoolState) {
			observeInFlight(p, 12, nil)
			if !p.Observed.RecordListing(reason, 1) {
				t.Error("a list that began afterwards does not count")
			}
		}, vanished: 1},
		"listed before": {then: func(p *grants.PoolState) {
			observeInFlight(p, 12, nil)
			if p.Observed.RecordListing(reason, 0) {
				t.Error("a list that began before may lack its object")
			}
		}, unresolved: true, used: true, vanished: 1},
	} {
		t.Run(name, func(t *testing.T) {
			p := grantstest.NewPool(t, "10.0.0.1-10.0.0.9")
			p.Observed.ListedFor = map[v1alpha1.YieldedPool]bool{}
			p.Term.Holder = tc.holder
			observeInFlight(p, 11, map[string]string{"c": address})
			tc.then(p)
			if got := p.Observed.HasUnresolvedGrants(); got != tc.unresolved {
				t.Errorf("unresolved: %v", got)
			}
			if p.Observed.VanishedCount != tc.vanished {
				t.Errorf("%d have vanished", p.Observed.VanishedCount)
			}
			used := p.Overlap.UsedRangesIn([]netipx.IPRange{netipx.MustParseIPRange("10.0.0.1-10.0.0.9")})
			if (len(used) > 0) != tc.used {
				t.Errorf("in use: %v", used)
			}
		})
	}
}

// TestNeedsListing checks that an edited pool that another manager holds is listed once: it may have addresses outside
// its spec.
func TestNeedsListing(t *testing.T) {
	p := grantstest.NewPool(t, "10.0.0.1-10.0.0.9")
	p.Observed.ListedFor = map[v1alpha1.YieldedPool]bool{}
	p.Term.Holder = false
	if p.Observed.NeedsListing() {
		t.Error("a pool that was never edited has nothing outside its spec")
	}
	edited := p.Base.Pool.DeepCopyObject().(*v1alpha1.NetworkPool)
	edited.Generation, edited.ResourceVersion = 2, "11"
	p.ObservePool(edited)
	if !p.Observed.NeedsListing() {
		t.Error("the pool was edited")
	}
	p.Term.Holder = true
	if p.Observed.NeedsListing() {
		t.Error("the holder knows what it has granted")
	}
	p.Term.Holder = false
	p.Observed.RecordListing(v1alpha1.YieldedPool{Name: "younger"}, p.Observed.VanishedCount)
	if p.Observed.NeedsListing() {
		t.Error("it was listed")
	}
}
