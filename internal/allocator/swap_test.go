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
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/grantstest"
)

// TestTakeOverAfterOther checks that nothing new is granted after the in-cluster provider has served the pool until its
// last request has landed: it may have sent one right before its Pod ended, each time that it ends.
func TestTakeOverAfterOther(t *testing.T) {
	const quarantine = 75 * time.Second
	served := grantstest.WithReady(metav1.ConditionTrue, v1alpha1.ReadyReason, grantstest.Noon.Add(-time.Hour))
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
		"a claim with a record of ours":              {served, grantstest.WithRecordedAddress("10.0.0.11"), time.Time{}, v1alpha1.ReadyReason},
		"one that was never reconciled":              {served, func(*ipamv1.IPAddressClaim) {}, time.Time{}, v1alpha1.ReadyReason},
		"one that another controller has reconciled": {served, touched, grantstest.Noon.Add(quarantine), v1alpha1.ReadyReason},
		"which is waited for already":                {grantstest.WithReady(metav1.ConditionFalse, v1alpha1.AdoptingReason, grantstest.Noon.Add(-time.Minute)), touched, grantstest.Noon.Add(18 * time.Second), v1alpha1.AdoptingReason},
		"in a pool without users":                    {func(o *v1alpha1.NetworkPool) { o.Status = v1alpha1.NetworkPoolStatus{} }, touched, grantstest.Noon.Add(quarantine), v1alpha1.AdoptingReason},
		"a mirror that is made again at home":        {madeAgain, func(*ipamv1.IPAddressClaim) {}, grantstest.Noon.Add(quarantine), v1alpha1.AdoptingReason},
		"a mirror that is made the first time":       {func(o *v1alpha1.NetworkPool) { o.Status = v1alpha1.NetworkPoolStatus{} }, func(*ipamv1.IPAddressClaim) {}, time.Time{}, v1alpha1.AdoptingReason},
		"a mirror that was left alone in between":    {grantstest.WithReady(metav1.ConditionFalse, v1alpha1.NotServedReason, grantstest.Noon.Add(-time.Hour)), grantstest.WithRecordedAddress("10.0.0.11"), grantstest.Noon.Add(quarantine), v1alpha1.AdoptingReason},
	} {
		t.Run(name, func(t *testing.T) {
			p := grantstest.NewMirrorPool(t, "10.0.0.10-10.0.0.20", func(o *v1alpha1.NetworkPool) {
				o.Status.Allocator = &v1alpha1.AllocatorStatus{Holder: "you", Term: 7}
			}, c.pool)
			p.Term.Holder = false
			api, lists := &singleWriteAPI{}, &listedObjects{claims: []*ipamv1.IPAddressClaim{grantstest.NewClaim("c", -600, grantstest.WithPoolRef(grantstest.MirroredPoolRef), c.claim)}}
			a := New(Options{Client: api, Live: api, Lister: lists, ManagerID: "me", InClusterPools: true, Clock: clocktesting.NewFakeClock(grantstest.Noon)})
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
				pool, claim := grantstest.NewPool, []func(*ipamv1.IPAddressClaim){grantstest.WithRecordedAddress("10.0.0.11")}
				if mirror {
					pool, claim = grantstest.NewMirrorPool, []func(*ipamv1.IPAddressClaim){grantstest.WithPoolRef(grantstest.MirroredPoolRef), func(c *ipamv1.IPAddressClaim) { c.Finalizers = []string{v1alpha1.ClaimFinalizer} }}
				}
				// take lets a manager whose clock is wrong take the pool over as another one left it, and commit.
				take := func(id string, wrong, later time.Duration, left func(*v1alpha1.NetworkPool)) (committed v1alpha1.Pool, wait time.Duration) {
					p := pool(t, "10.0.0.10-10.0.0.20", left)
					p.Term.Holder = false
					p.Clock.ToAPIServerTime = func(at time.Time) time.Time { return at.Add(-wrong) }
					now := grantstest.Noon.Add(later + wrong)
					api, lists := &singleWriteAPI{}, &listedObjects{claims: []*ipamv1.IPAddressClaim{grantstest.NewClaim("c", -600, claim...)}}
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
						grantstest.WithClosed(c.closed)(o)
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
