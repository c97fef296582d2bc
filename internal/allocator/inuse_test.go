package allocator

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/cooling"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/grants"
)

func announced(status metav1.ConditionStatus, reason string) func(*v1alpha1.IPLease) {
	return func(o *v1alpha1.IPLease) {
		meta.SetStatusCondition(&o.Status.Conditions, metav1.Condition{Type: v1alpha1.AnnouncedCondition, Status: status, Reason: reason})
	}
}

func leaseEnds(o *v1alpha1.IPLease) { o.DeletionTimestamp = ptr.To(metav1.NewTime(noon)) }

// The address of a lease that is released rests for nobody's name where somebody foreign answers for it, in a pool without
// a grace too (P7).
func TestInUseRests(t *testing.T) {
	inUse := announced(metav1.ConditionFalse, v1alpha1.AddressInUseReason)
	tests := map[string]struct {
		grace time.Duration
		is    []func(*v1alpha1.IPLease)
		// rests is for how long at least, 0: not at all; named: for the name of the lease.
		rests time.Duration
		named bool
	}{
		"InUse":                     {is: []func(*v1alpha1.IPLease){inUse, leaseEnds}, rests: time.Hour},
		"InUseInAPoolWithAGrace":    {grace: time.Minute, is: []func(*v1alpha1.IPLease){inUse, leaseEnds}, rests: time.Hour},
		"InUseInAPoolThatRestsMore": {grace: 2 * time.Hour, is: []func(*v1alpha1.IPLease){inUse, leaseEnds}, rests: 2 * time.Hour},
		"NotInUse":                  {is: []func(*v1alpha1.IPLease){leaseEnds}},
		"NotInUseWithAGrace":        {grace: time.Minute, is: []func(*v1alpha1.IPLease){leaseEnds}, rests: time.Minute, named: true},
		"NoHost":                    {is: []func(*v1alpha1.IPLease){announced(metav1.ConditionFalse, v1alpha1.NoHostReason), leaseEnds}},
		"Announced":                 {is: []func(*v1alpha1.IPLease){announced(metav1.ConditionTrue, v1alpha1.AnnouncedReason), leaseEnds}},
		"ItLives":                   {is: []func(*v1alpha1.IPLease){inUse}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			p := aPool(t, "10.0.0.1-10.0.0.2", func(o *v1alpha1.NetworkPool) {
				o.Spec.Leases, o.Spec.AddressReuseGracePeriodSeconds = &v1alpha1.Leases{}, ptr.To(int64(tc.grace/time.Second))
			})
			a := New(Options{})
			l := seeLease(p, "x", append([]func(*v1alpha1.IPLease){leasedAs("10.0.0.1")}, tc.is...)...)
			due, _ := p.Due(noon, 8, time.Minute, a.admission(t.Context(), p, noon), a.releases(t.Context(), p))
			if early := len(due.Release) > 0; early != (l.Deleting && tc.rests == 0) {
				t.Errorf("it is released before its rest is noted: %v", early)
			}
			if noted := p.CoolReleases(noon, a.releases(t.Context(), p)); noted != (tc.rests > 0) {
				t.Fatalf("a rest is noted: %v", noted)
			}
			if tc.rests == 0 {
				return
			}
			p.Describe(p.Base, noon)
			rests, err := cooling.Parse(p.Base.PoolStatus().Cooling)
			if err != nil || len(rests) != 1 {
				t.Fatalf("%v rest, %v", rests, err)
			}
			if is := rests[0].Until.Sub(noon); is < tc.rests || is > tc.rests+tc.rests/8 {
				t.Errorf("it rests for %v, not %v", is, tc.rests)
			}
			if named := rests[0].For.Name != ""; named != tc.named {
				t.Errorf("it rests for %q", rests[0].For)
			}
			due, _ = p.Due(noon, 8, time.Minute, a.admission(t.Context(), p, noon), a.releases(t.Context(), p))
			if len(due.Release) != 1 {
				t.Error("its rest is noted, and it is not released")
			}
		})
	}
}

// Who was given an address back at once that somebody else answers for, would be given it again and again.
func TestInUseIsNobodysForAnHour(t *testing.T) {
	gives := func(o *v1alpha1.NetworkPool) { o.Spec.Leases = &v1alpha1.Leases{} }
	p := aPool(t, "10.0.0.1-10.0.0.2", gives)
	a := New(Options{})
	was := seeLease(p, "x", leasedAs("10.0.0.1"), announced(metav1.ConditionFalse, v1alpha1.AddressInUseReason), leaseEnds)
	p.CoolReleases(noon, a.releases(t.Context(), p))
	p.Describe(p.Base, noon)
	p.Forget(was.Owner.UID)
	// again asks for a lease of the name, some time later.
	again := func(p *grants.Memory, later time.Duration, change ...func(*v1alpha1.IPLease)) string {
		p.ExpireCooling(noon.Add(later))
		r, no := p.Choose(seeLease(p, "x", append([]func(*v1alpha1.IPLease){func(o *v1alpha1.IPLease) { o.UID = "again" }}, change...)...))
		if no != nil {
			return no.Message
		}
		return r.From().String()
	}
	next := func() *grants.Memory {
		return aPool(t, "10.0.0.1-10.0.0.2", gives, func(o *v1alpha1.NetworkPool) { o.Status.Cooling = p.Base.PoolStatus().Cooling })
	}
	for name, c := range map[string]struct {
		p     *grants.Memory
		later time.Duration
		ask   []func(*v1alpha1.IPLease)
		want  string
	}{
		"at once":                            {p: p, want: "10.0.0.2"},
		"at once, for the address":           {p: next(), ask: []func(*v1alpha1.IPLease){leaseFor("10.0.0.1")}, want: "is held by its rest"},
		"of the next holder":                 {p: next(), want: "10.0.0.2"},
		"of the next holder, within an hour": {p: next(), later: grants.InUseRest - time.Second, want: "10.0.0.2"},
		"after the hour":                     {p: next(), later: 2 * grants.InUseRest, want: "10.0.0.1"},
	} {
		if got := again(c.p, c.later, c.ask...); !strings.Contains(got, c.want) {
			t.Errorf("%s, a lease of its name is given %s, not %s", name, got, c.want)
		}
	}
}

// A rest that keeps the address for the name of its lease is none once the address is found to be in use.
func TestInUseRestsAnew(t *testing.T) {
	p := aPool(t, "10.0.0.1-10.0.0.2", func(o *v1alpha1.NetworkPool) { o.Spec.AddressReuseGracePeriodSeconds = ptr.To[int64](7200) })
	l := seeLease(p, "x", leasedAs("10.0.0.1"), leaseEnds)
	p.StartCooling(p.EndingOf(l), noon)
	if p.NeedsCooling(p.EndingOf(l), noon) {
		t.Fatal("it is to rest again")
	}
	l = seeLease(p, "x", leasedAs("10.0.0.1"), announced(metav1.ConditionFalse, v1alpha1.AddressInUseReason), leaseEnds, func(o *v1alpha1.IPLease) { o.ResourceVersion = "2" })
	if !p.NeedsCooling(p.EndingOf(l), noon) {
		t.Fatal("it rests for its name")
	}
	p.StartCooling(p.EndingOf(l), noon)
	if rests := p.Cooling.All(); len(rests) != 1 || rests[0].For.Name != "" {
		t.Errorf("%v rest", rests)
	}
}

// Where there is no room to note the rests of a pool without a grace, only what has to rest waits.
func TestInUseWaitsForRoom(t *testing.T) {
	p := aPool(t, "10.0.0.1-10.0.200.255", func(o *v1alpha1.NetworkPool) { o.Spec.Prefix = ptr.To[int32](16) })
	a := New(Options{ID: "me"})
	for ip := netip.MustParseAddr("10.0.0.2"); ; ip = ip.Next().Next() {
		if !p.StartCooling(grants.Ending{Range: p.Ledger.Unit(ip), Grace: grants.InUseRest, Nameless: true}, noon) {
			break
		}
	}
	waits := seeLease(p, "x", leasedAs("10.0.200.1"), announced(metav1.ConditionFalse, v1alpha1.AddressInUseReason), leaseEnds)
	goes := seeLease(p, "y", leasedAs("10.0.200.3"), leaseEnds)
	for range 2 {
		if p.CoolReleases(noon, a.releases(t.Context(), p)) {
			t.Error("a rest is noted")
		}
		due, _ := p.Due(noon, 8, time.Minute, a.admission(t.Context(), p, noon), a.releases(t.Context(), p))
		if len(due.Release) != 1 || due.Release[0] != goes.Owner.UID || p.Crowded[waits.Owner.UID] == nil {
			t.Errorf("%v are released", due.Release)
		}
	}
}
