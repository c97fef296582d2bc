package allocator

import (
	"testing"
	"time"

	"k8s.io/utils/ptr"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
)

// What is to be written now, and when there is more: of one pool in each case.
func TestDue(t *testing.T) {
	const orphanGrace = 75 * time.Second
	rests := func(o *v1alpha1.NetworkPool) { o.Spec.AddressReuseGracePeriodSeconds = ptr.To[int64](30) }
	// granted has a claim with a grant that was committed so long ago.
	granted := func(p *memory, ago time.Duration) (*claimant, *grant) {
		c := see(p, "a", 0)
		p.plan(noon, 9, anyone)
		g := p.grants[c.owner.UID]
		g.committed, g.at = true, noon.Add(-ago)
		return c, g
	}
	deleted := func(p *memory) *claimant {
		c := see(p, "a", 0, remembers("10.0.0.1"), bothReady, ends)
		seeAddress(p, "a", "10.0.0.1", "uid-a")
		return c
	}
	orphan := func(p *memory) *orphan {
		seeAddress(p, "a", "10.0.0.1", "gone")
		return p.orphans[nameOf(claimOf(newClaim("a", 0)).owner)]
	}
	waits := func(*claimant) ruling { return ruling{waits: true} }
	for name, tc := range map[string]struct {
		reason                  string
		pool                    func(*v1alpha1.NetworkPool)
		as                      func(p *memory)
		admission, releases     admit
		none                    bool // no job may be handed out
		serve, release, resolve int
		wait                    time.Duration
	}{
		"Granted":          {as: func(p *memory) { granted(p, 0) }, serve: 1},
		"NotCommitted":     {reason: "a grant exists once it is committed", as: func(p *memory) { _, g := granted(p, 0); g.committed = false }},
		"GrantIsOld":       {reason: "a commit confirms it first (R6)", as: func(p *memory) { granted(p, requestTimeout+1) }},
		"GrantIsGivenBack": {reason: "the commit that ends it may be under way (R6)", as: func(p *memory) { _, g := granted(p, 0); g.confirmed = true }},
		"GrantIsOnRecord": {reason: "the rest needs no grant", as: func(p *memory) {
			_, g := granted(p, requestTimeout+1)
			seeAddress(p, "a", "10.0.0.1", "uid-a")
			g.confirmed = true
		}, serve: 1},
		"Paused":        {as: func(p *memory) { granted(p, 0) }, admission: waits},
		"Waiting":       {reason: "what has no grant is the plan's", as: func(p *memory) { see(p, "a", 0) }},
		"Busy":          {as: func(p *memory) { c, _ := granted(p, 0); c.busy = true }},
		"NoRoomForJobs": {as: func(p *memory) { granted(p, 0); see(p, "b", 0, remembers("10.0.0.2"), bothReady, ends) }, none: true},
		"TriedAgainSoon": {as: func(p *memory) {
			c, _ := granted(p, 0)
			c.retryAt = noon.Add(2 * time.Second)
			p.retrying[c.owner.UID] = struct{}{}
		}, wait: 2 * time.Second},
		"Deleted":         {as: func(p *memory) { deleted(p) }, release: 1},
		"DeletedAndHeld":  {reason: "its Cluster is paused, or a consumer uses the address", as: func(p *memory) { deleted(p) }, releases: waits},
		"DeletedNoPool":   {reason: "nobody can grant from a pool that does not exist", as: func(p *memory) { deleted(p); p.unsetBase() }, release: 1},
		"LivesWithoutOne": {as: func(p *memory) { granted(p, 0); p.base = nil }},
		"GrantEndsFirst": {reason: "with the next commit (R6)", as: func(p *memory) {
			c, g := granted(p, 0)
			c.deleting, g.confirmed = true, true
		}},
		"RestsFirst":      {reason: "the next batch notes it (R9)", pool: rests, as: func(p *memory) { deleted(p) }, wait: time.Millisecond},
		"NoRoomToRest":    {reason: "the end of a rest wakes the pool", pool: rests, as: func(p *memory) { deleted(p); p.restsLate = true }},
		"Orphan":          {as: func(p *memory) { orphan(p) }, resolve: 1},
		"OrphanLookedAt":  {reason: "a restore may bring its claim (R2)", as: func(p *memory) { orphan(p).since = noon }, wait: orphanGrace},
		"OrphanNeeded":    {as: func(p *memory) { o := orphan(p); o.since, o.inTheWay = noon, true }, resolve: 1},
		"OrphanBusy":      {as: func(p *memory) { orphan(p).busy = true }},
		"OrphanRests":     {reason: "the next batch notes it (R9)", pool: rests, as: func(p *memory) { orphan(p).provenOrphan = true }, wait: time.Millisecond},
		"MadeByHand":      {reason: "nobody knows whose it is (R2)", as: func(p *memory) { seeAddress(p, "a", "10.0.0.1", "") }},
		"OrphansHaveRoom": {as: func(p *memory) { orphan(p) }, none: true},
	} {
		t.Run(name, func(t *testing.T) {
			var change []func(*v1alpha1.NetworkPool)
			if tc.pool != nil {
				change = append(change, tc.pool)
			}
			p := aPool(t, "10.0.0.1-10.0.0.9", change...)
			tc.as(p)
			free := maxJobs
			if tc.none {
				free = 0
			}
			for _, rule := range []*admit{&tc.admission, &tc.releases} {
				if *rule == nil {
					*rule = anyone
				}
			}
			got, wait := p.due(noon, free, orphanGrace, tc.admission, tc.releases)
			if len(got.serve) != tc.serve || len(got.release) != tc.release || len(got.resolve) != tc.resolve || wait != tc.wait {
				t.Errorf("%s: %d to serve, %d to release, %d to resolve, the next in %v", tc.reason, len(got.serve), len(got.release), len(got.resolve), wait)
			}
			if p.jobs > 0 {
				t.Error("a question hands nothing out")
			}
		})
	}
}
