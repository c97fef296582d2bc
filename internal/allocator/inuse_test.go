package allocator

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/cooling"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/grants"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/grantstest"
)

// TestAddressInUseCools checks that the address of a released lease rests without a name where a foreign machine
// answers for it, also in a pool without a grace (P7).
func TestAddressInUseCools(t *testing.T) {
	inUse := grantstest.WithAnnounced(metav1.ConditionFalse, v1alpha1.AddressInUseReason)
	tests := map[string]struct {
		grace   time.Duration
		changes []func(*v1alpha1.IPLease)
		// rests is the minimal duration of the rest, 0 for none; named reports whether it is for the name of the lease.
		rests time.Duration
		named bool
	}{
		"InUse":                     {changes: []func(*v1alpha1.IPLease){inUse, grantstest.WithLeaseDeletion}, rests: time.Hour},
		"InUseInAPoolWithAGrace":    {grace: time.Minute, changes: []func(*v1alpha1.IPLease){inUse, grantstest.WithLeaseDeletion}, rests: time.Hour},
		"InUseInAPoolThatRestsMore": {grace: 2 * time.Hour, changes: []func(*v1alpha1.IPLease){inUse, grantstest.WithLeaseDeletion}, rests: 2 * time.Hour},
		"NotInUse":                  {changes: []func(*v1alpha1.IPLease){grantstest.WithLeaseDeletion}},
		"NotInUseWithAGrace":        {grace: time.Minute, changes: []func(*v1alpha1.IPLease){grantstest.WithLeaseDeletion}, rests: time.Minute, named: true},
		"NoHost":                    {changes: []func(*v1alpha1.IPLease){grantstest.WithAnnounced(metav1.ConditionFalse, v1alpha1.NoHostReason), grantstest.WithLeaseDeletion}},
		"Announced":                 {changes: []func(*v1alpha1.IPLease){grantstest.WithAnnounced(metav1.ConditionTrue, v1alpha1.AnnouncedReason), grantstest.WithLeaseDeletion}},
		"ItLives":                   {changes: []func(*v1alpha1.IPLease){inUse}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			p := grantstest.NewPool(t, "10.0.0.1-10.0.0.2", func(o *v1alpha1.NetworkPool) {
				o.Spec.Leases, o.Spec.AddressReuseGracePeriodSeconds = &v1alpha1.Leases{}, ptr.To(int64(tc.grace/time.Second))
			})
			a := New(Options{})
			l := grantstest.ObserveLease(p, "x", append([]func(*v1alpha1.IPLease){grantstest.WithLeasedAddress("10.0.0.1")}, tc.changes...)...)
			due, _ := p.ListDueWrites(grantstest.Noon, 8, time.Minute, a.admission.newAdmissionFunc(t.Context(), p, grantstest.Noon), a.admission.newReleaseAdmissionFunc(t.Context(), p))
			if early := len(due.ReleaseClaimants) > 0; early != (l.Deleting && tc.rests == 0) {
				t.Errorf("it is released before its rest is noted: %v", early)
			}
			if noted := p.Releases.CoolReleases(grantstest.Noon, a.admission.newReleaseAdmissionFunc(t.Context(), p)); noted != (tc.rests > 0) {
				t.Fatalf("a rest is noted: %v", noted)
			}
			if tc.rests == 0 {
				return
			}
			p.Status.FillStatus(p.Base.Pool, grantstest.Noon)
			rests, err := cooling.ParseGroups(p.Base.Pool.PoolStatus().Cooling)
			if err != nil || len(rests) != 1 {
				t.Fatalf("%v rest, %v", rests, err)
			}
			if rest := rests[0].Until.Sub(grantstest.Noon); rest < tc.rests || rest > tc.rests+tc.rests/8 {
				t.Errorf("it rests for %v, not %v", rest, tc.rests)
			}
			if named := rests[0].Claim.Name != ""; named != tc.named {
				t.Errorf("it rests for %q", rests[0].Claim)
			}
			due, _ = p.ListDueWrites(grantstest.Noon, 8, time.Minute, a.admission.newAdmissionFunc(t.Context(), p, grantstest.Noon), a.admission.newReleaseAdmissionFunc(t.Context(), p))
			if len(due.ReleaseClaimants) != 1 {
				t.Error("its rest is noted, and it is not released")
			}
		})
	}
}

// TestAddressInUseIsNotGrantedForAnHour checks that no lease gets an address back at once for which a foreign machine
// answers: it would get it again and again.
func TestAddressInUseIsNotGrantedForAnHour(t *testing.T) {
	withLeases := func(o *v1alpha1.NetworkPool) { o.Spec.Leases = &v1alpha1.Leases{} }
	p := grantstest.NewPool(t, "10.0.0.1-10.0.0.2", withLeases)
	a := New(Options{})
	was := grantstest.ObserveLease(p, "x", grantstest.WithLeasedAddress("10.0.0.1"), grantstest.WithAnnounced(metav1.ConditionFalse, v1alpha1.AddressInUseReason), grantstest.WithLeaseDeletion)
	p.Releases.CoolReleases(grantstest.Noon, a.admission.newReleaseAdmissionFunc(t.Context(), p))
	p.Status.FillStatus(p.Base.Pool, grantstest.Noon)
	p.ForgetClaimant(was.Owner.UID)
	// again requests a lease of the same name, some time later.
	again := func(p *grants.PoolState, later time.Duration, change ...func(*v1alpha1.IPLease)) string {
		p.Releases.ExpireCooling(grantstest.Noon.Add(later))
		r, refusal := p.Planner.ChooseRange(grantstest.ObserveLease(p, "x", append([]func(*v1alpha1.IPLease){func(o *v1alpha1.IPLease) { o.UID = "again" }}, change...)...))
		if refusal != nil {
			return refusal.Message
		}
		return r.From().String()
	}
	next := func() *grants.PoolState {
		return grantstest.NewPool(t, "10.0.0.1-10.0.0.2", withLeases, func(o *v1alpha1.NetworkPool) { o.Status.Cooling = p.Base.Pool.PoolStatus().Cooling })
	}
	for name, c := range map[string]struct {
		p     *grants.PoolState
		later time.Duration
		ask   []func(*v1alpha1.IPLease)
		want  string
	}{
		"at once":                            {p: p, want: "10.0.0.2"},
		"at once, for the address":           {p: next(), ask: []func(*v1alpha1.IPLease){grantstest.WithLeaseAddress("10.0.0.1")}, want: "is held by its cooling"},
		"of the next holder":                 {p: next(), want: "10.0.0.2"},
		"of the next holder, within an hour": {p: next(), later: grants.InUseCoolingPeriod - time.Second, want: "10.0.0.2"},
		"after the hour":                     {p: next(), later: 2 * grants.InUseCoolingPeriod, want: "10.0.0.1"},
	} {
		if got := again(c.p, c.later, c.ask...); !strings.Contains(got, c.want) {
			t.Errorf("%s, a lease of its name is given %s, not %s", name, got, c.want)
		}
	}
}

// TestAddressInUseWaitsForRoom checks that, where there is no room to record the rests of a pool without a grace, only
// what has to rest waits.
func TestAddressInUseWaitsForRoom(t *testing.T) {
	p := grantstest.NewPool(t, "10.0.0.1-10.0.200.255", func(o *v1alpha1.NetworkPool) { o.Spec.Prefix = ptr.To[int32](16) })
	a := New(Options{ManagerID: "me"})
	for ip := netip.MustParseAddr("10.0.0.2"); ; ip = ip.Next().Next() {
		if !p.Releases.StartCooling(grants.Release{Range: p.Space.Ledger.UnitRange(ip), CoolingPeriod: grants.InUseCoolingPeriod, WithoutName: true}, grantstest.Noon) {
			break
		}
	}
	waits := grantstest.ObserveLease(p, "x", grantstest.WithLeasedAddress("10.0.200.1"), grantstest.WithAnnounced(metav1.ConditionFalse, v1alpha1.AddressInUseReason), grantstest.WithLeaseDeletion)
	goes := grantstest.ObserveLease(p, "y", grantstest.WithLeasedAddress("10.0.200.3"), grantstest.WithLeaseDeletion)
	for range 2 {
		if p.Releases.CoolReleases(grantstest.Noon, a.admission.newReleaseAdmissionFunc(t.Context(), p)) {
			t.Error("a rest is noted")
		}
		due, _ := p.ListDueWrites(grantstest.Noon, 8, time.Minute, a.admission.newAdmissionFunc(t.Context(), p, grantstest.Noon), a.admission.newReleaseAdmissionFunc(t.Context(), p))
		if len(due.ReleaseClaimants) != 1 || due.ReleaseClaimants[0] != goes.Owner.UID || p.Queues.Overflow[waits.Owner.UID] == nil {
			t.Errorf("%v are released", due.ReleaseClaimants)
		}
	}
}
