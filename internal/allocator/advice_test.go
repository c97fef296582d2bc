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

// advice is what a claimant is told to do, and the doing of it.
type advice struct {
	pool  []func(*v1alpha1.NetworkPool)
	there func(*grants.Memory)
	ask   func(*grants.Memory) *grants.Claimant
	says  string
	do    func(*grants.Memory)
	// again creates the claimant again, after it was deleted.
	again func(*grants.Memory) *grants.Claimant
}

// spec changes the spec of a pool, as a user does who does what a message says.
func spec(f func(*v1alpha1.NetworkPoolSpec)) func(*grants.Memory) {
	return func(p *grants.Memory) {
		edited := p.Base.DeepCopyObject().(*v1alpha1.NetworkPool)
		f(&edited.Spec)
		edited.Generation++
		edited.Status.ObservedGeneration = edited.Generation
		p.SetBase(edited)
		p.Compile()
	}
}

// forget deletes what has one of the names, or what it has.
func forget(names ...string) func(*grants.Memory) {
	return func(p *grants.Memory) {
		for _, name := range names {
			p.Forget(types.UID("uid-" + name))
			p.DropGrant(types.UID("uid-" + name))
			p.ForgetAttached(types.UID("address-"+name), types.NamespacedName{Namespace: "ns", Name: name})
		}
	}
}

// W29: what a claim, a block or a lease is told to do serves it.
func TestWhatAClaimantIsToldToDoHelps(t *testing.T) {
	widen := spec(func(s *v1alpha1.NetworkPoolSpec) { s.Addresses = append(s.Addresses, "10.0.0.32-10.0.0.63") })
	claim := func(f ...func(*ipamv1.IPAddressClaim)) func(*grants.Memory) *grants.Claimant {
		return func(p *grants.Memory) *grants.Claimant { return see(p, "c", 9, f...) }
	}
	block := func(n int32, f ...func(*v1alpha1.IPAllocation)) func(*grants.Memory) *grants.Claimant {
		return func(p *grants.Memory) *grants.Claimant { return seeBlock(p, "b", n, f...) }
	}
	lease := func(f ...func(*v1alpha1.IPLease)) func(*grants.Memory) *grants.Claimant {
		return func(p *grants.Memory) *grants.Claimant { return seeLease(p, "l", f...) }
	}
	carved := func(bits int32) func(*grants.Memory) *grants.Claimant {
		return func(p *grants.Memory) *grants.Claimant {
			o := newBlock("child-1", func(o *v1alpha1.IPAllocation) {
				o.Finalizers, o.Spec.PoolRef.Name, o.Spec.ChildPoolRef.Name, o.Spec.PrefixLength = nil, testKey.Name, "child", ptr.To(bits)
			})
			p.Observe(blocks.Of(o))
			return p.Claimants[o.UID]
		}
	}
	had := func(names ...string) func(*grants.Memory) { // claims that have 10.0.0.1 and so on, in turn
		return func(p *grants.Memory) {
			for i, name := range names {
				see(p, name, i, remembers("10.0.0."+string(rune('1'+i))))
				seeAddress(p, name, "10.0.0."+string(rune('1'+i)), types.UID("uid-"+name))
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
	addresses := spec(func(s *v1alpha1.NetworkPoolSpec) { s.AllocationPrefixLength = nil })

	for name, c := range map[string]advice{
		"a full pool has more addresses":  {pool: of(two), there: had("x", "y"), ask: claim(), says: "add addresses to the pool", do: widen},
		"claims of a full pool go":        {pool: of(two), there: had("x", "y"), ask: claim(), says: "or delete machines or claims", do: forget("y")},
		"an address is released":          {there: had("x"), ask: claim(asks("10.0.0.1")), says: "wait until it is released", do: forget("x")},
		"another is asked for":            {there: had("x"), ask: claim(asks("10.0.0.1")), says: "or ask for another", do: func(p *grants.Memory) { see(p, "c", 9, asks("10.0.0.2"), version("2")) }},
		"one that the pool has":           {ask: claim(asks("10.0.0.99")), says: "ask for another", do: func(p *grants.Memory) { see(p, "c", 9, asks("10.0.0.2"), version("2")) }},
		"none is asked for":               {ask: claim(asks("10.0.0.99")), says: "or remove the annotation " + v1alpha1.RequestedAddressAnnotation, do: func(p *grants.Memory) { see(p, "c", 9, version("2")) }},
		"what is asked for is an address": {ask: claim(asks("ten")), says: "correct the annotation " + v1alpha1.RequestedAddressAnnotation, do: func(p *grants.Memory) { see(p, "c", 9, asks("10.0.0.2"), version("2")) }},
		"another address is kept for the name": {pool: of(pins("c", "10.0.0.1")), there: had("x"), ask: claim(), says: "or change spec.preAllocations[c]",
			do: spec(func(s *v1alpha1.NetworkPoolSpec) { s.PreAllocations["c"] = "10.0.0.2" })},
		"a claim is created without a record": {ask: claim(remembers("10.9.9.9")), says: "hands out; create this object again without the annotation",
			again: func(p *grants.Memory) *grants.Claimant { return see(p, "again", 9) }},
		"of two with one record one goes": {there: had("x"), ask: claim(remembers("10.0.0.1")), says: "find out which of the two uses it, and delete the other", do: forget("x")},
		"an IPAddress without a claim goes": {there: func(p *grants.Memory) { seeAddress(p, "x", "10.0.0.1", "") }, ask: claim(remembers("10.0.0.1")),
			says: "find out which of the two uses it, and delete the other", do: forget("x")},
		"the IPAddress of the name is none": {there: func(p *grants.Memory) { seeAddress(p, "c", "ten", "") }, ask: claim(),
			says: "was created by hand, and its spec.address is not an IP address; delete it if nobody uses it", do: func(p *grants.Memory) {
				p.ForgetAttached("address-c", types.NamespacedName{Namespace: "ns", Name: "c"})
			}},
		"the IPAddress of the name goes": {there: func(p *grants.Memory) { seeAddress(p, "c", "10.0.0.9", "") }, ask: claim(),
			says: "else delete the IPAddress if nothing uses it", do: func(p *grants.Memory) {
				p.ForgetAttached("address-c", types.NamespacedName{Namespace: "ns", Name: "c"})
			}},
		"the claim has another name": {there: func(p *grants.Memory) { seeAddress(p, "c", "10.0.0.9", "") }, ask: claim(),
			says: "or create the claim under another name", again: func(p *grants.Memory) *grants.Claimant { return see(p, "another", 9) }},

		"a pool has more addresses in a row": {pool: of(two), ask: block(4), says: "add addresses to the pool", do: widen},
		"a block asks for fewer":             {pool: of(two), ask: block(4), says: "ask for fewer", again: func(p *grants.Memory) *grants.Claimant { return seeBlock(p, "again", 2) }},
		"another block goes":                 {pool: of(two), there: func(p *grants.Memory) { seeBlock(p, "x", 2, has("10.0.0.1-10.0.0.2")) }, ask: block(2), says: "or delete allocations", do: forget("x")},
		"a block is pinned to another range": {ask: block(0, pinned("10.0.0.90", "10.0.0.91")), says: "create the allocation again with another range",
			again: func(p *grants.Memory) *grants.Claimant {
				return seeBlock(p, "again", 0, pinned("10.0.0.9", "10.0.0.10"))
			}},
		"what a pin overlaps is released": {there: had("x"), ask: block(0, pinned("10.0.0.1", "10.0.0.2")), says: "release that", do: forget("x")},
		"a pin overlaps nothing": {there: had("x"), ask: block(0, pinned("10.0.0.1", "10.0.0.2")), says: "or create the allocation again with another range",
			again: func(p *grants.Memory) *grants.Claimant {
				return seeBlock(p, "again", 0, pinned("10.0.0.9", "10.0.0.10"))
			}},
		"a pool of addresses is named for a block": {pool: of(prefixes), ask: block(2), says: "not blocks of addresses; name another pool", do: addresses},
		"of two with one block one goes": {there: had("x"), ask: block(0, shows("10.0.0.1", "10.0.0.4")), says: "find out which of the two uses it, and delete the other",
			do: forget("x")},

		"a pool of addresses is named for a lease": {pool: of(leases(nil), prefixes), ask: lease(), says: "not single addresses; name another pool", do: addresses},
		"leases go": {pool: of(leases(ptr.To[int32](1))), there: func(p *grants.Memory) { seeLease(p, "x", leasedAs("10.0.0.1")) }, ask: lease(),
			says: "delete leases", do: forget("x")},
		"the quota of leases is raised": {pool: of(leases(ptr.To[int32](0))), ask: lease(), says: "or raise the quota",
			do: spec(func(s *v1alpha1.NetworkPoolSpec) { s.Leases.QuotaPerNamespace = ptr.To[int32](1) })},
		"a lease names another address": {pool: of(leases(nil)), there: had("x"), ask: lease(leaseFor("10.0.0.1")), says: "or create the lease again with another spec.address",
			again: func(p *grants.Memory) *grants.Claimant { return seeLease(p, "again", leaseFor("10.0.0.2")) }},
		"of two with one lease one goes": {pool: of(leases(nil)), there: had("x"), ask: lease(showsAddress("10.0.0.1")), says: "find out which of the two uses it, and delete the other",
			do: forget("x")},

		"a pool has room for a carved block": {pool: of(carvable, two), ask: carved(29), says: "add addresses to it", do: widen},
		"what else is carved goes": {pool: of(carvable, func(o *v1alpha1.NetworkPool) { o.Spec.Addresses = []string{"10.0.0.8-10.0.0.15"} }),
			there: func(p *grants.Memory) { seeBlock(p, "x", 4, has("10.0.0.8-10.0.0.11")) }, ask: carved(29), says: "or delete what else has blocks of it", do: forget("x")},
	} {
		t.Run(name, func(t *testing.T) {
			p := aPool(t, "10.0.0.1-10.0.0.31", c.pool...)
			if c.there != nil {
				c.there(p)
			}
			told := c.ask(p)
			if _, refused := p.Plan(noon, maxBatch, anyone); refused[told] == nil || !strings.Contains(refused[told].Message, c.says) {
				t.Fatalf("it is told %+v", refused[told])
			}
			if c.do != nil {
				c.do(p)
				told = p.Claimants[told.Owner.UID]
			}
			if c.again != nil {
				p.Forget(told.Owner.UID)
				told = c.again(p)
			}
			if _, refused := p.Plan(noon, maxBatch, anyone); p.Grants[told.Owner.UID] == nil {
				t.Errorf("it has nothing, and is told %+v", refused[told])
			}
		})
	}
}

// W29: what claims of machines are told where a pool serves failure domains.
func TestWhatAMachineLacksHelps(t *testing.T) {
	fill := func(addresses ...string) func(*grants.Memory) {
		return func(p *grants.Memory) {
			for _, a := range addresses {
				see(p, a, 0, remembers(a))
			}
		}
	}
	with := func(a ...string) func(*grants.Memory) {
		return spec(func(s *v1alpha1.NetworkPoolSpec) { s.Addresses = append(s.Addresses, a...) })
	}
	moveTo := func(domain string) func(*grants.Memory) {
		return func(p *grants.Memory) {
			p.Forget("uid-c")
			see(p, "c", 9, ofMachine(domain), func(c *ipamv1.IPAddressClaim) { c.UID = "uid-again" })
		}
	}
	for name, tc := range map[string]struct {
		there   func(*grants.Memory)
		domain  string
		without bool
		says    string
		do      func(*grants.Memory)
		want    string
	}{
		"a subnet serves the domain": {domain: "c", says: "add the failure domain to failureDomains of one of its spec.subnets", want: "10.1.0.1",
			do: spec(func(s *v1alpha1.NetworkPoolSpec) {
				s.Subnets[1].FailureDomains = append(s.Subnets[1].FailureDomains, "c")
			})},
		"a subnet has more addresses": {domain: "b", there: fill("10.2.0.1", "10.2.0.2"), says: "add addresses there", do: with("10.2.0.9"), want: "10.2.0.9"},
		"the domain has another subnet": {domain: "b", there: fill("10.2.0.1", "10.2.0.2"), says: "or a subnet for the failure domain", want: "10.3.0.1",
			do: spec(func(s *v1alpha1.NetworkPoolSpec) {
				s.Addresses = append(s.Addresses, "10.3.0.1")
				s.Subnets = append(s.Subnets, v1alpha1.Subnet{CIDR: "10.3.0.0/24", FailureDomains: []string{"b"}})
			})},
		"claims of the domain go":        {domain: "b", there: fill("10.2.0.1", "10.2.0.2"), says: "or delete machines or claims", do: forget("10.2.0.2"), want: "10.2.0.2"},
		"there is more for no domain":    {there: fill("10.0.0.1", "10.0.0.2"), says: "add addresses", do: with("10.0.0.9"), want: "10.0.0.9"},
		"the machine has a domain":       {there: fill("10.0.0.1", "10.0.0.2"), says: "or set the failureDomain of the machines", do: moveTo("a"), want: "10.1.0.1"},
		"the manager knows the machines": {domain: "a", without: true, says: "apply component-failure-domains.yaml of its release and restart it", want: "10.1.0.1"},
	} {
		t.Run(name, func(t *testing.T) {
			p := aPool(t, "", zoned)
			if tc.there != nil {
				tc.there(p)
			}
			a := New(Options{MachineOf: (&finder{}).of})
			if tc.without {
				a.MachineOf = nil
			}
			see(p, "c", 9, ofMachine(tc.domain))
			if got := planned(t, a, p, p.Claimants["uid-c"], noon); !strings.Contains(got, tc.says) {
				t.Fatalf("it is told %s", got)
			}
			if tc.do != nil {
				tc.do(p)
			}
			if tc.without {
				a = New(Options{MachineOf: (&finder{}).of})
			}
			c := p.Claimants["uid-c"]
			if c == nil {
				c = p.Claimants["uid-again"] // of the machine in its place
			}
			if got := planned(t, a, p, c, noon); got != tc.want {
				t.Errorf("it has, or is told, %s", got)
			}
		})
	}
}

// W29: a pool that moved away is opened as it says, also while clusterctl still has one of its claims.
func TestAPoolThatMovedIsOpened(t *testing.T) {
	p := aPool(t, "10.0.0.1-10.0.0.9")
	see(p, "a", 0, remembers("10.0.0.1"), isMoved, ends)
	closed := func() (string, string) { return p.Closed(noon) }
	if _, says := closed(); !strings.Contains(says, "release those in status.held") || !strings.Contains(says, "first, end the move of ns/a, or remove its annotation "+v1alpha1.DeleteForMoveAnnotation) {
		t.Fatal(says)
	}
	see(p, "a", 0, remembers("10.0.0.1"), ends, version("2"))
	if _, says := closed(); strings.Contains(says, "first, ") || !strings.Contains(says, "release those in status.held") {
		t.Fatal(says)
	}
	p.Base.SetAnnotations(map[string]string{v1alpha1.ReleaseHeldAnnotation: heldBy(p)[0]})
	p.ReleaseHeld()
	if reason, says := closed(); reason != "" {
		t.Errorf("it is closed by %s: %s", reason, says)
	}
}

// W29: a deleted claim that its Cluster owns is released when it is disowned.
func TestADisownedClaimIsReleased(t *testing.T) {
	scheme := runtime.NewScheme()
	if err := clusterv1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	cluster := &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "k", UID: "uid-k"}}
	a := New(Options{Client: fake.NewClientBuilder().WithScheme(scheme).WithObjects(cluster).Build()})
	p := aPool(t, "10.0.0.1-10.0.0.2")
	due := func() int {
		out, _ := p.Due(noon, 8, time.Minute, a.admission(t.Context(), p, noon), a.releases(t.Context(), p))
		return len(out.Release)
	}
	c := see(p, "a", 0, ofCluster("k"), remembers("10.0.0.1"), ends, ownedBy(clusterv1.ClusterKind, "k", "uid-k"))
	seeAddress(p, "a", "10.0.0.1", c.Owner.UID)
	if n := due(); n != 0 || !strings.Contains(p.ToTell[c].Message, "to release it now, take the owner reference off the claim") {
		t.Fatalf("%d are released, it is told %q", n, p.ToTell[c].Message)
	}
	see(p, "a", 0, ofCluster("k"), remembers("10.0.0.1"), ends, version("2"))
	if due() != 1 {
		t.Error("it is not released")
	}
}

// W29: a carved pool that has all of its blocks.
func TestACarvedPoolThatIsFull(t *testing.T) {
	for name, tc := range map[string]struct {
		says string
		do   func(*grants.Memory)
		asks int
	}{
		"it may have more blocks": {says: "raise that", do: spec(func(s *v1alpha1.NetworkPoolSpec) { s.Carve.Blocks.Max = 2 }), asks: 1},
		"claims go":               {says: "or delete claims", do: forget("x")},
	} {
		t.Run(name, func(t *testing.T) {
			p := aChild(t, isOpen("pool-1", "10.0.0.4/30"), func(o *v1alpha1.NetworkPool) { o.Spec.Carve.Blocks = v1alpha1.CarvedBlocks{Min: 1, Max: 1} })
			shown(p, newBlock("pool-1", firstBlock))
			p.TurnBlocks(noon, time.Minute)
			for i, name := range []string{"x", "y", "z", "w"} {
				see(p, name, i)
			}
			p.Plan(noon, 9, anyone)
			c := see(p, "c", 9)
			p.ForgetLack()
			if _, refused := p.Plan(noon, 9, anyone); refused[c] == nil || !strings.Contains(refused[c].Message, tc.says) {
				t.Fatalf("it is told %+v", refused[c])
			}
			tc.do(p)
			p.ForgetLack()
			p.Plan(noon, 9, anyone)
			p.TurnBlocks(noon, time.Minute)
			if got := p.Carved.Todo.Ask; got != tc.asks || (p.Grants["uid-c"] != nil) == (tc.asks > 0) {
				t.Errorf("it asks for %d blocks, and grants %v", got, p.Grants["uid-c"])
			}
		})
	}
	p := aChild(t)
	c := seeBlock(p, "b", 8)
	if _, refused := p.Plan(noon, 9, anyone); refused[c] == nil || !strings.Contains(refused[c].Message, "ask for less, or name another pool") {
		t.Fatalf("it is told %+v", refused[c])
	}
	p.Forget(c.Owner.UID)
	seeBlock(p, "b", 4)
	p.ForgetLack()
	p.Plan(noon, 9, anyone)
	if p.TurnBlocks(noon, time.Minute); p.Carved.Todo.Ask != 1 {
		t.Errorf("it asks for %+v", p.Carved.Todo)
	}
}

// W29: a mirror that leaves nothing is helped by its pool, of which it has the spec.
func TestAMirrorThatLeavesNothingIsWidened(t *testing.T) {
	excluded := func(addresses string) func(*v1alpha1.NetworkPool) {
		return func(o *v1alpha1.NetworkPool) { o.Spec.Reserved = []v1alpha1.ReservedRange{{Addresses: addresses}} }
	}
	told := func(addresses string, change ...func(*v1alpha1.NetworkPool)) string {
		p := aMirror(t, addresses, change...)
		c := see(p, "c", 0, naming(mirrored))
		_, refused := p.Plan(noon, maxBatch, New(Options{}).admission(t.Context(), p, noon))
		if no := refused[c]; no != nil {
			return no.Message
		}
		return ""
	}
	if says := told("10.0.0.10", excluded("10.0.0.10")); !strings.Contains(says, "add addresses to InClusterIPPool ns/p, or exclude fewer") {
		t.Error(says)
	}
	if says := told("10.0.0.10-10.0.0.11", excluded("10.0.0.10")); says != "" {
		t.Errorf("with more addresses: %s", says)
	}
	if says := told("10.0.0.10"); says != "" {
		t.Errorf("with fewer exclusions: %s", says)
	}
}

// W29: a claim that waits for those of paused Clusters is served when one of these is resumed.
func TestAPausedCrowdIsResumed(t *testing.T) {
	p := aPool(t, "10.0.0.1-10.0.15.200")
	is := func(paused bool) func(*grants.Claimant) grants.Ruling {
		return func(c *grants.Claimant) grants.Ruling {
			return grants.Ruling{Waits: c.Owner.Name != "waits" && (paused || c.Owner.Name != "c0")}
		}
	}
	for i := range grants.MaxInFlight {
		c := see(p, fmt.Sprint("c", i), 0, func(c *ipamv1.IPAddressClaim) { c.Namespace = fmt.Sprint("ns-", i) })
		if n, _ := p.Plan(noon, 1, anyone); n != 1 {
			t.Fatalf("grant %d is not made", i)
		}
		p.Grants[c.Owner.UID].Committed = true
	}
	for _, g := range p.Grants {
		g.Begun = true // their writes may land yet, so they stay in flight
	}
	waits := see(p, "waits", 1, func(c *ipamv1.IPAddressClaim) { c.Namespace = "other" })
	p.GiveBack(is(true))
	if _, told := p.Plan(noon, 1, is(true)); told[waits] == nil || !strings.Contains(told[waits].Message, "are paused; resume one of them") {
		t.Fatalf("it is told %+v", told[waits])
	}
	p.Grants["uid-c0"].Confirmed = true // as what was resumed is served
	if n, told := p.Plan(noon, 1, is(false)); n != 1 || p.Grants[waits.Owner.UID] == nil {
		t.Errorf("%d are granted, it is told %+v", n, told[waits])
	}
}

// W29: a pool that a manager of one namespace does not serve is served by one without.
func TestAManagerWithoutANamespaceServesGlobalPools(t *testing.T) {
	global := pools.Key{Kind: v1alpha1.GlobalNetworkPoolKind, Name: "g"}
	if no := New(Options{Namespace: "ns"}).unserved(global, nil); no == nil || !strings.Contains(no.Message, "run a manager without --namespace for global pools") {
		t.Errorf("%+v", no)
	}
	if no := New(Options{}).unserved(global, nil); no != nil {
		t.Errorf("%+v", no)
	}
	if no := New(Options{}).unserved(mirrorKey, nil); no == nil || !strings.Contains(no.Message, "add the component in-cluster-pools, or hand the pools back") {
		t.Errorf("%+v", no)
	}
	if no := New(Options{InClusterPools: true}).unserved(mirrorKey, nil); no != nil {
		t.Errorf("%+v", no)
	}
}

// W29: a block for a pool that is carved from another one is given when it is created again with the right pools.
func TestABlockOfTheRightPoolsIsGiven(t *testing.T) {
	a := New(Options{ID: "me", Recorder: events.NewFakeRecorder(9)})
	a.publish(aChild(t, func(o *v1alpha1.NetworkPool) { carvedOf(o, "another") }).Base)
	right := aChild(t).Base.DeepCopyObject().(*v1alpha1.NetworkPool)
	right.Name, right.UID = "right", "right-uid"
	a.publish(right)
	p := aPool(t, "10.0.0.0-10.0.0.15", func(o *v1alpha1.NetworkPool) {
		o.Name, o.UID, o.Spec.AllocateReservedIPAddresses, o.Spec.Carvable = siteKey.Name, "site-uid", true, &v1alpha1.Carvable{}
	})
	p.Key = siteKey
	a.publish(p.Base)
	told := func(o *v1alpha1.IPAllocation) string {
		p.Observe(blocks.Of(o))
		if no := a.rules(t.Context(), p, noon)(p.Claimants[o.UID]).Refused; no != nil {
			return no.Message
		}
		return ""
	}
	if says := told(newBlock("b-1")); !strings.Contains(says, "create the allocation again with the right pools") {
		t.Error(says)
	}
	if says := told(newBlock("b-2", func(o *v1alpha1.IPAllocation) { o.Spec.ChildPoolRef.Name = "right" })); says != "" {
		t.Error(says)
	}
}
