package grants_test

import (
	"fmt"
	"net/netip"
	"runtime"
	"strings"
	"testing"
	"time"
	"weak"

	"go4.org/netipx"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/cooling"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/grants"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/ledger"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/grantstest"
)

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
			p := grantstest.NewPool(t, "10.0.0.1-10.0.0.9")
			r := netipx.MustParseIPRange("10.0.0.1-10.0.0.1")
			tc.held.First, tc.held.Last, tc.held.Reason = "10.0.0.1", "10.0.0.1", v1alpha1.MovedReason
			p.Held.AddHeldRange(r, tc.held)
			c := grantstest.ObserveClaim(p, "a", 0, grantstest.WithRecordedAddress("10.0.0.1"))
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
	p := grantstest.NewPool(t, "10.0.0.1-10.0.0.9", func(o *v1alpha1.NetworkPool) { o.Spec.AddressReuseGracePeriodSeconds = ptr.To[int64](600) })
	c := grantstest.ObserveClaim(p, "a", 0, grantstest.WithRecordedAddress("10.0.0.1"), grantstest.WithReadyStatus, grantstest.WithDeletionTimestamp)
	grantstest.ObserveAddress(p, "a", "10.0.0.1", "uid-a")
	if !p.Cooling.NeedsCooling(p.Inventory.ReleaseFor(c), grantstest.Noon) {
		t.Fatal("it need not rest")
	}
	p.Releases.StartCooling(p.Inventory.ReleaseFor(c), grantstest.Noon)
	for after, must := range map[time.Duration]bool{0: false, 4 * time.Minute: false, 6 * time.Minute: true} {
		if got := p.Cooling.NeedsCooling(p.Inventory.ReleaseFor(c), grantstest.Noon.Add(after)); got != must {
			t.Errorf("noted %v ago: must rest %v", after, got)
		}
	}
}

// manyDeleted returns a pool with n deleted claims whose addresses must rest.
func manyDeleted(t *testing.T, n int) *grants.PoolState {
	t.Helper()
	p := grantstest.NewPool(t, "10.0.0.0-10.0.200.255", func(o *v1alpha1.NetworkPool) {
		o.Spec.Prefix, o.Spec.AddressReuseGracePeriodSeconds = ptr.To[int32](16), ptr.To[int64](3600)
	})
	for i := range n {
		name, ip := fmt.Sprint("c-", i), fmt.Sprintf("10.0.%d.%d", i/256, i%256)
		grantstest.ObserveClaim(p, name, 0, grantstest.WithRecordedAddress(ip), grantstest.WithReadyStatus, grantstest.WithDeletionTimestamp)
		grantstest.ObserveAddress(p, name, ip, types.UID("uid-"+name))
	}
	return p
}

// TestDeferredReleasesAreForgotten checks that claims that were deferred are no longer in memory once they are gone.
func TestDeferredReleasesAreForgotten(t *testing.T) {
	const n = 3 * grants.MaxJobs
	p := manyDeleted(t, n)
	were := map[types.UID]weak.Pointer[grants.Claimant]{}
	for uid, c := range p.Claimants.ByUID {
		were[uid] = weak.Make(c)
	}
	for p.Releases.CoolReleases(grantstest.Noon, grantstest.AdmitAll) {
		for _, c := range p.Claimants.ByUID {
			if !p.Cooling.NeedsCooling(p.Inventory.ReleaseFor(c), grantstest.Noon) {
				grantstest.EndClaim(p, c)
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
	p.Releases.CoolReleases(grantstest.Noon, grantstest.AdmitAll)
	noted := map[types.UID]bool{}
	for uid := range p.Queues.ToWrite {
		noted[uid] = true
	}
	paused := func(c *grants.Claimant) grants.AdmissionResult {
		return grants.AdmissionResult{Wait: noted[c.Owner.UID]}
	}
	for turn, want := range []int{0, grants.MaxJobs, 0} {
		if turn > 0 {
			p.Releases.CoolReleases(grantstest.Noon, paused)
		}
		due, wait := p.ListDueWrites(grantstest.Noon, grants.MaxJobs, time.Hour, grantstest.AdmitAll, paused)
		if again := p.NextWakeDelay(grantstest.Noon, wait) <= time.Second; len(due.ReleaseClaimants) != want || again != (turn == 0) {
			t.Errorf("turn %d: %d are handed out, not %d; again: %v", turn, len(due.ReleaseClaimants), want, again)
		}
		for _, uid := range due.ReleaseClaimants {
			grantstest.EndClaim(p, p.Claimants.ByUID[uid])
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
		"TermLost": {then: func(p *grants.PoolState) { p.LoseTerm(grantstest.Noon) }, todo: n, rests: n - grants.MaxJobs},
		"NoPool":   {then: func(p *grants.PoolState) { p.ClearBasePool() }, todo: n},
		"MadeAnew": {then: func(p *grants.PoolState) {
			recreated := p.Base.Pool.DeepCopyObject().(*v1alpha1.NetworkPool)
			recreated.UID, recreated.ResourceVersion = "uid-of-another", "20"
			recreated.Status.Allocator = &v1alpha1.AllocatorStatus{Holder: "another", Term: 1}
			p.RefreshBasePool(recreated, "me", grantstest.Noon)
		}, todo: n, rests: n - grants.MaxJobs},
		"NoGrace": {then: func(p *grants.PoolState) {
			p.Base.Pool.PoolSpec().AddressReuseGracePeriodSeconds = nil
			p.Releases.CoolReleases(grantstest.Noon, grantstest.AdmitAll)
		}, todo: n},
		"SeenAnew": {then: func(p *grants.PoolState) {
			grantstest.ObserveClaim(p, nameOf(n-1), 0, grantstest.WithRecordedAddress("10.0.1.43"), grantstest.WithReadyStatus, grantstest.WithDeletionTimestamp, func(c *ipamv1.IPAddressClaim) { c.ResourceVersion = "7" })
		}, todo: grants.MaxJobs + 1, rests: n - grants.MaxJobs},
		"Gone": {then: func(p *grants.PoolState) { p.ForgetClaimant(types.UID("uid-" + nameOf(n-1))) }, todo: grants.MaxJobs, rests: n - grants.MaxJobs - 1},
		"Failed": {then: func(p *grants.PoolState) {
			p.Claimants.ByUID[types.UID("uid-"+nameOf(n-1))].RetryAt = grantstest.Noon.Add(time.Hour)
		}, todo: grants.MaxJobs, rests: n - grants.MaxJobs - 1},
	} {
		t.Run(name, func(t *testing.T) {
			p := manyDeleted(t, n)
			p.Releases.CoolReleases(grantstest.Noon, grantstest.AdmitAll)
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
				grantstest.EndClaim(p, p.Claimants.ByUID[types.UID("uid-"+nameOf(i))])
			}
			p.Releases.CoolReleases(grantstest.Noon, grantstest.AdmitAll)
			rests := 0
			for i := grants.MaxJobs; i < n; i++ {
				if c := p.Claimants.ByUID[types.UID("uid-"+nameOf(i))]; c != nil && p.Inventory.ReleaseFor(c).CoolingPeriod > 0 && !p.Cooling.NeedsCooling(p.Inventory.ReleaseFor(c), grantstest.Noon) {
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
	p := grantstest.NewPool(t, "10.0.0.1-10.0.200.255", func(o *v1alpha1.NetworkPool) {
		o.Spec.Prefix, o.Spec.AddressReuseGracePeriodSeconds = ptr.To[int32](16), ptr.To[int64](3600)
	})
	groups := func(bytes int) []v1alpha1.CoolingGroup {
		return []v1alpha1.CoolingGroup{
			{Until: metav1.NewTime(grantstest.Noon.Add(2 * time.Hour)), Addresses: "10.0.0.1"}, // an operator may write any order
			{Until: metav1.NewTime(grantstest.Noon.Add(time.Hour)), Addresses: strings.Repeat("x", bytes)},
			{Until: metav1.NewTime(grantstest.Noon.Add(3 * time.Hour)), Addresses: "10.0.0.3"},
		}
	}
	p.Base.Pool.PoolStatus().Cooling = groups(cooling.MaxTextSize)
	for after, want := range map[time.Duration]time.Duration{0: time.Hour, 59 * time.Minute: time.Minute, time.Hour: 0, 90 * time.Minute: 0} {
		if got := p.Releases.CoolingRoomDelay(grantstest.Noon.Add(after)); got != want {
			t.Errorf("after %v: %v, not %v", after, got, want)
		}
	}
	p.Base.Pool.PoolStatus().Cooling = groups(cooling.MaxTextSize / 2)
	if got := p.Releases.CoolingRoomDelay(grantstest.Noon); got != 0 {
		t.Errorf("there is room, and it waits %v", got)
	}
}

// TestCoolingOfFastClockIsBounded checks that, after a clock that was ahead at the releases is corrected, no address
// rests for longer than one that is released now; one that a foreign machine uses rests an hour (P7).
func TestCoolingOfFastClockIsBounded(t *testing.T) { // W32
	p := grantstest.NewPool(t, "10.0.0.1-10.0.0.9", func(o *v1alpha1.NetworkPool) { o.Spec.AddressReuseGracePeriodSeconds = ptr.To[int64](60) })
	ahead := grantstest.Noon.Add(8 * time.Hour)
	for ip, name := range map[string]string{"10.0.0.1": "a", "10.0.0.2": ""} {
		r := p.Space.Ledger.UnitRange(netip.MustParseAddr(ip))
		p.Cooling.Periods.ForceAdd(cooling.Entry{Range: r, Until: ahead, Claim: types.NamespacedName{Namespace: "ns", Name: name}})
	}
	for _, at := range []struct {
		after time.Duration
		free  int64
	}{{0, 7}, {59 * time.Second, 7}, {2 * time.Minute, 8}, {59 * time.Minute, 8}, {71 * time.Minute, 9}} {
		p.Releases.ExpireCooling(grantstest.Noon.Add(at.after))
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
				p := grantstest.NewPool(t, "10.0.0.1-10.0.0.9", func(o *v1alpha1.NetworkPool) { o.Spec.AddressReuseGracePeriodSeconds = ptr.To[int64](60) })
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
				former.Releases.StartCooling(e, grantstest.Noon.Add(wrong.former))
			}
			status := former.PrepareCommit(grantstest.Noon.Add(wrong.former)).Pool.PoolStatus()
			next.LoadCoolingAndHeld(status)
			if next.Cooling.NeedsCooling(gone(1), grantstest.Noon.Add(wrong.next)) {
				t.Error("what rests is to be noted again")
			}
			next.Base.Pool.PoolStatus().Cooling = []v1alpha1.CoolingGroup{{Until: status.Cooling[0].Until, Addresses: strings.Repeat("x", cooling.MaxTextSize)}}
			if wait := next.Releases.CoolingRoomDelay(grantstest.Noon.Add(wrong.next)); wait < time.Minute || wait > 70*time.Second {
				t.Errorf("room comes after %v", wait)
			}
			for _, at := range []struct {
				after time.Duration
				free  int64
			}{{0, 7}, {59 * time.Second, 7}, {70 * time.Second, 8}, {59 * time.Minute, 8}, {70 * time.Minute, 9}} {
				now := grantstest.Noon.Add(wrong.next + at.after)
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
