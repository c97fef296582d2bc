package allocator

import (
	"context"
	"errors"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/grants"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/kinds/claims"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/term"
)

// What is to be written now, and when there is more: of one pool in each case.
func TestDue(t *testing.T) {
	const orphanGrace = 75 * time.Second
	rests := func(o *v1alpha1.NetworkPool) { o.Spec.AddressReuseGracePeriodSeconds = ptr.To[int64](30) }
	// granted has a claim with a grant that was committed so long ago.
	granted := func(p *grants.Memory, ago time.Duration) (*grants.Claimant, *grants.Grant) {
		c := see(p, "a", 0)
		p.Plan(noon, 9, anyone)
		g := p.Grants[c.Owner.UID]
		g.Committed, g.At = true, noon.Add(-ago)
		return c, g
	}
	deleted := func(p *grants.Memory) *grants.Claimant {
		c := see(p, "a", 0, remembers("10.0.0.1"), bothReady, ends)
		seeAddress(p, "a", "10.0.0.1", "uid-a")
		return c
	}
	orphan := func(p *grants.Memory) *grants.Orphan {
		seeAddress(p, "a", "10.0.0.1", "gone")
		return p.Orphans[grants.NameOf(claims.Of(newClaim("a", 0)).Owner)]
	}
	deletedByHand := func(p *grants.Memory) {
		seeAddress(p, "a", "10.0.0.1", "")
		a := *p.Attached[types.NamespacedName{Namespace: "ns", Name: "a"}]
		a.Deleting, a.Version = true, "2"
		p.ObserveAttached(&a)
	}
	waits := func(*grants.Claimant) grants.Ruling { return grants.Ruling{Waits: true} }
	for name, tc := range map[string]struct {
		reason                  string
		pool                    func(*v1alpha1.NetworkPool)
		as                      func(p *grants.Memory)
		admission, releases     grants.Admit
		none                    bool // no job may be handed out
		serve, release, resolve int
		wait                    time.Duration
	}{
		"Granted":          {as: func(p *grants.Memory) { granted(p, 0) }, serve: 1},
		"NotCommitted":     {reason: "a grant exists once it is committed", as: func(p *grants.Memory) { _, g := granted(p, 0); g.Committed = false }},
		"GrantIsOld":       {reason: "a commit confirms it first (R6)", as: func(p *grants.Memory) { granted(p, term.RequestTimeout+1) }},
		"GrantIsGivenBack": {reason: "the commit that ends it may be under way (R6)", as: func(p *grants.Memory) { _, g := granted(p, 0); g.Confirmed = true }},
		"GrantIsOnRecord": {reason: "the rest needs no grant", as: func(p *grants.Memory) {
			_, g := granted(p, term.RequestTimeout+1)
			seeAddress(p, "a", "10.0.0.1", "uid-a")
			g.Confirmed = true
		}, serve: 1},
		"BlockGivenBack": {reason: "the commit that ends it may be under way (R6)", as: func(p *grants.Memory) {
			c := seeBlock(p, "x", 4)
			p.Plan(noon, 9, anyone)
			g := p.Grants[c.Owner.UID]
			g.Committed, g.At, g.Confirmed = true, noon, true
		}},
		"Paused":        {as: func(p *grants.Memory) { granted(p, 0) }, admission: waits},
		"Waiting":       {reason: "what has no grant is the plan's", as: func(p *grants.Memory) { see(p, "a", 0) }},
		"Busy":          {as: func(p *grants.Memory) { c, _ := granted(p, 0); c.Busy = true }},
		"NoRoomForJobs": {as: func(p *grants.Memory) { granted(p, 0); see(p, "b", 0, remembers("10.0.0.2"), bothReady, ends) }, none: true},
		"TriedAgainSoon": {as: func(p *grants.Memory) {
			c, _ := granted(p, 0)
			c.RetryAt = noon.Add(2 * time.Second)
			p.Retrying[c.Owner.UID] = struct{}{}
		}, wait: 2 * time.Second},
		"Deleted":         {as: func(p *grants.Memory) { deleted(p) }, release: 1},
		"DeletedAndHeld":  {reason: "its Cluster is paused, or a consumer uses the address", as: func(p *grants.Memory) { deleted(p) }, releases: waits},
		"DeletedNoPool":   {reason: "nobody can grant from a pool that does not exist", as: func(p *grants.Memory) { deleted(p); p.UnsetBase() }, release: 1},
		"LivesWithoutOne": {as: func(p *grants.Memory) { granted(p, 0); p.Base = nil }},
		"GrantEndsFirst": {reason: "with the next commit (R6)", as: func(p *grants.Memory) {
			c, g := granted(p, 0)
			c.Deleting, g.Confirmed = true, true
		}},
		"RestsFirst":         {reason: "the next batch notes it (R9)", pool: rests, as: func(p *grants.Memory) { deleted(p) }, wait: time.Millisecond},
		"NoRoomToRest":       {reason: "the end of a rest wakes the pool", pool: rests, as: func(p *grants.Memory) { deleted(p); p.RestsLate = true }},
		"Orphan":             {as: func(p *grants.Memory) { orphan(p) }, resolve: 1},
		"OrphanLookedAt":     {reason: "a restore may bring its claim (R2)", as: func(p *grants.Memory) { orphan(p).Since = noon }, wait: orphanGrace},
		"OrphanNeeded":       {as: func(p *grants.Memory) { o := orphan(p); o.Since, o.InTheWay = noon, true }, resolve: 1},
		"OrphanBusy":         {as: func(p *grants.Memory) { orphan(p).Busy = true }},
		"OrphanRests":        {reason: "the next batch notes it (R9)", pool: rests, as: func(p *grants.Memory) { orphan(p).ProvenOrphan = true }, wait: time.Millisecond},
		"MadeByHand":         {reason: "nobody knows whose it is (R2)", as: func(p *grants.Memory) { seeAddress(p, "a", "10.0.0.1", "") }},
		"MadeByHandDeleted":  {reason: "as a claim of its name says to do", as: func(p *grants.Memory) { deletedByHand(p); see(p, "a", 0) }, resolve: 1},
		"MadeByHandOnRecord": {reason: "it stays with its claim", as: func(p *grants.Memory) { deletedByHand(p); see(p, "a", 0, remembers("10.0.0.1"), bothReady) }},
		"OrphansHaveRoom":    {as: func(p *grants.Memory) { orphan(p) }, none: true},
	} {
		t.Run(name, func(t *testing.T) {
			var change []func(*v1alpha1.NetworkPool)
			if tc.pool != nil {
				change = append(change, tc.pool)
			}
			p := aPool(t, "10.0.0.1-10.0.0.9", change...)
			tc.as(p)
			free := grants.MaxJobs
			if tc.none {
				free = 0
			}
			for _, rule := range []*grants.Admit{&tc.admission, &tc.releases} {
				if *rule == nil {
					*rule = anyone
				}
			}
			got, wait := p.Due(noon, free, orphanGrace, tc.admission, tc.releases)
			if len(got.Serve) != tc.serve || len(got.Release) != tc.release || len(got.Resolve) != tc.resolve || wait != tc.wait {
				t.Errorf("%s: %d to serve, %d to release, %d to resolve, the next in %v", tc.reason, len(got.Serve), len(got.Release), len(got.Resolve), wait)
			}
			if p.Jobs > 0 {
				t.Error("a question hands nothing out")
			}
		})
	}
}

// The end of a job that failed wakes the pool where that is to be tried again before the pool is looked at by itself, or where
// others may have waited for room: one pool has hundreds of jobs that fail while an obstacle lasts.
func TestEndOfAJobWakes(t *testing.T) {
	soon, late := noon.Add(time.Second), noon.Add(time.Minute)
	for name, tc := range map[string]struct {
		jobs        int // with the one that ends
		again, look time.Time
		wakes       bool
	}{
		"BeforeTheLook":    {jobs: 9, again: soon, look: late, wakes: true},
		"AfterTheLook":     {jobs: 9, again: late, look: soon},
		"AtTheLook":        {jobs: 9, again: soon, look: soon},
		"DuringTheTurn":    {jobs: 9, again: late, wakes: true},
		"NothingFailed":    {jobs: 9, look: late},
		"TheLastOne":       {jobs: 1, again: late, look: soon, wakes: true},
		"RoomAmongTheJobs": {jobs: grants.MaxJobs/4 + 1, again: late, look: soon, wakes: true},
	} {
		p := &grants.Memory{Jobs: tc.jobs, NextLook: tc.look}
		if got := p.EndJob(tc.again); got != tc.wakes || p.Jobs != tc.jobs-1 {
			t.Errorf("%s: wakes %v, %d jobs are left", name, got, p.Jobs)
		}
	}
}

// refusing is an API server that answers whatever is asked with an error.
type refusing struct{ client.Client }

func (refusing) Get(context.Context, client.ObjectKey, client.Object, ...client.GetOption) error {
	return errRefused
}

func (refusing) Create(context.Context, client.Object, ...client.CreateOption) error {
	return errRefused
}

func (refusing) Patch(context.Context, client.Object, client.Patch, ...client.PatchOption) error {
	return errRefused
}

var errRefused = apierrors.NewForbidden(schema.GroupResource{Resource: "things"}, "x", errors.New("a policy refuses it"))

// Whatever job failed, the pool is woken by the same rule.
func TestJobsThatFailWakeByOneRule(t *testing.T) {
	for name, begin := range map[string]func(a *Allocator, p *grants.Memory) func(){
		"AClaim": func(a *Allocator, p *grants.Memory) func() {
			c := see(p, "a", 0)
			fails := func(context.Context, *grants.Pool, grants.Claimant) error { return errRefused }
			return func() { a.runClaim(t.Context(), grants.PoolOf(p), c.Owner.UID, serving, fails) }
		},
		"AnIPAddressWithoutAClaim": func(a *Allocator, p *grants.Memory) func() {
			seeAddress(p, "a", "10.0.0.1", "gone")
			o := p.Orphans[types.NamespacedName{Namespace: "ns", Name: "a"}]
			return func() { a.runOrphan(t.Context(), grants.PoolOf(p), o.Attached) }
		},
		"TheEndOfAMove": func(a *Allocator, p *grants.Memory) func() {
			moved := movedAddress("a", "10.0.0.1")
			p.ObserveAttached(moved)
			p.Base.PoolStatus().Held = []v1alpha1.HeldRange{{First: "10.0.0.1", Last: "10.0.0.1", Reason: v1alpha1.MovedReason}}
			p.EndsOfMoves(noon, 9)
			return func() { a.endMoveOf(t.Context(), grants.PoolOf(p), moved) }
		},
		"ABlock": func(a *Allocator, p *grants.Memory) func() {
			p.Base.PoolSpec().Carve = &v1alpha1.Carve{PoolRef: v1alpha1.PoolReference{Name: "site"}, PrefixLength: 30}
			r := grants.BlockRequest{Verb: grants.AskForBlock, Name: "pool-1"}
			p.BeginBlock(r)
			return func() { a.runBlock(t.Context(), grants.PoolOf(p), r) }
		},
	} {
		for look, wakes := range map[time.Duration]bool{time.Millisecond: false, time.Hour: true} {
			woken := 0
			a := New(Options{Client: refusing{}, Live: refusing{}, Recorder: events.NewFakeRecorder(9), ID: "us", Clock: clocktesting.NewFakeClock(noon)})
			a.Start(t.Context(), func(pools.Key) { woken++ })
			p := aPool(t, "10.0.0.1-10.0.0.9")
			run := begin(a, p)
			p.Jobs, p.NextLook, woken = 9, noon.Add(look), 0
			if run(); (woken > 0) != wakes || p.Jobs != 8 {
				t.Errorf("%s: a pool that is looked at in %v is woken %d times, and has %d jobs", name, look, woken, p.Jobs)
			}
		}
	}
}
