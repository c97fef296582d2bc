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

// longest is the longest name of its kind that Kubernetes takes, ending in a number.
func longest(length, i int) string {
	n := fmt.Sprint(i)
	return strings.Repeat("n", length-len(n)) + n
}

// What is bounded in a status is filled to its bounds, with the longest names there are: the object can still be
// written with every grant.
func TestFullStatusStaysSmall(t *testing.T) {
	p := aPool(t, "fd00::1:1-fd00::1:ffff", func(o *v1alpha1.NetworkPool) {
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
		ip = ip.Next().Next() // nothing touches
		return netipx.IPRangeFrom(ip, ip)
	}
	noted := 0
	for p.StartCooling(grants.Ending{Range: next(), Owner: owner(noted), Grace: time.Hour}, noon) {
		noted++
	}
	for i := range 5 * grants.MaxHeld {
		r := next()
		p.AddHeld(r, v1alpha1.HeldRange{
			First: r.From().String(), Last: r.To().String(), Reason: v1alpha1.MovedReason, Namespace: owner(i).Namespace, Name: owner(i).Name,
		})
	}
	for i := range grants.MaxInFlight {
		p.Grants[owner(i).UID] = &grants.Grant{Owner: owner(i), Range: next(), Committed: true}
	}
	for i := range maxYields {
		p.Yields = append(p.Yields, v1alpha1.YieldedPool{
			Kind: v1alpha1.GlobalNetworkPoolKind, Namespace: longest(63, i), Name: longest(253, i), UID: longest(36, i), Generation: 1 << 40,
		})
	}
	p.TurnBlocks(noon, time.Hour)
	obj := p.Base.DeepCopyObject().(*v1alpha1.NetworkPool)
	p.Describe(obj, noon)
	raw, err := json.Marshal(obj)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d bytes: %d blocks, %d rest, %d are held, %d in flight", len(raw), len(obj.Status.Blocks), p.Cooling.Len(), len(obj.Status.Held), len(obj.Status.Allocator.InFlight))
	if len(raw) > 400_000 {
		t.Errorf("the pool has %d bytes", len(raw))
	}
	if len(obj.Status.Blocks) != v1alpha1.MaxCarvedBlocks {
		t.Errorf("%d blocks", len(obj.Status.Blocks))
	}
	if len(obj.Status.Held) > grants.MaxHeld || p.Cooling.Len() < 90 {
		t.Errorf("%d are held, %d rest", len(obj.Status.Held), p.Cooling.Len())
	}
}

// What is held because it was moved away is had again by what comes back under its name, and by nobody else who says so.
func TestWhatWasMovedAwayComesBack(t *testing.T) {
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
			p := aPool(t, "10.0.0.1-10.0.0.9")
			r := netipx.MustParseIPRange("10.0.0.1-10.0.0.1")
			tc.held.First, tc.held.Last, tc.held.Reason = "10.0.0.1", "10.0.0.1", v1alpha1.MovedReason
			p.AddHeld(r, tc.held)
			c := see(p, "a", 0, remembers("10.0.0.1"))
			got, no := p.Recorded(c, r)
			if has := got == r && no == nil; has != tc.want {
				t.Errorf("it gets %v, refused: %v", got, no)
			}
		})
	}
}

// A release notes its rest anew when half of it has passed before it could be handed out.
func TestMustRestAgain(t *testing.T) {
	p := aPool(t, "10.0.0.1-10.0.0.9", func(o *v1alpha1.NetworkPool) { o.Spec.AddressReuseGracePeriodSeconds = ptr.To[int64](600) })
	c := see(p, "a", 0, remembers("10.0.0.1"), bothReady, ends)
	seeAddress(p, "a", "10.0.0.1", "uid-a")
	if !p.NeedsCooling(p.EndingOf(c), noon) {
		t.Fatal("it need not rest")
	}
	p.StartCooling(p.EndingOf(c), noon)
	for after, must := range map[time.Duration]bool{0: false, 4 * time.Minute: false, 6 * time.Minute: true} {
		if got := p.NeedsCooling(p.EndingOf(c), noon.Add(after)); got != must {
			t.Errorf("noted %v ago: must rest %v", after, got)
		}
	}
}

// As many releases at once as there are claims, in two waves and whatever order: none is noted that is not handed out,
// each ends, every turn does as much as it may, and a new claim is served meanwhile.
func TestThousandsOfReleasesRest(t *testing.T) {
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
	p := aPool(t, "10.0.0.0-10.0.200.255", func(o *v1alpha1.NetworkPool) {
		o.Spec.Prefix, o.Spec.AddressReuseGracePeriodSeconds = ptr.To[int32](16), ptr.To[int64](3600)
	})
	api := &oneWrite{}
	a := New(Options{Client: api, Live: api, Recorder: silent{}, ID: "me", Clock: clock})
	claims := make([]*grants.Claimant, n)
	deleted := func(from, to int) {
		for i := from; i < to; i++ {
			at := order(i)
			name, ip := fmt.Sprintf("tenant-production-7-md-0-x7k2p-%05d-eth0-inet", at), fmt.Sprintf("10.0.%d.%d", at/256, at%256)
			claims[i] = see(p, name, 0, remembers(ip), bothReady, ends)
			seeAddress(p, name, ip, types.UID("uid-"+name))
		}
	}
	// turns releases what may be released, and returns in how many turns.
	turns := func() (turn int) {
		for ; p.CoolReleases(clock.Now(), a.releases(t.Context(), p)); turn++ {
			noted := 0
			for _, c := range claims {
				if c != nil && p.Claimants[c.Owner.UID] != nil && !p.NeedsCooling(p.EndingOf(c), clock.Now()) {
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
	fresh := see(p, "new", 1)
	if granted, _ := p.Plan(clock.Now(), 9, anyone); granted != 1 {
		t.Error("a new claim is not served while releases wait")
	}
	p.DropGrant(fresh.Owner.UID)
	p.Forget(fresh.Owner.UID)
	waited := len(p.Crowded)
	deleted(n/2, n)
	second := turns()
	t.Logf("%d turns for %d, %d had to wait; %d for the others", first, n/2, waited, second)
	if len(p.Claimants) > 0 {
		t.Fatalf("%d are left to do: %d wait for room, %d ranges in %d bytes", len(p.Todo), len(p.Crowded), p.Cooling.Len(), p.Cooling.Size())
	}
	if first+second > 2*n/grants.MaxJobs {
		t.Errorf("%d turns, and each could have noted %d", first+second, grants.MaxJobs)
	}
	if p.Cooling.Size() > 2*cooling.MaxText {
		t.Errorf("what rests has %d bytes", p.Cooling.Size())
	}
	for _, c := range claims {
		if h := p.Blocker(p.Ledger.Unit(c.Record.From()), ledger.Owner{Namespace: "ns", Name: "other", UID: "other"}); h == nil {
			t.Fatalf("%s does not rest", c.RecordText)
		}
	}
}

// manyDeleted is a pool of which so many claims are deleted, whose addresses are to rest.
func manyDeleted(t *testing.T, n int) *grants.Memory {
	t.Helper()
	p := aPool(t, "10.0.0.0-10.0.200.255", func(o *v1alpha1.NetworkPool) {
		o.Spec.Prefix, o.Spec.AddressReuseGracePeriodSeconds = ptr.To[int32](16), ptr.To[int64](3600)
	})
	for i := range n {
		name, ip := fmt.Sprint("c-", i), fmt.Sprintf("10.0.%d.%d", i/256, i%256)
		see(p, name, 0, remembers(ip), bothReady, ends)
		seeAddress(p, name, ip, types.UID("uid-"+name))
	}
	return p
}

// release ends a claim and its IPAddress.
func release(p *grants.Memory, c *grants.Claimant) {
	p.ForgetAttached("address-"+types.UID(c.Owner.Name), grants.NameOf(c.Owner))
	p.Forget(c.Owner.UID)
}

// Claims that were deferred are no longer in memory once they are gone.
func TestDeferredReleasesAreForgotten(t *testing.T) {
	const n = 3 * grants.MaxJobs
	p := manyDeleted(t, n)
	were := map[types.UID]weak.Pointer[grants.Claimant]{}
	for uid, c := range p.Claimants {
		were[uid] = weak.Make(c)
	}
	for p.CoolReleases(noon, anyone) {
		for _, c := range p.Claimants {
			if !p.NeedsCooling(p.EndingOf(c), noon) {
				release(p, c)
			}
		}
	}
	runtime.GC()
	for uid, c := range were {
		if c.Value() != nil {
			t.Fatalf("claim %s is gone, and in memory; %d are left", uid, len(p.Claimants))
		}
	}
	runtime.KeepAlive(p)
}

// All that a batch has noted may wait when they are to be handed out, as their Cluster was paused during the commit: the pool is
// looked at again for those that are deferred.
func TestDeferredReleasesDoNotWaitForOthers(t *testing.T) {
	p := manyDeleted(t, 2*grants.MaxJobs)
	p.CoolReleases(noon, anyone)
	noted := map[types.UID]bool{}
	for uid := range p.Todo {
		noted[uid] = true
	}
	paused := func(c *grants.Claimant) grants.Ruling { return grants.Ruling{Waits: noted[c.Owner.UID]} }
	for turn, want := range []int{0, grants.MaxJobs, 0} {
		if turn > 0 {
			p.CoolReleases(noon, paused)
		}
		due, wait := p.Due(noon, grants.MaxJobs, time.Hour, anyone, paused)
		if again := p.NextWake(noon, wait) <= time.Second; len(due.Release) != want || again != (turn == 0) {
			t.Errorf("turn %d: %d are handed out, not %d; looked at again: %v", turn, len(due.Release), want, again)
		}
		for _, uid := range due.Release {
			release(p, p.Claimants[uid])
		}
	}
}

// Releases that a batch leaves to the next one are to be done as well when this manager notes no rest any more: the pool has no
// grace, the term or the pool ends; and one that a user or a restore changes meanwhile is looked at as it is now.
func TestDeferredReleasesAreResumed(t *testing.T) {
	const n = grants.MaxJobs + 44
	nameOf := func(i int) string { return fmt.Sprint("c-", i) }
	for name, tc := range map[string]struct {
		then func(p *grants.Memory)
		// todo is how many are to be done at once, rests how many the next batch notes.
		todo, rests int
	}{
		"Next":     {then: func(*grants.Memory) {}, todo: grants.MaxJobs, rests: n - grants.MaxJobs},
		"TermLost": {then: func(p *grants.Memory) { p.LoseTerm(noon) }, todo: n, rests: n - grants.MaxJobs},
		"NoPool":   {then: func(p *grants.Memory) { p.UnsetBase() }, todo: n},
		"MadeAnew": {then: func(p *grants.Memory) {
			anew := p.Base.DeepCopyObject().(*v1alpha1.NetworkPool)
			anew.UID, anew.ResourceVersion = "uid-of-another", "20"
			anew.Status.Allocator = &v1alpha1.AllocatorStatus{Holder: "another", Term: 1}
			p.RefreshBase(anew, "me", noon)
		}, todo: n, rests: n - grants.MaxJobs},
		"NoGrace": {then: func(p *grants.Memory) {
			p.Base.PoolSpec().AddressReuseGracePeriodSeconds = nil
			p.CoolReleases(noon, anyone)
		}, todo: n},
		"SeenAnew": {then: func(p *grants.Memory) {
			see(p, nameOf(n-1), 0, remembers("10.0.1.43"), bothReady, ends, func(c *ipamv1.IPAddressClaim) { c.ResourceVersion = "7" })
		}, todo: grants.MaxJobs + 1, rests: n - grants.MaxJobs},
		"Gone":   {then: func(p *grants.Memory) { p.Forget(types.UID("uid-" + nameOf(n-1))) }, todo: grants.MaxJobs, rests: n - grants.MaxJobs - 1},
		"Failed": {then: func(p *grants.Memory) { p.Claimants[types.UID("uid-"+nameOf(n-1))].RetryAt = noon.Add(time.Hour) }, todo: grants.MaxJobs, rests: n - grants.MaxJobs - 1},
	} {
		t.Run(name, func(t *testing.T) {
			p := manyDeleted(t, n)
			p.CoolReleases(noon, anyone)
			if !p.RestsLate || len(p.Todo) != grants.MaxJobs {
				t.Fatalf("%d are to be done, others wait: %v", len(p.Todo), p.RestsLate)
			}
			if tc.then(p); len(p.Todo) != tc.todo {
				t.Errorf("%d are to be done, not %d", len(p.Todo), tc.todo)
			}
			if p.Base == nil {
				return
			}
			for i := range grants.MaxJobs { // those that were handed out end
				release(p, p.Claimants[types.UID("uid-"+nameOf(i))])
			}
			p.CoolReleases(noon, anyone)
			rests := 0
			for i := grants.MaxJobs; i < n; i++ {
				if c := p.Claimants[types.UID("uid-"+nameOf(i))]; c != nil && p.EndingOf(c).Grace > 0 && !p.NeedsCooling(p.EndingOf(c), noon) {
					rests++
				}
			}
			if rests != tc.rests || p.RestsLate {
				t.Errorf("%d rest after the next batch, not %d; others wait: %v", rests, tc.rests, p.RestsLate)
			}
		})
	}
}

// Another manager waits for the first of the rests on record to end, and no longer: its holder may be dead.
func TestRestEnds(t *testing.T) {
	p := aPool(t, "10.0.0.1-10.0.200.255", func(o *v1alpha1.NetworkPool) {
		o.Spec.Prefix, o.Spec.AddressReuseGracePeriodSeconds = ptr.To[int32](16), ptr.To[int64](3600)
	})
	groups := func(bytes int) []v1alpha1.CoolingGroup {
		return []v1alpha1.CoolingGroup{
			{Until: metav1.NewTime(noon.Add(2 * time.Hour)), Addresses: "10.0.0.1"}, // an operator has written in the order he liked
			{Until: metav1.NewTime(noon.Add(time.Hour)), Addresses: strings.Repeat("x", bytes)},
			{Until: metav1.NewTime(noon.Add(3 * time.Hour)), Addresses: "10.0.0.3"},
		}
	}
	p.Base.PoolStatus().Cooling = groups(cooling.MaxText)
	for after, want := range map[time.Duration]time.Duration{0: time.Hour, 59 * time.Minute: time.Minute, time.Hour: 0, 90 * time.Minute: 0} {
		if got := p.RestEnds(noon.Add(after)); got != want {
			t.Errorf("after %v: %v, not %v", after, got, want)
		}
	}
	p.Base.PoolStatus().Cooling = groups(cooling.MaxText / 2)
	if got := p.RestEnds(noon); got != 0 {
		t.Errorf("there is room, and it waits %v", got)
	}
}

// Where no more rests fit on record a release waits with its address, and the pool says so.
func TestReleasesWaitForRoom(t *testing.T) {
	p := aPool(t, "10.0.0.1-10.0.200.255", func(o *v1alpha1.NetworkPool) {
		o.Spec.Prefix, o.Spec.AddressReuseGracePeriodSeconds = ptr.To[int32](16), ptr.To[int64](3600)
	})
	a := New(Options{ID: "me", Clock: clocktesting.NewFakeClock(noon)})
	ip := netip.MustParseAddr("10.0.0.2")
	for p.StartCooling(grants.Ending{Range: p.Ledger.Unit(ip), Owner: ledger.Owner{Namespace: "ns", Name: "gone"}, Grace: time.Hour}, noon) {
		ip = ip.Next().Next()
	}
	c := see(p, "late", 0, remembers("10.0.200.201"), bothReady, ends)
	seeAddress(p, "late", "10.0.200.201", "uid-late")
	if p.CoolReleases(noon, a.releases(t.Context(), p)) || !p.NeedsCooling(p.EndingOf(c), noon) || len(p.Todo) > 0 {
		t.Fatal("it was noted, or is looked at in every turn")
	}
	if ready := p.Conditions(p.Ledger.Counts(), noon)[0]; !strings.Contains(ready.Message, "deleted claims keep theirs") {
		t.Error(ready.Message)
	}
	// Another manager, that would have as little room, leaves it alone until a rest ends.
	p.Describe(p.Base, noon)
	p.TriedOnce, p.WorkSince, p.Changed = true, noon, noon
	p.RoomToRest()
	wait, after := p.Base.PoolStatus().Cooling[0].Until.Sub(noon), noon.Add(2*term.Patience)
	if may, d := p.MayTakeOver(after, false, time.Hour, anyone, anyone); may || d != wait-2*term.Patience {
		t.Errorf("takes over: %v, looks again after %v", may, d)
	}
	after = noon.Add(wait + 2*term.Patience)
	p.WorkSince = noon
	if may, _ := p.MayTakeOver(after, false, time.Hour, anyone, anyone); !may {
		t.Error("nobody takes over, though there is room")
	}
	p.Crowd(c)
	p.ExpireCooling(noon.Add(2 * time.Hour))
	if !p.CoolReleases(noon.Add(2*time.Hour), a.releases(t.Context(), p)) {
		t.Error("it waits, though nothing rests any more")
	}
}

// A clock that was ahead when addresses were released, and was set right since, has none rest for longer than those do that
// are released now; one that had another user on the wire, an hour (P7).
func TestRestOfAClockThatWasAhead(t *testing.T) { // W32
	p := aPool(t, "10.0.0.1-10.0.0.9", func(o *v1alpha1.NetworkPool) { o.Spec.AddressReuseGracePeriodSeconds = ptr.To[int64](60) })
	ahead := noon.Add(8 * time.Hour)
	for ip, name := range map[string]string{"10.0.0.1": "a", "10.0.0.2": ""} {
		r := p.Ledger.Unit(netip.MustParseAddr(ip))
		p.Cooling.Put(cooling.Rest{Range: r, Until: ahead, For: types.NamespacedName{Namespace: "ns", Name: name}})
	}
	for _, at := range []struct {
		after time.Duration
		free  int64
	}{{0, 7}, {59 * time.Second, 7}, {2 * time.Minute, 8}, {59 * time.Minute, 8}, {71 * time.Minute, 9}} {
		p.ExpireCooling(noon.Add(at.after))
		if n := p.Ledger.Counts().Available; n != at.free {
			t.Errorf("after %v %d addresses are free, not %d", at.after, n, at.free)
		}
	}
}

// R9, P7: a rest ends by the clock of the API server, whatever the clocks of the manager that notes it and of the next one say.
func TestRestsAreByTheClockOfTheAPIServer(t *testing.T) {
	for name, wrong := range map[string]struct{ former, next time.Duration }{
		"the former was behind":  {former: -2 * time.Hour},
		"the former was ahead":   {former: 2 * time.Hour},
		"the next one is behind": {next: -2 * time.Hour},
		"the next one is ahead":  {next: 2 * time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			manager := func(wrong time.Duration) *grants.Memory {
				p := aPool(t, "10.0.0.1-10.0.0.9", func(o *v1alpha1.NetworkPool) { o.Spec.AddressReuseGracePeriodSeconds = ptr.To[int64](60) })
				p.APITime = func(at time.Time) time.Time { return at.Add(-wrong) }
				return p
			}
			former, next := manager(wrong.former), manager(wrong.next)
			gone := func(last byte) grants.Ending {
				ip := netip.AddrFrom4([4]byte{10, 0, 0, last})
				return grants.Ending{Range: former.Ledger.Unit(ip), Owner: ledger.Owner{Namespace: "ns", Name: ip.String()}, Grace: time.Minute}
			}
			inUse := gone(2)
			inUse.Grace, inUse.Nameless = grants.InUseRest, true
			for _, e := range []grants.Ending{gone(1), inUse} {
				former.StartCooling(e, noon.Add(wrong.former))
			}
			status := former.Prepare(noon.Add(wrong.former)).Pool.PoolStatus()
			next.LoadCooling(status)
			if next.NeedsCooling(gone(1), noon.Add(wrong.next)) {
				t.Error("what rests is to be noted again")
			}
			next.Base.PoolStatus().Cooling = []v1alpha1.CoolingGroup{{Until: status.Cooling[0].Until, Addresses: strings.Repeat("x", cooling.MaxText)}}
			if wait := next.RestEnds(noon.Add(wrong.next)); wait < time.Minute || wait > 70*time.Second {
				t.Errorf("room comes after %v", wait)
			}
			for _, at := range []struct {
				after time.Duration
				free  int64
			}{{0, 7}, {59 * time.Second, 7}, {70 * time.Second, 8}, {59 * time.Minute, 8}, {70 * time.Minute, 9}} {
				now := noon.Add(wrong.next + at.after)
				next.ExpireCooling(now)
				if n := next.Ledger.Counts().Available; n != at.free {
					t.Errorf("after %v %d addresses are free, not %d", at.after, n, at.free)
				}
				if wake := next.NextWake(now, 0); (wake > 0) != (at.free < 9) || wake > 70*time.Minute {
					t.Errorf("after %v it wakes up in %v", at.after, wake)
				}
			}
		})
	}
}
