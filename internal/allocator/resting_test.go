package allocator

import (
	"encoding/json"
	"fmt"
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
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/ledger"
)

// longest is the longest name of its kind that Kubernetes takes, ending in a number.
func longest(length, i int) string {
	n := fmt.Sprint(i)
	return strings.Repeat("n", length-len(n)) + n
}

// What is bounded in a status is filled to its bounds, with the longest names there are: the object can still be written with every grant.
func TestFullStatusStaysSmall(t *testing.T) {
	p := aPool(t, "fd00::1:1-fd00::1:ffff", func(o *v1alpha1.NetworkPool) {
		o.Spec.Prefix, o.Spec.AddressReuseGracePeriodSeconds = ptr.To[int32](64), ptr.To[int64](3600)
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
	for p.cool(next(), owner(noted), noon) {
		noted++
	}
	for i := range 5 * maxHeld {
		r := next()
		p.addHeld(r, v1alpha1.HeldRange{
			First: r.From().String(), Last: r.To().String(), Reason: v1alpha1.MovedReason, Namespace: owner(i).Namespace, Name: owner(i).Name,
		})
	}
	for i := range maxInFlight {
		p.grants[owner(i).UID] = &grant{owner: owner(i), rng: next(), committed: true}
	}
	for i := range maxYields {
		p.yields = append(p.yields, v1alpha1.YieldedPool{
			Kind: v1alpha1.GlobalNetworkPoolKind, Namespace: longest(63, i), Name: longest(253, i), UID: longest(36, i), Generation: 1 << 40,
		})
	}
	obj := p.base.DeepCopyObject().(*v1alpha1.NetworkPool)
	p.describe(obj, noon)
	raw, err := json.Marshal(obj)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d bytes: %d rest, %d are held, %d in flight", len(raw), len(obj.Status.Cooling), len(obj.Status.Held), len(obj.Status.Allocator.InFlight))
	if len(raw) > 400_000 {
		t.Errorf("the pool has %d bytes", len(raw))
	}
	if len(obj.Status.Held) > maxHeld || len(obj.Status.Cooling) < 500 {
		t.Errorf("%d are held, %d rest", len(obj.Status.Held), len(obj.Status.Cooling))
	}
}

// Ranges that touch and end together are one entry; nothing ends before its time.
func TestFoldedRestsNeverEndEarlier(t *testing.T) {
	s := newResting()
	add := func(first, last string, after time.Duration) {
		r := netipx.IPRangeFrom(netip.MustParseAddr(first), netip.MustParseAddr(last))
		s.add(r, v1alpha1.CoolingRange{First: first, Last: last, Until: metav1.NewTime(noon.Add(after)), Namespace: "ns", Name: first})
	}
	add("10.0.0.1", "10.0.0.1", time.Minute)
	add("10.0.0.2", "10.0.0.3", 65*time.Second)
	add("10.0.0.4", "10.0.0.4", time.Hour) // ends much later
	add("10.0.0.6", "10.0.0.6", time.Hour) // touches nothing
	got := s.folded(10*time.Second, maxResting)
	want := map[string]time.Duration{"10.0.0.1-10.0.0.3": 65 * time.Second, "10.0.0.4-10.0.0.4": time.Hour, "10.0.0.6-10.0.0.6": time.Hour}
	if len(got) != len(want) {
		t.Errorf("%v", got)
	}
	for r, c := range got {
		if until, known := want[r.String()]; !known || !c.Until.Equal(ptr.To(metav1.NewTime(noon.Add(until)))) || (c.Name == "") != (r.From() != r.To()) {
			t.Errorf("%v rests until %v for %q", r, c.Until.Sub(noon), c.Name)
		}
	}
}

// A rest is not shorter than the grace, whatever the fraction of the second at which it begins.
func TestRestsUntilIsNotEarlier(t *testing.T) {
	for _, now := range []time.Time{noon, noon.Add(time.Nanosecond), noon.Add(999 * time.Millisecond)} {
		if rest := restsUntil(now, time.Minute).Sub(now); rest < time.Minute || rest >= time.Minute+time.Second {
			t.Errorf("it rests for %v", rest)
		}
	}
}

// A release notes its rest anew when half of it has passed before it could be handed out.
func TestMustRestAgain(t *testing.T) {
	p := aPool(t, "10.0.0.1-10.0.0.9", func(o *v1alpha1.NetworkPool) { o.Spec.AddressReuseGracePeriodSeconds = ptr.To[int64](600) })
	c := see(p, "a", 0, remembers("10.0.0.1"), bothReady, ends)
	seeAddress(p, "a", "10.0.0.1", "uid-a")
	r := p.releasable(c)
	if !p.mustRest(r, c.owner, noon) {
		t.Fatal("it need not rest")
	}
	p.cool(r, c.owner, noon)
	for after, must := range map[time.Duration]bool{0: false, 4 * time.Minute: false, 6 * time.Minute: true} {
		if got := p.mustRest(r, c.owner, noon.Add(after)); got != must {
			t.Errorf("noted %v ago: must rest %v", after, got)
		}
	}
}

// As many releases at once as there are claims: none is noted that is not handed out, each ends, and a new claim is served meanwhile.
func TestThousandsOfReleasesRest(t *testing.T) {
	const n = 11_000
	clock := clocktesting.NewFakeClock(noon)
	p := aPool(t, "10.0.0.1-10.0.200.255", func(o *v1alpha1.NetworkPool) {
		o.Spec.Prefix, o.Spec.AddressReuseGracePeriodSeconds = ptr.To[int32](16), ptr.To[int64](3600)
	})
	api := &oneWrite{}
	a := New(Options{Client: api, Live: api, Recorder: silent{}, ID: "me", Clock: clock})
	ip := netip.MustParseAddr("10.0.0.1")
	claims := make([]*claim, n)
	for i := range claims {
		name := fmt.Sprintf("tenant-production-7-md-0-x7k2p-%05d-eth0-inet", i)
		claims[i] = see(p, name, 0, remembers(ip.String()), bothReady, ends)
		seeAddress(p, name, ip.String(), types.UID("uid-"+name))
		ip = ip.Next()
	}
	for turn := 0; len(p.chores) > 0; turn++ {
		if turn > n {
			t.Fatalf("%d releases are left after %d turns, %d entries", len(p.chores), turn, len(p.cooling.ranges))
		}
		before := len(p.chores)
		if !a.coolReleases(t.Context(), p, clock.Now()) {
			t.Fatalf("%d are left, and none is noted: %v, %d bytes", before, p.restsFull, p.cooling.size)
		}
		noted := 0
		for _, c := range claims {
			if p.claims[c.owner.UID] != nil && !p.mustRest(p.releasable(c), c.owner, clock.Now()) {
				noted++
				p.forgetAddress("address-"+types.UID(c.owner.Name), nameOf(c.owner))
				p.forgetClaim(c.owner.UID)
			}
		}
		if noted > maxJobs {
			t.Fatalf("%d are noted at once", noted)
		}
		clock.Step(50 * time.Millisecond)
	}
	if p.cooling.size > maxResting {
		t.Errorf("what rests has %d bytes", p.cooling.size)
	}
	see(p, "new", 1)
	if granted, _ := p.plan(clock.Now(), 9, anyone); granted != 1 {
		t.Error("a new claim is not served")
	}
	for _, c := range claims {
		if h := p.blocker(p.ledger.Unit(c.record.From()), ledger.Owner{Namespace: "ns", Name: "other", UID: "other"}); h == nil {
			t.Fatalf("%s does not rest", c.recordText)
		}
	}
}

// Where no more rests fit on record a release waits with its address, and the pool says so.
func TestReleasesWaitForRoom(t *testing.T) {
	p := aPool(t, "10.0.0.1-10.0.200.255", func(o *v1alpha1.NetworkPool) {
		o.Spec.Prefix, o.Spec.AddressReuseGracePeriodSeconds = ptr.To[int32](16), ptr.To[int64](3600)
	})
	a := New(Options{ID: "me", Clock: clocktesting.NewFakeClock(noon)})
	ip := netip.MustParseAddr("10.0.0.2")
	for p.cool(p.ledger.Unit(ip), ledger.Owner{Namespace: "ns", Name: "gone"}, noon) {
		ip = ip.Next().Next()
	}
	c := see(p, "late", 0, remembers("10.0.200.201"), bothReady, ends)
	seeAddress(p, "late", "10.0.200.201", "uid-late")
	if a.coolReleases(t.Context(), p, noon) || !p.mustRest(p.releasable(c), c.owner, noon) || p.mayNote(noon) {
		t.Fatal("it was noted, or is looked for without a pause")
	}
	if ready := p.conditions(p.ledger.Counts(), noon)[0]; !strings.Contains(ready.Message, "deleted claims wait") {
		t.Error(ready.Message)
	}
	p.warm(noon.Add(2 * time.Hour))
	if !a.coolReleases(t.Context(), p, noon.Add(2*time.Hour)) {
		t.Error("it waits, though nothing rests any more")
	}
}
