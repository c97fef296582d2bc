package grants_test

import (
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/grantstest"
)

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
			func(c *ipamv1.IPAddressClaim) { c.Status.AddressRef.Name = "a" }, grantstest.Noon.Add(grace),
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			p := grantstest.NewPool(t, "10.0.0.1-10.0.0.9")
			grantstest.ObserveClaim(p, "a", 1, grantstest.WithUID("u", "5"), grantstest.WithRecordedAddress("10.0.0.1"), tc.change)
			grantstest.ObserveAddress(p, "a", "10.0.0.1", "u")
			p.ForgetClaimant("u")
			s := p.Addresses.Orphans[key]
			s.OrphanedSince = grantstest.Noon
			if got := p.Inventory.NextOrphanCheck(s, grace); !got.Equal(tc.want) {
				t.Errorf("due at %v, want %v", got, tc.want)
			}
			grantstest.ObserveClaim(p, "a", 1, grantstest.WithUID("new", "7"), grantstest.WithRecordedAddress("10.0.0.1")) // a restore brings it back
			if got := p.Inventory.NextOrphanCheck(s, grace); !got.Equal(grantstest.Noon.Add(grace)) {
				t.Errorf("with a claim that adopts it, due at %v, want when the grace is over", got)
			}
		})
	}
}

// TestLaterClaimOfSameNameLives checks that of two claims of one name the later one lives, whichever is seen first, and
// whatever their UIDs and their second of creation.
func TestLaterClaimOfSameNameLives(t *testing.T) {
	first, second := grantstest.WithUID("m", "8"), grantstest.WithUID("a", "9")
	for name, order := range map[string][]func(*ipamv1.IPAddressClaim){
		"InOrder": {first, second}, "TheEndWasMissed": {second, first},
	} {
		t.Run(name, func(t *testing.T) {
			p := grantstest.NewPool(t, "10.0.0.1-10.0.0.9")
			for _, change := range order {
				grantstest.ObserveClaim(p, "c", 1, change)
			}
			known := p.Claimants.ByName[types.NamespacedName{Namespace: "ns", Name: "c"}]
			if len(p.Claimants.ByUID) != 1 || p.Queues.Waiting.Len() != 1 || known == nil || known.Owner.UID != "a" || !p.Claimants.Gone.Has("m") {
				t.Errorf("%d claims, %d waiting, the name is that of %v", len(p.Claimants.ByUID), p.Queues.Waiting.Len(), known)
			}
		})
	}
}
