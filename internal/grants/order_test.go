package grants_test

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/utils/ptr"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/grants"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/poolutil"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/grantstest"
)

// grantNew returns the addresses that n new claims are granted, one after the other.
func grantNew(p *grants.PoolState, n int) (out []string) {
	for i := range n {
		c := grantstest.ObserveClaim(p, fmt.Sprintf("new-%03d", i), i)
		p.Planner.PlanGrants(grantstest.Noon.Add(time.Hour), 9, grantstest.AdmitAll)
		if g := p.Grants.ByClaimant[c.Owner.UID]; g != nil {
			out = append(out, poolutil.ShowRange(g.Range))
		}
	}
	return out
}

// formatReleases returns the releases in the status of the next commit of a pool.
func formatReleases(p *grants.PoolState) string {
	return p.PrepareCommit(grantstest.Noon).Pool.PoolStatus().Released
}

// TestAllocationOrder checks U50: addresses that were never used come first, then those that were released longest ago;
// a claim that requests an address, or for whose name one rests, gets that.
func TestAllocationOrder(t *testing.T) {
	for name, tc := range map[string]struct {
		reason    string
		addresses string
		change    []func(*v1alpha1.NetworkPool)
		before    func(*grants.PoolState)
		want      []string
	}{
		"best fit": {addresses: "10.0.0.1-10.0.0.4", before: func(p *grants.PoolState) { grantstest.ReleaseInOrder(p, "10.0.0.2", "10.0.0.1") }, want: []string{"10.0.0.1", "10.0.0.2"}},
		"by release": {
			addresses: "10.0.0.1-10.0.0.4", change: []func(*v1alpha1.NetworkPool){grantstest.WithReleaseOrder},
			before: func(p *grants.PoolState) { grantstest.ReleaseInOrder(p, "10.0.0.2", "10.0.0.1") }, want: []string{"10.0.0.3", "10.0.0.4", "10.0.0.2", "10.0.0.1"},
		},
		"of preAllocations": {
			reason: "no other claim may have them, and keeping them is no use", addresses: "10.0.0.1-10.0.0.3", change: []func(*v1alpha1.NetworkPool){grantstest.WithReleaseOrder, grantstest.WithPreAllocation("vip", "10.0.0.3")},
			before: func(p *grants.PoolState) {
				grantstest.ReleaseInOrder(p, "10.0.0.1")
				next := p.Base.Pool.DeepCopyObject().(*v1alpha1.NetworkPool)
				next.Spec.PreAllocations, next.Generation, next.ResourceVersion = nil, 2, "11"
				p.SetBasePool(next)
			}, want: []string{"10.0.0.2", "10.0.0.3", "10.0.0.1"},
		},
		"of what a claim asks for": {
			addresses: "10.0.0.1-10.0.0.3", change: []func(*v1alpha1.NetworkPool){grantstest.WithReleaseOrder},
			before: func(p *grants.PoolState) {
				grantstest.ReleaseInOrder(p, "10.0.0.1", "10.0.0.2")
				grantstest.ObserveClaim(p, "asking", 0, grantstest.WithRequestedAddress("10.0.0.2"))
				p.Planner.PlanGrants(grantstest.Noon, 9, grantstest.AdmitAll)
			}, want: []string{"10.0.0.3", "10.0.0.1"},
		},
		"of prefixes": {
			addresses: "10.0.0.0/26", change: []func(*v1alpha1.NetworkPool){grantstest.WithReleaseOrder, func(o *v1alpha1.NetworkPool) {
				o.Spec.AllocationPrefixLength, o.Spec.Prefix = ptr.To[int32](28), nil
			}},
			before: func(p *grants.PoolState) { grantstest.ReleaseInOrder(p, "10.0.0.16/28", "10.0.0.0/28") }, want: []string{"10.0.0.32/28", "10.0.0.48/28", "10.0.0.16/28", "10.0.0.0/28"},
		},
		"of a grant that did not come to be": {
			reason: "it was granted to no claim", addresses: "10.0.0.1-10.0.0.2", change: []func(*v1alpha1.NetworkPool){grantstest.WithReleaseOrder},
			before: func(p *grants.PoolState) {
				c := grantstest.ObserveClaim(p, "first", 0)
				p.Planner.PlanGrants(grantstest.Noon, 9, grantstest.AdmitAll)
				p.Queues.DropGrant(c.Owner.UID)
				p.ForgetClaimant(c.Owner.UID)
			}, want: []string{"10.0.0.1", "10.0.0.2"},
		},
		"of what rests": {
			reason: "its place is that of its release", addresses: "10.0.0.1-10.0.0.3",
			change: []func(*v1alpha1.NetworkPool){grantstest.WithReleaseOrder, func(o *v1alpha1.NetworkPool) { o.Spec.AddressReuseGracePeriodSeconds = ptr.To[int64](30) }},
			before: func(p *grants.PoolState) {
				grantstest.ReleaseInOrder(p, "10.0.0.3")
				c := grantstest.ObserveClaim(p, "ends", 0, grantstest.WithRecordedAddress("10.0.0.1"), grantstest.WithReadyStatus, grantstest.WithDeletionTimestamp)
				p.Releases.StartCooling(p.Inventory.ReleaseFor(c), grantstest.Noon)
				p.ForgetClaimant(c.Owner.UID)
				grantstest.ReleaseInOrder(p, "10.0.0.2")
				p.Releases.ExpireCooling(grantstest.Noon.Add(time.Hour))
			}, want: []string{"10.0.0.3", "10.0.0.1", "10.0.0.2"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := grantstest.NewPool(t, tc.addresses, tc.change...)
			tc.before(p)
			if got := grantNew(p, len(tc.want)); !slices.Equal(got, tc.want) {
				t.Errorf("%v, not %v: %s", got, tc.want, tc.reason)
			}
		})
	}
}

// TestOrderIsOnRecord checks U51: the next holder goes on in the order of the status, with what rests at the end of it,
// and a pool that is changed to best fit forgets the order.
func TestOrderIsOnRecord(t *testing.T) {
	rests := func(o *v1alpha1.NetworkPool) { o.Spec.AddressReuseGracePeriodSeconds = ptr.To[int64](30) }
	p := grantstest.NewPool(t, "10.0.0.1-10.0.0.6", grantstest.WithReleaseOrder, rests)
	grantstest.ReleaseInOrder(p, "10.0.0.4", "10.0.0.2", "10.0.0.3", "10.0.0.6")
	c := grantstest.ObserveClaim(p, "ends", 0, grantstest.WithRecordedAddress("10.0.0.5"), grantstest.WithReadyStatus, grantstest.WithDeletionTimestamp)
	p.Releases.StartCooling(p.Inventory.ReleaseFor(c), grantstest.Noon)
	p.ForgetClaimant(c.Owner.UID)
	grantstest.ObserveClaim(p, "new", 0, grantstest.WithRecordedAddress("10.0.0.6"))
	if got, want := formatReleases(p), "10.0.0.4, 10.0.0.2/31"; got != want {
		t.Fatalf("%q, not %q", got, want)
	}

	next := grantstest.NewPool(t, "10.0.0.1-10.0.0.6", grantstest.WithReleaseOrder, rests, func(o *v1alpha1.NetworkPool) { o.Status = *p.PrepareCommit(grantstest.Noon).Pool.PoolStatus() })
	next.RebuildLedger(&grants.ListedObjects{Claimants: []*grants.Claimant{p.Claimants.ByUID["uid-new"]}})
	if got := formatReleases(next); got != formatReleases(p) {
		t.Errorf("the next holder says %q", got)
	}
	next.Releases.ExpireCooling(grantstest.Noon.Add(time.Hour))
	if got, want := grantNew(next, 9), []string{"10.0.0.1", "10.0.0.4", "10.0.0.2", "10.0.0.3", "10.0.0.5"}; !slices.Equal(got, want) {
		t.Errorf("the next holder gives %v, not %v", got, want)
	}

	bestFit := p.Base.Pool.DeepCopyObject().(*v1alpha1.NetworkPool)
	bestFit.Spec.AllocationOrder, bestFit.Generation, bestFit.ResourceVersion = v1alpha1.BestFitOrder, 2, "11"
	p.SetBasePool(bestFit)
	if got := formatReleases(p); got != "" {
		t.Errorf("by best fit it says %q", got)
	}
}

// TestOrderOnRecordIsBounded checks that the status has room for the last 4 KiB of releases, whatever is in it is read
// without harm, and what is not on record comes first (U51, U52).
func TestOrderOnRecordIsBounded(t *testing.T) {
	p := grantstest.NewPool(t, "10.0.0.0/20", grantstest.WithReleaseOrder, func(o *v1alpha1.NetworkPool) { o.Spec.Prefix = ptr.To[int32](16) })
	var even []string
	a := netip.MustParseAddr("10.0.15.0")
	for range 1000 {
		even = append(even, a.String())
		a = a.Prev().Prev()
	}
	grantstest.ReleaseInOrder(p, even...)
	text := formatReleases(p)
	if !strings.HasSuffix(text, ", "+even[999]) || len(text) > 4<<10 || len(text) < 4<<10-20 {
		t.Errorf("%d bytes: %s", len(text), text)
	}
	for _, text := range []string{"", ",", "nonsense, 10.0.0.1", "10.0.0.1, 10.0.0.1", "0.0.0.0/0", "fd00::/64, 10.0.0.1-10.0.0.9, 10.0.0.3"} {
		next := grantstest.NewPool(t, "10.0.0.1-10.0.0.3", grantstest.WithReleaseOrder, func(o *v1alpha1.NetworkPool) { o.Status.Released = text })
		next.RebuildLedger(&grants.ListedObjects{})
		if got := grantNew(next, 9); len(got) != 3 {
			t.Errorf("%q: %v are given", text, got)
		}
	}
}
