package allocator

import (
	"context"
	"errors"
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
)

// withZones gives a pool two addresses outside of failure domains, four for failure domain a, and two for b and a.
func withZones(o *v1alpha1.NetworkPool) {
	o.Spec.Addresses = []string{"10.0.0.1-10.0.0.2", "10.1.0.1-10.1.0.4", "10.2.0.1-10.2.0.2"}
	o.Spec.Subnets = []v1alpha1.Subnet{
		{CIDR: "10.0.0.0/24"}, {CIDR: "10.1.0.0/24", FailureDomains: []string{"a"}}, {CIDR: "10.2.0.0/24", FailureDomains: []string{"b", "a"}},
	}
}

// ofMachine makes a claim one of a Machine whose name is its failure domain.
func ofMachine(domain string) func(*ipamv1.IPAddressClaim) {
	return func(c *ipamv1.IPAddressClaim) {
		c.OwnerReferences = []metav1.OwnerReference{{APIVersion: "infrastructure.cluster.x-k8s.io/v1", Kind: "VM", Name: "vm-in-" + domain, UID: types.UID("vm-" + c.Name)}}
	}
}

var errUnreadable = errors.New("it cannot be read")

// machineFinder finds the Machines that ofMachine names, and counts its lookups.
type machineFinder struct{ finds int }

func (f *machineFinder) of(_ context.Context, namespace string, owners []metav1.OwnerReference) (grants.Machine, error) {
	f.finds++
	domain := strings.TrimPrefix(owners[0].Name, "vm-in-")
	switch domain {
	case "?":
		return grants.Machine{}, errUnreadable
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
			observeClaim(p, "has-"+a, 0, withRecordedAddress(a))
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
		"in a domain":             {claim: []func(*ipamv1.IPAddressClaim){ofMachine("a")}, want: "10.1.0.1"},
		"in another":              {claim: []func(*ipamv1.IPAddressClaim){ofMachine("b")}, want: "10.2.0.1"},
		"the next of its subnets": {before: func(p *grants.PoolState) { fill(p, "10.1.0.1", "10.1.0.2", "10.1.0.3", "10.1.0.4") }, claim: []func(*ipamv1.IPAddressClaim){ofMachine("a")}, want: "10.2.0.1"},
		"in none":                 {claim: []func(*ipamv1.IPAddressClaim){ofMachine("")}, want: "10.0.0.1"},
		"without a Machine":       {claim: []func(*ipamv1.IPAddressClaim){ofMachine("nothing")}, want: "10.0.0.1"},
		"without an owner":        {want: "10.0.0.1"},
		"without an owner, and the component is off": {without: true, want: "10.0.0.1"},
		"the component is off": {without: true, claim: []func(*ipamv1.IPAddressClaim){ofMachine("a")},
			want: "PoolNotReady: NetworkPool ns/pool has subnets for failure domains, and this manager runs without --failure-domains; apply"},
		"in one that no subnet serves": {claim: []func(*ipamv1.IPAddressClaim){ofMachine("c")},
			want: "AllocationFailed: NetworkPool ns/pool has no subnet for failure domain c, in which Machine ns/m is; add the failure domain to failureDomains of one of its spec.subnets"},
		"its subnet is full": {before: func(p *grants.PoolState) { fill(p, "10.2.0.1", "10.2.0.2") }, claim: []func(*ipamv1.IPAddressClaim){ofMachine("b")},
			want: "PoolExhausted: NetworkPool ns/pool has no free address for failure domain b: those in 10.2.0.0/24 are allocated, reserved or resting, or there are none; add addresses there"},
		"nothing is free for all others": {before: func(p *grants.PoolState) { fill(p, "10.0.0.1", "10.0.0.2") }, claim: []func(*ipamv1.IPAddressClaim){ofMachine("")},
			want: "PoolExhausted: NetworkPool ns/pool has no free address for claims without a failure domain: those outside of the subnets"},
		"unknown": {claim: []func(*ipamv1.IPAddressClaim){ofMachine("?")},
			want: "AllocationFailed: the Machine of this claim, which determines the failure domain, is unknown: it cannot be read"},
		"it remembers": {reason: "it keeps what it has, and no lookup is made", claim: []func(*ipamv1.IPAddressClaim){ofMachine("?"), withRecordedAddress("10.2.0.2")}, without: true, want: "10.2.0.2"},
		"it asks":      {claim: []func(*ipamv1.IPAddressClaim){ofMachine("a"), withRequestedAddress("10.0.0.2")}, want: "10.0.0.2"},
		"it is meant":  {claim: []func(*ipamv1.IPAddressClaim){ofMachine("a")}, pool: []func(*v1alpha1.NetworkPool){withPreAllocation("c", "10.2.0.1")}, want: "10.2.0.1"},
		"what rests for its name": {
			pool: []func(*v1alpha1.NetworkPool){func(o *v1alpha1.NetworkPool) { o.Spec.AddressReuseGracePeriodSeconds = ptr.To[int64](3600) }},
			before: func(p *grants.PoolState) {
				had := observeClaim(p, "c", 0, withRecordedAddress("10.2.0.2"), bothReady, withDeletionTimestamp)
				p.Releases.StartCooling(p.Inventory.ReleaseFor(had), noon)
				p.ForgetClaimant(had.Owner.UID)
			},
			claim: []func(*ipamv1.IPAddressClaim){ofMachine("b"), func(c *ipamv1.IPAddressClaim) { c.UID = "uid-again" }}, want: "10.2.0.2",
		},
		"what rests for its name, elsewhere": {
			reason: "a Machine of the name may be made in another failure domain", pool: []func(*v1alpha1.NetworkPool){func(o *v1alpha1.NetworkPool) { o.Spec.AddressReuseGracePeriodSeconds = ptr.To[int64](3600) }},
			before: func(p *grants.PoolState) {
				had := observeClaim(p, "c", 0, withRecordedAddress("10.1.0.2"), bothReady, withDeletionTimestamp)
				p.Releases.StartCooling(p.Inventory.ReleaseFor(had), noon)
				p.ForgetClaimant(had.Owner.UID)
			},
			claim: []func(*ipamv1.IPAddressClaim){ofMachine("b"), func(c *ipamv1.IPAddressClaim) { c.UID = "uid-again" }}, want: "10.2.0.1",
		},
		"by release": {
			pool: []func(*v1alpha1.NetworkPool){byRelease}, before: func(p *grants.PoolState) {
				releaseInOrder(p, "10.2.0.1", "10.1.0.1", "10.1.0.3", "10.1.0.2", "10.1.0.4", "10.2.0.2")
			},
			claim: []func(*ipamv1.IPAddressClaim){ofMachine("a")}, want: "10.2.0.1",
		},
		"by release, of its zone": {
			pool: []func(*v1alpha1.NetworkPool){byRelease}, before: func(p *grants.PoolState) { releaseInOrder(p, "10.1.0.1", "10.2.0.2", "10.2.0.1") },
			claim: []func(*ipamv1.IPAddressClaim){ofMachine("b")}, want: "10.2.0.2",
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := newTestPool(t, "", append([]func(*v1alpha1.NetworkPool){withZones}, tc.pool...)...)
			if tc.before != nil {
				tc.before(p)
			}
			a := New(Options{FindMachine: (&machineFinder{}).of})
			if tc.without {
				a.FindMachine = nil
			}
			c := observeClaim(p, "c", 9, tc.claim...)
			if c == nil {
				c = p.Claimants.ByUID["uid-again"]
			}
			if got := planClaim(t, a, p, c, noon); got != tc.want && (tc.want == "" || !strings.HasPrefix(got, tc.want)) {
				t.Errorf("%s, not %s: %s", got, tc.want, tc.reason)
			}
		})
	}
}

// TestZonesAreForMachines checks that blocks and leases, which belong to no Machine, get only what is in no zone (U53).
func TestZonesAreForMachines(t *testing.T) {
	p := newTestPool(t, "", withZones, func(o *v1alpha1.NetworkPool) { o.Spec.Leases = &v1alpha1.Leases{} })
	block, two, lease := observeAllocation(p, "b", 2), observeAllocation(p, "two", 2), observeLease(p, "l")
	p.Planner.PlanGrants(noon, 9, admitAll)
	if g := p.Grants.ByClaimant[block.Owner.UID]; g == nil || poolutil.FormatRange(g.Range) != "10.0.0.1-10.0.0.2" {
		t.Errorf("the block has %v", g)
	}
	if p.Grants.ByClaimant[two.Owner.UID] != nil || p.Grants.ByClaimant[lease.Owner.UID] != nil {
		t.Error("something is given out of a zone")
	}
}

// TestMachinesAreLookedUpOnce checks that a Machine is looked up once, and again where that failed or a waiting claim's
// Machine was in no failure domain, and never for a pool without failure domains, or a claim that has its address (U57,
// U58).
func TestMachinesAreLookedUpOnce(t *testing.T) {
	f := &machineFinder{}
	a := New(Options{FindMachine: f.of})
	plain := newTestPool(t, "10.0.0.1-10.0.0.9")
	observeClaim(plain, "c", 0, ofMachine("a"))
	a.machines.findMachinesAndWait(t.Context(), grants.NewPool(plain), noon)
	if f.finds != 0 || plain.Lookups.NextMachineLookupDelay(noon) != 0 {
		t.Errorf("a pool without zones asks %d times", f.finds)
	}

	p := newTestPool(t, "", withZones)
	served := observeClaim(p, "has", 0, ofMachine("a"), withRecordedAddress("10.1.0.1"))
	if served.MachineLookup != nil {
		t.Error("the owners of a claim are remembered that has its address")
	}
	for i := range 2 { // the two that are free
		observeClaim(p, fmt.Sprint("full", i), 0, withRecordedAddress(fmt.Sprintf("10.0.0.%d", i+1)))
	}
	countLookups := func(now time.Time) int {
		before := f.finds
		a.machines.findMachinesAndWait(t.Context(), grants.NewPool(p), now)
		return f.finds - before
	}
	observeClaim(p, "unknown", 1, ofMachine("?"))
	observeClaim(p, "homeless", 2, ofMachine(""))
	observeClaim(p, "lost", 3, ofMachine("c"))
	if wait := New(Options{}).machines.startMachineLookups(grants.NewPool(p), noon); wait != 0 {
		t.Errorf("a manager without the component comes back after %v", wait)
	}
	if n := countLookups(noon); n != 3 {
		t.Errorf("%d looks for three", n)
	}
	if n := countLookups(noon); n != 0 {
		t.Errorf("%d more at once", n)
	}
	wait := p.Lookups.NextMachineLookupDelay(noon)
	if wait <= 0 || wait > 10*time.Second {
		t.Errorf("what failed is tried again after %v", wait)
	}
	if n := countLookups(noon.Add(wait)); n != 1 {
		t.Errorf("%d looks for what failed", n)
	}
	if longer := p.Lookups.NextMachineLookupDelay(noon.Add(wait)); longer <= wait {
		t.Errorf("the next pause is %v, after one of %v", longer, wait)
	}
	if n := countLookups(noon.Add(time.Hour)); n != 2 {
		t.Errorf("%d looks an hour later: what failed, and who is in no failure domain", n)
	}

	// The owners may come after the claim, and change: the result for the former ones does not count.
	observeClaim(p, "lost", 3, ofMachine("b"), func(c *ipamv1.IPAddressClaim) { c.ResourceVersion, c.OwnerReferences[0].UID = "2", "another" })
	if n := countLookups(noon.Add(time.Hour)); n != 1 {
		t.Errorf("%d looks for another owner", n)
	}
	if got := planClaim(t, a, p, p.Claimants.ByUID["uid-lost"], noon.Add(time.Hour)); got != "10.2.0.1" {
		t.Errorf("it gets %s", got)
	}
}

// TestPendingLookupsDoNotSpin checks that claims that cannot be looked up now, as the maximum of lookups hangs, do not
// make the pool reconcile again and again: it is reconciled for the lookups in progress, ever more rarely, and when
// they end.
func TestPendingLookupsDoNotSpin(t *testing.T) {
	p := newTestPool(t, "", withZones)
	for i := range grants.MaxMachineLookups + 1 {
		observeClaim(p, fmt.Sprintf("c%03d", i), i, ofMachine("a"))
	}
	begun := p.Lookups.BeginMachineLookups(noon)
	if len(begun) != grants.MaxMachineLookups || len(p.Lookups.BeginMachineLookups(noon)) != 0 {
		t.Fatalf("%d lookups begin", len(begun))
	}
	for after, want := range map[time.Duration]time.Duration{0: time.Second, time.Second: time.Second, 4 * time.Second: 4 * time.Second} {
		if wait := p.Lookups.NextMachineLookupDelay(noon.Add(after)); wait != want {
			t.Errorf("after %v the pool is reconciled again in %v, not in %v", after, wait, want)
		}
	}
	for _, of := range begun {
		p.ForgetClaimant(of.UID)
	}
	if wait := p.Lookups.NextMachineLookupDelay(noon); wait != 0 {
		t.Errorf("all that are looked for are gone, and the pool does not wait for the end of their lookups, but for %v", wait)
	}
	p.Lookups.EndMachineLookups(begun)
	if left := p.Lookups.BeginMachineLookups(noon); len(left) != 1 {
		t.Errorf("%d lookups begin when the others have ended", len(left))
	}
}
