package grants_test

import (
	"strings"
	"testing"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/grants"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/kinds/claims"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/grantstest"
)

// TestNextServeAndReleaseStep checks the next step for a claimant of either kind: one request at a time, decided on
// what is known by then.
func TestNextServeAndReleaseStep(t *testing.T) {
	const first, second = "10.0.0.1", "10.0.0.2"
	names := map[grants.Verb]string{
		grants.StopJob: "stop", grants.WriteRecord: "record", grants.CreateAddress: "create", grants.PatchObject: "patch", grants.DeleteAddress: "delete", grants.GetClaimant: "read the claimant",
		grants.GetAddress: "read the IPAddress", grants.VerifyTerm: "read the pool", grants.EndGrant: "end the grant", grants.RemoveFinalizer: "drop the finalizer",
	}
	granted := func(p *grants.PoolState, c *grants.Claimant) *grants.Claimant {
		p.Planner.PlanGrants(grantstest.Noon, 9, grantstest.AdmitAll)
		p.Grants.ByClaimant[c.Owner.UID].Committed, p.Grants.ByClaimant[c.Owner.UID].CommitConfirmedAt = true, grantstest.Noon
		return c
	}
	owned := func(p *grants.PoolState, c *grants.Claimant) *grants.Claimant {
		grantstest.ObserveAddress(p, c.Owner.Name, "10.0.0.1", c.Owner.UID)
		p.Addresses.ByName[grants.NamespacedNameFromOwner(c.Owner)].KindData.(*claims.AddressData).PoolUID = p.Base.Pool.GetUID()
		return c
	}
	unprotected := func(p *grants.PoolState) {
		for _, a := range p.Addresses.ByName {
			a.HasFinalizer = false
		}
	}
	gone := func(o *v1alpha1.IPAllocation) { o.DeletionTimestamp = &o.CreationTimestamp }
	released := func(o *v1alpha1.IPAllocation) { o.Status.Phase = v1alpha1.AllocationReleased }
	for name, tc := range map[string]struct {
		as   func(p *grants.PoolState) *grants.Claimant
		know grants.Attempt
		want string // the step, and what it writes
	}{
		"ClaimGranted": {as: func(p *grants.PoolState) *grants.Claimant { return granted(p, grantstest.ObserveClaim(p, "a", 0)) }, want: "record"},
		"ClaimRecorded": {as: func(p *grants.PoolState) *grants.Claimant {
			return granted(p, grantstest.ObserveClaim(p, "a", 0, grantstest.WithRecordedAddress(first)))
		}, want: "create"},
		"ClaimHasItsIPAddress": {as: func(p *grants.PoolState) *grants.Claimant {
			return owned(p, grantstest.ObserveClaim(p, "a", 0, grantstest.WithRecordedAddress(first)))
		}, want: "patch status"},
		"ClaimServed": {as: func(p *grants.PoolState) *grants.Claimant {
			return owned(p, grantstest.ObserveClaim(p, "a", 0, grantstest.WithRecordedAddress(first), grantstest.WithReadyStatus))
		}, want: "stop"},
		"ClaimOfAnotherRecord": {as: func(p *grants.PoolState) *grants.Claimant {
			granted(p, grantstest.ObserveClaim(p, "a", 0))
			return grantstest.ObserveClaim(p, "a", 0, grantstest.WithVersion("2"), grantstest.WithRecordedAddress(second))
		}, want: "read the pool"},
		"ClaimOfAnotherRecordHere": {as: func(p *grants.PoolState) *grants.Claimant {
			granted(p, grantstest.ObserveClaim(p, "a", 0))
			return grantstest.ObserveClaim(p, "a", 0, grantstest.WithVersion("2"), grantstest.WithRecordedAddress(second))
		}, know: grants.Attempt{TermVerifiedVersion: "2"}, want: "record"},
		"ClaimAdopts": {as: func(p *grants.PoolState) *grants.Claimant {
			grantstest.ObserveAddress(p, "a", first, "dead")
			return grantstest.ObserveClaim(p, "a", 0, grantstest.WithRecordedAddress(first))
		}, want: "read the claimant"},
		"ClaimAdoptsWhatItRead": {as: func(p *grants.PoolState) *grants.Claimant {
			grantstest.ObserveAddress(p, "a", first, "dead")
			return grantstest.ObserveClaim(p, "a", 0, grantstest.WithRecordedAddress(first))
		}, know: grants.Attempt{ClaimantRead: true}, want: "patch address"},
		"ClaimWaits": {as: func(p *grants.PoolState) *grants.Claimant { return grantstest.ObserveClaim(p, "a", 0) }, want: "stop"},
		"ClaimDeleted": {as: func(p *grants.PoolState) *grants.Claimant {
			return owned(p, grantstest.ObserveClaim(p, "a", 0, grantstest.WithRecordedAddress(first), grantstest.WithDeletionTimestamp))
		}, want: "patch address"},
		"ClaimDeletedDelete": {as: func(p *grants.PoolState) *grants.Claimant {
			c := owned(p, grantstest.ObserveClaim(p, "a", 0, grantstest.WithRecordedAddress(first), grantstest.WithDeletionTimestamp))
			unprotected(p)
			return c
		}, want: "delete"},
		"ClaimDeletedNoProof": {as: func(p *grants.PoolState) *grants.Claimant {
			return grantstest.ObserveClaim(p, "a", 0, grantstest.WithRecordedAddress(first), grantstest.WithDeletionTimestamp)
		}, want: "read the IPAddress"},
		"ClaimDeletedKept": {as: func(p *grants.PoolState) *grants.Claimant {
			c := owned(p, grantstest.ObserveClaim(p, "a", 0, grantstest.WithRecordedAddress(first), grantstest.WithDeletionTimestamp))
			unprotected(p)
			return c
		},
			know: grants.Attempt{CompletedCalls: []grants.Call{{Verb: grants.DeleteAddress}}}, want: "read the IPAddress"},
		"ClaimDeletedAndProof": {as: func(p *grants.PoolState) *grants.Claimant {
			return grantstest.ObserveClaim(p, "a", 0, grantstest.WithRecordedAddress(first), grantstest.WithDeletionTimestamp)
		}, know: grants.Attempt{AddressGone: true}, want: "drop the finalizer"},
		"ClaimDeletedGranted": {as: func(p *grants.PoolState) *grants.Claimant {
			granted(p, grantstest.ObserveClaim(p, "a", 0))
			return grantstest.ObserveClaim(p, "a", 0, grantstest.WithVersion("2"), grantstest.WithRecordedAddress(first), grantstest.WithDeletionTimestamp)
		}, know: grants.Attempt{AddressGone: true}, want: "end the grant"},
		"ClaimDeletedDone": {as: func(p *grants.PoolState) *grants.Claimant {
			return grantstest.ObserveClaim(p, "a", 0, grantstest.WithDeletionTimestamp)
		}, know: grants.Attempt{AddressGone: true}, want: "stop"},

		"BlockGranted": {as: func(p *grants.PoolState) *grants.Claimant { return granted(p, grantstest.ObserveAllocation(p, "x", 4)) }, want: "record"},
		"BlockRecorded": {as: func(p *grants.PoolState) *grants.Claimant {
			return grantstest.ObserveAllocation(p, "x", 4, grantstest.WithBlock("10.0.0.4/30"))
		}, want: "patch status"},
		"BlockServed": {as: func(p *grants.PoolState) *grants.Claimant {
			return grantstest.ObserveAllocation(p, "x", 4, grantstest.WithBlock("10.0.0.4/30"), grantstest.WithWrittenStatus(t, grants.OwnerUnknown))
		}, want: "stop"},
		"BlockDeleted": {as: func(p *grants.PoolState) *grants.Claimant {
			return grantstest.ObserveAllocation(p, "x", 4, grantstest.WithBlock("10.0.0.4/30"), gone)
		}, want: "patch status"},
		"BlockDeletedReleased": {as: func(p *grants.PoolState) *grants.Claimant {
			return grantstest.ObserveAllocation(p, "x", 4, grantstest.WithBlock("10.0.0.4/30"), gone, released)
		}, want: "drop the finalizer"},
		"BlockDeletedGranted": {as: func(p *grants.PoolState) *grants.Claimant {
			c := granted(p, grantstest.ObserveAllocation(p, "x", 4))
			c.Deleting = true
			return c
		}, want: "end the grant"},
	} {
		t.Run(name, func(t *testing.T) {
			p := grantstest.NewPool(t, "10.0.0.1-10.0.0.9")
			c := tc.as(p)
			try := tc.know
			try.Now, try.Grant = grantstest.Noon, p.Grants.ByClaimant[c.Owner.UID]
			next := c.Kind.NextServeStep
			if c.Deleting {
				next = c.Kind.NextReleaseStep
			}
			s := next(p.Inventory, c, &try)
			got := names[s.Verb]
			switch {
			case s.Verb == grants.PatchObject && s.Address != nil:
				got += " address"
			case s.Verb == grants.PatchObject && s.StatusPatch != nil:
				got += " status"
			}
			if s.Err != nil || got != tc.want {
				t.Errorf("%s, %v; want %s", got, s.Err, tc.want)
			}
		})
	}
}

// TestFailedStepsNameCause checks that the error of a claimant that cannot be served names the cause, and what to do
// about it.
func TestFailedStepsNameCause(t *testing.T) {
	p := grantstest.NewPool(t, "10.0.0.1-10.0.0.9")
	c := grantstest.ObserveClaim(p, "a", 0)
	p.Planner.PlanGrants(grantstest.Noon, 9, grantstest.AdmitAll)
	grantstest.ObserveAddress(p, "b", p.Grants.ByClaimant[c.Owner.UID].Range.From().String(), "uid-b")
	s := c.Kind.NextServeStep(p.Inventory, c, &grants.Attempt{Now: grantstest.Noon, Grant: p.Grants.ByClaimant[c.Owner.UID]})
	if s.Verb != grants.StopJob || s.Err == nil || !strings.Contains(s.Err.Error(), "IPAddress ns/b (without a claim) has it; find out which of the two uses it, and delete the other") {
		t.Errorf("%+v", s)
	}
}
