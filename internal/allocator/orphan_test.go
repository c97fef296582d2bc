package allocator

import (
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/grants"
)

// uid gives a claim a UID and a resource version of its own.
func uid(u types.UID, version string) func(*ipamv1.IPAddressClaim) {
	return func(c *ipamv1.IPAddressClaim) { c.UID, c.ResourceVersion = u, version }
}

// An IPAddress whose claim is gone is kept for a claim that a restore may bring, unless it stands in somebody's way.
func TestNextCheck(t *testing.T) {
	const grace = 75 * time.Second
	tests := map[string]struct {
		happens func(*Allocator, *grants.Memory)
		want    time.Duration // after noon, when it was looked at
	}{
		"Nothing":         {func(*Allocator, *grants.Memory) {}, grace},
		"AnotherName":     {func(_ *Allocator, p *grants.Memory) { see(p, "b", 1) }, grace},
		"TheNameIsNeeded": {func(_ *Allocator, p *grants.Memory) { see(p, "a", 1, uid("new", "5")) }, 0},
		"NeededElsewhere": {func(a *Allocator, _ *grants.Memory) {
			a.requestCleanup(testKey, types.NamespacedName{Namespace: "ns", Name: "a"})
		}, 0},
		"TheAddressIsRemembered": {
			func(_ *Allocator, p *grants.Memory) { see(p, "b", 1, remembers("10.0.0.1")) }, 0,
		},
		"TheClaimIsBack": {
			func(_ *Allocator, p *grants.Memory) { see(p, "a", 1, uid("new", "5"), remembers("10.0.0.1")) }, grace,
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			a := New(Options{})
			p := aPool(t, "10.0.0.1-10.0.0.9")
			a.pools[testKey] = grants.PoolOf(p)
			seeAddress(p, "a", "10.0.0.1", "gone")
			s := p.Orphans[types.NamespacedName{Namespace: "ns", Name: "a"}]
			if s == nil {
				t.Fatal("an address without a claim is an orphan")
			}
			if got := p.NextCheck(s, grace); !got.IsZero() {
				t.Errorf("one that nobody has looked at is due at %v, want at once", got)
			}
			s.Since = noon
			tc.happens(a, p)
			want := time.Time{}
			if tc.want > 0 {
				want = noon.Add(tc.want)
			}
			if got := p.NextCheck(s, grace); !got.Equal(want) {
				t.Errorf("due at %v, want %v", got, want)
			}
			s.RetryAt = noon.Add(2 * grace)
			if got := p.NextCheck(s, grace); !got.Equal(s.RetryAt) {
				t.Errorf("due at %v, want not before the next try at %v", got, s.RetryAt)
			}
		})
	}
}

// What was made for a claim that ended before its status named it, nobody uses: it goes without a grace, whichever end is
// seen first, that of the claim or the beginning of its IPAddress.
func TestNobodyWasToldOfAnOrphan(t *testing.T) {
	const grace = 75 * time.Second
	key := types.NamespacedName{Namespace: "ns", Name: "a"}
	tests := map[string]struct {
		told func(*ipamv1.IPAddressClaim)
		want time.Time
	}{
		"Untold": {func(*ipamv1.IPAddressClaim) {}, time.Time{}},
		"Told": {
			func(c *ipamv1.IPAddressClaim) { c.Status.AddressRef.Name = "a" }, noon.Add(grace),
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			p := aPool(t, "10.0.0.1-10.0.0.9")
			see(p, "a", 1, uid("u", "5"), remembers("10.0.0.1"), tc.told)
			seeAddress(p, "a", "10.0.0.1", "u")
			p.Forget("u")
			s := p.Orphans[key]
			s.Since = noon
			if got := p.NextCheck(s, grace); !got.Equal(tc.want) {
				t.Errorf("due at %v, want %v", got, tc.want)
			}
			see(p, "a", 1, uid("new", "7"), remembers("10.0.0.1")) // a restore brings it back
			if got := p.NextCheck(s, grace); !got.Equal(noon.Add(grace)) {
				t.Errorf("with a claim that adopts it, due at %v, want when the grace is over", got)
			}
		})
	}
}

// Whichever is seen first, and whatever their UIDs and their second of birth: of two claims of one name the
// later one lives.
func TestOneClaimOfAName(t *testing.T) {
	first, second := uid("m", "8"), uid("a", "9")
	for name, order := range map[string][]func(*ipamv1.IPAddressClaim){
		"InOrder": {first, second}, "TheEndWasMissed": {second, first},
	} {
		t.Run(name, func(t *testing.T) {
			p := aPool(t, "10.0.0.1-10.0.0.9")
			for _, change := range order {
				see(p, "c", 1, change)
			}
			known := p.ByName[types.NamespacedName{Namespace: "ns", Name: "c"}]
			if len(p.Claimants) != 1 || p.Pending.Len() != 1 || known == nil || known.Owner.UID != "a" || !p.IsGone("m") {
				t.Errorf("%d claims, %d waiting, the name is that of %v", len(p.Claimants), p.Pending.Len(), known)
			}
		})
	}
}
