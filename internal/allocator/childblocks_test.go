package allocator

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/meta"
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
)

// Tests of what a carved pool does with the blocks that it observes (R13).

var siteKey = pools.Key{Kind: v1alpha1.NetworkPoolKind, Namespace: "ns", Name: "site"}

// newChildPool returns a pool that is carved from site in blocks of /30, and that this manager holds.
func newChildPool(t *testing.T, change ...func(*v1alpha1.NetworkPool)) *grants.PoolState {
	t.Helper()
	p := newTestPool(t, "", append([]func(*v1alpha1.NetworkPool){func(o *v1alpha1.NetworkPool) { carvedOf(o, siteKey.Name) }}, change...)...)
	p.Carved.Parent = grants.ParentPool{AddressBits: 32, NetworkFor: p.Space.Layout.NetworkForAddress}
	p.RebuildLedger(&grants.ListedObjects{})
	return p
}

// carvedOf makes a pool carved from another one.
func carvedOf(o *v1alpha1.NetworkPool, parent string) {
	o.Spec = v1alpha1.NetworkPoolSpec{AllocateReservedIPAddresses: true, Carve: &v1alpha1.Carve{
		PoolRef: v1alpha1.PoolReference{Name: parent}, PrefixLength: 30, Blocks: v1alpha1.CarvedBlocks{Min: 1, Max: 3},
	}}
}

// isOpen puts a block on record as open.
func isOpen(name, prefix string) func(*v1alpha1.NetworkPool) {
	return func(o *v1alpha1.NetworkPool) {
		o.Status.Blocks = append(o.Status.Blocks, v1alpha1.CarvedBlock{Range: prefix, Allocation: name, UID: "uid-" + name, Prefix: 24})
	}
}

// newBlock returns a block of site for the pool, with our finalizer. It has no addresses yet.
func newBlock(name string, change ...func(*v1alpha1.IPAllocation)) *v1alpha1.IPAllocation {
	o := &v1alpha1.IPAllocation{ObjectMeta: metav1.ObjectMeta{
		Namespace: "ns", Name: name, UID: types.UID("uid-" + name), ResourceVersion: "5", Generation: 1,
		CreationTimestamp: metav1.NewTime(noon), Annotations: map[string]string{}, Finalizers: []string{v1alpha1.CarvedPoolFinalizer},
	}}
	o.Spec = v1alpha1.IPAllocationSpec{
		PoolRef: v1alpha1.PoolReference{Name: siteKey.Name}, Type: v1alpha1.PoolAllocation, PrefixLength: ptr.To[int32](30),
		ChildPoolRef: &v1alpha1.PoolReference{Name: testKey.Name},
	}
	for _, f := range change {
		f(o)
	}
	return o
}

// withBlockAddresses sets the addresses of a block, as the parent's holder writes them.
func withBlockAddresses(prefix, first, last string) func(*v1alpha1.IPAllocation) {
	return func(o *v1alpha1.IPAllocation) {
		o.Annotations[v1alpha1.AddressAnnotation] = prefix
		o.Finalizers = append(o.Finalizers, v1alpha1.IPAllocationFinalizer)
		withAllocatedStatus(first, last)(o)
	}
}

var firstBlock = withBlockAddresses("10.0.0.4/30", "10.0.0.4", "10.0.0.7")

func elsewhere(o *v1alpha1.IPAllocation) { o.Spec.PoolRef.Name = "another" }
func deleted(o *v1alpha1.IPAllocation)   { o.DeletionTimestamp = ptr.To(metav1.NewTime(noon)) }
func movedAway(o *v1alpha1.IPAllocation) {
	deleted(o)
	o.Annotations[v1alpha1.DeleteForMoveAnnotation] = ""
}
func pausedBlock(o *v1alpha1.IPAllocation) { setPausedAnnotation(o) }
func sharedBlock(o *v1alpha1.IPAllocation) {
	o.Status.Conditions = append(o.Status.Conditions, metav1.Condition{Type: v1alpha1.OverlapCondition, Status: metav1.ConditionTrue, Message: "x has it too"})
}
func refusedBlock(o *v1alpha1.IPAllocation) { o.Status.Conditions = []metav1.Condition{notReady} }
func plain(o *v1alpha1.NetworkPool)         { o.Spec = v1alpha1.NetworkPoolSpec{CIDR: "10.0.1.0/24"} }

var notReady = metav1.Condition{Type: v1alpha1.ReadyCondition, Status: metav1.ConditionFalse, Reason: "PoolExhausted", Message: "site is full"}

// observeBlock feeds a block to a pool.
func observeBlock(p *grants.PoolState, o *v1alpha1.IPAllocation) *grants.Block {
	b, _ := blockKind.BlockFromObject(o)
	p.ObserveBlock(b)
	return b
}

func TestPlanBlocks(t *testing.T) {
	first := isOpen("pool-1", "10.0.0.4/30")
	drains := func(o *v1alpha1.NetworkPool) { o.Status.Blocks[0].Draining = true }
	paused := func(o *v1alpha1.NetworkPool) { setPausedAnnotation(o) }
	unknown := func(p *grants.PoolState) { p.Carved.Parent = grants.ParentPool{} }
	routed := func(o *v1alpha1.NetworkPool) { o.Spec.Carve.Network = v1alpha1.RoutedNetwork }
	inUse := func(p *grants.PoolState) { observeAddress(p, "a", "10.0.0.5", "uid-a") }
	tests := map[string]struct {
		pool   []func(*v1alpha1.NetworkPool)
		here   func(*grants.PoolState)
		blocks []*v1alpha1.IPAllocation
		want   carve.Decision
		reason string
	}{
		"ItsOwn":      {blocks: []*v1alpha1.IPAllocation{newBlock("pool-1", firstBlock)}, want: carve.Decision{Open: []string{"pool-1"}}},
		"NoNetwork":   {here: unknown, blocks: []*v1alpha1.IPAllocation{newBlock("pool-1", firstBlock)}, reason: "its claims would have another gateway than the parent's"},
		"Routed":      {pool: []func(*v1alpha1.NetworkPool){routed}, here: unknown, blocks: []*v1alpha1.IPAllocation{newBlock("pool-1", firstBlock)}, want: carve.Decision{Open: []string{"pool-1"}}, reason: "the block is a network by itself"},
		"AnotherPool": {blocks: []*v1alpha1.IPAllocation{newBlock("pool-1", firstBlock, elsewhere)}, want: carve.Decision{NewBlocks: 1}, reason: "a pool of the name was carved from another one before"},
		"AnotherEnds": {blocks: []*v1alpha1.IPAllocation{newBlock("pool-1", firstBlock, elsewhere, deleted), newBlock("pool-2")}, want: carve.Decision{Release: []string{"pool-1"}}},
		"AnotherUsed": {here: inUse, blocks: []*v1alpha1.IPAllocation{newBlock("pool-1", firstBlock, elsewhere, deleted), newBlock("pool-2")}},
		"NowPlain":    {pool: []func(*v1alpha1.NetworkPool){plain}, blocks: []*v1alpha1.IPAllocation{newBlock("pool-1", firstBlock)}, reason: "the parent's sweep deletes it"},
		"PlainGives":  {pool: []func(*v1alpha1.NetworkPool){plain}, blocks: []*v1alpha1.IPAllocation{newBlock("pool-1", firstBlock, deleted)}, want: carve.Decision{Release: []string{"pool-1"}}},
		"PlainUses":   {pool: []func(*v1alpha1.NetworkPool){plain}, here: inUse, blocks: []*v1alpha1.IPAllocation{newBlock("pool-1", firstBlock, deleted)}},
		"Paused":      {blocks: []*v1alpha1.IPAllocation{newBlock("pool-1", pausedBlock)}, reason: "it is one of those that the pool has"},
		"Refused":     {blocks: []*v1alpha1.IPAllocation{newBlock("pool-1", refusedBlock)}, reason: "another would be refused too"},
		"ByHand":      {blocks: []*v1alpha1.IPAllocation{newBlock("vips", refusedBlock)}, want: carve.Decision{NewBlocks: 1}, reason: "a request of a user that cannot be served does not keep others from growing"},
		"Unanswered":  {blocks: []*v1alpha1.IPAllocation{newBlock("vips")}, want: carve.Decision{NewBlocks: 1}, reason: "its label may be another manager's"},
		"GoneInUse":   {pool: []func(*v1alpha1.NetworkPool){first, drains}, here: inUse, want: carve.Decision{Recreate: []string{"pool-1"}, NewBlocks: 1}},
		"PausedInUse": {pool: []func(*v1alpha1.NetworkPool){first, drains, paused}, here: inUse, reason: "a pool that is paused asks for nothing"},
		"AskedUnderAnother": {
			pool: []func(*v1alpha1.NetworkPool){first, drains}, here: inUse, blocks: []*v1alpha1.IPAllocation{newBlock("pool-2", pinnedTo("10.0.0.4", "10.0.0.7"))},
			reason: "it is on its way under another name",
		},
		"BackUnderAnother": {
			pool: []func(*v1alpha1.NetworkPool){first, drains}, here: inUse, blocks: []*v1alpha1.IPAllocation{newBlock("pool-2", firstBlock)},
			want: carve.Decision{Open: []string{"pool-2"}}, reason: "it takes the place of the other",
		},
		"SharedIdle": {
			blocks: []*v1alpha1.IPAllocation{newBlock("pool-1", firstBlock, sharedBlock)}, here: func(p *grants.PoolState) { observeClaim(p, "b", 1) },
			want: carve.Decision{NewBlocks: 1}, reason: "it is not opened while another object has some of it",
		},
		"RefusedRecord": {
			blocks: []*v1alpha1.IPAllocation{newBlock("pool-1", refusedBlock, func(o *v1alpha1.IPAllocation) { o.Annotations[v1alpha1.AddressAnnotation] = "10.0.0.4/30" })},
			here:   func(p *grants.PoolState) { observeClaim(p, "b", 1) }, want: carve.Decision{NewBlocks: 1}, reason: "it was restored, and its addresses are another's: others may come",
		},
		"AllReserved": {
			pool: []func(*v1alpha1.NetworkPool){first, func(o *v1alpha1.NetworkPool) { o.Spec.Reserved = []v1alpha1.ReservedRange{{Addresses: "10.0.0.0/28"}} }},
			here: func(p *grants.PoolState) { observeClaim(p, "b", 1) }, blocks: []*v1alpha1.IPAllocation{newBlock("pool-1", firstBlock)},
			want: carve.Decision{NewBlocks: 1}, reason: "the next block may leave something",
		},
		"MovedDeleted": {
			pool: []func(*v1alpha1.NetworkPool){first, isOpen("pool-2", "10.0.0.8/30"), func(o *v1alpha1.NetworkPool) {
				o.DeletionTimestamp, o.Finalizers = ptr.To(metav1.NewTime(noon)), []string{v1alpha1.PoolFinalizer}
				o.Status.Held = []v1alpha1.HeldRange{{First: "10.0.0.4", Last: "10.0.0.7", Reason: v1alpha1.MovedReason}}
			}},
			blocks: []*v1alpha1.IPAllocation{newBlock("pool-2", withBlockAddresses("10.0.0.8/30", "10.0.0.8", "10.0.0.11"))},
			want:   carve.Decision{Drain: []string{"pool-1", "pool-2"}}, reason: "a pool that ends releases what it has, whatever was moved",
		},
		"AnotherRange": {
			pool: []func(*v1alpha1.NetworkPool){first}, here: inUse, blocks: []*v1alpha1.IPAllocation{newBlock("pool-1", withBlockAddresses("10.0.0.8/30", "10.0.0.8", "10.0.0.11"))},
			want: carve.Decision{Drain: []string{"pool-1"}, NewBlocks: 1}, reason: "a user has created another one of its name",
		},
		"AnotherRangeUnused": {
			pool:   []func(*v1alpha1.NetworkPool){first, func(o *v1alpha1.NetworkPool) { o.Status.Blocks[0].Draining = true }},
			blocks: []*v1alpha1.IPAllocation{newBlock("pool-1", withBlockAddresses("10.0.0.8/30", "10.0.0.8", "10.0.0.11"))},
			want:   carve.Decision{Close: []string{"pool-1"}, NewBlocks: 1}, reason: "then the other one may be opened",
		},
		"Moved": {
			pool: []func(*v1alpha1.NetworkPool){first}, blocks: []*v1alpha1.IPAllocation{newBlock("pool-1", firstBlock, movedAway)},
			want: carve.Decision{Drain: []string{"pool-1"}}, reason: "its addresses are another cluster's now: none is asked for in its place",
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			p := newChildPool(t, tt.pool...)
			if tt.here != nil {
				tt.here(p)
			}
			for _, o := range tt.blocks {
				b := observeBlock(p, o)
				p.Carved.VerifyBlock(b.UID, b.Name, p.Term.CurrentTerm())
			}
			a := New(Options{ManagerID: "me", Clock: clocktesting.NewFakeClock(noon)})
			p.Carved.ResetShortfall()
			p.Planner.PlanGrants(noon, 9, a.admission.admissionRules(t.Context(), p, noon))
			p.Growth.PlanBlocks(noon, time.Minute)
			if diff := cmp.Diff(tt.want, p.Carved.Decision); diff != "" {
				t.Errorf("%s (-want +got):\n%s", tt.reason, diff)
			}
		})
	}
}

func pinnedTo(first, last string) func(*v1alpha1.IPAllocation) {
	return func(o *v1alpha1.IPAllocation) {
		o.Spec.PinnedRange = &v1alpha1.PinnedRange{StartAddress: first, EndAddress: last}
	}
}

// TestBlockTakesNextName checks that a block whose name another object has is requested under the next name, once.
func TestBlockTakesNextName(t *testing.T) {
	p := newChildPool(t, isOpen("pool-1", "10.0.0.4/30"), func(o *v1alpha1.NetworkPool) { o.Status.Blocks[0].Draining, o.Spec.Carve.Blocks.Min = true, 0 })
	observeAddress(p, "a", "10.0.0.5", "uid-a")
	ask := func() (names []string) {
		p.Growth.PlanBlocks(noon, time.Minute)
		out, _ := p.Growth.DueBlockRequests(noon, time.Minute)
		for _, r := range out {
			if r.Verb != carve.CreateBlock || r.PinnedPrefix.String() != "10.0.0.4/30" {
				t.Errorf("%+v", r)
			}
			p.Carved.BeginBlockRequest(r)
			names = append(names, r.Name)
		}
		return names
	}
	if got := ask(); !slices.Equal(got, []string{"pool-1"}) {
		t.Fatal(got)
	}
	if again := ask(); again != nil {
		t.Errorf("%v while it is being asked for", again)
	}
	p.Carved.Requests.MarkNameTaken("pool-1", noon)
	p.Carved.EndBlockRequest(grants.BlockRequest{Verb: carve.CreateBlock, Name: "pool-1"}, nil, noon)
	if got := ask(); !slices.Equal(got, []string{"pool-2"}) {
		t.Errorf("it asks for %v", got)
	}
	if again := ask(); again != nil {
		t.Errorf("%v while it is being asked for", again)
	}
}

// TestStandbyDoesNotTakeOverForNoWork checks that a manager that is not the holder takes no pool over for what
// the holder would not do either: open a block whose network is unknown, or close one while the pool adopts.
func TestStandbyDoesNotTakeOverForNoWork(t *testing.T) {
	for name, tt := range map[string]struct {
		pool  func(*v1alpha1.NetworkPool)
		here  func(*grants.PoolState)
		block *v1alpha1.IPAllocation
		may   bool
	}{
		"NoNetwork": {here: func(p *grants.PoolState) { p.Carved.Parent = grants.ParentPool{} }, block: newBlock("pool-1", firstBlock)},
		"Network":   {block: newBlock("pool-1", firstBlock), may: true},
		"Adopting": {pool: func(o *v1alpha1.NetworkPool) {
			isOpen("pool-1", "10.0.0.4/30")(o)
			o.Status.Blocks[0].Draining = true
			o.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ReadyCondition, Status: metav1.ConditionFalse, Reason: v1alpha1.AdoptingReason, LastTransitionTime: metav1.NewTime(noon)}}
		}, block: newBlock("pool-1", firstBlock, deleted)},
		"Adopted": {pool: func(o *v1alpha1.NetworkPool) {
			isOpen("pool-1", "10.0.0.4/30")(o)
			o.Status.Blocks[0].Draining = true
		}, block: newBlock("pool-1", firstBlock, deleted), may: true},
	} {
		t.Run(name, func(t *testing.T) {
			p := newChildPool(t, func(o *v1alpha1.NetworkPool) {
				o.Spec.Carve.Blocks.Min = 0
				if tt.pool != nil {
					tt.pool(o)
				}
			})
			if tt.here != nil {
				tt.here(p)
			}
			observeBlock(p, tt.block)
			p.Term.Holder = false
			p.MayTakeOver(noon, false, time.Hour, admitAll, admitAll)
			if may, _ := p.MayTakeOver(noon.Add(5*time.Second), false, time.Hour, admitAll, admitAll); may != tt.may {
				t.Errorf("it takes over: %v", may)
			}
		})
	}
}

// TestWaitStartsAtLastPoolDeletion checks R10: the time during which grants of a pool that is gone may still land
// begins at the last end of the pool.
func TestWaitStartsAtLastPoolDeletion(t *testing.T) {
	p := newChildPool(t)
	observeBlock(p, newBlock("pool-1", firstBlock, deleted))
	base := p.Base.Pool
	p.ClearBasePool()
	p.Growth.DueBlockRequests(noon, time.Minute)
	p.Term.Holder = false
	p.SetBasePool(base) // created again, and served by another manager
	p.ClearBasePool()
	if out, _ := p.Growth.DueBlockRequests(noon.Add(time.Hour), time.Minute); len(out) > 0 {
		t.Errorf("%s at once", out[0].Verb)
	}
	if out, _ := p.Growth.DueBlockRequests(noon.Add(time.Hour+time.Minute), time.Minute); len(out) != 1 {
		t.Errorf("%v after that", out)
	}
}

// TestMovedBlockInUseIsNotRequested checks that a block that was moved away is not requested again, although a claim
// still uses its addresses.
func TestMovedBlockInUseIsNotRequested(t *testing.T) {
	p := newChildPool(t, isOpen("pool-1", "10.0.0.4/30"))
	observeAddress(p, "a", "10.0.0.5", "uid-a")
	b := observeBlock(p, newBlock("pool-1", firstBlock, movedAway))
	p.Carved.ForgetBlock(b.UID, b.Name)
	p.Base.Pool.PoolStatus().Blocks[0].Draining = true
	if p.Growth.PlanBlocks(noon, time.Minute); len(p.Carved.Decision.Recreate) > 0 {
		t.Errorf("%+v", p.Carved.Decision)
	}
}

// TestForgedRecordIsReportedOnItsObject checks that a record, which any user can write, over the block of another
// object is reported on its own object only.
func TestForgedRecordIsReportedOnItsObject(t *testing.T) {
	site := newTestPool(t, "10.0.0.0-10.0.0.15", func(o *v1alpha1.NetworkPool) {
		o.Spec.AllocateReservedIPAddresses, o.Spec.Carvable = true, &v1alpha1.Carvable{}
	})
	site.Base.Key = siteKey
	victim := newBlock("pool-1", firstBlock)
	forged := newBlock("evil", func(o *v1alpha1.IPAllocation) {
		o.Namespace, o.Annotations[v1alpha1.AddressAnnotation] = "evil", "10.0.0.0/28"
		o.Finalizers = []string{v1alpha1.IPAllocationFinalizer}
	})
	site.ObserveClaimant(blocks.NewClaimant(victim))
	site.ObserveClaimant(blocks.NewClaimant(forged))
	if overlap := site.Inventory.OverlapMessageFor(site.Claimants.ByUID[victim.UID]); overlap != "" {
		t.Error(overlap)
	}
	if overlap := site.Inventory.OverlapMessageFor(site.Claimants.ByUID[forged.UID]); !strings.Contains(overlap, "10.0.0.4/30") {
		t.Errorf("%q", overlap)
	}
	// It came with both, as a restore may bring it.
	both := newBlock("pool-2", withBlockAddresses("10.0.0.6/31", "10.0.0.6", "10.0.0.7"))
	site.ObserveClaimant(blocks.NewClaimant(both))
	for _, o := range []*v1alpha1.IPAllocation{victim, both} {
		if overlap := site.Inventory.OverlapMessageFor(site.Claimants.ByUID[o.UID]); overlap == "" {
			t.Errorf("%s does not report the other", o.Name)
		}
	}
}

// TestMovedBlockIsNotReleased checks that a block that was moved away stays on record as open, whatever becomes of
// the IPAllocation: a person opens the pool again.
func TestMovedBlockIsNotReleased(t *testing.T) {
	p := newChildPool(t, isOpen("pool-1", "10.0.0.4/30"))
	b := observeBlock(p, newBlock("pool-1", firstBlock, movedAway))
	p.Carved.ForgetBlock(b.UID, b.Name)
	for range 2 {
		p.Growth.PlanBlocks(noon, time.Minute)
		if len(p.Carved.Decision.Close) > 0 || p.Carved.Decision.NewBlocks > 0 {
			t.Errorf("%+v", p.Carved.Decision)
		}
		p.Base.Pool.PoolStatus().Blocks[0].Draining = true
	}
	if reason, message := p.Status.ClosedReason(noon); reason != v1alpha1.MovedReason {
		t.Errorf("%s: %s", reason, message)
	}
}

// TestVerifiedBlocksEndWithTerm checks that blocks that were verified in an earlier term, or in a term of an
// earlier pool, which also counted from the beginning, are verified again.
func TestVerifiedBlocksEndWithTerm(t *testing.T) {
	p := newChildPool(t)
	b := observeBlock(p, newBlock("pool-1", firstBlock))
	p.Carved.VerifyBlock(b.UID, b.Name, p.Term.CurrentTerm())
	p.RebuildLedger(&grants.ListedObjects{})
	p.Growth.PlanBlocks(noon, time.Minute)
	if diff := cmp.Diff(carve.Decision{Verify: []string{"pool-1"}}, p.Carved.Decision); diff != "" {
		t.Error(diff)
	}
}

// TestStandbyKnowsShortfall checks that a manager that has not planned yet knows what the waiting claims need,
// and becomes the holder for them when no other manager requests it.
func TestStandbyKnowsShortfall(t *testing.T) {
	p := newChildPool(t, isOpen("pool-1", "10.0.0.4/32"))
	observeBlock(p, newBlock("pool-1", withBlockAddresses("10.0.0.4/32", "10.0.0.4", "10.0.0.4")))
	observeAddress(p, "a", "10.0.0.4", "uid-a")
	waits := observeClaim(p, "b", 1)
	p.Term.Holder, p.Term.Number = false, 0
	p.Planner.PlanGrants(noon, 0, admitAll)
	waits.Status = &grants.PublishedStatus{Refusal: *grants.PoolNotReady("it is on its way")}
	may, wait := p.MayTakeOver(noon, false, time.Hour, admitAll, admitAll)
	if may || wait == 0 {
		t.Fatalf("takes over: %v, comes back after %v", may, wait)
	}
	if may, _ = p.MayTakeOver(noon.Add(time.Hour), false, time.Hour, admitAll, admitAll); !may {
		t.Error("no manager requests a block")
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
			p := a.pools.getOrCreatePool(siteKey)
			m := p.Lock()
			c := *blocks.NewClaimant(o)
			m.Unlock()
			a.feed.forgetClaimant(p, c)
		},
	} {
		t.Run(name, func(t *testing.T) {
			a := New(Options{ManagerID: "me", Clock: clocktesting.NewFakeClock(noon)})
			o := newBlock("pool-1", firstBlock)
			a.ObserveObject(o)
			site := a.pools.lockPool(siteKey)
			site.ForgetClaimant(o.UID)
			site.Unlock()
			end(a, o)
			m := a.pools.lockPool(testKey)
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
	a := New(Options{ManagerID: "me", Client: api, WatchFilter: "blue", Clock: clocktesting.NewFakeClock(noon)})
	if err := a.requests.createBlock(t.Context(), grants.NewPool(newChildPool(t)), grants.BlockRequest{Verb: carve.CreateBlock, Name: "pool-1"}); err != nil {
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
	another := newBlock("another", withBlockAddresses("10.0.0.8/30", "10.0.0.8", "10.0.0.11"))
	tests := map[string]struct {
		site        func(*v1alpha1.NetworkPool)
		others      []*v1alpha1.IPAllocation
		block       *v1alpha1.IPAllocation
		wantRefusal string // a part of the refusal; empty: it has its block
	}{
		"Asks":             {site: allows(), block: newBlock("pool-1")},
		"NotCarvable":      {block: newBlock("pool-1"), wantRefusal: "carvable is not set"},
		"Forged":           {block: newBlock("pool-1", record), wantRefusal: "carvable is not set"},
		"ForgedLength":     {site: allows(28), block: newBlock("pool-1", record), wantRefusal: "allows /28"},
		"ForgedTooMany":    {site: allows(), others: []*v1alpha1.IPAllocation{another}, block: newBlock("pool-1", record), wantRefusal: "maxBlocksPerNamespace"},
		"MovedHere":        {site: allows(), block: newBlock("pool-1", record)},
		"Has":              {block: newBlock("pool-1", firstBlock)},
		"HasAnotherParent": {site: allows(), block: newBlock("x-1", func(o *v1alpha1.IPAllocation) { o.Spec.ChildPoolRef.Name = "x" }, record), wantRefusal: "does not exist"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			a := New(Options{ManagerID: "me", Clock: clocktesting.NewFakeClock(noon), Recorder: events.NewFakeRecorder(9)})
			a.relations.publishDeclaration(newChildPool(t).Base.Pool)
			var change []func(*v1alpha1.NetworkPool)
			if tt.site != nil {
				change = append(change, tt.site)
			}
			p := newTestPool(t, "10.0.0.0-10.0.0.15", append(change, func(o *v1alpha1.NetworkPool) {
				o.Name, o.UID, o.Spec.AllocateReservedIPAddresses = siteKey.Name, "site-uid", true
			})...)
			p.Base.Key = siteKey
			a.relations.publishDeclaration(p.Base.Pool)
			for _, o := range append(tt.others, tt.block) {
				p.ObserveClaimant(blocks.NewClaimant(o))
			}
			c := p.Claimants.ByUID[tt.block.UID]
			refusal := a.admission.admissionRules(t.Context(), p, noon)(c).Refusal
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
	a := New(Options{ManagerID: "me", BlockNamespace: "home", Clock: clocktesting.NewFakeClock(noon)})
	key := pools.Key{Kind: v1alpha1.GlobalNetworkPoolKind, Name: siteKey.Name}
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
		o := newBlock("", global(name))
		m.ObserveClaimant(blocks.NewClaimant(o))
		if refusal := a.admission.admissionRules(t.Context(), m, noon)(m.Claimants.ByUID[o.UID]).Refusal; refusal != nil {
			t.Errorf("%s: %s", o.Name, refusal.Message)
		}
	}
	plan := func(most int) {
		t.Helper()
		if granted, _ := m.Planner.PlanGrants(noon, 9, admitAll); granted != most {
			t.Errorf("%d have their block, not %d", granted, most)
		}
	}
	plan(2)
	for _, name := range []string{"c", "d"} { // in the namespace of the blocks above
		m.ObserveClaimant(blocks.NewClaimant(newBlock("", global(name), func(o *v1alpha1.IPAllocation) { o.Spec.ChildPoolRef.Kind = v1alpha1.NetworkPoolKind })))
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
		"There":   {pool: newChildPool(t).Base.Pool.(*v1alpha1.NetworkPool)},
		"Plain":   {pool: newChildPool(t, plain).Base.Pool.(*v1alpha1.NetworkPool), gone: "NetworkPool ns/pool is not carved from NetworkPool ns/site"},
		"Another": {pool: newChildPool(t, func(o *v1alpha1.NetworkPool) { carvedOf(o, "another") }).Base.Pool.(*v1alpha1.NetworkPool), gone: "NetworkPool ns/pool is not carved from NetworkPool ns/site"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			a := New(Options{ManagerID: "me", Client: clusterListAPI{}, Live: &childPoolAPI{pool: tt.pool}, Clock: clocktesting.NewFakeClock(noon)})
			if tt.pool != nil {
				a.relations.publishDeclaration(tt.pool)
			}
			c := blocks.NewClaimant(newBlock("pool-1", firstBlock))
			if gone, err := a.owners.verifyOwnerGone(t.Context(), siteKey, c); gone != tt.gone || err != nil {
				t.Errorf("%q, %v", gone, err)
			}
			if found := a.lookups.newOwnerLookup(t.Context())(siteKey, c); (found == grants.OwnerSeenAlive) != (tt.gone == "") {
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
			a := New(Options{ManagerID: "me", Client: tt.around, Clock: clocktesting.NewFakeClock(noon)})
			a.relations.publishDeclaration(newChildPool(t).Base.Pool)
			c := blocks.NewClaimant(newBlock("pool-1", firstBlock))
			c.PublishedOwnerSeen = tt.published
			if found := a.lookups.newOwnerLookup(t.Context())(siteKey, c); found != tt.found {
				t.Errorf("found %v, not %v", found, tt.found)
			}
		})
	}
}

// TestOwnerSeenAliveStaysRecorded checks that an owner that was found once was alive: that it ended before the status
// showed it makes no difference.
func TestOwnerSeenAliveStaysRecorded(t *testing.T) {
	p := newTestPool(t, "10.0.0.1-10.0.0.9")
	c := observeAllocation(p, "x", 4)
	p.Owners.RecordOwnerSeen(c, grants.OwnerSeenAlive)
	p.Owners.RecordOwnerSeen(c, grants.OwnerNeverSeen)
	if c.ObservedOwnerSeen != grants.OwnerSeenAlive {
		t.Errorf("it says %v", c.ObservedOwnerSeen)
	}
}

// TestChildEnqueuesOnlyItsParent checks that a new pool enqueues its parent, but not the other pools that are carved
// from the parent: a thousand may come at the start.
func TestChildEnqueuesOnlyItsParent(t *testing.T) {
	a := New(Options{ManagerID: "me", Clock: clocktesting.NewFakeClock(noon)})
	woken := map[pools.Key]int{}
	a.Start(t.Context(), func(key pools.Key) { woken[key]++ })
	for _, name := range []string{"a", "b", "c"} {
		o := newChildPool(t).Base.Pool.DeepCopyObject().(*v1alpha1.NetworkPool)
		o.Name, o.UID = name, types.UID(name)
		a.relations.publishDeclaration(o)
	}
	if diff := cmp.Diff(map[pools.Key]int{siteKey: 3}, woken); diff != "" {
		t.Error(diff)
	}
	clear(woken)
	a.relations.withdrawDeclaration(siteKey) // the parent is unknown
	site := newTestPool(t, "10.0.0.0-10.0.0.15").Base.Pool.(*v1alpha1.NetworkPool)
	site.Name = siteKey.Name
	if a.relations.publishDeclaration(site); len(woken) != 3 {
		t.Errorf("the parent wakes %v", woken)
	}
	site.Generation++
	site.Spec.Carve = &v1alpha1.Carve{PoolRef: v1alpha1.PoolReference{Name: "a"}, PrefixLength: 30}
	if a.relations.publishDeclaration(site); len(woken) != 4 { // a circle ends
		t.Errorf("woken: %v", woken)
	}
}

// TestClaimsReferToErrorsOfPool checks that the pool reports the last error of a request for a block, and that the
// claims refer to the pool: thousands of claims may wait for a block, and the error may differ at each try.
func TestClaimsReferToErrorsOfPool(t *testing.T) {
	p := newChildPool(t)
	c := observeClaim(p, "a", 0)
	r := grants.BlockRequest{Verb: carve.CreateBlock, Name: "pool-1"}
	p.Carved.BeginBlockRequest(r)
	p.Carved.EndBlockRequest(r, errors.New("etcd is slow"), noon)
	_, refused := p.Planner.PlanGrants(noon, 9, admitAll)
	if refusal := refused[c]; refusal == nil || strings.Contains(refusal.Message, "etcd") || !strings.Contains(refusal.Message, "its condition Ready shows") {
		t.Errorf("the refusal of the claim is %v", refusal)
	}
	p.Growth.PlanBlocks(noon, time.Minute)
	ready := meta.FindStatusCondition(p.PrepareCommit(noon).Pool.GetConditions(), v1alpha1.ReadyCondition)
	if !strings.Contains(ready.Message, "etcd is slow") {
		t.Errorf("the pool says %s", ready.Message)
	}
}

// TestParentOfAnotherShardEnqueuesChildren checks that a parent that another manager serves, and that is carved
// itself, enqueues its children when its addresses change without a change of its spec.
func TestParentOfAnotherShardEnqueuesChildren(t *testing.T) {
	woken := map[pools.Key]int{}
	a := New(Options{ManagerID: "me", Clock: clocktesting.NewFakeClock(noon)})
	a.Start(t.Context(), func(key pools.Key) { woken[key]++ })
	a.relations.publishDeclaration(newChildPool(t).Base.Pool)
	site := newChildPool(t).Base.Pool.(*v1alpha1.NetworkPool)
	carvedOf(site, "root")
	site.Name, site.UID = siteKey.Name, "site-uid"
	a.unserved.observePoolOnly(a.pools.getOrCreatePool(siteKey), site, noon)
	clear(woken)
	more := site.DeepCopy()
	isOpen("site-1", "10.0.0.0/28")(more)
	more.ResourceVersion = "11"
	if a.unserved.observePoolOnly(a.pools.getOrCreatePool(siteKey), more, noon); woken[testKey] != 1 {
		t.Errorf("woken: %v", woken)
	}
	if got := a.relations.parentForPool(newChildPool(t).Base.Pool); got.NetworkFor == nil || got.AddressBits != 32 {
		t.Errorf("it knows %+v of its parent", got)
	}
}
