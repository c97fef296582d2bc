package allocator

import (
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/grants"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/grantstest"
)

// TestNextCheck checks that an IPAddress whose claim is gone is kept for a claim that a restore may bring, unless it
// blocks another claim.
func TestNextCheck(t *testing.T) {
	const grace = 75 * time.Second
	tests := map[string]struct {
		happens func(*Allocator, *grants.PoolState)
		want    time.Duration // after noon, when it was checked
	}{
		"Nothing":     {func(*Allocator, *grants.PoolState) {}, grace},
		"AnotherName": {func(_ *Allocator, p *grants.PoolState) { grantstest.ObserveClaim(p, "b", 1) }, grace},
		"TheNameIsNeeded": {func(_ *Allocator, p *grants.PoolState) {
			grantstest.ObserveClaim(p, "a", 1, grantstest.WithUID("new", "5"))
		}, 0},
		"NeededElsewhere": {func(a *Allocator, _ *grants.PoolState) {
			a.writer.requestOrphanCleanup(grantstest.PoolKey, types.NamespacedName{Namespace: "ns", Name: "a"})
		}, 0},
		"TheAddressIsRemembered": {
			func(_ *Allocator, p *grants.PoolState) {
				grantstest.ObserveClaim(p, "b", 1, grantstest.WithRecordedAddress("10.0.0.1"))
			}, 0,
		},
		"TheClaimIsBack": {
			func(_ *Allocator, p *grants.PoolState) {
				grantstest.ObserveClaim(p, "a", 1, grantstest.WithUID("new", "5"), grantstest.WithRecordedAddress("10.0.0.1"))
			}, grace,
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			a := New(Options{})
			p := grantstest.NewPool(t, "10.0.0.1-10.0.0.9")
			a.pools.byKey[grantstest.PoolKey] = grants.NewPool(p)
			grantstest.ObserveAddress(p, "a", "10.0.0.1", "gone")
			s := p.Addresses.Orphans[types.NamespacedName{Namespace: "ns", Name: "a"}]
			if s == nil {
				t.Fatal("an address without a claim is an orphan")
			}
			if got := p.Inventory.NextOrphanCheck(s, grace); !got.IsZero() {
				t.Errorf("one that was not reconciled yet is due at %v, want at once", got)
			}
			s.OrphanedSince = grantstest.Noon
			tc.happens(a, p)
			want := time.Time{}
			if tc.want > 0 {
				want = grantstest.Noon.Add(tc.want)
			}
			if got := p.Inventory.NextOrphanCheck(s, grace); !got.Equal(want) {
				t.Errorf("due at %v, want %v", got, want)
			}
			s.RetryAt = grantstest.Noon.Add(2 * grace)
			if got := p.Inventory.NextOrphanCheck(s, grace); !got.Equal(s.RetryAt) {
				t.Errorf("due at %v, want not before the next try at %v", got, s.RetryAt)
			}
		})
	}
}
