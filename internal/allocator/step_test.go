package allocator

import (
	"strings"
	"testing"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/grants"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/kinds/claims"
)

// What is done next for a claimant, of either kind: one request at a time, decided on what is known by then.
func TestSteps(t *testing.T) {
	const first, second = "10.0.0.1", "10.0.0.2"
	names := map[grants.Verb]string{
		grants.Stop: "stop", grants.Record: "record", grants.Create: "create", grants.Patch: "patch", grants.Remove: "delete", grants.LookAtClaimant: "read the claimant",
		grants.LookAtAttached: "read the IPAddress", grants.LookAtTerm: "read the pool", grants.EndGrant: "end the grant", grants.DropFinalizer: "drop the finalizer",
	}
	granted := func(p *grants.Memory, c *grants.Claimant) *grants.Claimant {
		p.Plan(noon, 9, anyone)
		p.Grants[c.Owner.UID].Committed, p.Grants[c.Owner.UID].At = true, noon
		return c
	}
	owned := func(p *grants.Memory, c *grants.Claimant) *grants.Claimant {
		seeAddress(p, c.Owner.Name, "10.0.0.1", c.Owner.UID)
		p.Attached[grants.NameOf(c.Owner)].Own.(*claims.AddressFacts).PoolUID = p.Base.GetUID()
		return c
	}
	unprotected := func(p *grants.Memory) {
		for _, a := range p.Attached {
			a.Protected = false
		}
	}
	gone := func(o *v1alpha1.IPAllocation) { o.DeletionTimestamp = &o.CreationTimestamp }
	released := func(o *v1alpha1.IPAllocation) { o.Status.Phase = v1alpha1.AllocationReleased }
	for name, tc := range map[string]struct {
		as   func(p *grants.Memory) *grants.Claimant
		know grants.Attempt
		want string // what is done, and what is written
	}{
		"ClaimGranted":         {as: func(p *grants.Memory) *grants.Claimant { return granted(p, see(p, "a", 0)) }, want: "record"},
		"ClaimRecorded":        {as: func(p *grants.Memory) *grants.Claimant { return granted(p, see(p, "a", 0, remembers(first))) }, want: "create"},
		"ClaimHasItsIPAddress": {as: func(p *grants.Memory) *grants.Claimant { return owned(p, see(p, "a", 0, remembers(first))) }, want: "patch status"},
		"ClaimServed":          {as: func(p *grants.Memory) *grants.Claimant { return owned(p, see(p, "a", 0, remembers(first), bothReady)) }, want: "stop"},
		"ClaimOfAnotherRecord": {as: func(p *grants.Memory) *grants.Claimant {
			granted(p, see(p, "a", 0))
			return see(p, "a", 0, version("2"), remembers(second))
		}, want: "read the pool"},
		"ClaimOfAnotherRecordHere": {as: func(p *grants.Memory) *grants.Claimant {
			granted(p, see(p, "a", 0))
			return see(p, "a", 0, version("2"), remembers(second))
		}, know: grants.Attempt{Ours: "2"}, want: "record"},
		"ClaimAdopts": {as: func(p *grants.Memory) *grants.Claimant {
			seeAddress(p, "a", first, "dead")
			return see(p, "a", 0, remembers(first))
		}, want: "read the claimant"},
		"ClaimAdoptsWhatItRead": {as: func(p *grants.Memory) *grants.Claimant {
			seeAddress(p, "a", first, "dead")
			return see(p, "a", 0, remembers(first))
		}, know: grants.Attempt{Read: true}, want: "patch address"},
		"ClaimWaits":   {as: func(p *grants.Memory) *grants.Claimant { return see(p, "a", 0) }, want: "stop"},
		"ClaimDeleted": {as: func(p *grants.Memory) *grants.Claimant { return owned(p, see(p, "a", 0, remembers(first), ends)) }, want: "patch address"},
		"ClaimDeletedDelete": {as: func(p *grants.Memory) *grants.Claimant {
			c := owned(p, see(p, "a", 0, remembers(first), ends))
			unprotected(p)
			return c
		}, want: "delete"},
		"ClaimDeletedNoProof": {as: func(p *grants.Memory) *grants.Claimant { return see(p, "a", 0, remembers(first), ends) }, want: "read the IPAddress"},
		"ClaimDeletedKept": {as: func(p *grants.Memory) *grants.Claimant {
			c := owned(p, see(p, "a", 0, remembers(first), ends))
			unprotected(p)
			return c
		},
			know: grants.Attempt{Done: []grants.Request{{Verb: grants.Remove}}}, want: "read the IPAddress"},
		"ClaimDeletedAndProof": {as: func(p *grants.Memory) *grants.Claimant { return see(p, "a", 0, remembers(first), ends) }, know: grants.Attempt{Gone: true}, want: "drop the finalizer"},
		"ClaimDeletedGranted": {as: func(p *grants.Memory) *grants.Claimant {
			granted(p, see(p, "a", 0))
			return see(p, "a", 0, version("2"), remembers(first), ends)
		}, know: grants.Attempt{Gone: true}, want: "end the grant"},
		"ClaimDeletedDone": {as: func(p *grants.Memory) *grants.Claimant { return see(p, "a", 0, ends) }, know: grants.Attempt{Gone: true}, want: "stop"},

		"BlockGranted":  {as: func(p *grants.Memory) *grants.Claimant { return granted(p, seeBlock(p, "x", 4)) }, want: "record"},
		"BlockRecorded": {as: func(p *grants.Memory) *grants.Claimant { return seeBlock(p, "x", 4, has("10.0.0.4/30")) }, want: "patch status"},
		"BlockServed": {as: func(p *grants.Memory) *grants.Claimant {
			return seeBlock(p, "x", 4, has("10.0.0.4/30"), written(t, grants.Unlooked))
		}, want: "stop"},
		"BlockDeleted": {as: func(p *grants.Memory) *grants.Claimant { return seeBlock(p, "x", 4, has("10.0.0.4/30"), gone) }, want: "patch status"},
		"BlockDeletedReleased": {as: func(p *grants.Memory) *grants.Claimant {
			return seeBlock(p, "x", 4, has("10.0.0.4/30"), gone, released)
		}, want: "drop the finalizer"},
		"BlockDeletedGranted": {as: func(p *grants.Memory) *grants.Claimant {
			c := granted(p, seeBlock(p, "x", 4))
			c.Deleting = true
			return c
		}, want: "end the grant"},
	} {
		t.Run(name, func(t *testing.T) {
			p := aPool(t, "10.0.0.1-10.0.0.9")
			c := tc.as(p)
			try := tc.know
			try.Now, try.Grant = noon, p.Grants[c.Owner.UID]
			next := c.Kind.Serve
			if c.Deleting {
				next = c.Kind.Release
			}
			s := next(p, c, &try)
			got := names[s.Verb]
			switch {
			case s.Verb == grants.Patch && s.Attached != nil:
				got += " address"
			case s.Verb == grants.Patch && s.Status != nil:
				got += " status"
			}
			if s.Err != nil || got != tc.want {
				t.Errorf("%s, %v; want %s", got, s.Err, tc.want)
			}
		})
	}
}

// What cannot be served says why, and what to do about it.
func TestStepsThatFail(t *testing.T) {
	p := aPool(t, "10.0.0.1-10.0.0.9")
	c := see(p, "a", 0)
	p.Plan(noon, 9, anyone)
	seeAddress(p, "b", p.Grants[c.Owner.UID].Range.From().String(), "uid-b")
	s := c.Kind.Serve(p, c, &grants.Attempt{Now: noon, Grant: p.Grants[c.Owner.UID]})
	if s.Verb != grants.Stop || s.Err == nil || !strings.Contains(s.Err.Error(), "IPAddress ns/b (without a claim) has it; find out which of the two uses it, and delete the other") {
		t.Errorf("%+v", s)
	}
}
