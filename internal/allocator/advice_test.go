package allocator

import (
	"fmt"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/grants"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/kinds/blocks"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"
)

// adviceCase is a message to a claimant that names a next step, and that step.
type adviceCase struct {
	pool        []func(*v1alpha1.NetworkPool)
	setup       func(*grants.PoolState)
	addClaimant func(*grants.PoolState) *grants.Claimant
	wantMessage string
	do          func(*grants.PoolState)
	// recreate creates the claimant again after it was deleted.
	recreate func(*grants.PoolState) *grants.Claimant
}

// withSpec changes the spec of a pool, as a user who follows a message does.
func withSpec(f func(*v1alpha1.NetworkPoolSpec)) func(*grants.PoolState) {
	return func(p *grants.PoolState) {
		edited := p.Base.Pool.DeepCopyObject().(*v1alpha1.NetworkPool)
		f(&edited.Spec)
		edited.Generation++
		edited.Status.ObservedGeneration = edited.Generation
		p.SetBasePool(edited)
		p.Space.CompileLayout()
	}
}

// deleteNamed deletes the claimants of these names, their grants and their IPAddresses.
func deleteNamed(names ...string) func(*grants.PoolState) {
	return func(p *grants.PoolState) {
		for _, name := range names {
			p.ForgetClaimant(types.UID("uid-" + name))
			p.Queues.DropGrant(types.UID("uid-" + name))
			p.ForgetAddress(types.UID("address-"+name), types.NamespacedName{Namespace: "ns", Name: name})
		}
	}
}

// TestClaimantMessagesNameStepsThatHelp checks that a claim, a block or a lease is served after the step that its
// message names (W29).
func TestClaimantMessagesNameStepsThatHelp(t *testing.T) {
	widen := withSpec(func(s *v1alpha1.NetworkPoolSpec) { s.Addresses = append(s.Addresses, "10.0.0.32-10.0.0.63") })
	claim := func(f ...func(*ipamv1.IPAddressClaim)) func(*grants.PoolState) *grants.Claimant {
		return func(p *grants.PoolState) *grants.Claimant { return observeClaim(p, "c", 9, f...) }
	}
	block := func(n int32, f ...func(*v1alpha1.IPAllocation)) func(*grants.PoolState) *grants.Claimant {
		return func(p *grants.PoolState) *grants.Claimant { return observeAllocation(p, "b", n, f...) }
	}
	lease := func(f ...func(*v1alpha1.IPLease)) func(*grants.PoolState) *grants.Claimant {
		return func(p *grants.PoolState) *grants.Claimant { return observeLease(p, "l", f...) }
	}
	carved := func(bits int32) func(*grants.PoolState) *grants.Claimant {
		return func(p *grants.PoolState) *grants.Claimant {
			o := newBlock("child-1", func(o *v1alpha1.IPAllocation) {
				o.Finalizers, o.Spec.PoolRef.Name, o.Spec.ChildPoolRef.Name, o.Spec.PrefixLength = nil, testKey.Name, "child", ptr.To(bits)
			})
			p.ObserveClaimant(blocks.NewClaimant(o))
			return p.Claimants.ByUID[o.UID]
		}
	}
	had := func(names ...string) func(*grants.PoolState) { // claims that have 10.0.0.1 and so on, in turn
		return func(p *grants.PoolState) {
			for i, name := range names {
				observeClaim(p, name, i, withRecordedAddress("10.0.0."+string(rune('1'+i))))
				observeAddress(p, name, "10.0.0."+string(rune('1'+i)), types.UID("uid-"+name))
			}
		}
	}
	leases := func(n *int32) func(*v1alpha1.NetworkPool) {
		return func(o *v1alpha1.NetworkPool) { o.Spec.Leases = &v1alpha1.Leases{QuotaPerNamespace: n} }
	}
	carvable := func(o *v1alpha1.NetworkPool) {
		o.Spec.Carvable = &v1alpha1.Carvable{MaxBlocksPerNamespace: ptr.To[int32](1)}
	}
	of := func(f ...func(*v1alpha1.NetworkPool)) []func(*v1alpha1.NetworkPool) { return f }
	two := func(o *v1alpha1.NetworkPool) { o.Spec.Addresses = []string{"10.0.0.1-10.0.0.2"} }
	prefixes := func(o *v1alpha1.NetworkPool) { o.Spec.AllocationPrefixLength = ptr.To[int32](30) }
	addresses := withSpec(func(s *v1alpha1.NetworkPoolSpec) { s.AllocationPrefixLength = nil })

	for name, c := range map[string]adviceCase{
		"a full pool has more addresses":  {pool: of(two), setup: had("x", "y"), addClaimant: claim(), wantMessage: "add addresses to the pool", do: widen},
		"claims of a full pool go":        {pool: of(two), setup: had("x", "y"), addClaimant: claim(), wantMessage: "or delete machines or claims", do: deleteNamed("y")},
		"an address is released":          {setup: had("x"), addClaimant: claim(withRequestedAddress("10.0.0.1")), wantMessage: "wait until it is released", do: deleteNamed("x")},
		"another is asked for":            {setup: had("x"), addClaimant: claim(withRequestedAddress("10.0.0.1")), wantMessage: "or ask for another", do: func(p *grants.PoolState) { observeClaim(p, "c", 9, withRequestedAddress("10.0.0.2"), version("2")) }},
		"one that the pool has":           {addClaimant: claim(withRequestedAddress("10.0.0.99")), wantMessage: "ask for another", do: func(p *grants.PoolState) { observeClaim(p, "c", 9, withRequestedAddress("10.0.0.2"), version("2")) }},
		"none is asked for":               {addClaimant: claim(withRequestedAddress("10.0.0.99")), wantMessage: "or remove the annotation " + v1alpha1.RequestedAddressAnnotation, do: func(p *grants.PoolState) { observeClaim(p, "c", 9, version("2")) }},
		"what is asked for is an address": {addClaimant: claim(withRequestedAddress("ten")), wantMessage: "correct the annotation " + v1alpha1.RequestedAddressAnnotation, do: func(p *grants.PoolState) { observeClaim(p, "c", 9, withRequestedAddress("10.0.0.2"), version("2")) }},
		"another address is kept for the name": {pool: of(withPreAllocation("c", "10.0.0.1")), setup: had("x"), addClaimant: claim(), wantMessage: "or change spec.preAllocations[c]",
			do: withSpec(func(s *v1alpha1.NetworkPoolSpec) { s.PreAllocations["c"] = "10.0.0.2" })},
		"a claim is created without a record": {addClaimant: claim(withRecordedAddress("10.9.9.9")), wantMessage: "does not grant; create this object again without the annotation",
			recreate: func(p *grants.PoolState) *grants.Claimant { return observeClaim(p, "again", 9) }},
		"of two with one record one goes": {setup: had("x"), addClaimant: claim(withRecordedAddress("10.0.0.1")), wantMessage: "find out which of the two uses it, and delete the other", do: deleteNamed("x")},
		"an IPAddress without a claim goes": {setup: func(p *grants.PoolState) { observeAddress(p, "x", "10.0.0.1", "") }, addClaimant: claim(withRecordedAddress("10.0.0.1")),
			wantMessage: "find out which of the two uses it, and delete the other", do: deleteNamed("x")},
		"the IPAddress of the name is none": {setup: func(p *grants.PoolState) { observeAddress(p, "c", "ten", "") }, addClaimant: claim(),
			wantMessage: "was created by hand, and its spec.address is not an IP address; delete it if it is not in use", do: func(p *grants.PoolState) {
				p.ForgetAddress("address-c", types.NamespacedName{Namespace: "ns", Name: "c"})
			}},
		"the IPAddress of the name goes": {setup: func(p *grants.PoolState) { observeAddress(p, "c", "10.0.0.9", "") }, addClaimant: claim(),
			wantMessage: "else delete the IPAddress if nothing uses it", do: func(p *grants.PoolState) {
				p.ForgetAddress("address-c", types.NamespacedName{Namespace: "ns", Name: "c"})
			}},
		"the claim has another name": {setup: func(p *grants.PoolState) { observeAddress(p, "c", "10.0.0.9", "") }, addClaimant: claim(),
			wantMessage: "or create the claim under another name", recreate: func(p *grants.PoolState) *grants.Claimant { return observeClaim(p, "another", 9) }},

		"a pool has more addresses in a row": {pool: of(two), addClaimant: block(4), wantMessage: "add addresses to the pool", do: widen},
		"a block asks for fewer":             {pool: of(two), addClaimant: block(4), wantMessage: "ask for fewer", recreate: func(p *grants.PoolState) *grants.Claimant { return observeAllocation(p, "again", 2) }},
		"another block goes":                 {pool: of(two), setup: func(p *grants.PoolState) { observeAllocation(p, "x", 2, withBlock("10.0.0.1-10.0.0.2")) }, addClaimant: block(2), wantMessage: "or delete allocations", do: deleteNamed("x")},
		"a block is pinned to another range": {addClaimant: block(0, pinned("10.0.0.90", "10.0.0.91")), wantMessage: "create the allocation again with another range",
			recreate: func(p *grants.PoolState) *grants.Claimant {
				return observeAllocation(p, "again", 0, pinned("10.0.0.9", "10.0.0.10"))
			}},
		"what a pin overlaps is released": {setup: had("x"), addClaimant: block(0, pinned("10.0.0.1", "10.0.0.2")), wantMessage: "release that", do: deleteNamed("x")},
		"a pin overlaps nothing": {setup: had("x"), addClaimant: block(0, pinned("10.0.0.1", "10.0.0.2")), wantMessage: "or create the allocation again with another range",
			recreate: func(p *grants.PoolState) *grants.Claimant {
				return observeAllocation(p, "again", 0, pinned("10.0.0.9", "10.0.0.10"))
			}},
		"a pool of addresses is named for a block": {pool: of(prefixes), addClaimant: block(2), wantMessage: "not blocks of addresses; name another pool", do: addresses},
		"of two with one block one goes": {setup: had("x"), addClaimant: block(0, withAllocatedStatus("10.0.0.1", "10.0.0.4")), wantMessage: "find out which of the two uses it, and delete the other",
			do: deleteNamed("x")},

		"a pool of addresses is named for a lease": {pool: of(leases(nil), prefixes), addClaimant: lease(), wantMessage: "not single addresses; name another pool", do: addresses},
		"leases go": {pool: of(leases(ptr.To[int32](1))), setup: func(p *grants.PoolState) { observeLease(p, "x", withLeasedAddress("10.0.0.1")) }, addClaimant: lease(),
			wantMessage: "delete leases", do: deleteNamed("x")},
		"the quota of leases is raised": {pool: of(leases(ptr.To[int32](0))), addClaimant: lease(), wantMessage: "or raise the quota",
			do: withSpec(func(s *v1alpha1.NetworkPoolSpec) { s.Leases.QuotaPerNamespace = ptr.To[int32](1) })},
		"a lease names another address": {pool: of(leases(nil)), setup: had("x"), addClaimant: lease(leaseFor("10.0.0.1")), wantMessage: "or create the lease again with another spec.address",
			recreate: func(p *grants.PoolState) *grants.Claimant { return observeLease(p, "again", leaseFor("10.0.0.2")) }},
		"of two with one lease one goes": {pool: of(leases(nil)), setup: had("x"), addClaimant: lease(showsAddress("10.0.0.1")), wantMessage: "find out which of the two uses it, and delete the other",
			do: deleteNamed("x")},

		"a pool has room for a carved block": {pool: of(carvable, two), addClaimant: carved(29), wantMessage: "add addresses to it", do: widen},
		"what else is carved goes": {pool: of(carvable, func(o *v1alpha1.NetworkPool) { o.Spec.Addresses = []string{"10.0.0.8-10.0.0.15"} }),
			setup: func(p *grants.PoolState) { observeAllocation(p, "x", 4, withBlock("10.0.0.8-10.0.0.11")) }, addClaimant: carved(29), wantMessage: "or delete what else has blocks of it", do: deleteNamed("x")},
	} {
		t.Run(name, func(t *testing.T) {
			p := newTestPool(t, "10.0.0.1-10.0.0.31", c.pool...)
			if c.setup != nil {
				c.setup(p)
			}
			claimant := c.addClaimant(p)
			if _, refused := p.Planner.PlanGrants(noon, maxGrantsPerCommit, admitAll); refused[claimant] == nil || !strings.Contains(refused[claimant].Message, c.wantMessage) {
				t.Fatalf("its refusal is %+v", refused[claimant])
			}
			if c.do != nil {
				c.do(p)
				claimant = p.Claimants.ByUID[claimant.Owner.UID]
			}
			if c.recreate != nil {
				p.ForgetClaimant(claimant.Owner.UID)
				claimant = c.recreate(p)
			}
			if _, refused := p.Planner.PlanGrants(noon, maxGrantsPerCommit, admitAll); p.Grants.ByClaimant[claimant.Owner.UID] == nil {
				t.Errorf("it has nothing; its refusal is %+v", refused[claimant])
			}
		})
	}
}

// TestMachineMessagesNameStepsThatHelp checks that a claim of a Machine is served after the step that its message
// names, where the pool serves failure domains (W29).
func TestMachineMessagesNameStepsThatHelp(t *testing.T) {
	fill := func(addresses ...string) func(*grants.PoolState) {
		return func(p *grants.PoolState) {
			for _, a := range addresses {
				observeClaim(p, a, 0, withRecordedAddress(a))
			}
		}
	}
	with := func(a ...string) func(*grants.PoolState) {
		return withSpec(func(s *v1alpha1.NetworkPoolSpec) { s.Addresses = append(s.Addresses, a...) })
	}
	moveTo := func(domain string) func(*grants.PoolState) {
		return func(p *grants.PoolState) {
			p.ForgetClaimant("uid-c")
			observeClaim(p, "c", 9, ofMachine(domain), func(c *ipamv1.IPAddressClaim) { c.UID = "uid-again" })
		}
	}
	for name, tc := range map[string]struct {
		there       func(*grants.PoolState)
		domain      string
		without     bool
		wantMessage string
		do          func(*grants.PoolState)
		want        string
	}{
		"a subnet serves the domain": {domain: "c", wantMessage: "add the failure domain to failureDomains of one of its spec.subnets", want: "10.1.0.1",
			do: withSpec(func(s *v1alpha1.NetworkPoolSpec) {
				s.Subnets[1].FailureDomains = append(s.Subnets[1].FailureDomains, "c")
			})},
		"a subnet has more addresses": {domain: "b", there: fill("10.2.0.1", "10.2.0.2"), wantMessage: "add addresses there", do: with("10.2.0.9"), want: "10.2.0.9"},
		"the domain has another subnet": {domain: "b", there: fill("10.2.0.1", "10.2.0.2"), wantMessage: "or a subnet for the failure domain", want: "10.3.0.1",
			do: withSpec(func(s *v1alpha1.NetworkPoolSpec) {
				s.Addresses = append(s.Addresses, "10.3.0.1")
				s.Subnets = append(s.Subnets, v1alpha1.Subnet{CIDR: "10.3.0.0/24", FailureDomains: []string{"b"}})
			})},
		"claims of the domain go":        {domain: "b", there: fill("10.2.0.1", "10.2.0.2"), wantMessage: "or delete machines or claims", do: deleteNamed("10.2.0.2"), want: "10.2.0.2"},
		"there is more for no domain":    {there: fill("10.0.0.1", "10.0.0.2"), wantMessage: "add addresses", do: with("10.0.0.9"), want: "10.0.0.9"},
		"the machine has a domain":       {there: fill("10.0.0.1", "10.0.0.2"), wantMessage: "or set the failureDomain of the machines", do: moveTo("a"), want: "10.1.0.1"},
		"the manager knows the machines": {domain: "a", without: true, wantMessage: "apply component-failure-domains.yaml of its release and restart it", want: "10.1.0.1"},
	} {
		t.Run(name, func(t *testing.T) {
			p := newTestPool(t, "", withZones)
			if tc.there != nil {
				tc.there(p)
			}
			a := New(Options{FindMachine: (&machineFinder{}).of})
			if tc.without {
				a.FindMachine = nil
			}
			observeClaim(p, "c", 9, ofMachine(tc.domain))
			if got := planClaim(t, a, p, p.Claimants.ByUID["uid-c"], noon); !strings.Contains(got, tc.wantMessage) {
				t.Fatalf("its refusal is %s", got)
			}
			if tc.do != nil {
				tc.do(p)
			}
			if tc.without {
				a = New(Options{FindMachine: (&machineFinder{}).of})
			}
			c := p.Claimants.ByUID["uid-c"]
			if c == nil {
				c = p.Claimants.ByUID["uid-again"] // of the machine in its place
			}
			if got := planClaim(t, a, p, c, noon); got != tc.want {
				t.Errorf("its address or its refusal is %s", got)
			}
		})
	}
}

// TestMovedPoolAdviceHelps checks that a pool that was moved away opens after the step that its message names, also
// while clusterctl still has one of its claims (W29).
func TestMovedPoolAdviceHelps(t *testing.T) {
	p := newTestPool(t, "10.0.0.1-10.0.0.9")
	observeClaim(p, "a", 0, withRecordedAddress("10.0.0.1"), isMoved, withDeletionTimestamp)
	closed := func() (string, string) { return p.Status.ClosedReason(noon) }
	if _, message := closed(); !strings.Contains(message, "release those in status.held") || !strings.Contains(message, "first, end the move of ns/a, or remove its annotation "+v1alpha1.DeleteForMoveAnnotation) {
		t.Fatal(message)
	}
	observeClaim(p, "a", 0, withRecordedAddress("10.0.0.1"), withDeletionTimestamp, version("2"))
	if _, message := closed(); strings.Contains(message, "first, ") || !strings.Contains(message, "release those in status.held") {
		t.Fatal(message)
	}
	p.Base.Pool.SetAnnotations(map[string]string{v1alpha1.ReleaseHeldAnnotation: heldBy(p)[0]})
	p.Held.ReleaseHeldRanges()
	if reason, message := closed(); reason != "" {
		t.Errorf("it is closed by %s: %s", reason, message)
	}
}

// TestDisownedClaimIsReleased checks that a deleted claim that its Cluster owns is released when the owner reference
// is removed (W29).
func TestDisownedClaimIsReleased(t *testing.T) {
	scheme := runtime.NewScheme()
	if err := clusterv1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	cluster := &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "k", UID: "uid-k"}}
	a := New(Options{Client: fake.NewClientBuilder().WithScheme(scheme).WithObjects(cluster).Build()})
	p := newTestPool(t, "10.0.0.1-10.0.0.2")
	due := func() int {
		out, _ := p.ListDueWrites(noon, 8, time.Minute, a.admission.newAdmissionFunc(t.Context(), p, noon), a.admission.newReleaseAdmissionFunc(t.Context(), p))
		return len(out.ReleaseClaimants)
	}
	c := observeClaim(p, "a", 0, ofCluster("k"), withRecordedAddress("10.0.0.1"), withDeletionTimestamp, ownedBy(clusterv1.ClusterKind, "k", "uid-k"))
	observeAddress(p, "a", "10.0.0.1", c.Owner.UID)
	if n := due(); n != 0 || !strings.Contains(p.Conditions.Unpublished[c].Message, "to release it now, take the owner reference off the claim") {
		t.Fatalf("%d are released; the message is %q", n, p.Conditions.Unpublished[c].Message)
	}
	observeClaim(p, "a", 0, ofCluster("k"), withRecordedAddress("10.0.0.1"), withDeletionTimestamp, version("2"))
	if due() != 1 {
		t.Error("it is not released")
	}
}

// TestFullCarvedPoolAdviceHelps checks that a full carved pool that has all of its blocks serves claims after the step
// that its message names (W29).
func TestFullCarvedPoolAdviceHelps(t *testing.T) {
	for name, tc := range map[string]struct {
		wantMessage string
		do          func(*grants.PoolState)
		asks        int
	}{
		"it may have more blocks": {wantMessage: "raise that", do: withSpec(func(s *v1alpha1.NetworkPoolSpec) { s.Carve.Blocks.Max = 2 }), asks: 1},
		"claims go":               {wantMessage: "or delete claims", do: deleteNamed("x")},
	} {
		t.Run(name, func(t *testing.T) {
			p := newChildPool(t, isOpen("pool-1", "10.0.0.4/30"), func(o *v1alpha1.NetworkPool) { o.Spec.Carve.Blocks = v1alpha1.CarvedBlocks{Min: 1, Max: 1} })
			observeBlock(p, newBlock("pool-1", firstBlock))
			p.Growth.PlanBlocks(noon, time.Minute)
			for i, name := range []string{"x", "y", "z", "w"} {
				observeClaim(p, name, i)
			}
			p.Planner.PlanGrants(noon, 9, admitAll)
			c := observeClaim(p, "c", 9)
			p.Carved.ResetShortfall()
			if _, refused := p.Planner.PlanGrants(noon, 9, admitAll); refused[c] == nil || !strings.Contains(refused[c].Message, tc.wantMessage) {
				t.Fatalf("its refusal is %+v", refused[c])
			}
			tc.do(p)
			p.Carved.ResetShortfall()
			p.Planner.PlanGrants(noon, 9, admitAll)
			p.Growth.PlanBlocks(noon, time.Minute)
			if got := p.Carved.Decision.NewBlocks; got != tc.asks || (p.Grants.ByClaimant["uid-c"] != nil) == (tc.asks > 0) {
				t.Errorf("it asks for %d blocks, and grants %v", got, p.Grants.ByClaimant["uid-c"])
			}
		})
	}
	p := newChildPool(t)
	c := observeAllocation(p, "b", 8)
	if _, refused := p.Planner.PlanGrants(noon, 9, admitAll); refused[c] == nil || !strings.Contains(refused[c].Message, "request less, or name another pool") {
		t.Fatalf("its refusal is %+v", refused[c])
	}
	p.ForgetClaimant(c.Owner.UID)
	observeAllocation(p, "b", 4)
	p.Carved.ResetShortfall()
	p.Planner.PlanGrants(noon, 9, admitAll)
	if p.Growth.PlanBlocks(noon, time.Minute); p.Carved.Decision.NewBlocks != 1 {
		t.Errorf("it asks for %+v", p.Carved.Decision)
	}
}

// TestEmptyMirrorAdviceHelps checks that a mirror without usable addresses serves claims after its
// in-cluster pool, whose spec it has, is edited as the message suggests (W29).
func TestEmptyMirrorAdviceHelps(t *testing.T) {
	excluded := func(addresses string) func(*v1alpha1.NetworkPool) {
		return func(o *v1alpha1.NetworkPool) { o.Spec.Reserved = []v1alpha1.ReservedRange{{Addresses: addresses}} }
	}
	refusalFor := func(addresses string, change ...func(*v1alpha1.NetworkPool)) string {
		p := newMirrorPool(t, addresses, change...)
		c := observeClaim(p, "c", 0, naming(mirrored))
		_, refused := p.Planner.PlanGrants(noon, maxGrantsPerCommit, New(Options{}).admission.newAdmissionFunc(t.Context(), p, noon))
		if refusal := refused[c]; refusal != nil {
			return refusal.Message
		}
		return ""
	}
	if message := refusalFor("10.0.0.10", excluded("10.0.0.10")); !strings.Contains(message, "add addresses to InClusterIPPool ns/p, or exclude fewer") {
		t.Error(message)
	}
	if message := refusalFor("10.0.0.10-10.0.0.11", excluded("10.0.0.10")); message != "" {
		t.Errorf("with more addresses: %s", message)
	}
	if message := refusalFor("10.0.0.10"); message != "" {
		t.Errorf("with fewer exclusions: %s", message)
	}
}

// TestClaimIsServedWhenPausedClusterResumes checks that a claim that waits for the grants of paused Clusters is served
// when one of these is resumed (W29).
func TestClaimIsServedWhenPausedClusterResumes(t *testing.T) {
	p := newTestPool(t, "10.0.0.1-10.0.15.200")
	admission := func(paused bool) func(*grants.Claimant) grants.AdmissionResult {
		return func(c *grants.Claimant) grants.AdmissionResult {
			return grants.AdmissionResult{Wait: c.Owner.Name != "waits" && (paused || c.Owner.Name != "c0")}
		}
	}
	for i := range grants.MaxInFlightGrants {
		c := observeClaim(p, fmt.Sprint("c", i), 0, func(c *ipamv1.IPAddressClaim) { c.Namespace = fmt.Sprint("ns-", i) })
		if n, _ := p.Planner.PlanGrants(noon, 1, admitAll); n != 1 {
			t.Fatalf("grant %d is not made", i)
		}
		p.Grants.ByClaimant[c.Owner.UID].Committed = true
	}
	for _, g := range p.Grants.ByClaimant {
		g.JobStarted = true // their writes may land yet, so they stay in flight
	}
	waits := observeClaim(p, "waits", 1, func(c *ipamv1.IPAddressClaim) { c.Namespace = "other" })
	p.Grants.EndBlockedGrants(admission(true))
	if _, refused := p.Planner.PlanGrants(noon, 1, admission(true)); refused[waits] == nil || !strings.Contains(refused[waits].Message, "are paused; resume one of them") {
		t.Fatalf("its refusal is %+v", refused[waits])
	}
	p.Grants.ByClaimant["uid-c0"].Confirmed = true // as when the resumed claim is served
	if n, refused := p.Planner.PlanGrants(noon, 1, admission(false)); n != 1 || p.Grants.ByClaimant[waits.Owner.UID] == nil {
		t.Errorf("%d are granted; its refusal is %+v", n, refused[waits])
	}
}

// TestManagerWithoutNamespaceServesGlobalPools checks that a pool that a manager of one namespace does not serve is
// served by a manager without --namespace (W29).
func TestManagerWithoutNamespaceServesGlobalPools(t *testing.T) {
	global := pools.Key{Kind: v1alpha1.GlobalNetworkPoolKind, Name: "g"}
	if refusal := New(Options{Namespace: "ns"}).scope.refusalIfUnserved(global, nil); refusal == nil || !strings.Contains(refusal.Message, "run a manager without --namespace for global pools") {
		t.Errorf("%+v", refusal)
	}
	if refusal := New(Options{}).scope.refusalIfUnserved(global, nil); refusal != nil {
		t.Errorf("%+v", refusal)
	}
	if refusal := New(Options{}).scope.refusalIfUnserved(mirrorKey, nil); refusal == nil || !strings.Contains(refusal.Message, "add the component in-cluster-pools, or hand the pools back") {
		t.Errorf("%+v", refusal)
	}
	if refusal := New(Options{InClusterPools: true}).scope.refusalIfUnserved(mirrorKey, nil); refusal != nil {
		t.Errorf("%+v", refusal)
	}
}

// TestBlockWithRightPoolsIsGranted checks that a block for a pool that is carved from another pool is granted when the
// block is created again with the right pools (W29).
func TestBlockWithRightPoolsIsGranted(t *testing.T) {
	a := New(Options{ManagerID: "me", Recorder: events.NewFakeRecorder(9)})
	a.relations.publishDeclaration(newChildPool(t, func(o *v1alpha1.NetworkPool) { carvedOf(o, "another") }).Base.Pool)
	right := newChildPool(t).Base.Pool.DeepCopyObject().(*v1alpha1.NetworkPool)
	right.Name, right.UID = "right", "right-uid"
	a.relations.publishDeclaration(right)
	p := newTestPool(t, "10.0.0.0-10.0.0.15", func(o *v1alpha1.NetworkPool) {
		o.Name, o.UID, o.Spec.AllocateReservedIPAddresses, o.Spec.Carvable = siteKey.Name, "site-uid", true, &v1alpha1.Carvable{}
	})
	p.Base.Key = siteKey
	a.relations.publishDeclaration(p.Base.Pool)
	refusalFor := func(o *v1alpha1.IPAllocation) string {
		p.ObserveClaimant(blocks.NewClaimant(o))
		if refusal := a.admission.admissionRules(t.Context(), p, noon)(p.Claimants.ByUID[o.UID]).Refusal; refusal != nil {
			return refusal.Message
		}
		return ""
	}
	if message := refusalFor(newBlock("b-1")); !strings.Contains(message, "create the allocation again with the right pools") {
		t.Error(message)
	}
	if message := refusalFor(newBlock("b-2", func(o *v1alpha1.IPAllocation) { o.Spec.ChildPoolRef.Name = "right" })); message != "" {
		t.Error(message)
	}
}
