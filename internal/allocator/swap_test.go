package allocator

import (
	"encoding/json"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clocktesting "k8s.io/utils/clock/testing"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/grants"
)

// ready sets the condition Ready of a pool, with the time of its transition.
func ready(status metav1.ConditionStatus, reason string, since time.Time) func(*v1alpha1.NetworkPool) {
	return func(o *v1alpha1.NetworkPool) {
		o.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ReadyCondition, Status: status, Reason: reason, LastTransitionTime: metav1.NewTime(since)}}
	}
}

// closed makes a pool closed since an hour ago.
func closed(reason string) func(*v1alpha1.NetworkPool) {
	return ready(metav1.ConditionFalse, reason, noon.Add(-time.Hour))
}

// TestTakeOverAfterOther checks that nothing new is granted after the in-cluster provider has served the pool until its
// last request has landed: it may have sent one right before its Pod ended, each time that it ends.
func TestTakeOverAfterOther(t *testing.T) {
	const quarantine = 75 * time.Second
	served := ready(metav1.ConditionTrue, v1alpha1.ReadyReason, noon.Add(-time.Hour))
	touched := func(c *ipamv1.IPAddressClaim) { c.Finalizers = []string{v1alpha1.ClaimFinalizer} }
	// madeAgain has the annotations of its pool, which outlive the mirror before it.
	madeAgain := func(o *v1alpha1.NetworkPool) {
		o.Status = v1alpha1.NetworkPoolStatus{}
		metav1.SetMetaDataAnnotation(&o.ObjectMeta, v1alpha1.ManagementClusterAnnotation, "home")
	}
	for name, c := range map[string]struct {
		pool  func(*v1alpha1.NetworkPool)
		claim func(*ipamv1.IPAddressClaim)
		until time.Time
		// wantReason is the reason that the takeover writes into the condition Ready.
		wantReason string
	}{
		"a claim with a record of ours":              {served, withRecordedAddress("10.0.0.11"), time.Time{}, v1alpha1.ReadyReason},
		"one that was never reconciled":              {served, func(*ipamv1.IPAddressClaim) {}, time.Time{}, v1alpha1.ReadyReason},
		"one that another controller has reconciled": {served, touched, noon.Add(quarantine), v1alpha1.ReadyReason},
		"which is waited for already":                {ready(metav1.ConditionFalse, v1alpha1.AdoptingReason, noon.Add(-time.Minute)), touched, noon.Add(18 * time.Second), v1alpha1.AdoptingReason},
		"in a pool without users":                    {func(o *v1alpha1.NetworkPool) { o.Status = v1alpha1.NetworkPoolStatus{} }, touched, noon.Add(quarantine), v1alpha1.AdoptingReason},
		"a mirror that is made again at home":        {madeAgain, func(*ipamv1.IPAddressClaim) {}, noon.Add(quarantine), v1alpha1.AdoptingReason},
		"a mirror that is made the first time":       {func(o *v1alpha1.NetworkPool) { o.Status = v1alpha1.NetworkPoolStatus{} }, func(*ipamv1.IPAddressClaim) {}, time.Time{}, v1alpha1.AdoptingReason},
		"a mirror that was left alone in between":    {ready(metav1.ConditionFalse, v1alpha1.NotServedReason, noon.Add(-time.Hour)), withRecordedAddress("10.0.0.11"), noon.Add(quarantine), v1alpha1.AdoptingReason},
	} {
		t.Run(name, func(t *testing.T) {
			p := newMirrorPool(t, "10.0.0.10-10.0.0.20", func(o *v1alpha1.NetworkPool) {
				o.Status.Allocator = &v1alpha1.AllocatorStatus{Holder: "you", Term: 7}
			}, c.pool)
			p.Term.Holder = false
			api, lists := &singleWriteAPI{}, &listedObjects{claims: []*ipamv1.IPAddressClaim{newClaim("c", -600, naming(mirrored), c.claim)}}
			a := New(Options{Client: api, Live: api, Lister: lists, ManagerID: "me", InClusterPools: true, Clock: clocktesting.NewFakeClock(noon)})
			if err := a.status.takeOverPool(t.Context(), grants.NewPool(p)); err != nil {
				t.Fatal(err)
			}
			if !p.Quarantine.Until.Equal(c.until) {
				t.Errorf("nothing new is granted until %v, want %v", p.Quarantine.Until, c.until)
			}
			if condition := meta.FindStatusCondition(api.sent.Status.Conditions, v1alpha1.ReadyCondition); condition == nil || condition.Reason != c.wantReason {
				t.Errorf("the takeover says %v, want %s", condition, c.wantReason)
			}
		})
	}
}

// TestAdoptionUsesAPIServerClock checks R10: the wait counts from the time that the manager before has
// recorded, by the clock of the API server. The clocks of both managers may be ahead of that, or behind.
func TestAdoptionUsesAPIServerClock(t *testing.T) {
	const quarantine, passed, mayErr = 75 * time.Second, 30 * time.Second, 3 * time.Second
	for name, c := range map[string]struct {
		former, next time.Duration
		// closed is the reason for which the pool was closed an hour ago, with the same status.
		closed string
	}{
		"one clock":                 {},
		"the former was behind":     {former: -time.Hour},
		"the former was ahead":      {former: time.Hour},
		"the next one is behind":    {next: -time.Hour},
		"the next one is ahead":     {next: time.Hour},
		"neither is right":          {former: -time.Hour, next: time.Hour},
		"closed before by its spec": {closed: v1alpha1.ValidationFailedReason},
		"closed before by a move":   {closed: v1alpha1.MovedReason},
		"not served before":         {closed: v1alpha1.NotServedReason},
	} {
		for _, mirror := range []bool{false, true} {
			t.Run(name+map[bool]string{true: ", of a mirror"}[mirror], func(t *testing.T) {
				pool, claim := newTestPool, []func(*ipamv1.IPAddressClaim){withRecordedAddress("10.0.0.11")}
				if mirror {
					pool, claim = newMirrorPool, []func(*ipamv1.IPAddressClaim){naming(mirrored), func(c *ipamv1.IPAddressClaim) { c.Finalizers = []string{v1alpha1.ClaimFinalizer} }}
				}
				// take lets a manager whose clock is wrong take the pool over as another one left it, and commit.
				take := func(id string, wrong, later time.Duration, left func(*v1alpha1.NetworkPool)) (committed v1alpha1.Pool, wait time.Duration) {
					p := pool(t, "10.0.0.10-10.0.0.20", left)
					p.Term.Holder = false
					p.Clock.ToAPIServerTime = func(at time.Time) time.Time { return at.Add(-wrong) }
					now := noon.Add(later + wrong)
					api, lists := &singleWriteAPI{}, &listedObjects{claims: []*ipamv1.IPAddressClaim{newClaim("c", -600, claim...)}}
					a := New(Options{Client: api, Live: api, Lister: lists, ManagerID: id, InClusterPools: true, Clock: clocktesting.NewFakeClock(now), APITime: p.Clock.ToAPIServerTime})
					if err := a.status.takeOverPool(t.Context(), grants.NewPool(p)); err != nil {
						t.Fatal(err)
					}
					return p.PrepareCommit(now).Pool, p.Quarantine.Until.Sub(now)
				}
				left, wait := take("former", c.former, 0, func(o *v1alpha1.NetworkPool) {
					o.Status = v1alpha1.NetworkPoolStatus{}
					if c.closed != "" {
						o.Finalizers = []string{v1alpha1.PoolFinalizer}
						closed(c.closed)(o)
					}
				})
				if wait != quarantine {
					t.Errorf("the former waits %v", wait)
				}
				if _, wait = take("next", c.next, passed, func(o *v1alpha1.NetworkPool) { o.Status = *left.PoolStatus() }); wait != quarantine-passed+mayErr {
					t.Errorf("the next one waits %v", wait)
				}
			})
		}
	}
}

// TestWaitOfClosedMirrorOutlivesManager checks that a mirror that was closed for another reason when its wait
// begins records since when it waits: the next manager counts from there, and not from when the pool closed.
func TestWaitOfClosedMirrorOutlivesManager(t *testing.T) {
	const quarantine, passed, mayErr = 75 * time.Second, 30 * time.Second, 3 * time.Second
	left := closed(v1alpha1.ValidationFailedReason)
	for _, later := range []time.Duration{0, passed} {
		p := newMirrorPool(t, "10.0.0.10-10.0.0.20", left)
		observeClaim(p, "c", -600, naming(mirrored), func(c *ipamv1.IPAddressClaim) { c.Finalizers = []string{v1alpha1.ClaimFinalizer} })
		now := noon.Add(later)
		p.Quarantine.QuarantineAfterOtherProvider(now, quarantine)
		if wait := p.Quarantine.Until.Sub(now); wait != min(quarantine-later+mayErr, quarantine) {
			t.Errorf("after %v it waits %v", later, wait)
		}
		status := p.PrepareCommit(now).Pool.PoolStatus()
		left = func(o *v1alpha1.NetworkPool) { o.Status = *status }
	}
}

// TestWaitCostsNoWrites checks that a pool that waits for hours is not written because the measured difference of
// clocks varies: it is measured from times without fractions, and so differs a little with each answer.
func TestWaitCostsNoWrites(t *testing.T) {
	for seed := range uint64(8) {
		chance := rand.New(rand.NewPCG(seed, 0))
		p := newTestPool(t, "10.0.0.10-10.0.0.20", func(o *v1alpha1.NetworkPool) {
			o.Annotations = map[string]string{v1alpha1.ManagementClusterAnnotation: "there"}
		}, closed(v1alpha1.MovedReason))
		p.Quarantine.ManagementCluster = "here"
		var off time.Duration
		p.Clock.ToAPIServerTime = func(at time.Time) time.Time { return at.Add(off) }
		writes := 0
		for i := range 2000 {
			now := noon.Add(time.Duration(i)*time.Second + time.Duration(chance.Int64N(int64(time.Second))))
			off = time.Hour - time.Duration(chance.Int64N(int64(2*time.Second)))
			if i == 100 {
				observeClaim(p, "late", 3600+99, withRecordedAddress("10.0.0.11"))
			}
			p.Quarantine.BeginQuarantine(now, 75*time.Second)
			p.Quarantine.ExtendQuarantine(now, 75*time.Second)
			next := p.PrepareCommit(now)
			if differs, _ := next.HasChanges(p.Base.Pool); differs {
				writes++
				p.SetBasePool(asStored(t, next.Pool))
			}
		}
		// The first, the arrival, and each of the up to two seconds by which the clocks waver.
		if writes > 6 {
			t.Errorf("seed %d: the pool is written %d times", seed, writes)
		}
	}
}

// asStored returns a pool as the API server stores it: its times have no fractions.
func asStored(t *testing.T, obj v1alpha1.Pool) v1alpha1.Pool {
	t.Helper()
	text, err := json.Marshal(obj)
	if err != nil {
		t.Fatal(err)
	}
	out := &v1alpha1.NetworkPool{}
	if err := json.Unmarshal(text, out); err != nil {
		t.Fatal(err)
	}
	return out
}

// TestReportedTimesUseAPIServerClock checks that the times that users read of a pool are by the clock of the API
// server, as the times of its objects are.
func TestReportedTimesUseAPIServerClock(t *testing.T) {
	p := newTestPool(t, "10.0.0.10-10.0.0.20", func(o *v1alpha1.NetworkPool) {
		o.Annotations = map[string]string{v1alpha1.ManagementClusterAnnotation: "there", clusterv1.PausedAnnotation: ""}
	})
	p.Quarantine.ManagementCluster = "here"
	p.Clock.ToAPIServerTime = func(at time.Time) time.Time { return at.Add(-time.Hour) }
	p.Quarantine.BeginQuarantine(noon.Add(time.Hour), 75*time.Second)
	status := p.PrepareCommit(noon.Add(time.Hour)).Pool.PoolStatus()
	if message := meta.FindStatusCondition(status.Conditions, v1alpha1.ReadyCondition).Message; !strings.Contains(message, "new grants start at 2030-01-01T12:01:15Z") {
		t.Errorf("it says %q", message)
	}
	for _, c := range status.Conditions {
		if !c.LastTransitionTime.Time.Equal(noon) {
			t.Errorf("%s is so since %v", c.Type, c.LastTransitionTime)
		}
	}
}
