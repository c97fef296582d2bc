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

// What a carved pool makes of the blocks that it is shown (R13).

var siteKey = pools.Key{Kind: v1alpha1.NetworkPoolKind, Namespace: "ns", Name: "site"}

// aChild is a pool that is carved from site in blocks of /30, which this manager holds.
func aChild(t *testing.T, change ...func(*v1alpha1.NetworkPool)) *grants.Memory {
	t.Helper()
	p := aPool(t, "", append([]func(*v1alpha1.NetworkPool){func(o *v1alpha1.NetworkPool) { carvedOf(o, siteKey.Name) }}, change...)...)
	p.Carved.Parent = grants.Parent{Bits: 32, Network: p.Layout.Network}
	p.Rebuild(&grants.Listed{})
	return p
}

// carvedOf has a pool be carved from another.
func carvedOf(o *v1alpha1.NetworkPool, parent string) {
	o.Spec = v1alpha1.NetworkPoolSpec{AllocateReservedIPAddresses: true, Carve: &v1alpha1.Carve{
		PoolRef: v1alpha1.PoolReference{Name: parent}, PrefixLength: 30, Blocks: v1alpha1.CarvedBlocks{Min: 1, Max: 3},
	}}
}

// isOpen has a block be on record as open.
func isOpen(name, prefix string) func(*v1alpha1.NetworkPool) {
	return func(o *v1alpha1.NetworkPool) {
		o.Status.Blocks = append(o.Status.Blocks, v1alpha1.CarvedBlock{Range: prefix, Allocation: name, UID: "uid-" + name, Prefix: 24})
	}
}

// newBlock is a block of site for the pool, with our finalizer. It has nothing yet.
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

// is gives a block its addresses, as the parent's holder writes them.
func is(prefix, first, last string) func(*v1alpha1.IPAllocation) {
	return func(o *v1alpha1.IPAllocation) {
		o.Annotations[v1alpha1.AddressAnnotation] = prefix
		o.Finalizers = append(o.Finalizers, v1alpha1.IPAllocationFinalizer)
		shows(first, last)(o)
	}
}

var firstBlock = is("10.0.0.4/30", "10.0.0.4", "10.0.0.7")

func elsewhere(o *v1alpha1.IPAllocation) { o.Spec.PoolRef.Name = "another" }
func deleted(o *v1alpha1.IPAllocation)   { o.DeletionTimestamp = ptr.To(metav1.NewTime(noon)) }
func movedAway(o *v1alpha1.IPAllocation) {
	deleted(o)
	o.Annotations[v1alpha1.DeleteForMoveAnnotation] = ""
}
func pausedBlock(o *v1alpha1.IPAllocation) { annotated(o) }
func sharedBlock(o *v1alpha1.IPAllocation) {
	o.Status.Conditions = append(o.Status.Conditions, metav1.Condition{Type: v1alpha1.OverlapCondition, Status: metav1.ConditionTrue, Message: "x has it too"})
}
func refusedBlock(o *v1alpha1.IPAllocation) { o.Status.Conditions = []metav1.Condition{notReady} }
func plain(o *v1alpha1.NetworkPool)         { o.Spec = v1alpha1.NetworkPoolSpec{CIDR: "10.0.1.0/24"} }

var notReady = metav1.Condition{Type: v1alpha1.ReadyCondition, Status: metav1.ConditionFalse, Reason: "PoolExhausted", Message: "site is full"}

// shown has a pool see a block.
func shown(p *grants.Memory, o *v1alpha1.IPAllocation) *grants.Block {
	b, _ := carver.BlockOf(o)
	p.ObserveBlock(b)
	return b
}

func TestTurnBlocks(t *testing.T) {
	first := isOpen("pool-1", "10.0.0.4/30")
	drains := func(o *v1alpha1.NetworkPool) { o.Status.Blocks[0].Draining = true }
	paused := func(o *v1alpha1.NetworkPool) { annotated(o) }
	unknown := func(p *grants.Memory) { p.Carved.Parent = grants.Parent{} }
	routed := func(o *v1alpha1.NetworkPool) { o.Spec.Carve.Network = v1alpha1.RoutedNetwork }
	inUse := func(p *grants.Memory) { seeAddress(p, "a", "10.0.0.5", "uid-a") }
	tests := map[string]struct {
		pool   []func(*v1alpha1.NetworkPool)
		here   func(*grants.Memory)
		blocks []*v1alpha1.IPAllocation
		want   carve.Decision
		reason string
	}{
		"ItsOwn":      {blocks: []*v1alpha1.IPAllocation{newBlock("pool-1", firstBlock)}, want: carve.Decision{Open: []string{"pool-1"}}},
		"NoNetwork":   {here: unknown, blocks: []*v1alpha1.IPAllocation{newBlock("pool-1", firstBlock)}, reason: "its claims would have another gateway than the parent's"},
		"Routed":      {pool: []func(*v1alpha1.NetworkPool){routed}, here: unknown, blocks: []*v1alpha1.IPAllocation{newBlock("pool-1", firstBlock)}, want: carve.Decision{Open: []string{"pool-1"}}, reason: "the block is a network by itself"},
		"AnotherPool": {blocks: []*v1alpha1.IPAllocation{newBlock("pool-1", firstBlock, elsewhere)}, want: carve.Decision{Ask: 1}, reason: "a pool of the name was carved from another one before"},
		"AnotherEnds": {blocks: []*v1alpha1.IPAllocation{newBlock("pool-1", firstBlock, elsewhere, deleted), newBlock("pool-2")}, want: carve.Decision{Release: []string{"pool-1"}}},
		"AnotherUsed": {here: inUse, blocks: []*v1alpha1.IPAllocation{newBlock("pool-1", firstBlock, elsewhere, deleted), newBlock("pool-2")}},
		"NowPlain":    {pool: []func(*v1alpha1.NetworkPool){plain}, blocks: []*v1alpha1.IPAllocation{newBlock("pool-1", firstBlock)}, reason: "the parent's sweep deletes it"},
		"PlainGives":  {pool: []func(*v1alpha1.NetworkPool){plain}, blocks: []*v1alpha1.IPAllocation{newBlock("pool-1", firstBlock, deleted)}, want: carve.Decision{Release: []string{"pool-1"}}},
		"PlainUses":   {pool: []func(*v1alpha1.NetworkPool){plain}, here: inUse, blocks: []*v1alpha1.IPAllocation{newBlock("pool-1", firstBlock, deleted)}},
		"Paused":      {blocks: []*v1alpha1.IPAllocation{newBlock("pool-1", pausedBlock)}, reason: "it is one of those that the pool has"},
		"Refused":     {blocks: []*v1alpha1.IPAllocation{newBlock("pool-1", refusedBlock)}, reason: "another would be refused too"},
		"ByHand":      {blocks: []*v1alpha1.IPAllocation{newBlock("vips", refusedBlock)}, want: carve.Decision{Ask: 1}, reason: "what a user asks for in vain keeps nobody from growing"},
		"Unanswered":  {blocks: []*v1alpha1.IPAllocation{newBlock("vips")}, want: carve.Decision{Ask: 1}, reason: "its label may be another manager's"},
		"GoneInUse":   {pool: []func(*v1alpha1.NetworkPool){first, drains}, here: inUse, want: carve.Decision{Again: []string{"pool-1"}, Ask: 1}},
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
			blocks: []*v1alpha1.IPAllocation{newBlock("pool-1", firstBlock, sharedBlock)}, here: func(p *grants.Memory) { see(p, "b", 1) },
			want: carve.Decision{Ask: 1}, reason: "it is not opened while somebody else has some of it",
		},
		"RefusedRecord": {
			blocks: []*v1alpha1.IPAllocation{newBlock("pool-1", refusedBlock, func(o *v1alpha1.IPAllocation) { o.Annotations[v1alpha1.AddressAnnotation] = "10.0.0.4/30" })},
			here:   func(p *grants.Memory) { see(p, "b", 1) }, want: carve.Decision{Ask: 1}, reason: "it was restored, and its addresses are another's: others may come",
		},
		"AllReserved": {
			pool: []func(*v1alpha1.NetworkPool){first, func(o *v1alpha1.NetworkPool) { o.Spec.Reserved = []v1alpha1.ReservedRange{{Addresses: "10.0.0.0/28"}} }},
			here: func(p *grants.Memory) { see(p, "b", 1) }, blocks: []*v1alpha1.IPAllocation{newBlock("pool-1", firstBlock)},
			want: carve.Decision{Ask: 1}, reason: "the next block may leave something",
		},
		"MovedDeleted": {
			pool: []func(*v1alpha1.NetworkPool){first, isOpen("pool-2", "10.0.0.8/30"), func(o *v1alpha1.NetworkPool) {
				o.DeletionTimestamp, o.Finalizers = ptr.To(metav1.NewTime(noon)), []string{v1alpha1.PoolFinalizer}
				o.Status.Held = []v1alpha1.HeldRange{{First: "10.0.0.4", Last: "10.0.0.7", Reason: v1alpha1.MovedReason}}
			}},
			blocks: []*v1alpha1.IPAllocation{newBlock("pool-2", is("10.0.0.8/30", "10.0.0.8", "10.0.0.11"))},
			want:   carve.Decision{Drain: []string{"pool-1", "pool-2"}}, reason: "a pool that ends gives back what it has, whatever was moved",
		},
		"AnotherRange": {
			pool: []func(*v1alpha1.NetworkPool){first}, here: inUse, blocks: []*v1alpha1.IPAllocation{newBlock("pool-1", is("10.0.0.8/30", "10.0.0.8", "10.0.0.11"))},
			want: carve.Decision{Drain: []string{"pool-1"}, Ask: 1}, reason: "somebody has made another one of its name",
		},
		"AnotherRangeUnused": {
			pool:   []func(*v1alpha1.NetworkPool){first, func(o *v1alpha1.NetworkPool) { o.Status.Blocks[0].Draining = true }},
			blocks: []*v1alpha1.IPAllocation{newBlock("pool-1", is("10.0.0.8/30", "10.0.0.8", "10.0.0.11"))},
			want:   carve.Decision{Close: []string{"pool-1"}, Ask: 1}, reason: "then the other one may be opened",
		},
		"Moved": {
			pool: []func(*v1alpha1.NetworkPool){first}, blocks: []*v1alpha1.IPAllocation{newBlock("pool-1", firstBlock, movedAway)},
			want: carve.Decision{Drain: []string{"pool-1"}}, reason: "its addresses are another cluster's now: none is asked for in its place",
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			p := aChild(t, tt.pool...)
			if tt.here != nil {
				tt.here(p)
			}
			for _, o := range tt.blocks {
				b := shown(p, o)
				p.Verify(b.UID, b.Name, p.InTerm())
			}
			a := New(Options{ID: "me", Clock: clocktesting.NewFakeClock(noon)})
			p.ForgetLack()
			p.Plan(noon, 9, a.rules(t.Context(), p, noon))
			p.TurnBlocks(noon, time.Minute)
			if diff := cmp.Diff(tt.want, p.Carved.Todo); diff != "" {
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

// A block whose name something else has is asked for under the next one, once.
func TestABlockUnderAnotherName(t *testing.T) {
	p := aChild(t, isOpen("pool-1", "10.0.0.4/30"), func(o *v1alpha1.NetworkPool) { o.Status.Blocks[0].Draining, o.Spec.Carve.Blocks.Min = true, 0 })
	seeAddress(p, "a", "10.0.0.5", "uid-a")
	ask := func() (names []string) {
		p.TurnBlocks(noon, time.Minute)
		out, _ := p.BlockRequests(noon, time.Minute)
		for _, r := range out {
			if r.Verb != grants.AskForBlock || r.Pinned.String() != "10.0.0.4/30" {
				t.Errorf("%+v", r)
			}
			p.BeginBlock(r)
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
	p.TakenBlock("pool-1", noon)
	p.EndBlock(grants.BlockRequest{Verb: grants.AskForBlock, Name: "pool-1"}, nil, noon, blockRetry)
	if got := ask(); !slices.Equal(got, []string{"pool-2"}) {
		t.Errorf("it asks for %v", got)
	}
	if again := ask(); again != nil {
		t.Errorf("%v while it is being asked for", again)
	}
}

// A manager that only looks on takes no pool over for what its holder would not do either: open a block of which nobody
// knows the network, or close one while it adopts.
func TestAnOnlookerLeavesWhatTheHolderWouldNotDo(t *testing.T) {
	for name, tt := range map[string]struct {
		pool  func(*v1alpha1.NetworkPool)
		here  func(*grants.Memory)
		block *v1alpha1.IPAllocation
		may   bool
	}{
		"NoNetwork": {here: func(p *grants.Memory) { p.Carved.Parent = grants.Parent{} }, block: newBlock("pool-1", firstBlock)},
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
			p := aChild(t, func(o *v1alpha1.NetworkPool) {
				o.Spec.Carve.Blocks.Min = 0
				if tt.pool != nil {
					tt.pool(o)
				}
			})
			if tt.here != nil {
				tt.here(p)
			}
			shown(p, tt.block)
			p.Holder = false
			p.MayTakeOver(noon, false, time.Hour, anyone, anyone)
			if may, _ := p.MayTakeOver(noon.Add(5*time.Second), false, time.Hour, anyone, anyone); may != tt.may {
				t.Errorf("it takes over: %v", may)
			}
		})
	}
}

// R10: how long what was granted of a pool that is gone may be on its way begins at its last end.
func TestEachEndOfAPoolCounts(t *testing.T) {
	p := aChild(t)
	shown(p, newBlock("pool-1", firstBlock, deleted))
	base := p.Base
	p.UnsetBase()
	p.BlockRequests(noon, time.Minute)
	p.Holder = false
	p.SetBase(base) // made again, and another manager serves it
	p.UnsetBase()
	if out, _ := p.BlockRequests(noon.Add(time.Hour), time.Minute); len(out) > 0 {
		t.Errorf("%s at once", out[0].Verb)
	}
	if out, _ := p.BlockRequests(noon.Add(time.Hour+time.Minute), time.Minute); len(out) != 1 {
		t.Errorf("%v after that", out)
	}
}

// A block that was moved away is not asked for again, although somebody uses its addresses still.
func TestAMovedBlockInUseIsNotAskedFor(t *testing.T) {
	p := aChild(t, isOpen("pool-1", "10.0.0.4/30"))
	seeAddress(p, "a", "10.0.0.5", "uid-a")
	b := shown(p, newBlock("pool-1", firstBlock, movedAway))
	p.ForgetBlock(b.UID, b.Name)
	p.Base.PoolStatus().Blocks[0].Draining = true
	if p.TurnBlocks(noon, time.Minute); len(p.Carved.Todo.Again) > 0 {
		t.Errorf("%+v", p.Carved.Todo)
	}
}

// A record that anybody can write over the block of another shows on its own object alone.
func TestAForgedRecordSharesNothing(t *testing.T) {
	site := aPool(t, "10.0.0.0-10.0.0.15", func(o *v1alpha1.NetworkPool) {
		o.Spec.AllocateReservedIPAddresses, o.Spec.Carvable = true, &v1alpha1.Carvable{}
	})
	site.Key = siteKey
	victim := newBlock("pool-1", firstBlock)
	forged := newBlock("evil", func(o *v1alpha1.IPAllocation) {
		o.Namespace, o.Annotations[v1alpha1.AddressAnnotation] = "evil", "10.0.0.0/28"
		o.Finalizers = []string{v1alpha1.IPAllocationFinalizer}
	})
	site.Observe(blocks.Of(victim))
	site.Observe(blocks.Of(forged))
	if overlap := site.OverlapOf(site.Claimants[victim.UID]); overlap != "" {
		t.Error(overlap)
	}
	if overlap := site.OverlapOf(site.Claimants[forged.UID]); !strings.Contains(overlap, "10.0.0.4/30") {
		t.Errorf("%q", overlap)
	}
	both := newBlock("pool-2", is("10.0.0.6/31", "10.0.0.6", "10.0.0.7")) // it came with both, as a restore may bring it
	site.Observe(blocks.Of(both))
	for _, o := range []*v1alpha1.IPAllocation{victim, both} {
		if overlap := site.OverlapOf(site.Claimants[o.UID]); overlap == "" {
			t.Errorf("%s is told of no other", o.Name)
		}
	}
}

// What is moved away stays on record as open, whatever becomes of the IPAllocation: a person opens the pool again.
func TestAMovedBlockIsNotGivenBack(t *testing.T) {
	p := aChild(t, isOpen("pool-1", "10.0.0.4/30"))
	b := shown(p, newBlock("pool-1", firstBlock, movedAway))
	p.ForgetBlock(b.UID, b.Name)
	for range 2 {
		p.TurnBlocks(noon, time.Minute)
		if len(p.Carved.Todo.Close) > 0 || p.Carved.Todo.Ask > 0 {
			t.Errorf("%+v", p.Carved.Todo)
		}
		p.Base.PoolStatus().Blocks[0].Draining = true
	}
	if reason, message := p.Closed(noon); reason != v1alpha1.MovedReason {
		t.Errorf("%s: %s", reason, message)
	}
}

// What was seen in an earlier term, or of an earlier pool that counted its terms from the beginning too, is looked at again.
func TestATermBeginsWithoutWhatWasVerified(t *testing.T) {
	p := aChild(t)
	b := shown(p, newBlock("pool-1", firstBlock))
	p.Verify(b.UID, b.Name, p.InTerm())
	p.Rebuild(&grants.Listed{})
	p.TurnBlocks(noon, time.Minute)
	if diff := cmp.Diff(carve.Decision{Look: []string{"pool-1"}}, p.Carved.Todo); diff != "" {
		t.Error(diff)
	}
}

// A manager that has not planned yet knows what those lack that wait, and becomes the holder for them when nobody else asks.
func TestAnOnlookerKnowsWhatIsLacking(t *testing.T) {
	p := aChild(t, isOpen("pool-1", "10.0.0.4/32"))
	shown(p, newBlock("pool-1", is("10.0.0.4/32", "10.0.0.4", "10.0.0.4")))
	seeAddress(p, "a", "10.0.0.4", "uid-a")
	waits := see(p, "b", 1)
	p.Holder, p.Term = false, 0
	p.Plan(noon, 0, anyone)
	waits.Status = &grants.ShownStatus{Refusal: *grants.NotReady("it is on its way")}
	may, wait := p.MayTakeOver(noon, false, time.Hour, anyone, anyone)
	if may || wait == 0 {
		t.Fatalf("takes over: %v, comes back after %v", may, wait)
	}
	if may, _ = p.MayTakeOver(noon.Add(time.Hour), false, time.Hour, anyone, anyone); !may {
		t.Error("nobody asks for a block")
	}
}

// The end of a block reaches its pool from the object alone: what its parent remembers may have ended before.
func TestForgetTellsTheChild(t *testing.T) {
	for name, end := range map[string]func(*Allocator, *v1alpha1.IPAllocation){
		"Watched": func(a *Allocator, o *v1alpha1.IPAllocation) { a.Forget(o) },
		"Relisted": func(a *Allocator, _ *v1alpha1.IPAllocation) {
			for _, o := range a.Beyond(&v1alpha1.IPAllocation{}, nil) {
				a.Forget(o)
			}
		},
		"OurOwn": func(a *Allocator, o *v1alpha1.IPAllocation) {
			p := a.pool(siteKey)
			m := p.Lock()
			c := *blocks.Of(o)
			m.Unlock()
			a.forgetClaimant(p, c)
		},
	} {
		t.Run(name, func(t *testing.T) {
			a := New(Options{ID: "me", Clock: clocktesting.NewFakeClock(noon)})
			o := newBlock("pool-1", firstBlock)
			a.Observe(o)
			site := a.locked(siteKey)
			site.Forget(o.UID)
			site.Unlock()
			end(a, o)
			m := a.locked(testKey)
			defer m.Unlock()
			if len(m.Carved.Blocks) > 0 {
				t.Errorf("its pool has it still: %v", m.Carved.Blocks)
			}
		})
	}
}

// creates is an API server that notes what is created.
type creates struct {
	client.Client
	made []client.Object
}

func (c *creates) Create(_ context.Context, o client.Object, _ ...client.CreateOption) error {
	o.SetUID("made")
	c.made = append(c.made, o)
	return nil
}

// A manager that looks after some objects alone, by their label, looks after the blocks that it asks for.
func TestABlockHasTheWatchLabel(t *testing.T) {
	api := &creates{}
	a := New(Options{ID: "me", Client: api, WatchFilter: "blue", Clock: clocktesting.NewFakeClock(noon)})
	if err := a.askForBlock(t.Context(), grants.PoolOf(aChild(t)), grants.BlockRequest{Verb: grants.AskForBlock, Name: "pool-1"}); err != nil {
		t.Fatal(err)
	}
	if got := api.made[0].GetLabels()[clusterv1.WatchLabel]; got != "blue" {
		t.Errorf("it has the label %q", got)
	}
	if api.made[0].GetNamespace() != "ns" || !slices.Contains(api.made[0].GetFinalizers(), v1alpha1.CarvedPoolFinalizer) {
		t.Errorf("made %+v", api.made[0])
	}
}

// Who may have a block: a record alone, which the creator of an object can write, changes nothing of that.
func TestMayHaveABlock(t *testing.T) {
	record := func(o *v1alpha1.IPAllocation) {
		o.Annotations[v1alpha1.AddressAnnotation] = "10.0.0.4/30"
		o.Finalizers = append(o.Finalizers, v1alpha1.IPAllocationFinalizer)
	}
	allows := func(lengths ...int32) func(*v1alpha1.NetworkPool) {
		return func(o *v1alpha1.NetworkPool) {
			o.Spec.Carvable = &v1alpha1.Carvable{PrefixLengths: lengths, MaxBlocksPerNamespace: ptr.To[int32](1)}
		}
	}
	another := newBlock("another", is("10.0.0.8/30", "10.0.0.8", "10.0.0.11"))
	tests := map[string]struct {
		site   func(*v1alpha1.NetworkPool)
		others []*v1alpha1.IPAllocation
		block  *v1alpha1.IPAllocation
		no     string // what the refusal says; empty: it has its block
	}{
		"Asks":             {site: allows(), block: newBlock("pool-1")},
		"NotCarvable":      {block: newBlock("pool-1"), no: "carvable is not set"},
		"Forged":           {block: newBlock("pool-1", record), no: "carvable is not set"},
		"ForgedLength":     {site: allows(28), block: newBlock("pool-1", record), no: "allows /28"},
		"ForgedTooMany":    {site: allows(), others: []*v1alpha1.IPAllocation{another}, block: newBlock("pool-1", record), no: "maxBlocksPerNamespace"},
		"MovedHere":        {site: allows(), block: newBlock("pool-1", record)},
		"Has":              {block: newBlock("pool-1", firstBlock)},
		"HasAnotherParent": {site: allows(), block: newBlock("x-1", func(o *v1alpha1.IPAllocation) { o.Spec.ChildPoolRef.Name = "x" }, record), no: "does not exist"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			a := New(Options{ID: "me", Clock: clocktesting.NewFakeClock(noon), Recorder: events.NewFakeRecorder(9)})
			a.publish(aChild(t).Base)
			var change []func(*v1alpha1.NetworkPool)
			if tt.site != nil {
				change = append(change, tt.site)
			}
			p := aPool(t, "10.0.0.0-10.0.0.15", append(change, func(o *v1alpha1.NetworkPool) {
				o.Name, o.UID, o.Spec.AllocateReservedIPAddresses = siteKey.Name, "site-uid", true
			})...)
			p.Key = siteKey
			a.publish(p.Base)
			for _, o := range append(tt.others, tt.block) {
				p.Observe(blocks.Of(o))
			}
			c := p.Claimants[tt.block.UID]
			no := a.rules(t.Context(), p, noon)(c).Refused
			if no == nil {
				_, no = p.Choose(c)
			}
			if (tt.no == "") != (no == nil) || (no != nil && !strings.Contains(no.Message, tt.no)) {
				t.Errorf("refused: %v", no)
			}
		})
	}
}

// Who may make a global pool is no tenant: its blocks count for no namespace, and no selector keeps them from it.
func TestAGlobalChildIsNoTenant(t *testing.T) {
	global := func(name string) func(*v1alpha1.IPAllocation) {
		return func(o *v1alpha1.IPAllocation) {
			o.Namespace, o.Spec.ChildPoolRef.Kind, o.Spec.PoolRef.Kind = "home", v1alpha1.GlobalNetworkPoolKind, v1alpha1.GlobalNetworkPoolKind
			o.Name, o.Spec.ChildPoolRef.Name = name+"-1", name
			o.UID = types.UID("uid-" + o.Name)
		}
	}
	a := New(Options{ID: "me", BlockNamespace: "home", Clock: clocktesting.NewFakeClock(noon)})
	key := pools.Key{Kind: v1alpha1.GlobalNetworkPoolKind, Name: siteKey.Name}
	site := &v1alpha1.GlobalNetworkPool{ObjectMeta: metav1.ObjectMeta{Name: key.Name, UID: "site-uid", ResourceVersion: "10", Generation: 1}}
	site.Spec.CIDR, site.Spec.Carvable = "10.0.0.0/24", &v1alpha1.Carvable{MaxBlocksPerNamespace: ptr.To[int32](1)}
	site.Spec.NamespaceSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"team": "a"}}
	a.publish(site)
	m := a.locked(key)
	defer m.Unlock()
	m.SetBase(site)
	m.Holder = true
	m.Rebuild(&grants.Listed{})
	for _, name := range []string{"a", "b"} {
		child := &v1alpha1.GlobalNetworkPool{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name), Generation: 1}}
		child.Spec.Carve = &v1alpha1.Carve{PoolRef: v1alpha1.PoolReference{Kind: key.Kind, Name: key.Name}, PrefixLength: 30}
		a.publish(child)
		o := newBlock("", global(name))
		m.Observe(blocks.Of(o))
		if no := a.rules(t.Context(), m, noon)(m.Claimants[o.UID]).Refused; no != nil {
			t.Errorf("%s: %s", o.Name, no.Message)
		}
	}
	plan := func(most int) {
		t.Helper()
		if granted, _ := m.Plan(noon, 9, anyone); granted != most {
			t.Errorf("%d have their block, not %d", granted, most)
		}
	}
	plan(2)
	for _, name := range []string{"c", "d"} { // of the namespace where these are
		m.Observe(blocks.Of(newBlock("", global(name), func(o *v1alpha1.IPAllocation) { o.Spec.ChildPoolRef.Kind = v1alpha1.NetworkPoolKind })))
	}
	plan(1)
}

// A block is an orphan when there is no pool of the name, or one that is carved from another pool.
func TestWithoutOwner(t *testing.T) {
	tests := map[string]struct {
		pool *v1alpha1.NetworkPool
		gone string
	}{
		"Gone":    {gone: "NetworkPool ns/pool does not exist"},
		"There":   {pool: aChild(t).Base.(*v1alpha1.NetworkPool)},
		"Plain":   {pool: aChild(t, plain).Base.(*v1alpha1.NetworkPool), gone: "NetworkPool ns/pool is not carved from NetworkPool ns/site"},
		"Another": {pool: aChild(t, func(o *v1alpha1.NetworkPool) { carvedOf(o, "another") }).Base.(*v1alpha1.NetworkPool), gone: "NetworkPool ns/pool is not carved from NetworkPool ns/site"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			a := New(Options{ID: "me", Client: around{}, Live: &child{pool: tt.pool}, Clock: clocktesting.NewFakeClock(noon)})
			if tt.pool != nil {
				a.publish(tt.pool)
			}
			c := blocks.Of(newBlock("pool-1", firstBlock))
			if gone, err := a.withoutOwner(t.Context(), siteKey, c); gone != tt.gone || err != nil {
				t.Errorf("%q, %v", gone, err)
			}
			if found := a.lookAtOwners(t.Context())(siteKey, c); (found == grants.Seen) != (tt.gone == "") {
				t.Errorf("the cache says %v", found)
			}
		})
	}
}

// around are the Clusters of the namespace of a pool.
type around struct {
	client.Client
	clusters []*clusterv1.Cluster
	err      error
}

func (a around) List(_ context.Context, list client.ObjectList, _ ...client.ListOption) error {
	if all, is := list.(*clusterv1.ClusterList); is {
		for _, c := range a.clusters {
			all.Items = append(all.Items, *c)
		}
	}
	return a.err
}

// A pool is seen paused with any Cluster of its namespace. Where there is none, they may have been moved.
func TestAPoolIsSeenWithItsNamespace(t *testing.T) {
	tests := map[string]struct {
		around around
		told   grants.Sighting
		found  grants.Sighting
	}{
		"no Cluster is there":              {found: grants.Seen},
		"none is there any more":           {told: grants.Paused, found: grants.Unlooked},
		"one runs":                         {around: around{clusters: []*clusterv1.Cluster{prod()}}, told: grants.Paused, found: grants.Seen},
		"one of two is paused":             {around: around{clusters: []*clusterv1.Cluster{prod(pausedCluster), prod()}}, found: grants.Paused},
		"one is moved, and is unpaused":    {around: around{clusters: []*clusterv1.Cluster{prod(), prod(markedCluster, deletedCluster)}}, found: grants.Paused},
		"the Clusters could not be listed": {around: around{err: errors.New("slow")}, found: grants.Unlooked},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			a := New(Options{ID: "me", Client: tt.around, Clock: clocktesting.NewFakeClock(noon)})
			a.publish(aChild(t).Base)
			c := blocks.Of(newBlock("pool-1", firstBlock))
			c.Told = tt.told
			if found := a.lookAtOwners(t.Context())(siteKey, c); found != tt.found {
				t.Errorf("found %v, not %v", found, tt.found)
			}
		})
	}
}

// What was found once was alive: that it went before the status said so makes no difference.
func TestWhatWasFoundOnceWasSeen(t *testing.T) {
	p := aPool(t, "10.0.0.1-10.0.0.9")
	c := seeBlock(p, "x", 4)
	p.NoteSighting(c, grants.Seen)
	p.NoteSighting(c, grants.Unseen)
	if c.Found != grants.Seen {
		t.Errorf("it says %v", c.Found)
	}
}

// A pool that comes wakes its parent, and not all that the parent has carved: a thousand come at the start.
func TestAChildWakesItsParentAlone(t *testing.T) {
	a := New(Options{ID: "me", Clock: clocktesting.NewFakeClock(noon)})
	woken := map[pools.Key]int{}
	a.Start(t.Context(), func(key pools.Key) { woken[key]++ })
	for _, name := range []string{"a", "b", "c"} {
		o := aChild(t).Base.DeepCopyObject().(*v1alpha1.NetworkPool)
		o.Name, o.UID = name, types.UID(name)
		a.publish(o)
	}
	if diff := cmp.Diff(map[pools.Key]int{siteKey: 3}, woken); diff != "" {
		t.Error(diff)
	}
	clear(woken)
	a.withdrawSpec(siteKey) // nobody knows of it
	site := aPool(t, "10.0.0.0-10.0.0.15").Base.(*v1alpha1.NetworkPool)
	site.Name = siteKey.Name
	if a.publish(site); len(woken) != 3 {
		t.Errorf("the parent wakes %v", woken)
	}
	site.Generation++
	site.Spec.Carve = &v1alpha1.Carve{PoolRef: v1alpha1.PoolReference{Name: "a"}, PrefixLength: 30}
	if a.publish(site); len(woken) != 4 { // a circle ends
		t.Errorf("woken: %v", woken)
	}
}

// Thousands of claims may wait for a block, and the API server may say another thing at each try: the pool says what, and
// they say where to look.
func TestClaimsAreNotToldEachError(t *testing.T) {
	p := aChild(t)
	c := see(p, "a", 0)
	r := grants.BlockRequest{Verb: grants.AskForBlock, Name: "pool-1"}
	p.BeginBlock(r)
	p.EndBlock(r, errors.New("etcd is slow"), noon, blockRetry)
	_, refused := p.Plan(noon, 9, anyone)
	if no := refused[c]; no == nil || strings.Contains(no.Message, "etcd") || !strings.Contains(no.Message, "its condition Ready says") {
		t.Errorf("the claim is told %v", no)
	}
	p.TurnBlocks(noon, time.Minute)
	ready := meta.FindStatusCondition(p.Prepare(noon).Pool.GetConditions(), v1alpha1.ReadyCondition)
	if !strings.Contains(ready.Message, "etcd is slow") {
		t.Errorf("the pool says %s", ready.Message)
	}
}

// A parent that another manager serves, and is carved itself, has other addresses without another spec.
func TestAParentOfAnotherShardTellsItsChildren(t *testing.T) {
	woken := map[pools.Key]int{}
	a := New(Options{ID: "me", Clock: clocktesting.NewFakeClock(noon)})
	a.Start(t.Context(), func(key pools.Key) { woken[key]++ })
	a.publish(aChild(t).Base)
	site := aChild(t).Base.(*v1alpha1.NetworkPool)
	carvedOf(site, "root")
	site.Name, site.UID = siteKey.Name, "site-uid"
	a.observeOnly(a.pool(siteKey), site, noon)
	clear(woken)
	more := site.DeepCopy()
	isOpen("site-1", "10.0.0.0/28")(more)
	more.ResourceVersion = "11"
	if a.observeOnly(a.pool(siteKey), more, noon); woken[testKey] != 1 {
		t.Errorf("woken: %v", woken)
	}
	if got := a.parentOf(aChild(t).Base); got.Network == nil || got.Bits != 32 {
		t.Errorf("it knows %+v of its parent", got)
	}
}
