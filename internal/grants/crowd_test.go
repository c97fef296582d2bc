package grants_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/grants"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/grantstest"
)

// TestStuckGrantsAreReported checks that the waiting claims get a refusal where the maximum of grants is in flight and
// all of them fail.
func TestStuckGrantsAreReported(t *testing.T) {
	p := grantstest.NewPool(t, "10.0.0.1-10.0.15.200")
	for i := range grants.MaxInFlightGrants {
		c := grantstest.ObserveClaim(p, fmt.Sprint("c", i), 0, func(c *ipamv1.IPAddressClaim) { c.Namespace = fmt.Sprint("ns-", i) })
		if n, _ := p.Planner.PlanGrants(grantstest.Noon, 1, grantstest.AdmitAll); n != 1 {
			t.Fatalf("grant %d is not made", i)
		}
		c.RetryAt = grantstest.Noon.Add(time.Hour)
		p.Grants.ByClaimant[c.Owner.UID].Committed = true
	}
	waits := grantstest.ObserveClaim(p, "waits", 1, func(c *ipamv1.IPAddressClaim) { c.Namespace = "other" })
	if _, refused := p.Planner.PlanGrants(grantstest.Noon, 0, grantstest.AdmitAll); len(refused) > 0 || p.Grants.HasStuckGrants() {
		t.Errorf("nothing fails, and its refusal is %v", refused[waits])
	}
	for _, c := range p.Claimants.ByUID {
		if c != waits {
			p.Failures.RecordFailure(c, apierrors.NewInternalError(errors.New("failed calling webhook")), grantstest.Noon)
			c.Failures++
		}
	}
	_, refused := p.Planner.PlanGrants(grantstest.Noon, 0, grantstest.AdmitAll)
	if refusal := refused[waits]; refusal == nil || !strings.Contains(refusal.Message, "failed calling webhook") || !p.Grants.HasStuckGrants() {
		t.Errorf("its refusal is %v", refusal)
	}
}
