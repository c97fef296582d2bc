package allocator

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"runtime"
	"strings"
	"testing"
	"time"
	"weak"

	"go4.org/netipx"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/cooling"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/grants"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/ledger"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/term"
)

// longest returns a name of the given length, the longest that Kubernetes takes for its kind, ending in the number i.
func longest(length, i int) string {
	n := fmt.Sprint(i)
	return strings.Repeat("n", length-len(n)) + n
}

// TestFullStatusStaysSmall checks that a status whose bounded fields are full, with the longest names there are, can
// still be written with every grant.
func TestFullStatusStaysSmall(t *testing.T) {
	p := newTestPool(t, "fd00::1:1-fd00::1:ffff", func(o *v1alpha1.NetworkPool) {
		o.Spec.Addresses, o.Spec.Prefix, o.Spec.AddressReuseGracePeriodSeconds = nil, nil, ptr.To[int64](3600)
		o.Spec.Carve = &v1alpha1.Carve{PoolRef: v1alpha1.PoolReference{Name: "site"}, PrefixLength: 120}
		for i := range v1alpha1.MaxCarvedBlocks {
			o.Status.Blocks = append(o.Status.Blocks, v1alpha1.CarvedBlock{
				Range: fmt.Sprintf("fd00:1111:2222:3333:4444:5555:6666:%04x/120", i<<8), Allocation: longest(253, i), UID: longest(36, i), Prefix: 64,
				Gateway: "fd00:1111:2222:3333:4444:5555:6666:7777", IdleSince: &metav1.Time{Time: noon},
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
	for p.Releases.StartCooling(grants.Release{Range: next(), Owner: owner(noted), CoolingPeriod: time.Hour}, noon) {
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
	p.Growth.PlanBlocks(noon, time.Hour)
	obj := p.Base.Pool.DeepCopyObject().(*v1alpha1.NetworkPool)
	p.Status.FillStatus(obj, noon)
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

// TestMovedAddressComesBack checks that an address that is held because it was moved away is granted again to the
// object that comes back under its name, and to no other that has it on record.
func TestMovedAddressComesBack(t *testing.T) {
	for name, tc := range map[string]struct {
		held v1alpha1.HeldRange
		want bool
	}{
		"ItsOwn":             {v1alpha1.HeldRange{Namespace: "ns", Name: "a"}, true},
		"OfNobody":           {v1alpha1.HeldRange{}, true}, // joined with its neighbours
		"OfAnother":          {v1alpha1.HeldRange{Namespace: "ns", Name: "b"}, false},
		"OfItsNameElsewhere": {v1alpha1.HeldRange{Namespace: "other", Name: "a"}, false},
	} {
		t.Run(name, func(t *testing.T) {
			p := newTestPool(t, "10.0.0.1-10.0.0.9")
			r := netipx.MustParseIPRange("10.0.0.1-10.0.0.1")
			tc.held.First, tc.held.Last, tc.held.Reason = "10.0.0.1", "10.0.0.1", v1alpha1.MovedReason
			p.Held.AddHeldRange(r, tc.held)
			c := observeClaim(p, "a", 0, withRecordedAddress("10.0.0.1"))
			got, refusal := p.Inventory.RecordedRangeFor(c, r)
			if kept := got == r && refusal == nil; kept != tc.want {
				t.Errorf("it gets %v, refused: %v", got, refusal)
			}
		})
	}
}

// TestReleaseRecordsCoolingAgain checks that a release records its rest again when half of it has passed before it
// could be dispatched.
func TestReleaseRecordsCoolingAgain(t *testing.T) {
	p := newTestPool(t, "10.0.0.1-10.0.0.9", func(o *v1alpha1.NetworkPool) { o.Spec.AddressReuseGracePeriodSeconds = ptr.To[int64](600) })
	c := observeClaim(p, "a", 0, withRecordedAddress("10.0.0.1"), bothReady, withDeletionTimestamp)
	observeAddress(p, "a", "10.0.0.1", "uid-a")
	if !p.Cooling.NeedsCooling(p.Inventory.ReleaseFor(c), noon) {
		t.Fatal("it need not rest")
	}
	p.Releases.StartCooling(p.Inventory.ReleaseFor(c), noon)
	for after, must := range map[time.Duration]bool{0: false, 4 * time.Minute: false, 6 * time.Minute: true} {
		if got := p.Cooling.NeedsCooling(p.Inventory.ReleaseFor(c), noon.Add(after)); got != must {
			t.Errorf("noted %v ago: must rest %v", after, got)
		}
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
	clock := clocktesting.NewFakeClock(noon)
	p := newTestPool(t, "10.0.0.0-10.0.200.255", func(o *v1alpha1.NetworkPool) {
		o.Spec.Prefix, o.Spec.AddressReuseGracePeriodSeconds = ptr.To[int32](16), ptr.To[int64](3600)
	})
	api := &singleWriteAPI{}
	a := New(Options{Client: api, Live: api, Recorder: noopRecorder{}, ManagerID: "me", Clock: clock})
	claims := make([]*grants.Claimant, n)
	deleted := func(from, to int) {
		for i := from; i < to; i++ {
			at := order(i)
			name, ip := fmt.Sprintf("tenant-production-7-md-0-x7k2p-%05d-eth0-inet", at), fmt.Sprintf("10.0.%d.%d", at/256, at%256)
			claims[i] = observeClaim(p, name, 0, withRecordedAddress(ip), bothReady, withDeletionTimestamp)
			observeAddress(p, name, ip, types.UID("uid-"+name))
		}
	}
	// turns releases what may be released, and returns in how many reconciles.
	turns := func() (turn int) {
		for ; p.Releases.CoolReleases(clock.Now(), a.admission.newReleaseAdmissionFunc(t.Context(), p)); turn++ {
			noted := 0
			for _, c := range claims {
				if c != nil && p.Claimants.ByUID[c.Owner.UID] != nil && !p.Cooling.NeedsCooling(p.Inventory.ReleaseFor(c), clock.Now()) {
					noted++
					release(p, c)
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
	newClaim := observeClaim(p, "new", 1)
	if granted, _ := p.Planner.PlanGrants(clock.Now(), 9, admitAll); granted != 1 {
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

// manyDeleted returns a pool with n deleted claims whose addresses must rest.
func manyDeleted(t *testing.T, n int) *grants.PoolState {
	t.Helper()
	p := newTestPool(t, "10.0.0.0-10.0.200.255", func(o *v1alpha1.NetworkPool) {
		o.Spec.Prefix, o.Spec.AddressReuseGracePeriodSeconds = ptr.To[int32](16), ptr.To[int64](3600)
	})
	for i := range n {
		name, ip := fmt.Sprint("c-", i), fmt.Sprintf("10.0.%d.%d", i/256, i%256)
		observeClaim(p, name, 0, withRecordedAddress(ip), bothReady, withDeletionTimestamp)
		observeAddress(p, name, ip, types.UID("uid-"+name))
	}
	return p
}

// release ends a claim and its IPAddress.
func release(p *grants.PoolState, c *grants.Claimant) {
	p.ForgetAddress("address-"+types.UID(c.Owner.Name), grants.NamespacedNameFromOwner(c.Owner))
	p.ForgetClaimant(c.Owner.UID)
}

// TestDeferredReleasesAreForgotten checks that claims that were deferred are no longer in memory once they are gone.
func TestDeferredReleasesAreForgotten(t *testing.T) {
	const n = 3 * grants.MaxJobs
	p := manyDeleted(t, n)
	were := map[types.UID]weak.Pointer[grants.Claimant]{}
	for uid, c := range p.Claimants.ByUID {
		were[uid] = weak.Make(c)
	}
	for p.Releases.CoolReleases(noon, admitAll) {
		for _, c := range p.Claimants.ByUID {
			if !p.Cooling.NeedsCooling(p.Inventory.ReleaseFor(c), noon) {
				release(p, c)
			}
		}
	}
	runtime.GC()
	for uid, c := range were {
		if c.Value() != nil {
			t.Fatalf("claim %s is gone, and in memory; %d are left", uid, len(p.Claimants.ByUID))
		}
	}
	runtime.KeepAlive(p)
}

// TestDeferredReleasesDoNotWaitForOthers checks that the pool is reconciled again for deferred releases when all
// releases whose rests a batch has recorded wait at dispatch, as their Cluster was paused during the commit.
func TestDeferredReleasesDoNotWaitForOthers(t *testing.T) {
	p := manyDeleted(t, 2*grants.MaxJobs)
	p.Releases.CoolReleases(noon, admitAll)
	noted := map[types.UID]bool{}
	for uid := range p.Queues.ToWrite {
		noted[uid] = true
	}
	paused := func(c *grants.Claimant) grants.AdmissionResult {
		return grants.AdmissionResult{Wait: noted[c.Owner.UID]}
	}
	for turn, want := range []int{0, grants.MaxJobs, 0} {
		if turn > 0 {
			p.Releases.CoolReleases(noon, paused)
		}
		due, wait := p.ListDueWrites(noon, grants.MaxJobs, time.Hour, admitAll, paused)
		if again := p.NextWakeDelay(noon, wait) <= time.Second; len(due.ReleaseClaimants) != want || again != (turn == 0) {
			t.Errorf("turn %d: %d are handed out, not %d; again: %v", turn, len(due.ReleaseClaimants), want, again)
		}
		for _, uid := range due.ReleaseClaimants {
			release(p, p.Claimants.ByUID[uid])
		}
	}
}

// TestDeferredReleasesAreResumed checks that releases that a batch leaves to the next one are also done when this
// manager records no rest any more: the pool has no grace, the term or the pool ends. A release that a user or a
// restore changes meanwhile is handled as it is now.
func TestDeferredReleasesAreResumed(t *testing.T) {
	const n = grants.MaxJobs + 44
	nameOf := func(i int) string { return fmt.Sprint("c-", i) }
	for name, tc := range map[string]struct {
		then func(p *grants.PoolState)
		// todo is how many are due at once, rests how many rests the next batch records.
		todo, rests int
	}{
		"Next":     {then: func(*grants.PoolState) {}, todo: grants.MaxJobs, rests: n - grants.MaxJobs},
		"TermLost": {then: func(p *grants.PoolState) { p.LoseTerm(noon) }, todo: n, rests: n - grants.MaxJobs},
		"NoPool":   {then: func(p *grants.PoolState) { p.ClearBasePool() }, todo: n},
		"MadeAnew": {then: func(p *grants.PoolState) {
			recreated := p.Base.Pool.DeepCopyObject().(*v1alpha1.NetworkPool)
			recreated.UID, recreated.ResourceVersion = "uid-of-another", "20"
			recreated.Status.Allocator = &v1alpha1.AllocatorStatus{Holder: "another", Term: 1}
			p.RefreshBasePool(recreated, "me", noon)
		}, todo: n, rests: n - grants.MaxJobs},
		"NoGrace": {then: func(p *grants.PoolState) {
			p.Base.Pool.PoolSpec().AddressReuseGracePeriodSeconds = nil
			p.Releases.CoolReleases(noon, admitAll)
		}, todo: n},
		"SeenAnew": {then: func(p *grants.PoolState) {
			observeClaim(p, nameOf(n-1), 0, withRecordedAddress("10.0.1.43"), bothReady, withDeletionTimestamp, func(c *ipamv1.IPAddressClaim) { c.ResourceVersion = "7" })
		}, todo: grants.MaxJobs + 1, rests: n - grants.MaxJobs},
		"Gone": {then: func(p *grants.PoolState) { p.ForgetClaimant(types.UID("uid-" + nameOf(n-1))) }, todo: grants.MaxJobs, rests: n - grants.MaxJobs - 1},
		"Failed": {then: func(p *grants.PoolState) {
			p.Claimants.ByUID[types.UID("uid-"+nameOf(n-1))].RetryAt = noon.Add(time.Hour)
		}, todo: grants.MaxJobs, rests: n - grants.MaxJobs - 1},
	} {
		t.Run(name, func(t *testing.T) {
			p := manyDeleted(t, n)
			p.Releases.CoolReleases(noon, admitAll)
			if !p.Queues.Backlog || len(p.Queues.ToWrite) != grants.MaxJobs {
				t.Fatalf("%d are to be done, others wait: %v", len(p.Queues.ToWrite), p.Queues.Backlog)
			}
			if tc.then(p); len(p.Queues.ToWrite) != tc.todo {
				t.Errorf("%d are to be done, not %d", len(p.Queues.ToWrite), tc.todo)
			}
			if p.Base.Pool == nil {
				return
			}
			for i := range grants.MaxJobs { // those that were dispatched end
				release(p, p.Claimants.ByUID[types.UID("uid-"+nameOf(i))])
			}
			p.Releases.CoolReleases(noon, admitAll)
			rests := 0
			for i := grants.MaxJobs; i < n; i++ {
				if c := p.Claimants.ByUID[types.UID("uid-"+nameOf(i))]; c != nil && p.Inventory.ReleaseFor(c).CoolingPeriod > 0 && !p.Cooling.NeedsCooling(p.Inventory.ReleaseFor(c), noon) {
					rests++
				}
			}
			if rests != tc.rests || p.Queues.Backlog {
				t.Errorf("%d rest after the next batch, not %d; others wait: %v", rests, tc.rests, p.Queues.Backlog)
			}
		})
	}
}

// TestStandbyWaitsForEndOfCooling checks that another manager waits for the end of the first rest on record, and no
// longer: its holder may be dead.
func TestStandbyWaitsForEndOfCooling(t *testing.T) {
	p := newTestPool(t, "10.0.0.1-10.0.200.255", func(o *v1alpha1.NetworkPool) {
		o.Spec.Prefix, o.Spec.AddressReuseGracePeriodSeconds = ptr.To[int32](16), ptr.To[int64](3600)
	})
	groups := func(bytes int) []v1alpha1.CoolingGroup {
		return []v1alpha1.CoolingGroup{
			{Until: metav1.NewTime(noon.Add(2 * time.Hour)), Addresses: "10.0.0.1"}, // an operator may write any order
			{Until: metav1.NewTime(noon.Add(time.Hour)), Addresses: strings.Repeat("x", bytes)},
			{Until: metav1.NewTime(noon.Add(3 * time.Hour)), Addresses: "10.0.0.3"},
		}
	}
	p.Base.Pool.PoolStatus().Cooling = groups(cooling.MaxTextSize)
	for after, want := range map[time.Duration]time.Duration{0: time.Hour, 59 * time.Minute: time.Minute, time.Hour: 0, 90 * time.Minute: 0} {
		if got := p.Releases.CoolingRoomDelay(noon.Add(after)); got != want {
			t.Errorf("after %v: %v, not %v", after, got, want)
		}
	}
	p.Base.Pool.PoolStatus().Cooling = groups(cooling.MaxTextSize / 2)
	if got := p.Releases.CoolingRoomDelay(noon); got != 0 {
		t.Errorf("there is room, and it waits %v", got)
	}
}

// TestReleasesWaitForRoom checks that a release keeps its address where no more rests fit on record, and that the pool
// reports that.
func TestReleasesWaitForRoom(t *testing.T) {
	p := newTestPool(t, "10.0.0.1-10.0.200.255", func(o *v1alpha1.NetworkPool) {
		o.Spec.Prefix, o.Spec.AddressReuseGracePeriodSeconds = ptr.To[int32](16), ptr.To[int64](3600)
	})
	a := New(Options{ManagerID: "me", Clock: clocktesting.NewFakeClock(noon)})
	ip := netip.MustParseAddr("10.0.0.2")
	for p.Releases.StartCooling(grants.Release{Range: p.Space.Ledger.UnitRange(ip), Owner: ledger.Owner{Namespace: "ns", Name: "gone"}, CoolingPeriod: time.Hour}, noon) {
		ip = ip.Next().Next()
	}
	c := observeClaim(p, "late", 0, withRecordedAddress("10.0.200.201"), bothReady, withDeletionTimestamp)
	observeAddress(p, "late", "10.0.200.201", "uid-late")
	if p.Releases.CoolReleases(noon, a.admission.newReleaseAdmissionFunc(t.Context(), p)) || !p.Cooling.NeedsCooling(p.Inventory.ReleaseFor(c), noon) || len(p.Queues.ToWrite) > 0 {
		t.Fatal("it was noted, or is reconciled in every turn")
	}
	if ready := p.Status.PoolConditions(p.Space.Ledger.Counts(), noon)[0]; !strings.Contains(ready.Message, "deleted claims keep their addresses") {
		t.Error(ready.Message)
	}
	// Another manager, which would have as little room, ignores the pool until a rest ends.
	p.Status.FillStatus(p.Base.Pool, noon)
	p.Term.TakeoverChecked, p.Term.WorkPendingSince, p.Term.ChangedAt = true, noon, noon
	p.Queues.RetryOverflow()
	wait, after := p.Base.Pool.PoolStatus().Cooling[0].Until.Sub(noon), noon.Add(2*term.TakeoverDelay)
	if may, d := p.MayTakeOver(after, false, time.Hour, admitAll, admitAll); may || d != wait-2*term.TakeoverDelay {
		t.Errorf("takes over: %v, looks again after %v", may, d)
	}
	after = noon.Add(wait + 2*term.TakeoverDelay)
	p.Term.WorkPendingSince = noon
	if may, _ := p.MayTakeOver(after, false, time.Hour, admitAll, admitAll); !may {
		t.Error("no manager takes over, though there is room")
	}
	p.Queues.AddToOverflow(c)
	p.Releases.ExpireCooling(noon.Add(2 * time.Hour))
	if !p.Releases.CoolReleases(noon.Add(2*time.Hour), a.admission.newReleaseAdmissionFunc(t.Context(), p)) {
		t.Error("it waits, though nothing rests any more")
	}
}

// TestCoolingOfFastClockIsBounded checks that, after a clock that was ahead at the releases is corrected, no address
// rests for longer than one that is released now; one that a foreign machine uses rests an hour (P7).
func TestCoolingOfFastClockIsBounded(t *testing.T) { // W32
	p := newTestPool(t, "10.0.0.1-10.0.0.9", func(o *v1alpha1.NetworkPool) { o.Spec.AddressReuseGracePeriodSeconds = ptr.To[int64](60) })
	ahead := noon.Add(8 * time.Hour)
	for ip, name := range map[string]string{"10.0.0.1": "a", "10.0.0.2": ""} {
		r := p.Space.Ledger.UnitRange(netip.MustParseAddr(ip))
		p.Cooling.Periods.ForceAdd(cooling.Entry{Range: r, Until: ahead, Claim: types.NamespacedName{Namespace: "ns", Name: name}})
	}
	for _, at := range []struct {
		after time.Duration
		free  int64
	}{{0, 7}, {59 * time.Second, 7}, {2 * time.Minute, 8}, {59 * time.Minute, 8}, {71 * time.Minute, 9}} {
		p.Releases.ExpireCooling(noon.Add(at.after))
		if n := p.Space.Ledger.Counts().Available; n != at.free {
			t.Errorf("after %v %d addresses are free, not %d", at.after, n, at.free)
		}
	}
}

// TestCoolingUsesAPIServerClock checks that a rest ends by the clock of the API server, whatever the clocks of
// the manager that records it and of the next one (R9, P7).
func TestCoolingUsesAPIServerClock(t *testing.T) {
	for name, wrong := range map[string]struct{ former, next time.Duration }{
		"the former was behind":  {former: -2 * time.Hour},
		"the former was ahead":   {former: 2 * time.Hour},
		"the next one is behind": {next: -2 * time.Hour},
		"the next one is ahead":  {next: 2 * time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			manager := func(wrong time.Duration) *grants.PoolState {
				p := newTestPool(t, "10.0.0.1-10.0.0.9", func(o *v1alpha1.NetworkPool) { o.Spec.AddressReuseGracePeriodSeconds = ptr.To[int64](60) })
				p.Clock.ToAPIServerTime = func(at time.Time) time.Time { return at.Add(-wrong) }
				return p
			}
			former, next := manager(wrong.former), manager(wrong.next)
			gone := func(last byte) grants.Release {
				ip := netip.AddrFrom4([4]byte{10, 0, 0, last})
				return grants.Release{Range: former.Space.Ledger.UnitRange(ip), Owner: ledger.Owner{Namespace: "ns", Name: ip.String()}, CoolingPeriod: time.Minute}
			}
			inUse := gone(2)
			inUse.CoolingPeriod, inUse.WithoutName = grants.InUseCoolingPeriod, true
			for _, e := range []grants.Release{gone(1), inUse} {
				former.Releases.StartCooling(e, noon.Add(wrong.former))
			}
			status := former.PrepareCommit(noon.Add(wrong.former)).Pool.PoolStatus()
			next.LoadCoolingAndHeld(status)
			if next.Cooling.NeedsCooling(gone(1), noon.Add(wrong.next)) {
				t.Error("what rests is to be noted again")
			}
			next.Base.Pool.PoolStatus().Cooling = []v1alpha1.CoolingGroup{{Until: status.Cooling[0].Until, Addresses: strings.Repeat("x", cooling.MaxTextSize)}}
			if wait := next.Releases.CoolingRoomDelay(noon.Add(wrong.next)); wait < time.Minute || wait > 70*time.Second {
				t.Errorf("room comes after %v", wait)
			}
			for _, at := range []struct {
				after time.Duration
				free  int64
			}{{0, 7}, {59 * time.Second, 7}, {70 * time.Second, 8}, {59 * time.Minute, 8}, {70 * time.Minute, 9}} {
				now := noon.Add(wrong.next + at.after)
				next.Releases.ExpireCooling(now)
				if n := next.Space.Ledger.Counts().Available; n != at.free {
					t.Errorf("after %v %d addresses are free, not %d", at.after, n, at.free)
				}
				if wake := next.NextWakeDelay(now, 0); (wake > 0) != (at.free < 9) || wake > 70*time.Minute {
					t.Errorf("after %v it wakes up in %v", at.after, wake)
				}
			}
		})
	}
}
