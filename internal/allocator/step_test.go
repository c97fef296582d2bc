package allocator

import (
	"strings"
	"testing"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
)

// What is done next for a claimant, of either kind: one request at a time, decided on what is known by then.
func TestSteps(t *testing.T) {
	const first, second = "10.0.0.1", "10.0.0.2"
	names := map[verb]string{
		stop: "stop", record: "record", create: "create", patch: "patch", remove: "delete", lookAtClaimant: "read the claimant",
		lookAtAttached: "read the IPAddress", lookAtTerm: "read the pool", endGrant: "end the grant", dropFinalizer: "drop the finalizer",
	}
	granted := func(p *memory, c *claimant) *claimant {
		p.plan(noon, 9, anyone)
		p.grants[c.owner.UID].committed, p.grants[c.owner.UID].at = true, noon
		return c
	}
	owned := func(p *memory, c *claimant) *claimant {
		seeAddress(p, c.owner.Name, "10.0.0.1", c.owner.UID)
		p.attached[nameOf(c.owner)].own.(*addressFacts).poolUID = p.base.GetUID()
		return c
	}
	unprotected := func(p *memory) {
		for _, a := range p.attached {
			a.protected = false
		}
	}
	gone := func(o *v1alpha1.IPAllocation) { o.DeletionTimestamp = &o.CreationTimestamp }
	released := func(o *v1alpha1.IPAllocation) { o.Status.Phase = v1alpha1.AllocationReleased }
	for name, tc := range map[string]struct {
		as   func(p *memory) *claimant
		know attempt
		want string // what is done, and what is written
	}{
		"ClaimGranted":         {as: func(p *memory) *claimant { return granted(p, see(p, "a", 0)) }, want: "record"},
		"ClaimRecorded":        {as: func(p *memory) *claimant { return granted(p, see(p, "a", 0, remembers(first))) }, want: "create"},
		"ClaimHasItsIPAddress": {as: func(p *memory) *claimant { return owned(p, see(p, "a", 0, remembers(first))) }, want: "patch status"},
		"ClaimServed":          {as: func(p *memory) *claimant { return owned(p, see(p, "a", 0, remembers(first), bothReady)) }, want: "stop"},
		"ClaimOfAnotherRecord": {as: func(p *memory) *claimant {
			granted(p, see(p, "a", 0))
			return see(p, "a", 0, version("2"), remembers(second))
		}, want: "read the pool"},
		"ClaimOfAnotherRecordHere": {as: func(p *memory) *claimant {
			granted(p, see(p, "a", 0))
			return see(p, "a", 0, version("2"), remembers(second))
		}, know: attempt{ours: "2"}, want: "record"},
		"ClaimAdopts": {as: func(p *memory) *claimant {
			seeAddress(p, "a", first, "dead")
			return see(p, "a", 0, remembers(first))
		}, want: "read the claimant"},
		"ClaimAdoptsWhatItRead": {as: func(p *memory) *claimant {
			seeAddress(p, "a", first, "dead")
			return see(p, "a", 0, remembers(first))
		}, know: attempt{read: true}, want: "patch address"},
		"ClaimWaits":   {as: func(p *memory) *claimant { return see(p, "a", 0) }, want: "stop"},
		"ClaimDeleted": {as: func(p *memory) *claimant { return owned(p, see(p, "a", 0, remembers(first), ends)) }, want: "patch address"},
		"ClaimDeletedDelete": {as: func(p *memory) *claimant {
			c := owned(p, see(p, "a", 0, remembers(first), ends))
			unprotected(p)
			return c
		}, want: "delete"},
		"ClaimDeletedNoProof": {as: func(p *memory) *claimant { return see(p, "a", 0, remembers(first), ends) }, want: "read the IPAddress"},
		"ClaimDeletedKept": {as: func(p *memory) *claimant {
			c := owned(p, see(p, "a", 0, remembers(first), ends))
			unprotected(p)
			return c
		},
			know: attempt{done: []request{{verb: remove}}}, want: "read the IPAddress"},
		"ClaimDeletedAndProof": {as: func(p *memory) *claimant { return see(p, "a", 0, remembers(first), ends) }, know: attempt{gone: true}, want: "drop the finalizer"},
		"ClaimDeletedGranted": {as: func(p *memory) *claimant {
			granted(p, see(p, "a", 0))
			return see(p, "a", 0, version("2"), remembers(first), ends)
		}, know: attempt{gone: true}, want: "end the grant"},
		"ClaimDeletedDone": {as: func(p *memory) *claimant { return see(p, "a", 0, ends) }, know: attempt{gone: true}, want: "stop"},

		"BlockGranted":         {as: func(p *memory) *claimant { return granted(p, seeBlock(p, "x", 4)) }, want: "record"},
		"BlockRecorded":        {as: func(p *memory) *claimant { return seeBlock(p, "x", 4, has("10.0.0.4/30")) }, want: "patch status"},
		"BlockServed":          {as: func(p *memory) *claimant { return seeBlock(p, "x", 4, has("10.0.0.4/30"), written(t, unlooked)) }, want: "stop"},
		"BlockDeleted":         {as: func(p *memory) *claimant { return seeBlock(p, "x", 4, has("10.0.0.4/30"), gone) }, want: "patch status"},
		"BlockDeletedReleased": {as: func(p *memory) *claimant { return seeBlock(p, "x", 4, has("10.0.0.4/30"), gone, released) }, want: "drop the finalizer"},
		"BlockDeletedGranted":  {as: func(p *memory) *claimant { c := granted(p, seeBlock(p, "x", 4)); c.deleting = true; return c }, want: "end the grant"},
	} {
		t.Run(name, func(t *testing.T) {
			p := aPool(t, "10.0.0.1-10.0.0.9")
			c := tc.as(p)
			try := tc.know
			try.now, try.grant = noon, p.grants[c.owner.UID]
			next := c.kind.serve
			if c.deleting {
				next = c.kind.release
			}
			s := next(p, c, &try)
			got := names[s.verb]
			switch {
			case s.verb == patch && s.attached != nil:
				got += " address"
			case s.verb == patch && s.status != nil:
				got += " status"
			}
			if s.err != nil || got != tc.want {
				t.Errorf("%s, %v; want %s", got, s.err, tc.want)
			}
		})
	}
}

// What cannot be served says why, and what to do about it.
func TestStepsThatFail(t *testing.T) {
	p := aPool(t, "10.0.0.1-10.0.0.9")
	c := see(p, "a", 0)
	p.plan(noon, 9, anyone)
	seeAddress(p, "b", p.grants[c.owner.UID].rng.From().String(), "uid-b")
	s := c.kind.serve(p, c, &attempt{now: noon, grant: p.grants[c.owner.UID]})
	if s.verb != stop || s.err == nil || !strings.Contains(s.err.Error(), "IPAddress ns/b has it; delete one of the two") {
		t.Errorf("%+v", s)
	}
}
