package allocator

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"
	"time"

	"go4.org/netipx"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/cooling"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/grants"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/ledger"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/term"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/grantstest"
)

// longest returns a name of the given length, the longest that Kubernetes takes for its kind, ending in the number i.
func longest(length, i int) string {
	n := fmt.Sprint(i)
	return strings.Repeat("n", length-len(n)) + n
}

// TestFullStatusStaysSmall checks that a status whose bounded fields are full, with the longest names there are, can
// still be written with every grant.
func TestFullStatusStaysSmall(t *testing.T) {
	p := grantstest.NewPool(t, "fd00::1:1-fd00::1:ffff", func(o *v1alpha1.NetworkPool) {
		o.Spec.Addresses, o.Spec.Prefix, o.Spec.AddressReuseGracePeriodSeconds = nil, nil, ptr.To[int64](3600)
		o.Spec.Carve = &v1alpha1.Carve{PoolRef: v1alpha1.PoolReference{Name: "site"}, PrefixLength: 120}
		for i := range v1alpha1.MaxCarvedBlocks {
			o.Status.Blocks = append(o.Status.Blocks, v1alpha1.CarvedBlock{
				Range: fmt.Sprintf("fd00:1111:2222:3333:4444:5555:6666:%04x/120", i<<8), Allocation: longest(253, i), UID: longest(36, i), Prefix: 64,
				Gateway: "fd00:1111:2222:3333:4444:5555:6666:7777", IdleSince: &metav1.Time{Time: grantstest.Noon},
			})
		}
	})
	ip := netip.MustParseAddr("fd00:1111:2222:3333:4444:5555:6666:1000")
	owner := func(i int) ledger.Owner {
		return ledger.Owner{Namespace: longest(63, i), Name: longest(253, i), UID: types.UID(longest(36, i))}
	}
	next := func() netipx.IPRange {
		ip = ip.Next().Next() // no two are adjacent
		return netipx.IPRangeFrom(ip, ip)
	}
	noted := 0
	for p.Releases.StartCooling(grants.Release{Range: next(), Owner: owner(noted), CoolingPeriod: time.Hour}, grantstest.Noon) {
		noted++
	}
	for i := range 5 * grants.MaxHeldRanges {
		r := next()
		p.Held.AddHeldRange(r, v1alpha1.HeldRange{
			First: r.From().String(), Last: r.To().String(), Reason: v1alpha1.MovedReason, Namespace: owner(i).Namespace, Name: owner(i).Name,
		})
	}
	for i := range grants.MaxInFlightGrants {
		p.Grants.ByClaimant[owner(i).UID] = &grants.Grant{Owner: owner(i), Range: next(), Committed: true}
	}
	for i := range maxYields {
		p.Overlap.Yields = append(p.Overlap.Yields, v1alpha1.YieldedPool{
			Kind: v1alpha1.GlobalNetworkPoolKind, Namespace: longest(63, i), Name: longest(253, i), UID: longest(36, i), Generation: 1 << 40,
		})
	}
	p.Growth.PlanBlocks(grantstest.Noon, time.Hour)
	obj := p.Base.Pool.DeepCopyObject().(*v1alpha1.NetworkPool)
	p.Status.FillStatus(obj, grantstest.Noon)
	raw, err := json.Marshal(obj)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d bytes: %d blocks, %d rest, %d are held, %d in flight", len(raw), len(obj.Status.Blocks), p.Cooling.Periods.Len(), len(obj.Status.Held), len(obj.Status.Allocator.InFlight))
	if len(raw) > 400_000 {
		t.Errorf("the pool has %d bytes", len(raw))
	}
	if len(obj.Status.Blocks) != v1alpha1.MaxCarvedBlocks {
		t.Errorf("%d blocks", len(obj.Status.Blocks))
	}
	if len(obj.Status.Held) > grants.MaxHeldRanges || p.Cooling.Periods.Len() < 90 {
		t.Errorf("%d are held, %d rest", len(obj.Status.Held), p.Cooling.Periods.Len())
	}
}

// TestThousandsOfReleasesCool checks as many releases at once as there are claims, in two waves and in any order: no
// rest is recorded that is not dispatched, each release ends, every reconcile does as much as it may, and a new claim
// is served meanwhile.
func TestThousandsOfReleasesCool(t *testing.T) {
	const n = 11_000
	chance := rand.New(rand.NewPCG(1, 2)).Perm(n)
	for name, order := range map[string]func(i int) int{
		"by address":         func(i int) int { return i },
		"every second first": func(i int) int { return 2*i%n + 2*i/n },
		"by chance":          func(i int) int { return chance[i] },
	} {
		t.Run(name, func(t *testing.T) {
			releaseAll(t, n, order)
		})
	}
}

func releaseAll(t *testing.T, n int, order func(i int) int) {
	t.Helper()
	clock := clocktesting.NewFakeClock(grantstest.Noon)
	p := grantstest.NewPool(t, "10.0.0.0-10.0.200.255", func(o *v1alpha1.NetworkPool) {
		o.Spec.Prefix, o.Spec.AddressReuseGracePeriodSeconds = ptr.To[int32](16), ptr.To[int64](3600)
	})
	api := &singleWriteAPI{}
	a := New(Options{Client: api, Live: api, Recorder: noopRecorder{}, ManagerID: "me", Clock: clock})
	claims := make([]*grants.Claimant, n)
	deleted := func(from, to int) {
		for i := from; i < to; i++ {
			at := order(i)
			name, ip := fmt.Sprintf("tenant-production-7-md-0-x7k2p-%05d-eth0-inet", at), fmt.Sprintf("10.0.%d.%d", at/256, at%256)
			claims[i] = grantstest.ObserveClaim(p, name, 0, grantstest.WithRecordedAddress(ip), grantstest.WithReadyStatus, grantstest.WithDeletionTimestamp)
			grantstest.ObserveAddress(p, name, ip, types.UID("uid-"+name))
		}
	}
	// turns releases what may be released, and returns in how many reconciles.
	turns := func() (turn int) {
		for ; p.Releases.CoolReleases(clock.Now(), a.admission.newReleaseAdmissionFunc(t.Context(), p)); turn++ {
			noted := 0
			for _, c := range claims {
				if c != nil && p.Claimants.ByUID[c.Owner.UID] != nil && !p.Cooling.NeedsCooling(p.Inventory.ReleaseFor(c), clock.Now()) {
					noted++
					grantstest.EndClaim(p, c)
				}
			}
			if noted > grants.MaxJobs {
				t.Fatalf("%d are noted at once", noted)
			}
			clock.Step(50 * time.Millisecond)
		}
		return turn
	}
	deleted(0, n/2)
	first := turns()
	newClaim := grantstest.ObserveClaim(p, "new", 1)
	if granted, _ := p.Planner.PlanGrants(clock.Now(), 9, grantstest.AdmitAll); granted != 1 {
		t.Error("a new claim is not served while releases wait")
	}
	p.Queues.DropGrant(newClaim.Owner.UID)
	p.ForgetClaimant(newClaim.Owner.UID)
	waited := len(p.Queues.Overflow)
	deleted(n/2, n)
	second := turns()
	t.Logf("%d turns for %d, %d had to wait; %d for the others", first, n/2, waited, second)
	if len(p.Claimants.ByUID) > 0 {
		t.Fatalf("%d are left to do: %d wait for room, %d ranges in %d bytes", len(p.Queues.ToWrite), len(p.Queues.Overflow), p.Cooling.Periods.Len(), p.Cooling.Periods.TextSize())
	}
	if first+second > 2*n/grants.MaxJobs {
		t.Errorf("%d turns, and each could have noted %d", first+second, grants.MaxJobs)
	}
	if p.Cooling.Periods.TextSize() > 2*cooling.MaxTextSize {
		t.Errorf("what rests has %d bytes", p.Cooling.Periods.TextSize())
	}
	for _, c := range claims {
		if h := p.Inventory.FindBlockingFact(p.Space.Ledger.UnitRange(c.RecordedRange.From()), ledger.Owner{Namespace: "ns", Name: "other", UID: "other"}); h == nil {
			t.Fatalf("%s does not rest", c.RecordAnnotation)
		}
	}
}

// TestReleasesWaitForRoom checks that a release keeps its address where no more rests fit on record, and that the pool
// reports that.
func TestReleasesWaitForRoom(t *testing.T) {
	p := grantstest.NewPool(t, "10.0.0.1-10.0.200.255", func(o *v1alpha1.NetworkPool) {
		o.Spec.Prefix, o.Spec.AddressReuseGracePeriodSeconds = ptr.To[int32](16), ptr.To[int64](3600)
	})
	a := New(Options{ManagerID: "me", Clock: clocktesting.NewFakeClock(grantstest.Noon)})
	ip := netip.MustParseAddr("10.0.0.2")
	for p.Releases.StartCooling(grants.Release{Range: p.Space.Ledger.UnitRange(ip), Owner: ledger.Owner{Namespace: "ns", Name: "gone"}, CoolingPeriod: time.Hour}, grantstest.Noon) {
		ip = ip.Next().Next()
	}
	c := grantstest.ObserveClaim(p, "late", 0, grantstest.WithRecordedAddress("10.0.200.201"), grantstest.WithReadyStatus, grantstest.WithDeletionTimestamp)
	grantstest.ObserveAddress(p, "late", "10.0.200.201", "uid-late")
	if p.Releases.CoolReleases(grantstest.Noon, a.admission.newReleaseAdmissionFunc(t.Context(), p)) || !p.Cooling.NeedsCooling(p.Inventory.ReleaseFor(c), grantstest.Noon) || len(p.Queues.ToWrite) > 0 {
		t.Fatal("it was noted, or is reconciled in every turn")
	}
	if ready := p.Status.PoolConditions(p.Space.Ledger.Counts(), grantstest.Noon)[0]; !strings.Contains(ready.Message, "deleted claims keep their addresses") {
		t.Error(ready.Message)
	}
	// Another manager, which would have as little room, ignores the pool until a rest ends.
	p.Status.FillStatus(p.Base.Pool, grantstest.Noon)
	p.Term.TakeoverChecked, p.Term.WorkPendingSince, p.Term.ChangedAt = true, grantstest.Noon, grantstest.Noon
	p.Queues.RetryOverflow()
	wait, after := p.Base.Pool.PoolStatus().Cooling[0].Until.Sub(grantstest.Noon), grantstest.Noon.Add(2*term.TakeoverDelay)
	if may, d := p.MayTakeOver(after, false, time.Hour, grantstest.AdmitAll, grantstest.AdmitAll); may || d != wait-2*term.TakeoverDelay {
		t.Errorf("takes over: %v, looks again after %v", may, d)
	}
	after = grantstest.Noon.Add(wait + 2*term.TakeoverDelay)
	p.Term.WorkPendingSince = grantstest.Noon
	if may, _ := p.MayTakeOver(after, false, time.Hour, grantstest.AdmitAll, grantstest.AdmitAll); !may {
		t.Error("no manager takes over, though there is room")
	}
	p.Queues.AddToOverflow(c)
	p.Releases.ExpireCooling(grantstest.Noon.Add(2 * time.Hour))
	if !p.Releases.CoolReleases(grantstest.Noon.Add(2*time.Hour), a.admission.newReleaseAdmissionFunc(t.Context(), p)) {
		t.Error("it waits, though nothing rests any more")
	}
}
