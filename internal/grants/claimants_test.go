package grants_test

import (
	"testing"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/grants"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/kinds/claims"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/grantstest"
)

func TestFindUnknownKind(t *testing.T) {
	p := grantstest.NewPool(t, "10.0.0.1-10.0.0.9")
	for name, tc := range map[string]struct {
		kinds []string
		want  string
	}{
		"none":         {},
		"known":        {kinds: []string{claims.IPAddressClaimKind, v1alpha1.IPLeaseKind}},
		"without kind": {kinds: []string{""}},
		"newer":        {kinds: []string{v1alpha1.IPLeaseKind, "Thing", "Other"}, want: "Thing"},
	} {
		var inFlight []v1alpha1.Grant
		for _, k := range tc.kinds {
			inFlight = append(inFlight, v1alpha1.Grant{Kind: k})
		}
		if got := p.Claimants.FindUnknownKind(inFlight); got != tc.want {
			t.Errorf("%s: %q, not %q", name, got, tc.want)
		}
	}
}

// TestHasClaimantWith checks that the traits of a kind count while the pool has a claimant of it.
func TestHasClaimantWith(t *testing.T) {
	p := grantstest.NewPool(t, "10.0.0.1-10.0.0.9")
	isLease := func(k *grants.KindTraits) bool { return k.Name == v1alpha1.IPLeaseKind }
	grantstest.ObserveClaim(p, "c", 0)
	if p.Claimants.HasClaimantWith(isLease) {
		t.Error("a claim is a lease")
	}
	lease := grantstest.ObserveLease(p, "l")
	if !p.Claimants.HasClaimantWith(isLease) {
		t.Error("the lease does not count")
	}
	p.ForgetClaimant(lease.Owner.UID)
	if p.Claimants.HasClaimantWith(isLease) {
		t.Error("a lease that is gone counts")
	}
}
