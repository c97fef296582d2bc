package grants_test

import (
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/grants"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/kinds/claims"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/term"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/grantstest"
)

// TestListDueWrites checks which writes are due now, and when more are: for one pool in each case.
func TestListDueWrites(t *testing.T) {
	const orphanGrace = 75 * time.Second
	rests := func(o *v1alpha1.NetworkPool) { o.Spec.AddressReuseGracePeriodSeconds = ptr.To[int64](30) }
	// granted adds a claim with a grant that was committed so long ago.
	granted := func(p *grants.PoolState, ago time.Duration) (*grants.Claimant, *grants.Grant) {
		c := grantstest.ObserveClaim(p, "a", 0)
		p.Planner.PlanGrants(grantstest.Noon, 9, grantstest.AdmitAll)
		g := p.Grants.ByClaimant[c.Owner.UID]
		g.Committed, g.CommitConfirmedAt = true, grantstest.Noon.Add(-ago)
		return c, g
	}
	deleted := func(p *grants.PoolState) *grants.Claimant {
		c := grantstest.ObserveClaim(p, "a", 0, grantstest.WithRecordedAddress("10.0.0.1"), grantstest.WithReadyStatus, grantstest.WithDeletionTimestamp)
		grantstest.ObserveAddress(p, "a", "10.0.0.1", "uid-a")
		return c
	}
	orphan := func(p *grants.PoolState) *grants.Orphan {
		grantstest.ObserveAddress(p, "a", "10.0.0.1", "gone")
		return p.Addresses.Orphans[grants.NamespacedNameFromOwner(claims.NewClaimant(grantstest.NewClaim("a", 0)).Owner)]
	}
	deletedByHand := func(p *grants.PoolState) {
		grantstest.ObserveAddress(p, "a", "10.0.0.1", "")
		a := *p.Addresses.ByName[types.NamespacedName{Namespace: "ns", Name: "a"}]
		a.Deleting, a.ResourceVersion = true, "2"
		p.ObserveAddress(&a)
	}
	waits := func(*grants.Claimant) grants.AdmissionResult { return grants.AdmissionResult{Wait: true} }
	for name, tc := range map[string]struct {
		reason                  string
		pool                    func(*v1alpha1.NetworkPool)
		as                      func(p *grants.PoolState)
		admission, releases     grants.AdmissionFunc
		none                    bool // no job may be dispatched
		serve, release, resolve int
		wait                    time.Duration
	}{
		"Granted":          {as: func(p *grants.PoolState) { granted(p, 0) }, serve: 1},
		"NotCommitted":     {reason: "a grant exists once it is committed", as: func(p *grants.PoolState) { _, g := granted(p, 0); g.Committed = false }},
		"GrantIsOld":       {reason: "a commit confirms it first (R6)", as: func(p *grants.PoolState) { granted(p, term.RequestTimeout+1) }},
		"GrantIsGivenBack": {reason: "the commit that ends it may be under way (R6)", as: func(p *grants.PoolState) { _, g := granted(p, 0); g.Confirmed = true }},
		"GrantIsOnRecord": {reason: "the rest needs no grant", as: func(p *grants.PoolState) {
			_, g := granted(p, term.RequestTimeout+1)
			grantstest.ObserveAddress(p, "a", "10.0.0.1", "uid-a")
			g.Confirmed = true
		}, serve: 1},
		"BlockGivenBack": {reason: "the commit that ends it may be under way (R6)", as: func(p *grants.PoolState) {
			c := grantstest.ObserveAllocation(p, "x", 4)
			p.Planner.PlanGrants(grantstest.Noon, 9, grantstest.AdmitAll)
			g := p.Grants.ByClaimant[c.Owner.UID]
			g.Committed, g.CommitConfirmedAt, g.Confirmed = true, grantstest.Noon, true
		}},
		"Paused":  {as: func(p *grants.PoolState) { granted(p, 0) }, admission: waits},
		"Waiting": {reason: "what has no grant is the plan's", as: func(p *grants.PoolState) { grantstest.ObserveClaim(p, "a", 0) }},
		"Busy":    {as: func(p *grants.PoolState) { c, _ := granted(p, 0); c.Busy = true }},
		"NoRoomForJobs": {as: func(p *grants.PoolState) {
			granted(p, 0)
			grantstest.ObserveClaim(p, "b", 0, grantstest.WithRecordedAddress("10.0.0.2"), grantstest.WithReadyStatus, grantstest.WithDeletionTimestamp)
		}, none: true},
		"TriedAgainSoon": {as: func(p *grants.PoolState) {
			c, _ := granted(p, 0)
			c.RetryAt = grantstest.Noon.Add(2 * time.Second)
			p.Queues.Retrying[c.Owner.UID] = struct{}{}
		}, wait: 2 * time.Second},
		"Deleted":         {as: func(p *grants.PoolState) { deleted(p) }, release: 1},
		"DeletedAndHeld":  {reason: "its Cluster is paused, or a consumer uses the address", as: func(p *grants.PoolState) { deleted(p) }, releases: waits},
		"DeletedNoPool":   {reason: "no manager can grant from a pool that does not exist", as: func(p *grants.PoolState) { deleted(p); p.ClearBasePool() }, release: 1},
		"LivesWithoutOne": {as: func(p *grants.PoolState) { granted(p, 0); p.Base.Pool = nil }},
		"GrantEndsFirst": {reason: "with the next commit (R6)", as: func(p *grants.PoolState) {
			c, g := granted(p, 0)
			c.Deleting, g.Confirmed = true, true
		}},
		"RestsFirst":        {reason: "the next batch notes it (R9)", pool: rests, as: func(p *grants.PoolState) { deleted(p) }, wait: time.Millisecond},
		"NoRoomToRest":      {reason: "the end of a rest wakes the pool", pool: rests, as: func(p *grants.PoolState) { deleted(p); p.Queues.Backlog = true }},
		"Orphan":            {as: func(p *grants.PoolState) { orphan(p) }, resolve: 1},
		"OrphanLookedAt":    {reason: "a restore may bring its claim (R2)", as: func(p *grants.PoolState) { orphan(p).OrphanedSince = grantstest.Noon }, wait: orphanGrace},
		"OrphanNeeded":      {as: func(p *grants.PoolState) { o := orphan(p); o.OrphanedSince, o.Conflicts = grantstest.Noon, true }, resolve: 1},
		"OrphanBusy":        {as: func(p *grants.PoolState) { orphan(p).Busy = true }},
		"OrphanRests":       {reason: "the next batch notes it (R9)", pool: rests, as: func(p *grants.PoolState) { orphan(p).ProvenOrphan = true }, wait: time.Millisecond},
		"MadeByHand":        {reason: "its owner is unknown (R2)", as: func(p *grants.PoolState) { grantstest.ObserveAddress(p, "a", "10.0.0.1", "") }},
		"MadeByHandDeleted": {reason: "as a claim of its name says to do", as: func(p *grants.PoolState) { deletedByHand(p); grantstest.ObserveClaim(p, "a", 0) }, resolve: 1},
		"MadeByHandOnRecord": {reason: "it stays with its claim", as: func(p *grants.PoolState) {
			deletedByHand(p)
			grantstest.ObserveClaim(p, "a", 0, grantstest.WithRecordedAddress("10.0.0.1"), grantstest.WithReadyStatus)
		}},
		"OrphansHaveRoom": {as: func(p *grants.PoolState) { orphan(p) }, none: true},
	} {
		t.Run(name, func(t *testing.T) {
			var change []func(*v1alpha1.NetworkPool)
			if tc.pool != nil {
				change = append(change, tc.pool)
			}
			p := grantstest.NewPool(t, "10.0.0.1-10.0.0.9", change...)
			tc.as(p)
			free := grants.MaxJobs
			if tc.none {
				free = 0
			}
			for _, rule := range []*grants.AdmissionFunc{&tc.admission, &tc.releases} {
				if *rule == nil {
					*rule = grantstest.AdmitAll
				}
			}
			got, wait := p.ListDueWrites(grantstest.Noon, free, orphanGrace, tc.admission, tc.releases)
			if len(got.ServeClaimants) != tc.serve || len(got.ReleaseClaimants) != tc.release || len(got.ResolveOrphans) != tc.resolve || wait != tc.wait {
				t.Errorf("%s: %d to serve, %d to release, %d to resolve, the next in %v", tc.reason, len(got.ServeClaimants), len(got.ReleaseClaimants), len(got.ResolveOrphans), wait)
			}
			if p.Queues.ActiveJobs > 0 {
				t.Error("a question hands nothing out")
			}
		})
	}
}

// TestEndOfJobEnqueuesPool checks that the end of a failed job enqueues the pool where the retry is due before the next
// reconcile of the pool, or where others may have waited for room: one pool has hundreds of jobs that fail while an
// obstacle lasts.
func TestEndOfJobEnqueuesPool(t *testing.T) {
	soon, late := grantstest.Noon.Add(time.Second), grantstest.Noon.Add(time.Minute)
	for name, tc := range map[string]struct {
		jobs                 int // with the one that ends
		again, nextReconcile time.Time
		wakes                bool
	}{
		"BeforeTheLook":    {jobs: 9, again: soon, nextReconcile: late, wakes: true},
		"AfterTheLook":     {jobs: 9, again: late, nextReconcile: soon},
		"AtTheLook":        {jobs: 9, again: soon, nextReconcile: soon},
		"DuringTheTurn":    {jobs: 9, again: late, wakes: true},
		"NothingFailed":    {jobs: 9, nextReconcile: late},
		"TheLastOne":       {jobs: 1, again: late, nextReconcile: soon, wakes: true},
		"RoomAmongTheJobs": {jobs: grants.MaxJobs/4 + 1, again: late, nextReconcile: soon, wakes: true},
	} {
		p := grants.NewPoolState(pools.Key{}, nil, nil)
		p.Queues.ActiveJobs, p.Queues.NextReconcileAt = tc.jobs, tc.nextReconcile
		if got := p.Queues.EndJob(tc.again); got != tc.wakes || p.Queues.ActiveJobs != tc.jobs-1 {
			t.Errorf("%s: wakes %v, %d jobs are left", name, got, p.Queues.ActiveJobs)
		}
	}
}
