package grants_test

import (
	"testing"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/grants"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/grantstest"
)

// TestOrphanObservationsStay checks that an allocation that was seen as an orphan stays so when the watch shows a
// status write of it.
func TestOrphanObservationsStay(t *testing.T) {
	p := grantstest.NewPool(t, "10.0.0.1-10.0.0.9")
	was := grantstest.ObserveAllocation(p, "x", 4, grantstest.WithBlock("10.0.0.4/30"))
	was.OwnerMissingSince, was.ObservedOwnerSeen = grantstest.Noon, grants.OwnerNeverSeen
	c := grantstest.ObserveAllocation(p, "x", 4, grantstest.WithBlock("10.0.0.4/30"), func(o *v1alpha1.IPAllocation) { o.ResourceVersion = "2" })
	if c.ResourceVersion != "2" || !c.OwnerMissingSince.Equal(grantstest.Noon) || c.ObservedOwnerSeen != grants.OwnerNeverSeen {
		t.Errorf("at %s it was first seen so at %v", c.ResourceVersion, c.OwnerMissingSince)
	}
}
