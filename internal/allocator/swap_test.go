package allocator

import (
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clocktesting "k8s.io/utils/clock/testing"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/grants"
)

// The in-cluster provider may have sent a request right before its Pod went, each time that it goes: nothing new is
// granted until that has landed.
func TestTakeOverAfterOther(t *testing.T) {
	const quarantine = 75 * time.Second
	ready := func(status metav1.ConditionStatus, reason string, since time.Time) func(*v1alpha1.NetworkPool) {
		return func(o *v1alpha1.NetworkPool) {
			o.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ReadyCondition, Status: status, Reason: reason, LastTransitionTime: metav1.NewTime(since)}}
		}
	}
	served := ready(metav1.ConditionTrue, v1alpha1.ReadyReason, noon.Add(-time.Hour))
	touched := func(c *ipamv1.IPAddressClaim) { c.Finalizers = []string{v1alpha1.ClaimFinalizer} }
	for name, c := range map[string]struct {
		pool  func(*v1alpha1.NetworkPool)
		claim func(*ipamv1.IPAddressClaim)
		until time.Time
		// says is what the takeover writes into the condition Ready.
		says string
	}{
		"a claim with a record of ours":           {served, remembers("10.0.0.11"), time.Time{}, v1alpha1.ReadyReason},
		"one that nobody has looked at":           {served, func(*ipamv1.IPAddressClaim) {}, time.Time{}, v1alpha1.ReadyReason},
		"one that somebody else has looked at":    {served, touched, noon.Add(quarantine), v1alpha1.ReadyReason},
		"which is waited for already":             {ready(metav1.ConditionFalse, v1alpha1.AdoptingReason, noon.Add(-time.Minute)), touched, noon.Add(15 * time.Second), v1alpha1.AdoptingReason},
		"in a pool that nobody has anything of":   {func(o *v1alpha1.NetworkPool) { o.Status = v1alpha1.NetworkPoolStatus{} }, touched, noon.Add(quarantine), v1alpha1.AdoptingReason},
		"a mirror that was left alone in between": {ready(metav1.ConditionFalse, v1alpha1.NotServedReason, noon.Add(-time.Hour)), remembers("10.0.0.11"), noon.Add(quarantine), v1alpha1.AdoptingReason},
	} {
		t.Run(name, func(t *testing.T) {
			p := aMirror(t, "10.0.0.10-10.0.0.20", func(o *v1alpha1.NetworkPool) {
				o.Status.Allocator = &v1alpha1.AllocatorStatus{Holder: "you", Term: 7}
			}, c.pool)
			p.Holder = false
			api, lists := &oneWrite{}, &existing{claims: []*ipamv1.IPAddressClaim{newClaim("c", -600, naming(mirrored), c.claim)}}
			a := New(Options{Client: api, Live: api, Lists: lists, ID: "me", InClusterPools: true, Clock: clocktesting.NewFakeClock(noon)})
			if err := a.takeOver(t.Context(), grants.PoolOf(p)); err != nil {
				t.Fatal(err)
			}
			if !p.QuarantineUntil.Equal(c.until) {
				t.Errorf("nothing new is granted until %v, want %v", p.QuarantineUntil, c.until)
			}
			if says := meta.FindStatusCondition(api.sent.Status.Conditions, v1alpha1.ReadyCondition); says == nil || says.Reason != c.says {
				t.Errorf("the takeover says %v, want %s", says, c.says)
			}
		})
	}
}

// R10: the wait counts from what the manager before has written down, by the clock of the API server. The clocks of both
// managers may be ahead of that, or behind.
func TestAdoptionIsByTheClockOfTheAPIServer(t *testing.T) {
	const quarantine, passed = 75 * time.Second, 30 * time.Second
	for name, c := range map[string]struct{ former, next time.Duration }{
		"one clock":              {0, 0},
		"the former was behind":  {-time.Hour, 0},
		"the former was ahead":   {time.Hour, 0},
		"the next one is behind": {0, -time.Hour},
		"the next one is ahead":  {0, time.Hour},
		"neither is right":       {-time.Hour, time.Hour},
	} {
		for _, mirror := range []bool{false, true} {
			t.Run(name+map[bool]string{true: ", of a mirror"}[mirror], func(t *testing.T) {
				pool, claim := aPool, []func(*ipamv1.IPAddressClaim){remembers("10.0.0.11")}
				if mirror {
					pool, claim = aMirror, []func(*ipamv1.IPAddressClaim){naming(mirrored), func(c *ipamv1.IPAddressClaim) { c.Finalizers = []string{v1alpha1.ClaimFinalizer} }}
				}
				// take has a manager whose clock is wrong take the pool over as another one left it, and commit.
				take := func(id string, wrong, later time.Duration, left func(*v1alpha1.NetworkPool)) (committed v1alpha1.Pool, wait time.Duration) {
					p := pool(t, "10.0.0.10-10.0.0.20", left)
					p.Holder = false
					p.APITime = func(at time.Time) time.Time { return at.Add(-wrong) }
					now := noon.Add(later + wrong)
					api, lists := &oneWrite{}, &existing{claims: []*ipamv1.IPAddressClaim{newClaim("c", -600, claim...)}}
					a := New(Options{Client: api, Live: api, Lists: lists, ID: id, InClusterPools: true, Clock: clocktesting.NewFakeClock(now), APITime: p.APITime})
					if err := a.takeOver(t.Context(), grants.PoolOf(p)); err != nil {
						t.Fatal(err)
					}
					return p.Prepare(now).Pool, p.QuarantineUntil.Sub(now)
				}
				left, wait := take("former", c.former, 0, func(o *v1alpha1.NetworkPool) { o.Status = v1alpha1.NetworkPoolStatus{} })
				if wait != quarantine {
					t.Errorf("the former waits %v", wait)
				}
				if _, wait = take("next", c.next, passed, func(o *v1alpha1.NetworkPool) { o.Status = *left.PoolStatus() }); wait != quarantine-passed {
					t.Errorf("the next one waits %v", wait)
				}
			})
		}
	}
}
