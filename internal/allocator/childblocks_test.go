package allocator

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/carve"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/grants"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/kinds/blocks"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/grantstest"
)

func elsewhere(o *v1alpha1.IPAllocation)   { o.Spec.PoolRef.Name = "another" }
func pausedBlock(o *v1alpha1.IPAllocation) { grantstest.SetPausedAnnotation(o) }
func plain(o *v1alpha1.NetworkPool)        { o.Spec = v1alpha1.NetworkPoolSpec{CIDR: "10.0.1.0/24"} }

func TestPlanBlocks(t *testing.T) {
	first := grantstest.WithOpenBlock("pool-1", "10.0.0.4/30")
	drains := func(o *v1alpha1.NetworkPool) { o.Status.Blocks[0].Draining = true }
	paused := func(o *v1alpha1.NetworkPool) { grantstest.SetPausedAnnotation(o) }
	unknown := func(p *grants.PoolState) { p.Carved.Parent = grants.ParentPool{} }
	routed := func(o *v1alpha1.NetworkPool) { o.Spec.Carve.Network = v1alpha1.RoutedNetwork }
	inUse := func(p *grants.PoolState) { grantstest.ObserveAddress(p, "a", "10.0.0.5", "uid-a") }
	tests := map[string]struct {
		pool   []func(*v1alpha1.NetworkPool)
		here   func(*grants.PoolState)
		blocks []*v1alpha1.IPAllocation
		want   carve.Decision
		reason string
	}{
		"ItsOwn":      {blocks: []*v1alpha1.IPAllocation{grantstest.NewBlock("pool-1", grantstest.FirstBlock)}, want: carve.Decision{Open: []string{"pool-1"}}},
		"NoNetwork":   {here: unknown, blocks: []*v1alpha1.IPAllocation{grantstest.NewBlock("pool-1", grantstest.FirstBlock)}, reason: "its claims would have another gateway than the parent's"},
		"Routed":      {pool: []func(*v1alpha1.NetworkPool){routed}, here: unknown, blocks: []*v1alpha1.IPAllocation{grantstest.NewBlock("pool-1", grantstest.FirstBlock)}, want: carve.Decision{Open: []string{"pool-1"}}, reason: "the block is a network by itself"},
		"AnotherPool": {blocks: []*v1alpha1.IPAllocation{grantstest.NewBlock("pool-1", grantstest.FirstBlock, elsewhere)}, want: carve.Decision{NewBlocks: 1}, reason: "a pool of the name was carved from another one before"},
		"AnotherEnds": {blocks: []*v1alpha1.IPAllocation{grantstest.NewBlock("pool-1", grantstest.FirstBlock, elsewhere, grantstest.Deleted), grantstest.NewBlock("pool-2")}, want: carve.Decision{Release: []string{"pool-1"}}},
		"AnotherUsed": {here: inUse, blocks: []*v1alpha1.IPAllocation{grantstest.NewBlock("pool-1", grantstest.FirstBlock, elsewhere, grantstest.Deleted), grantstest.NewBlock("pool-2")}},
		"NowPlain":    {pool: []func(*v1alpha1.NetworkPool){plain}, blocks: []*v1alpha1.IPAllocation{grantstest.NewBlock("pool-1", grantstest.FirstBlock)}, reason: "the parent's sweep deletes it"},
		"PlainGives":  {pool: []func(*v1alpha1.NetworkPool){plain}, blocks: []*v1alpha1.IPAllocation{grantstest.NewBlock("pool-1", grantstest.FirstBlock, grantstest.Deleted)}, want: carve.Decision{Release: []string{"pool-1"}}},
		"PlainUses":   {pool: []func(*v1alpha1.NetworkPool){plain}, here: inUse, blocks: []*v1alpha1.IPAllocation{grantstest.NewBlock("pool-1", grantstest.FirstBlock, grantstest.Deleted)}},
		"Paused":      {blocks: []*v1alpha1.IPAllocation{grantstest.NewBlock("pool-1", pausedBlock)}, reason: "it is one of those that the pool has"},
		"Refused":     {blocks: []*v1alpha1.IPAllocation{grantstest.NewBlock("pool-1", grantstest.Refused)}, reason: "another would be refused too"},
		"ByHand":      {blocks: []*v1alpha1.IPAllocation{grantstest.NewBlock("vips", grantstest.Refused)}, want: carve.Decision{NewBlocks: 1}, reason: "a request of a user that cannot be served does not keep others from growing"},
		"Unanswered":  {blocks: []*v1alpha1.IPAllocation{grantstest.NewBlock("vips")}, want: carve.Decision{NewBlocks: 1}, reason: "its label may be another manager's"},
		"GoneInUse":   {pool: []func(*v1alpha1.NetworkPool){first, drains}, here: inUse, want: carve.Decision{Recreate: []string{"pool-1"}, NewBlocks: 1}},
		"PausedInUse": {pool: []func(*v1alpha1.NetworkPool){first, drains, paused}, here: inUse, reason: "a pool that is paused asks for nothing"},
		"AskedUnderAnother": {
			pool: []func(*v1alpha1.NetworkPool){first, drains}, here: inUse, blocks: []*v1alpha1.IPAllocation{grantstest.NewBlock("pool-2", grantstest.WithPinnedRange("10.0.0.4", "10.0.0.7"))},
			reason: "it is on its way under another name",
		},
		"BackUnderAnother": {
			pool: []func(*v1alpha1.NetworkPool){first, drains}, here: inUse, blocks: []*v1alpha1.IPAllocation{grantstest.NewBlock("pool-2", grantstest.FirstBlock)},
			want: carve.Decision{Open: []string{"pool-2"}}, reason: "it takes the place of the other",
		},
		"SharedIdle": {
			blocks: []*v1alpha1.IPAllocation{grantstest.NewBlock("pool-1", grantstest.FirstBlock, grantstest.Shared)}, here: func(p *grants.PoolState) { grantstest.ObserveClaim(p, "b", 1) },
			want: carve.Decision{NewBlocks: 1}, reason: "it is not opened while another object has some of it",
		},
		"RefusedRecord": {
			blocks: []*v1alpha1.IPAllocation{grantstest.NewBlock("pool-1", grantstest.Refused, func(o *v1alpha1.IPAllocation) { o.Annotations[v1alpha1.AddressAnnotation] = "10.0.0.4/30" })},
			here:   func(p *grants.PoolState) { grantstest.ObserveClaim(p, "b", 1) }, want: carve.Decision{NewBlocks: 1}, reason: "it was restored, and its addresses are another's: others may come",
		},
		"AllReserved": {
			pool: []func(*v1alpha1.NetworkPool){first, func(o *v1alpha1.NetworkPool) { o.Spec.Reserved = []v1alpha1.ReservedRange{{Addresses: "10.0.0.0/28"}} }},
			here: func(p *grants.PoolState) { grantstest.ObserveClaim(p, "b", 1) }, blocks: []*v1alpha1.IPAllocation{grantstest.NewBlock("pool-1", grantstest.FirstBlock)},
			want: carve.Decision{NewBlocks: 1}, reason: "the next block may leave something",
		},
		"MovedDeleted": {
			pool: []func(*v1alpha1.NetworkPool){first, grantstest.WithOpenBlock("pool-2", "10.0.0.8/30"), func(o *v1alpha1.NetworkPool) {
				o.DeletionTimestamp, o.Finalizers = ptr.To(metav1.NewTime(grantstest.Noon)), []string{v1alpha1.PoolFinalizer}
				o.Status.Held = []v1alpha1.HeldRange{{First: "10.0.0.4", Last: "10.0.0.7", Reason: v1alpha1.MovedReason}}
			}},
			blocks: []*v1alpha1.IPAllocation{grantstest.NewBlock("pool-2", grantstest.WithBlockAddresses("10.0.0.8/30", "10.0.0.8", "10.0.0.11"))},
			want:   carve.Decision{Drain: []string{"pool-1", "pool-2"}}, reason: "a pool that ends releases what it has, whatever was moved",
		},
		"AnotherRange": {
			pool: []func(*v1alpha1.NetworkPool){first}, here: inUse, blocks: []*v1alpha1.IPAllocation{grantstest.NewBlock("pool-1", grantstest.WithBlockAddresses("10.0.0.8/30", "10.0.0.8", "10.0.0.11"))},
			want: carve.Decision{Drain: []string{"pool-1"}, NewBlocks: 1}, reason: "a user has created another one of its name",
		},
		"AnotherRangeUnused": {
			pool:   []func(*v1alpha1.NetworkPool){first, func(o *v1alpha1.NetworkPool) { o.Status.Blocks[0].Draining = true }},
			blocks: []*v1alpha1.IPAllocation{grantstest.NewBlock("pool-1", grantstest.WithBlockAddresses("10.0.0.8/30", "10.0.0.8", "10.0.0.11"))},
			want:   carve.Decision{Close: []string{"pool-1"}, NewBlocks: 1}, reason: "then the other one may be opened",
		},
		"Moved": {
			pool: []func(*v1alpha1.NetworkPool){first}, blocks: []*v1alpha1.IPAllocation{grantstest.NewBlock("pool-1", grantstest.FirstBlock, grantstest.MovedAway)},
			want: carve.Decision{Drain: []string{"pool-1"}}, reason: "its addresses are another cluster's now: none is asked for in its place",
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			p := grantstest.NewChildPool(t, tt.pool...)
			if tt.here != nil {
				tt.here(p)
			}
			for _, o := range tt.blocks {
				b := grantstest.ObserveBlock(p, o)
				p.Carved.VerifyBlock(b.UID, b.Name, p.Term.CurrentTerm())
			}
			a := New(Options{ManagerID: "me", Clock: clocktesting.NewFakeClock(grantstest.Noon)})
			p.Carved.ResetShortfall()
			p.Planner.PlanGrants(grantstest.Noon, 9, a.admission.admissionRules(t.Context(), p, grantstest.Noon))
			p.Growth.PlanBlocks(grantstest.Noon, time.Minute)
			if diff := cmp.Diff(tt.want, p.Carved.Decision); diff != "" {
				t.Errorf("%s (-want +got):\n%s", tt.reason, diff)
			}
		})
	}
}

// TestEndOfBlockEnqueuesChild checks that the end of a block reaches its pool from the object alone: the parent may
// have forgotten the block before.
func TestEndOfBlockEnqueuesChild(t *testing.T) {
	for name, end := range map[string]func(*Allocator, *v1alpha1.IPAllocation){
		"Watched": func(a *Allocator, o *v1alpha1.IPAllocation) { a.ForgetObject(o) },
		"Relisted": func(a *Allocator, _ *v1alpha1.IPAllocation) {
			for _, o := range a.ObjectsNotListed(&v1alpha1.IPAllocation{}, nil) {
				a.ForgetObject(o)
			}
		},
		"OurOwn": func(a *Allocator, o *v1alpha1.IPAllocation) {
			p := a.pools.getOrCreatePool(grantstest.SiteKey)
			m := p.Lock()
			c := *blocks.NewClaimant(o)
			m.Unlock()
			a.feed.forgetClaimant(p, c)
		},
	} {
		t.Run(name, func(t *testing.T) {
			a := New(Options{ManagerID: "me", Clock: clocktesting.NewFakeClock(grantstest.Noon)})
			o := grantstest.NewBlock("pool-1", grantstest.FirstBlock)
			a.ObserveObject(o)
			site := a.pools.lockPool(grantstest.SiteKey)
			site.ForgetClaimant(o.UID)
			site.Unlock()
			end(a, o)
			m := a.pools.lockPool(grantstest.PoolKey)
			defer m.Unlock()
			if len(m.Carved.Blocks) > 0 {
				t.Errorf("its pool has it still: %v", m.Carved.Blocks)
			}
		})
	}
}

// createRecorder is an API server that records what is created.
type createRecorder struct {
	client.Client
	made []client.Object
}

func (c *createRecorder) Create(_ context.Context, o client.Object, _ ...client.CreateOption) error {
	o.SetUID("made")
	c.made = append(c.made, o)
	return nil
}

// TestBlockHasWatchLabel checks that a manager that serves only objects with a label sets it on the blocks that it
// requests.
func TestBlockHasWatchLabel(t *testing.T) {
	api := &createRecorder{}
	a := New(Options{ManagerID: "me", Client: api, WatchFilter: "blue", Clock: clocktesting.NewFakeClock(grantstest.Noon)})
	if err := a.requests.createBlock(t.Context(), grants.NewPool(grantstest.NewChildPool(t)), grants.BlockRequest{Verb: carve.CreateBlock, Name: "pool-1"}); err != nil {
		t.Fatal(err)
	}
	if got := api.made[0].GetLabels()[clusterv1.WatchLabel]; got != "blue" {
		t.Errorf("it has the label %q", got)
	}
	if api.made[0].GetNamespace() != "ns" || !slices.Contains(api.made[0].GetFinalizers(), v1alpha1.CarvedPoolFinalizer) {
		t.Errorf("made %+v", api.made[0])
	}
}

// TestMayHaveBlock checks which pools may have a block: a record alone, which the creator of an object can write,
// makes no difference.
func TestMayHaveBlock(t *testing.T) {
	record := func(o *v1alpha1.IPAllocation) {
		o.Annotations[v1alpha1.AddressAnnotation] = "10.0.0.4/30"
		o.Finalizers = append(o.Finalizers, v1alpha1.IPAllocationFinalizer)
	}
	allows := func(lengths ...int32) func(*v1alpha1.NetworkPool) {
		return func(o *v1alpha1.NetworkPool) {
			o.Spec.Carvable = &v1alpha1.Carvable{PrefixLengths: lengths, MaxBlocksPerNamespace: ptr.To[int32](1)}
		}
	}
	another := grantstest.NewBlock("another", grantstest.WithBlockAddresses("10.0.0.8/30", "10.0.0.8", "10.0.0.11"))
	tests := map[string]struct {
		site        func(*v1alpha1.NetworkPool)
		others      []*v1alpha1.IPAllocation
		block       *v1alpha1.IPAllocation
		wantRefusal string // a part of the refusal; empty: it has its block
	}{
		"Asks":             {site: allows(), block: grantstest.NewBlock("pool-1")},
		"NotCarvable":      {block: grantstest.NewBlock("pool-1"), wantRefusal: "carvable is not set"},
		"Forged":           {block: grantstest.NewBlock("pool-1", record), wantRefusal: "carvable is not set"},
		"ForgedLength":     {site: allows(28), block: grantstest.NewBlock("pool-1", record), wantRefusal: "allows /28"},
		"ForgedTooMany":    {site: allows(), others: []*v1alpha1.IPAllocation{another}, block: grantstest.NewBlock("pool-1", record), wantRefusal: "maxBlocksPerNamespace"},
		"MovedHere":        {site: allows(), block: grantstest.NewBlock("pool-1", record)},
		"Has":              {block: grantstest.NewBlock("pool-1", grantstest.FirstBlock)},
		"HasAnotherParent": {site: allows(), block: grantstest.NewBlock("x-1", func(o *v1alpha1.IPAllocation) { o.Spec.ChildPoolRef.Name = "x" }, record), wantRefusal: "does not exist"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			a := New(Options{ManagerID: "me", Clock: clocktesting.NewFakeClock(grantstest.Noon), Recorder: events.NewFakeRecorder(9)})
			a.relations.publishDeclaration(grantstest.NewChildPool(t).Base.Pool)
			var change []func(*v1alpha1.NetworkPool)
			if tt.site != nil {
				change = append(change, tt.site)
			}
			p := grantstest.NewPool(t, "10.0.0.0-10.0.0.15", append(change, func(o *v1alpha1.NetworkPool) {
				o.Name, o.UID, o.Spec.AllocateReservedIPAddresses = grantstest.SiteKey.Name, "site-uid", true
			})...)
			p.Base.Key = grantstest.SiteKey
			a.relations.publishDeclaration(p.Base.Pool)
			for _, o := range append(tt.others, tt.block) {
				p.ObserveClaimant(blocks.NewClaimant(o))
			}
			c := p.Claimants.ByUID[tt.block.UID]
			refusal := a.admission.admissionRules(t.Context(), p, grantstest.Noon)(c).Refusal
			if refusal == nil {
				_, refusal = p.Planner.ChooseRange(c)
			}
			if (tt.wantRefusal == "") != (refusal == nil) || (refusal != nil && !strings.Contains(refusal.Message, tt.wantRefusal)) {
				t.Errorf("refused: %v", refusal)
			}
		})
	}
}

// TestGlobalChildIsNoTenant checks that a user who may create a global pool is no tenant: its blocks count for no
// namespace, and no namespace selector excludes it.
func TestGlobalChildIsNoTenant(t *testing.T) {
	global := func(name string) func(*v1alpha1.IPAllocation) {
		return func(o *v1alpha1.IPAllocation) {
			o.Namespace, o.Spec.ChildPoolRef.Kind, o.Spec.PoolRef.Kind = "home", v1alpha1.GlobalNetworkPoolKind, v1alpha1.GlobalNetworkPoolKind
			o.Name, o.Spec.ChildPoolRef.Name = name+"-1", name
			o.UID = types.UID("uid-" + o.Name)
		}
	}
	a := New(Options{ManagerID: "me", BlockNamespace: "home", Clock: clocktesting.NewFakeClock(grantstest.Noon)})
	key := pools.Key{Kind: v1alpha1.GlobalNetworkPoolKind, Name: grantstest.SiteKey.Name}
	site := &v1alpha1.GlobalNetworkPool{ObjectMeta: metav1.ObjectMeta{Name: key.Name, UID: "site-uid", ResourceVersion: "10", Generation: 1}}
	site.Spec.CIDR, site.Spec.Carvable = "10.0.0.0/24", &v1alpha1.Carvable{MaxBlocksPerNamespace: ptr.To[int32](1)}
	site.Spec.NamespaceSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"team": "a"}}
	a.relations.publishDeclaration(site)
	m := a.pools.lockPool(key)
	defer m.Unlock()
	m.SetBasePool(site)
	m.Term.Holder = true
	m.RebuildLedger(&grants.ListedObjects{})
	for _, name := range []string{"a", "b"} {
		child := &v1alpha1.GlobalNetworkPool{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name), Generation: 1}}
		child.Spec.Carve = &v1alpha1.Carve{PoolRef: v1alpha1.PoolReference{Kind: key.Kind, Name: key.Name}, PrefixLength: 30}
		a.relations.publishDeclaration(child)
		o := grantstest.NewBlock("", global(name))
		m.ObserveClaimant(blocks.NewClaimant(o))
		if refusal := a.admission.admissionRules(t.Context(), m, grantstest.Noon)(m.Claimants.ByUID[o.UID]).Refusal; refusal != nil {
			t.Errorf("%s: %s", o.Name, refusal.Message)
		}
	}
	plan := func(most int) {
		t.Helper()
		if granted, _ := m.Planner.PlanGrants(grantstest.Noon, 9, grantstest.AdmitAll); granted != most {
			t.Errorf("%d have their block, not %d", granted, most)
		}
	}
	plan(2)
	for _, name := range []string{"c", "d"} { // in the namespace of the blocks above
		m.ObserveClaimant(blocks.NewClaimant(grantstest.NewBlock("", global(name), func(o *v1alpha1.IPAllocation) { o.Spec.ChildPoolRef.Kind = v1alpha1.NetworkPoolKind })))
	}
	plan(1)
}

// TestVerifyOwnerGone checks that a block is an orphan when no pool of the name exists, or one that is carved from
// another pool.
func TestVerifyOwnerGone(t *testing.T) {
	tests := map[string]struct {
		pool *v1alpha1.NetworkPool
		gone string
	}{
		"Gone":    {gone: "NetworkPool ns/pool does not exist"},
		"There":   {pool: grantstest.NewChildPool(t).Base.Pool.(*v1alpha1.NetworkPool)},
		"Plain":   {pool: grantstest.NewChildPool(t, plain).Base.Pool.(*v1alpha1.NetworkPool), gone: "NetworkPool ns/pool is not carved from NetworkPool ns/site"},
		"Another": {pool: grantstest.NewChildPool(t, func(o *v1alpha1.NetworkPool) { grantstest.CarveFrom(o, "another") }).Base.Pool.(*v1alpha1.NetworkPool), gone: "NetworkPool ns/pool is not carved from NetworkPool ns/site"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			a := New(Options{ManagerID: "me", Client: clusterListAPI{}, Live: &childPoolAPI{pool: tt.pool}, Clock: clocktesting.NewFakeClock(grantstest.Noon)})
			if tt.pool != nil {
				a.relations.publishDeclaration(tt.pool)
			}
			c := blocks.NewClaimant(grantstest.NewBlock("pool-1", grantstest.FirstBlock))
			if gone, err := a.owners.verifyOwnerGone(t.Context(), grantstest.SiteKey, c); gone != tt.gone || err != nil {
				t.Errorf("%q, %v", gone, err)
			}
			if found := a.lookups.newOwnerLookup(t.Context())(grantstest.SiteKey, c); (found == grants.OwnerSeenAlive) != (tt.gone == "") {
				t.Errorf("the cache says %v", found)
			}
		})
	}
}

// clusterListAPI is an API server with the Clusters of the namespace of a pool.
type clusterListAPI struct {
	client.Client
	clusters []*clusterv1.Cluster
	err      error
}

func (a clusterListAPI) List(_ context.Context, list client.ObjectList, _ ...client.ListOption) error {
	if all, ok := list.(*clusterv1.ClusterList); ok {
		for _, c := range a.clusters {
			all.Items = append(all.Items, *c)
		}
	}
	return a.err
}

// TestPoolIsSeenPausedWithItsNamespace checks that a pool is seen as paused with any paused Cluster of its namespace.
// Where there is no Cluster, the Clusters may have been moved.
func TestPoolIsSeenPausedWithItsNamespace(t *testing.T) {
	tests := map[string]struct {
		around    clusterListAPI
		published grants.OwnerSeen
		found     grants.OwnerSeen
	}{
		"no Cluster is there":              {found: grants.OwnerSeenAlive},
		"none is there any more":           {published: grants.OwnerSeenPaused, found: grants.OwnerUnknown},
		"one runs":                         {around: clusterListAPI{clusters: []*clusterv1.Cluster{prod()}}, published: grants.OwnerSeenPaused, found: grants.OwnerSeenAlive},
		"one of two is paused":             {around: clusterListAPI{clusters: []*clusterv1.Cluster{prod(pausedCluster), prod()}}, found: grants.OwnerSeenPaused},
		"one is moved, and is unpaused":    {around: clusterListAPI{clusters: []*clusterv1.Cluster{prod(), prod(markedCluster, deletedCluster)}}, found: grants.OwnerSeenPaused},
		"the Clusters could not be listed": {around: clusterListAPI{err: errors.New("slow")}, found: grants.OwnerUnknown},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			a := New(Options{ManagerID: "me", Client: tt.around, Clock: clocktesting.NewFakeClock(grantstest.Noon)})
			a.relations.publishDeclaration(grantstest.NewChildPool(t).Base.Pool)
			c := blocks.NewClaimant(grantstest.NewBlock("pool-1", grantstest.FirstBlock))
			c.PublishedOwnerSeen = tt.published
			if found := a.lookups.newOwnerLookup(t.Context())(grantstest.SiteKey, c); found != tt.found {
				t.Errorf("found %v, not %v", found, tt.found)
			}
		})
	}
}

// TestChildEnqueuesOnlyItsParent checks that a new pool enqueues its parent, but not the other pools that are carved
// from the parent: a thousand may come at the start.
func TestChildEnqueuesOnlyItsParent(t *testing.T) {
	a := New(Options{ManagerID: "me", Clock: clocktesting.NewFakeClock(grantstest.Noon)})
	woken := map[pools.Key]int{}
	a.Start(t.Context(), func(key pools.Key) { woken[key]++ })
	for _, name := range []string{"a", "b", "c"} {
		o := grantstest.NewChildPool(t).Base.Pool.DeepCopyObject().(*v1alpha1.NetworkPool)
		o.Name, o.UID = name, types.UID(name)
		a.relations.publishDeclaration(o)
	}
	if diff := cmp.Diff(map[pools.Key]int{grantstest.SiteKey: 3}, woken); diff != "" {
		t.Error(diff)
	}
	clear(woken)
	a.relations.withdrawDeclaration(grantstest.SiteKey) // the parent is unknown
	site := grantstest.NewPool(t, "10.0.0.0-10.0.0.15").Base.Pool.(*v1alpha1.NetworkPool)
	site.Name = grantstest.SiteKey.Name
	if a.relations.publishDeclaration(site); len(woken) != 3 {
		t.Errorf("the parent wakes %v", woken)
	}
	site.Generation++
	site.Spec.Carve = &v1alpha1.Carve{PoolRef: v1alpha1.PoolReference{Name: "a"}, PrefixLength: 30}
	if a.relations.publishDeclaration(site); len(woken) != 4 { // a circle ends
		t.Errorf("woken: %v", woken)
	}
}

// TestParentOfAnotherShardEnqueuesChildren checks that a parent that another manager serves, and that is carved
// itself, enqueues its children when its addresses change without a change of its spec.
func TestParentOfAnotherShardEnqueuesChildren(t *testing.T) {
	woken := map[pools.Key]int{}
	a := New(Options{ManagerID: "me", Clock: clocktesting.NewFakeClock(grantstest.Noon)})
	a.Start(t.Context(), func(key pools.Key) { woken[key]++ })
	a.relations.publishDeclaration(grantstest.NewChildPool(t).Base.Pool)
	site := grantstest.NewChildPool(t).Base.Pool.(*v1alpha1.NetworkPool)
	grantstest.CarveFrom(site, "root")
	site.Name, site.UID = grantstest.SiteKey.Name, "site-uid"
	a.unserved.observePoolOnly(a.pools.getOrCreatePool(grantstest.SiteKey), site, grantstest.Noon)
	clear(woken)
	more := site.DeepCopy()
	grantstest.WithOpenBlock("site-1", "10.0.0.0/28")(more)
	more.ResourceVersion = "11"
	if a.unserved.observePoolOnly(a.pools.getOrCreatePool(grantstest.SiteKey), more, grantstest.Noon); woken[grantstest.PoolKey] != 1 {
		t.Errorf("woken: %v", woken)
	}
	if got := a.relations.parentForPool(grantstest.NewChildPool(t).Base.Pool); got.NetworkFor == nil || got.AddressBits != 32 {
		t.Errorf("it knows %+v of its parent", got)
	}
}
