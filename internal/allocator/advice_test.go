package allocator

import (
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
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/grantstest"
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

// TestClaimantMessagesNameStepsThatHelp checks that a claim, a block or a lease is served after the step that its
// message names (W29).
func TestClaimantMessagesNameStepsThatHelp(t *testing.T) {
	widen := grantstest.WithSpec(func(s *v1alpha1.NetworkPoolSpec) { s.Addresses = append(s.Addresses, "10.0.0.32-10.0.0.63") })
	claim := func(f ...func(*ipamv1.IPAddressClaim)) func(*grants.PoolState) *grants.Claimant {
		return func(p *grants.PoolState) *grants.Claimant { return grantstest.ObserveClaim(p, "c", 9, f...) }
	}
	block := func(n int32, f ...func(*v1alpha1.IPAllocation)) func(*grants.PoolState) *grants.Claimant {
		return func(p *grants.PoolState) *grants.Claimant { return grantstest.ObserveAllocation(p, "b", n, f...) }
	}
	lease := func(f ...func(*v1alpha1.IPLease)) func(*grants.PoolState) *grants.Claimant {
		return func(p *grants.PoolState) *grants.Claimant { return grantstest.ObserveLease(p, "l", f...) }
	}
	carved := func(bits int32) func(*grants.PoolState) *grants.Claimant {
		return func(p *grants.PoolState) *grants.Claimant {
			o := grantstest.NewBlock("child-1", func(o *v1alpha1.IPAllocation) {
				o.Finalizers, o.Spec.PoolRef.Name, o.Spec.ChildPoolRef.Name, o.Spec.PrefixLength = nil, grantstest.PoolKey.Name, "child", ptr.To(bits)
			})
			p.ObserveClaimant(blocks.NewClaimant(o))
			return p.Claimants.ByUID[o.UID]
		}
	}
	had := func(names ...string) func(*grants.PoolState) { // claims that have 10.0.0.1 and so on, in turn
		return func(p *grants.PoolState) {
			for i, name := range names {
				grantstest.ObserveClaim(p, name, i, grantstest.WithRecordedAddress("10.0.0."+string(rune('1'+i))))
				grantstest.ObserveAddress(p, name, "10.0.0."+string(rune('1'+i)), types.UID("uid-"+name))
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
	addresses := grantstest.WithSpec(func(s *v1alpha1.NetworkPoolSpec) { s.AllocationPrefixLength = nil })

	for name, c := range map[string]adviceCase{
		"a full pool has more addresses": {pool: of(two), setup: had("x", "y"), addClaimant: claim(), wantMessage: "add addresses to the pool", do: widen},
		"claims of a full pool go":       {pool: of(two), setup: had("x", "y"), addClaimant: claim(), wantMessage: "or delete machines or claims", do: grantstest.DeleteNamed("y")},
		"an address is released":         {setup: had("x"), addClaimant: claim(grantstest.WithRequestedAddress("10.0.0.1")), wantMessage: "wait until it is released", do: grantstest.DeleteNamed("x")},
		"another is asked for": {setup: had("x"), addClaimant: claim(grantstest.WithRequestedAddress("10.0.0.1")), wantMessage: "or ask for another", do: func(p *grants.PoolState) {
			grantstest.ObserveClaim(p, "c", 9, grantstest.WithRequestedAddress("10.0.0.2"), grantstest.WithVersion("2"))
		}},
		"one that the pool has": {addClaimant: claim(grantstest.WithRequestedAddress("10.0.0.99")), wantMessage: "ask for another", do: func(p *grants.PoolState) {
			grantstest.ObserveClaim(p, "c", 9, grantstest.WithRequestedAddress("10.0.0.2"), grantstest.WithVersion("2"))
		}},
		"none is asked for": {addClaimant: claim(grantstest.WithRequestedAddress("10.0.0.99")), wantMessage: "or remove the annotation " + v1alpha1.RequestedAddressAnnotation, do: func(p *grants.PoolState) { grantstest.ObserveClaim(p, "c", 9, grantstest.WithVersion("2")) }},
		"what is asked for is an address": {addClaimant: claim(grantstest.WithRequestedAddress("ten")), wantMessage: "correct the annotation " + v1alpha1.RequestedAddressAnnotation, do: func(p *grants.PoolState) {
			grantstest.ObserveClaim(p, "c", 9, grantstest.WithRequestedAddress("10.0.0.2"), grantstest.WithVersion("2"))
		}},
		"another address is kept for the name": {pool: of(grantstest.WithPreAllocation("c", "10.0.0.1")), setup: had("x"), addClaimant: claim(), wantMessage: "or change spec.preAllocations[c]",
			do: grantstest.WithSpec(func(s *v1alpha1.NetworkPoolSpec) { s.PreAllocations["c"] = "10.0.0.2" })},
		"a claim is created without a record": {addClaimant: claim(grantstest.WithRecordedAddress("10.9.9.9")), wantMessage: "does not grant; create this object again without the annotation",
			recreate: func(p *grants.PoolState) *grants.Claimant { return grantstest.ObserveClaim(p, "again", 9) }},
		"of two with one record one goes": {setup: had("x"), addClaimant: claim(grantstest.WithRecordedAddress("10.0.0.1")), wantMessage: "find out which of the two uses it, and delete the other", do: grantstest.DeleteNamed("x")},
		"an IPAddress without a claim goes": {setup: func(p *grants.PoolState) { grantstest.ObserveAddress(p, "x", "10.0.0.1", "") }, addClaimant: claim(grantstest.WithRecordedAddress("10.0.0.1")),
			wantMessage: "find out which of the two uses it, and delete the other", do: grantstest.DeleteNamed("x")},
		"the IPAddress of the name is none": {setup: func(p *grants.PoolState) { grantstest.ObserveAddress(p, "c", "ten", "") }, addClaimant: claim(),
			wantMessage: "was created by hand, and its spec.address is not an IP address; delete it if it is not in use", do: func(p *grants.PoolState) {
				p.ForgetAddress("address-c", types.NamespacedName{Namespace: "ns", Name: "c"})
			}},
		"the IPAddress of the name goes": {setup: func(p *grants.PoolState) { grantstest.ObserveAddress(p, "c", "10.0.0.9", "") }, addClaimant: claim(),
			wantMessage: "else delete the IPAddress if nothing uses it", do: func(p *grants.PoolState) {
				p.ForgetAddress("address-c", types.NamespacedName{Namespace: "ns", Name: "c"})
			}},
		"the claim has another name": {setup: func(p *grants.PoolState) { grantstest.ObserveAddress(p, "c", "10.0.0.9", "") }, addClaimant: claim(),
			wantMessage: "or create the claim under another name", recreate: func(p *grants.PoolState) *grants.Claimant { return grantstest.ObserveClaim(p, "another", 9) }},

		"a pool has more addresses in a row": {pool: of(two), addClaimant: block(4), wantMessage: "add addresses to the pool", do: widen},
		"a block asks for fewer":             {pool: of(two), addClaimant: block(4), wantMessage: "ask for fewer", recreate: func(p *grants.PoolState) *grants.Claimant { return grantstest.ObserveAllocation(p, "again", 2) }},
		"another block goes": {pool: of(two), setup: func(p *grants.PoolState) {
			grantstest.ObserveAllocation(p, "x", 2, grantstest.WithBlock("10.0.0.1-10.0.0.2"))
		}, addClaimant: block(2), wantMessage: "or delete allocations", do: grantstest.DeleteNamed("x")},
		"a block is pinned to another range": {addClaimant: block(0, grantstest.WithPinnedRange("10.0.0.90", "10.0.0.91")), wantMessage: "create the allocation again with another range",
			recreate: func(p *grants.PoolState) *grants.Claimant {
				return grantstest.ObserveAllocation(p, "again", 0, grantstest.WithPinnedRange("10.0.0.9", "10.0.0.10"))
			}},
		"what a pin overlaps is released": {setup: had("x"), addClaimant: block(0, grantstest.WithPinnedRange("10.0.0.1", "10.0.0.2")), wantMessage: "release that", do: grantstest.DeleteNamed("x")},
		"a pin overlaps nothing": {setup: had("x"), addClaimant: block(0, grantstest.WithPinnedRange("10.0.0.1", "10.0.0.2")), wantMessage: "or create the allocation again with another range",
			recreate: func(p *grants.PoolState) *grants.Claimant {
				return grantstest.ObserveAllocation(p, "again", 0, grantstest.WithPinnedRange("10.0.0.9", "10.0.0.10"))
			}},
		"a pool of addresses is named for a block": {pool: of(prefixes), addClaimant: block(2), wantMessage: "not blocks of addresses; name another pool", do: addresses},
		"of two with one block one goes": {setup: had("x"), addClaimant: block(0, grantstest.WithAllocatedStatus("10.0.0.1", "10.0.0.4")), wantMessage: "find out which of the two uses it, and delete the other",
			do: grantstest.DeleteNamed("x")},

		"a pool of addresses is named for a lease": {pool: of(leases(nil), prefixes), addClaimant: lease(), wantMessage: "not single addresses; name another pool", do: addresses},
		"leases go": {pool: of(leases(ptr.To[int32](1))), setup: func(p *grants.PoolState) { grantstest.ObserveLease(p, "x", grantstest.WithLeasedAddress("10.0.0.1")) }, addClaimant: lease(),
			wantMessage: "delete leases", do: grantstest.DeleteNamed("x")},
		"the quota of leases is raised": {pool: of(leases(ptr.To[int32](0))), addClaimant: lease(), wantMessage: "or raise the quota",
			do: grantstest.WithSpec(func(s *v1alpha1.NetworkPoolSpec) { s.Leases.QuotaPerNamespace = ptr.To[int32](1) })},
		"a lease names another address": {pool: of(leases(nil)), setup: had("x"), addClaimant: lease(grantstest.WithLeaseAddress("10.0.0.1")), wantMessage: "or create the lease again with another spec.address",
			recreate: func(p *grants.PoolState) *grants.Claimant {
				return grantstest.ObserveLease(p, "again", grantstest.WithLeaseAddress("10.0.0.2"))
			}},
		"of two with one lease one goes": {pool: of(leases(nil)), setup: had("x"), addClaimant: lease(grantstest.WithShownAddress("10.0.0.1")), wantMessage: "find out which of the two uses it, and delete the other",
			do: grantstest.DeleteNamed("x")},

		"a pool has room for a carved block": {pool: of(carvable, two), addClaimant: carved(29), wantMessage: "add addresses to it", do: widen},
		"what else is carved goes": {pool: of(carvable, func(o *v1alpha1.NetworkPool) { o.Spec.Addresses = []string{"10.0.0.8-10.0.0.15"} }),
			setup: func(p *grants.PoolState) {
				grantstest.ObserveAllocation(p, "x", 4, grantstest.WithBlock("10.0.0.8-10.0.0.11"))
			}, addClaimant: carved(29), wantMessage: "or delete what else has blocks of it", do: grantstest.DeleteNamed("x")},
	} {
		t.Run(name, func(t *testing.T) {
			p := grantstest.NewPool(t, "10.0.0.1-10.0.0.31", c.pool...)
			if c.setup != nil {
				c.setup(p)
			}
			claimant := c.addClaimant(p)
			if _, refused := p.Planner.PlanGrants(grantstest.Noon, maxGrantsPerCommit, grantstest.AdmitAll); refused[claimant] == nil || !strings.Contains(refused[claimant].Message, c.wantMessage) {
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
			if _, refused := p.Planner.PlanGrants(grantstest.Noon, maxGrantsPerCommit, grantstest.AdmitAll); p.Grants.ByClaimant[claimant.Owner.UID] == nil {
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
				grantstest.ObserveClaim(p, a, 0, grantstest.WithRecordedAddress(a))
			}
		}
	}
	with := func(a ...string) func(*grants.PoolState) {
		return grantstest.WithSpec(func(s *v1alpha1.NetworkPoolSpec) { s.Addresses = append(s.Addresses, a...) })
	}
	moveTo := func(domain string) func(*grants.PoolState) {
		return func(p *grants.PoolState) {
			p.ForgetClaimant("uid-c")
			grantstest.ObserveClaim(p, "c", 9, grantstest.OfMachine(domain), func(c *ipamv1.IPAddressClaim) { c.UID = "uid-again" })
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
			do: grantstest.WithSpec(func(s *v1alpha1.NetworkPoolSpec) {
				s.Subnets[1].FailureDomains = append(s.Subnets[1].FailureDomains, "c")
			})},
		"a subnet has more addresses": {domain: "b", there: fill("10.2.0.1", "10.2.0.2"), wantMessage: "add addresses there", do: with("10.2.0.9"), want: "10.2.0.9"},
		"the domain has another subnet": {domain: "b", there: fill("10.2.0.1", "10.2.0.2"), wantMessage: "or a subnet for the failure domain", want: "10.3.0.1",
			do: grantstest.WithSpec(func(s *v1alpha1.NetworkPoolSpec) {
				s.Addresses = append(s.Addresses, "10.3.0.1")
				s.Subnets = append(s.Subnets, v1alpha1.Subnet{CIDR: "10.3.0.0/24", FailureDomains: []string{"b"}})
			})},
		"claims of the domain go":        {domain: "b", there: fill("10.2.0.1", "10.2.0.2"), wantMessage: "or delete machines or claims", do: grantstest.DeleteNamed("10.2.0.2"), want: "10.2.0.2"},
		"there is more for no domain":    {there: fill("10.0.0.1", "10.0.0.2"), wantMessage: "add addresses", do: with("10.0.0.9"), want: "10.0.0.9"},
		"the machine has a domain":       {there: fill("10.0.0.1", "10.0.0.2"), wantMessage: "or set the failureDomain of the machines", do: moveTo("a"), want: "10.1.0.1"},
		"the manager knows the machines": {domain: "a", without: true, wantMessage: "apply component-failure-domains.yaml of its release and restart it", want: "10.1.0.1"},
	} {
		t.Run(name, func(t *testing.T) {
			p := grantstest.NewPool(t, "", grantstest.WithZones)
			if tc.there != nil {
				tc.there(p)
			}
			a := New(Options{FindMachine: (&machineFinder{}).of})
			if tc.without {
				a.FindMachine = nil
			}
			grantstest.ObserveClaim(p, "c", 9, grantstest.OfMachine(tc.domain))
			if got := planClaim(t, a, p, p.Claimants.ByUID["uid-c"], grantstest.Noon); !strings.Contains(got, tc.wantMessage) {
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
			if got := planClaim(t, a, p, c, grantstest.Noon); got != tc.want {
				t.Errorf("its address or its refusal is %s", got)
			}
		})
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
	p := grantstest.NewPool(t, "10.0.0.1-10.0.0.2")
	due := func() int {
		out, _ := p.ListDueWrites(grantstest.Noon, 8, time.Minute, a.admission.newAdmissionFunc(t.Context(), p, grantstest.Noon), a.admission.newReleaseAdmissionFunc(t.Context(), p))
		return len(out.ReleaseClaimants)
	}
	c := grantstest.ObserveClaim(p, "a", 0, grantstest.OfCluster("k"), grantstest.WithRecordedAddress("10.0.0.1"), grantstest.WithDeletionTimestamp, ownedBy(clusterv1.ClusterKind, "k", "uid-k"))
	grantstest.ObserveAddress(p, "a", "10.0.0.1", c.Owner.UID)
	if n := due(); n != 0 || !strings.Contains(p.Conditions.Unpublished[c].Message, "to release it now, take the owner reference off the claim") {
		t.Fatalf("%d are released; the message is %q", n, p.Conditions.Unpublished[c].Message)
	}
	grantstest.ObserveClaim(p, "a", 0, grantstest.OfCluster("k"), grantstest.WithRecordedAddress("10.0.0.1"), grantstest.WithDeletionTimestamp, grantstest.WithVersion("2"))
	if due() != 1 {
		t.Error("it is not released")
	}
}

// TestEmptyMirrorAdviceHelps checks that a mirror without usable addresses serves claims after its
// in-cluster pool, whose spec it has, is edited as the message suggests (W29).
func TestEmptyMirrorAdviceHelps(t *testing.T) {
	excluded := func(addresses string) func(*v1alpha1.NetworkPool) {
		return func(o *v1alpha1.NetworkPool) { o.Spec.Reserved = []v1alpha1.ReservedRange{{Addresses: addresses}} }
	}
	refusalFor := func(addresses string, change ...func(*v1alpha1.NetworkPool)) string {
		p := grantstest.NewMirrorPool(t, addresses, change...)
		c := grantstest.ObserveClaim(p, "c", 0, grantstest.WithPoolRef(grantstest.MirroredPoolRef))
		_, refused := p.Planner.PlanGrants(grantstest.Noon, maxGrantsPerCommit, New(Options{}).admission.newAdmissionFunc(t.Context(), p, grantstest.Noon))
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
	if refusal := New(Options{}).scope.refusalIfUnserved(grantstest.MirrorKey, nil); refusal == nil || !strings.Contains(refusal.Message, "add the component in-cluster-pools, or hand the pools back") {
		t.Errorf("%+v", refusal)
	}
	if refusal := New(Options{InClusterPools: true}).scope.refusalIfUnserved(grantstest.MirrorKey, nil); refusal != nil {
		t.Errorf("%+v", refusal)
	}
}

// TestBlockWithRightPoolsIsGranted checks that a block for a pool that is carved from another pool is granted when the
// block is created again with the right pools (W29).
func TestBlockWithRightPoolsIsGranted(t *testing.T) {
	a := New(Options{ManagerID: "me", Recorder: events.NewFakeRecorder(9)})
	a.relations.publishDeclaration(grantstest.NewChildPool(t, func(o *v1alpha1.NetworkPool) { grantstest.CarveFrom(o, "another") }).Base.Pool)
	right := grantstest.NewChildPool(t).Base.Pool.DeepCopyObject().(*v1alpha1.NetworkPool)
	right.Name, right.UID = "right", "right-uid"
	a.relations.publishDeclaration(right)
	p := grantstest.NewPool(t, "10.0.0.0-10.0.0.15", func(o *v1alpha1.NetworkPool) {
		o.Name, o.UID, o.Spec.AllocateReservedIPAddresses, o.Spec.Carvable = grantstest.SiteKey.Name, "site-uid", true, &v1alpha1.Carvable{}
	})
	p.Base.Key = grantstest.SiteKey
	a.relations.publishDeclaration(p.Base.Pool)
	refusalFor := func(o *v1alpha1.IPAllocation) string {
		p.ObserveClaimant(blocks.NewClaimant(o))
		if refusal := a.admission.admissionRules(t.Context(), p, grantstest.Noon)(p.Claimants.ByUID[o.UID]).Refusal; refusal != nil {
			return refusal.Message
		}
		return ""
	}
	if message := refusalFor(grantstest.NewBlock("b-1")); !strings.Contains(message, "create the allocation again with the right pools") {
		t.Error(message)
	}
	if message := refusalFor(grantstest.NewBlock("b-2", func(o *v1alpha1.IPAllocation) { o.Spec.ChildPoolRef.Name = "right" })); message != "" {
		t.Error(message)
	}
}
