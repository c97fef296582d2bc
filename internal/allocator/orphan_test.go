package allocator

import (
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/grants"
)

// uid sets the UID and the resourceVersion of a claim.
func uid(u types.UID, version string) func(*ipamv1.IPAddressClaim) {
	return func(c *ipamv1.IPAddressClaim) { c.UID, c.ResourceVersion = u, version }
}

// TestNextCheck checks that an IPAddress whose claim is gone is kept for a claim that a restore may bring, unless it
// blocks another claim.
func TestNextCheck(t *testing.T) {
	const grace = 75 * time.Second
	tests := map[string]struct {
		happens func(*Allocator, *grants.PoolState)
		want    time.Duration // after noon, when it was checked
	}{
		"Nothing":         {func(*Allocator, *grants.PoolState) {}, grace},
		"AnotherName":     {func(_ *Allocator, p *grants.PoolState) { observeClaim(p, "b", 1) }, grace},
		"TheNameIsNeeded": {func(_ *Allocator, p *grants.PoolState) { observeClaim(p, "a", 1, uid("new", "5")) }, 0},
		"NeededElsewhere": {func(a *Allocator, _ *grants.PoolState) {
			a.writer.requestOrphanCleanup(testKey, types.NamespacedName{Namespace: "ns", Name: "a"})
		}, 0},
		"TheAddressIsRemembered": {
			func(_ *Allocator, p *grants.PoolState) { observeClaim(p, "b", 1, withRecordedAddress("10.0.0.1")) }, 0,
		},
		"TheClaimIsBack": {
			func(_ *Allocator, p *grants.PoolState) {
				observeClaim(p, "a", 1, uid("new", "5"), withRecordedAddress("10.0.0.1"))
			}, grace,
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			a := New(Options{})
			p := newTestPool(t, "10.0.0.1-10.0.0.9")
			a.pools.byKey[testKey] = grants.NewPool(p)
			observeAddress(p, "a", "10.0.0.1", "gone")
			s := p.Addresses.Orphans[types.NamespacedName{Namespace: "ns", Name: "a"}]
			if s == nil {
				t.Fatal("an address without a claim is an orphan")
			}
			if got := p.Inventory.NextOrphanCheck(s, grace); !got.IsZero() {
				t.Errorf("one that was not reconciled yet is due at %v, want at once", got)
			}
			s.OrphanedSince = noon
			tc.happens(a, p)
			want := time.Time{}
			if tc.want > 0 {
				want = noon.Add(tc.want)
			}
			if got := p.Inventory.NextOrphanCheck(s, grace); !got.Equal(want) {
				t.Errorf("due at %v, want %v", got, want)
			}
			s.RetryAt = noon.Add(2 * grace)
			if got := p.Inventory.NextOrphanCheck(s, grace); !got.Equal(s.RetryAt) {
				t.Errorf("due at %v, want not before the next try at %v", got, s.RetryAt)
			}
		})
	}
}

// TestUnpublishedOrphanHasNoGrace checks that an IPAddress whose claim ended before its status named it, so that it has
// no user, goes without a grace, whichever is seen first: the end of the claim or the creation of its IPAddress.
func TestUnpublishedOrphanHasNoGrace(t *testing.T) {
	const grace = 75 * time.Second
	key := types.NamespacedName{Namespace: "ns", Name: "a"}
	tests := map[string]struct {
		change func(*ipamv1.IPAddressClaim)
		want   time.Time
	}{
		"Unpublished": {func(*ipamv1.IPAddressClaim) {}, time.Time{}},
		"Published": {
			func(c *ipamv1.IPAddressClaim) { c.Status.AddressRef.Name = "a" }, noon.Add(grace),
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			p := newTestPool(t, "10.0.0.1-10.0.0.9")
			observeClaim(p, "a", 1, uid("u", "5"), withRecordedAddress("10.0.0.1"), tc.change)
			observeAddress(p, "a", "10.0.0.1", "u")
			p.ForgetClaimant("u")
			s := p.Addresses.Orphans[key]
			s.OrphanedSince = noon
			if got := p.Inventory.NextOrphanCheck(s, grace); !got.Equal(tc.want) {
				t.Errorf("due at %v, want %v", got, tc.want)
			}
			observeClaim(p, "a", 1, uid("new", "7"), withRecordedAddress("10.0.0.1")) // a restore brings it back
			if got := p.Inventory.NextOrphanCheck(s, grace); !got.Equal(noon.Add(grace)) {
				t.Errorf("with a claim that adopts it, due at %v, want when the grace is over", got)
			}
		})
	}
}

// TestLaterClaimOfSameNameLives checks that of two claims of one name the later one lives, whichever is seen first, and
// whatever their UIDs and their second of creation.
func TestLaterClaimOfSameNameLives(t *testing.T) {
	first, second := uid("m", "8"), uid("a", "9")
	for name, order := range map[string][]func(*ipamv1.IPAddressClaim){
		"InOrder": {first, second}, "TheEndWasMissed": {second, first},
	} {
		t.Run(name, func(t *testing.T) {
			p := newTestPool(t, "10.0.0.1-10.0.0.9")
			for _, change := range order {
				observeClaim(p, "c", 1, change)
			}
			known := p.Claimants.ByName[types.NamespacedName{Namespace: "ns", Name: "c"}]
			if len(p.Claimants.ByUID) != 1 || p.Queues.Waiting.Len() != 1 || known == nil || known.Owner.UID != "a" || !p.Claimants.Gone.Has("m") {
				t.Errorf("%d claims, %d waiting, the name is that of %v", len(p.Claimants.ByUID), p.Queues.Waiting.Len(), known)
			}
		})
	}
}
