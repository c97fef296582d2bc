package allocator

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/grants"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/poolutil"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/grantstest"
)

// machineFinder finds the Machines that ofMachine names, and counts its lookups.
type machineFinder struct{ finds int }

func (f *machineFinder) of(_ context.Context, namespace string, owners []metav1.OwnerReference) (grants.Machine, error) {
	f.finds++
	domain := strings.TrimPrefix(owners[0].Name, "vm-in-")
	switch domain {
	case "?":
		return grants.Machine{}, grantstest.ErrUnreadable
	case "nothing":
		return grants.Machine{}, nil
	}
	return grants.Machine{Name: types.NamespacedName{Namespace: namespace, Name: "m"}, FailureDomain: domain}, nil
}

// planClaim returns what a claim gets after its Machine was looked up, or its refusal.
func planClaim(t *testing.T, a *Allocator, p *grants.PoolState, c *grants.Claimant, now time.Time) string {
	t.Helper()
	a.machines.findMachinesAndWait(t.Context(), grants.NewPool(p), now)
	_, refused := p.Planner.PlanGrants(now, 99, a.admission.admissionRules(t.Context(), p, now))
	if g := p.Grants.ByClaimant[c.Owner.UID]; g != nil {
		return poolutil.ShowRange(g.Range)
	}
	if refusal := refused[p.Claimants.ByUID[c.Owner.UID]]; refusal != nil {
		return refusal.Reason + ": " + refusal.Message
	}
	return ""
}

// TestFailureDomainSelectsSubnet checks that the failure domain of a claim's Machine decides on the subnet, unless an
// address is designated for the claim (U53, U55, U56).
func TestFailureDomainSelectsSubnet(t *testing.T) {
	fill := func(p *grants.PoolState, addresses ...string) {
		for _, a := range addresses {
			grantstest.ObserveClaim(p, "has-"+a, 0, grantstest.WithRecordedAddress(a))
		}
	}
	for name, tc := range map[string]struct {
		reason  string
		before  func(*grants.PoolState)
		claim   []func(*ipamv1.IPAddressClaim)
		pool    []func(*v1alpha1.NetworkPool)
		without bool
		want    string
	}{
		"in a domain":             {claim: []func(*ipamv1.IPAddressClaim){grantstest.OfMachine("a")}, want: "10.1.0.1"},
		"in another":              {claim: []func(*ipamv1.IPAddressClaim){grantstest.OfMachine("b")}, want: "10.2.0.1"},
		"the next of its subnets": {before: func(p *grants.PoolState) { fill(p, "10.1.0.1", "10.1.0.2", "10.1.0.3", "10.1.0.4") }, claim: []func(*ipamv1.IPAddressClaim){grantstest.OfMachine("a")}, want: "10.2.0.1"},
		"in none":                 {claim: []func(*ipamv1.IPAddressClaim){grantstest.OfMachine("")}, want: "10.0.0.1"},
		"without a Machine":       {claim: []func(*ipamv1.IPAddressClaim){grantstest.OfMachine("nothing")}, want: "10.0.0.1"},
		"without an owner":        {want: "10.0.0.1"},
		"without an owner, and the component is off": {without: true, want: "10.0.0.1"},
		"the component is off": {without: true, claim: []func(*ipamv1.IPAddressClaim){grantstest.OfMachine("a")},
			want: "PoolNotReady: NetworkPool ns/pool has subnets for failure domains, and this manager runs without --failure-domains; apply"},
		"in one that no subnet serves": {claim: []func(*ipamv1.IPAddressClaim){grantstest.OfMachine("c")},
			want: "AllocationFailed: NetworkPool ns/pool has no subnet for failure domain c, in which Machine ns/m is; add the failure domain to failureDomains of one of its spec.subnets"},
		"its subnet is full": {before: func(p *grants.PoolState) { fill(p, "10.2.0.1", "10.2.0.2") }, claim: []func(*ipamv1.IPAddressClaim){grantstest.OfMachine("b")},
			want: "PoolExhausted: NetworkPool ns/pool has no free address for failure domain b: those in 10.2.0.0/24 are allocated, reserved or resting, or there are none; add addresses there"},
		"nothing is free for all others": {before: func(p *grants.PoolState) { fill(p, "10.0.0.1", "10.0.0.2") }, claim: []func(*ipamv1.IPAddressClaim){grantstest.OfMachine("")},
			want: "PoolExhausted: NetworkPool ns/pool has no free address for claims without a failure domain: those outside of the subnets"},
		"unknown": {claim: []func(*ipamv1.IPAddressClaim){grantstest.OfMachine("?")},
			want: "AllocationFailed: the Machine of this claim, which determines the failure domain, is unknown: it cannot be read"},
		"it remembers": {reason: "it keeps what it has, and no lookup is made", claim: []func(*ipamv1.IPAddressClaim){grantstest.OfMachine("?"), grantstest.WithRecordedAddress("10.2.0.2")}, without: true, want: "10.2.0.2"},
		"it asks":      {claim: []func(*ipamv1.IPAddressClaim){grantstest.OfMachine("a"), grantstest.WithRequestedAddress("10.0.0.2")}, want: "10.0.0.2"},
		"it is meant":  {claim: []func(*ipamv1.IPAddressClaim){grantstest.OfMachine("a")}, pool: []func(*v1alpha1.NetworkPool){grantstest.WithPreAllocation("c", "10.2.0.1")}, want: "10.2.0.1"},
		"what rests for its name": {
			pool: []func(*v1alpha1.NetworkPool){func(o *v1alpha1.NetworkPool) { o.Spec.AddressReuseGracePeriodSeconds = ptr.To[int64](3600) }},
			before: func(p *grants.PoolState) {
				had := grantstest.ObserveClaim(p, "c", 0, grantstest.WithRecordedAddress("10.2.0.2"), grantstest.WithReadyStatus, grantstest.WithDeletionTimestamp)
				p.Releases.StartCooling(p.Inventory.ReleaseFor(had), grantstest.Noon)
				p.ForgetClaimant(had.Owner.UID)
			},
			claim: []func(*ipamv1.IPAddressClaim){grantstest.OfMachine("b"), func(c *ipamv1.IPAddressClaim) { c.UID = "uid-again" }}, want: "10.2.0.2",
		},
		"what rests for its name, elsewhere": {
			reason: "a Machine of the name may be made in another failure domain", pool: []func(*v1alpha1.NetworkPool){func(o *v1alpha1.NetworkPool) { o.Spec.AddressReuseGracePeriodSeconds = ptr.To[int64](3600) }},
			before: func(p *grants.PoolState) {
				had := grantstest.ObserveClaim(p, "c", 0, grantstest.WithRecordedAddress("10.1.0.2"), grantstest.WithReadyStatus, grantstest.WithDeletionTimestamp)
				p.Releases.StartCooling(p.Inventory.ReleaseFor(had), grantstest.Noon)
				p.ForgetClaimant(had.Owner.UID)
			},
			claim: []func(*ipamv1.IPAddressClaim){grantstest.OfMachine("b"), func(c *ipamv1.IPAddressClaim) { c.UID = "uid-again" }}, want: "10.2.0.1",
		},
		"by release": {
			pool: []func(*v1alpha1.NetworkPool){grantstest.WithReleaseOrder}, before: func(p *grants.PoolState) {
				grantstest.ReleaseInOrder(p, "10.2.0.1", "10.1.0.1", "10.1.0.3", "10.1.0.2", "10.1.0.4", "10.2.0.2")
			},
			claim: []func(*ipamv1.IPAddressClaim){grantstest.OfMachine("a")}, want: "10.2.0.1",
		},
		"by release, of its zone": {
			pool: []func(*v1alpha1.NetworkPool){grantstest.WithReleaseOrder}, before: func(p *grants.PoolState) { grantstest.ReleaseInOrder(p, "10.1.0.1", "10.2.0.2", "10.2.0.1") },
			claim: []func(*ipamv1.IPAddressClaim){grantstest.OfMachine("b")}, want: "10.2.0.2",
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := grantstest.NewPool(t, "", append([]func(*v1alpha1.NetworkPool){grantstest.WithZones}, tc.pool...)...)
			if tc.before != nil {
				tc.before(p)
			}
			a := New(Options{FindMachine: (&machineFinder{}).of})
			if tc.without {
				a.FindMachine = nil
			}
			c := grantstest.ObserveClaim(p, "c", 9, tc.claim...)
			if c == nil {
				c = p.Claimants.ByUID["uid-again"]
			}
			if got := planClaim(t, a, p, c, grantstest.Noon); got != tc.want && (tc.want == "" || !strings.HasPrefix(got, tc.want)) {
				t.Errorf("%s, not %s: %s", got, tc.want, tc.reason)
			}
		})
	}
}

// TestMachinesAreLookedUpOnce checks that a Machine is looked up once, and again where that failed or a waiting claim's
// Machine was in no failure domain, and never for a pool without failure domains, or a claim that has its address (U57,
// U58).
func TestMachinesAreLookedUpOnce(t *testing.T) {
	f := &machineFinder{}
	a := New(Options{FindMachine: f.of})
	plain := grantstest.NewPool(t, "10.0.0.1-10.0.0.9")
	grantstest.ObserveClaim(plain, "c", 0, grantstest.OfMachine("a"))
	a.machines.findMachinesAndWait(t.Context(), grants.NewPool(plain), grantstest.Noon)
	if f.finds != 0 || plain.Lookups.NextMachineLookupDelay(grantstest.Noon) != 0 {
		t.Errorf("a pool without zones asks %d times", f.finds)
	}

	p := grantstest.NewPool(t, "", grantstest.WithZones)
	served := grantstest.ObserveClaim(p, "has", 0, grantstest.OfMachine("a"), grantstest.WithRecordedAddress("10.1.0.1"))
	if served.MachineLookup != nil {
		t.Error("the owners of a claim are remembered that has its address")
	}
	for i := range 2 { // the two that are free
		grantstest.ObserveClaim(p, fmt.Sprint("full", i), 0, grantstest.WithRecordedAddress(fmt.Sprintf("10.0.0.%d", i+1)))
	}
	countLookups := func(now time.Time) int {
		before := f.finds
		a.machines.findMachinesAndWait(t.Context(), grants.NewPool(p), now)
		return f.finds - before
	}
	grantstest.ObserveClaim(p, "unknown", 1, grantstest.OfMachine("?"))
	grantstest.ObserveClaim(p, "homeless", 2, grantstest.OfMachine(""))
	grantstest.ObserveClaim(p, "lost", 3, grantstest.OfMachine("c"))
	if wait := New(Options{}).machines.startMachineLookups(grants.NewPool(p), grantstest.Noon); wait != 0 {
		t.Errorf("a manager without the component comes back after %v", wait)
	}
	if n := countLookups(grantstest.Noon); n != 3 {
		t.Errorf("%d looks for three", n)
	}
	if n := countLookups(grantstest.Noon); n != 0 {
		t.Errorf("%d more at once", n)
	}
	wait := p.Lookups.NextMachineLookupDelay(grantstest.Noon)
	if wait <= 0 || wait > 10*time.Second {
		t.Errorf("what failed is tried again after %v", wait)
	}
	if n := countLookups(grantstest.Noon.Add(wait)); n != 1 {
		t.Errorf("%d looks for what failed", n)
	}
	if longer := p.Lookups.NextMachineLookupDelay(grantstest.Noon.Add(wait)); longer <= wait {
		t.Errorf("the next pause is %v, after one of %v", longer, wait)
	}
	if n := countLookups(grantstest.Noon.Add(time.Hour)); n != 2 {
		t.Errorf("%d looks an hour later: what failed, and who is in no failure domain", n)
	}

	// The owners may come after the claim, and change: the result for the former ones does not count.
	grantstest.ObserveClaim(p, "lost", 3, grantstest.OfMachine("b"), func(c *ipamv1.IPAddressClaim) { c.ResourceVersion, c.OwnerReferences[0].UID = "2", "another" })
	if n := countLookups(grantstest.Noon.Add(time.Hour)); n != 1 {
		t.Errorf("%d looks for another owner", n)
	}
	if got := planClaim(t, a, p, p.Claimants.ByUID["uid-lost"], grantstest.Noon.Add(time.Hour)); got != "10.2.0.1" {
		t.Errorf("it gets %s", got)
	}
}
