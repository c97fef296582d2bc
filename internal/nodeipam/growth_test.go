package nodeipam

import (
	"context"
	"net/netip"
	"slices"
	"strconv"
	"testing"
	"time"

	"go4.org/netipx"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/carve"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/fence"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/podcidr"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/term"
)

// newGrowingState returns the state of a holder with a ClusterCIDR that has blocks for two Nodes each, at most two of
// them.
func newGrowingState(t *testing.T, blocks []Block, nodes ...*podcidr.Node) *nodeState {
	t.Helper()
	return newGrowingStateWith(t, blocks, func(*v1alpha1.ClusterCIDRSpec) {}, nodes...)
}

func newGrowingStateWith(t *testing.T, blocks []Block, change func(*v1alpha1.ClusterCIDRSpec), nodes ...*podcidr.Node) *nodeState {
	t.Helper()
	c := fleetRange(use(prod, "m", 0, 0))
	c.Spec.IPv4, c.Spec.IPv4Pool = "", &v1alpha1.PodPool{Kind: v1alpha1.GlobalNetworkPoolKind, Name: "pods", NodesPerBlock: 2, MaxBlocks: new(int32(2))}
	change(&c.Spec)
	o, _ := RangeObjectForCluster(c, prod, map[string]string{"net": "edge"})
	m := newNodeState(prod, time.Minute)
	m.setRangeObjects([]RangeObject{o})
	m.blocks.setBlocks(blocks, noon)
	listed := map[types.UID]*nodeEntry{}
	for _, n := range nodes {
		listed[n.UID] = newNodeEntry(n, "1", noon)
	}
	m.term.takeoverCount++
	m.applyTakeover(fence.State{Holder: "me", Term: 1, Seq: 1}, listed, noon)
	return m
}

func newTestBlock(name, prefix string, change ...func(*Block)) Block {
	b := Block{
		Allocation: carve.Allocation{
			Name: name, UID: types.UID("uid-" + name), ResourceVersion: "5",
			PoolRef: v1alpha1.PoolReference{Kind: v1alpha1.GlobalNetworkPoolKind, Name: "pods"}, PrefixLength: 23, HasFinalizer: true,
		},
		ClusterCIDRName: "c",
	}
	if prefix != "" {
		b.Prefix = netip.MustParsePrefix(prefix)
	}
	for _, f := range change {
		f(&b)
	}
	return b
}

func isDeleted(b *Block) { b.Deleting = true }

// planBlocksOnce plans for Nodes and blocks, commits, and returns the requests for blocks.
func (ns *nodeState) planBlocksOnce(t *testing.T, now time.Time) []string {
	t.Helper()
	ns.growth.updateCanGrow(now)
	ns.planner.planGrants(now)
	g := ns.growth.planBlocks(now)
	ns.blocks.nextOpen = g.openBlocks
	if _, p, _ := ns.commits.prepareCommit(now); p != nil {
		ns.commits.recordCommitted(p, false, now)
	}
	return requestNames(g.requests)
}

// requestWords are the verbs of requests as tests name them.
var requestWords = map[carve.Verb]string{
	carve.GetBlock: "get ", carve.AddBlockFinalizer: "protect ", carve.DeleteBlock: "delete ", carve.RemoveBlockFinalizer: "release ", carve.CreateBlock: "create ",
}

func requestNames(requests []blockRequest) (out []string) {
	for _, e := range requests {
		out = append(out, requestWords[e.verb]+e.name)
	}
	return out
}

func expectBlockRequests(t *testing.T, got []string, want ...string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("it is to %q, want %q", got, want)
	}
}

// TestBlocksAreRequested checks that a block is requested for a Node that finds no room, that a block on its way is not
// requested again, and that Nodes are granted CIDRs once the block is open on record.
func TestBlocksAreRequested(t *testing.T) {
	m := newGrowingState(t, nil, newTestNode("a"), newTestNode("b"), newTestNode("x"))
	expectBlockRequests(t, m.planBlocksOnce(t, noon), "create prod-pods-4-1", "create prod-pods-4-2")
	m.blocks.setBlocks([]Block{newTestBlock("prod-pods-4-1", ""), newTestBlock("prod-pods-4-2", "")}, noon)
	expectBlockRequests(t, m.planBlocksOnce(t, noon))
	m.blocks.setBlocks([]Block{newTestBlock("prod-pods-4-1", "10.0.0.0/23"), newTestBlock("prod-pods-4-2", "")}, noon)
	expectBlockRequests(t, m.planBlocksOnce(t, noon), "get prod-pods-4-1")
	m.blocks.recordLiveBlock(newTestBlock("prod-pods-4-1", "10.0.0.0/23"), noon)
	m.planBlocksOnce(t, noon)
	if len(m.grants.byNode) > 0 {
		t.Error("something is granted of a block that is not on record")
	}
	m.planBlocksOnce(t, noon)
	if len(m.grants.byNode) != 2 || !slices.ContainsFunc(m.record.openRanges, func(o fence.OpenRange) bool { return o.Name == "prod-pods-4-1" && o.ClusterCIDRName == "c" }) {
		t.Errorf("%d grants, and open is %+v", len(m.grants.byNode), m.record.openRanges)
	}
}

// TestBlockIsReadLiveBeforeItOpens checks R15: what a watch shows may be old, and opens no block.
func TestBlockIsReadLiveBeforeItOpens(t *testing.T) {
	m := newGrowingState(t, []Block{newTestBlock("prod-pods-4-1", "10.0.0.0/23")}, newTestNode("a"))
	expectBlockRequests(t, m.planBlocksOnce(t, noon), "get prod-pods-4-1")
	if len(m.record.openRanges) > 0 {
		t.Errorf("a block is opened unseen: %+v", m.record.openRanges)
	}
}

// TestBlockIsReleasedAfterCommit checks R15: a block that is being deleted is released after a commit of the manager's
// own term, and when no Node has any of it.
func TestBlockIsReleasedAfterCommit(t *testing.T) {
	s, c := newTestSite(t)
	b := newTestBlock("prod-pods-4-1", "10.0.0.0/23", isDeleted)
	s = newAllocatorForState(s.Options, newGrowingState(t, []Block{b}))
	s.BlockClient = blockCalls{c}
	if _, err := s.blocks.reconcileBlocks(t.Context(), blockPlan{requests: []blockRequest{{verb: carve.RemoveBlockFinalizer, name: b.Name, block: b}}}); err != nil {
		t.Fatal(err)
	}
	if c.indexOf("remove finalizer") >= 0 {
		t.Fatal("a block goes back without a commit that it is not open")
	}
	expectBlockRequests(t, s.state.planBlocksOnce(t, noon), "release prod-pods-4-1")
	if _, err := s.blocks.reconcileBlocks(t.Context(), blockPlan{requests: []blockRequest{{verb: carve.RemoveBlockFinalizer, name: b.Name, block: b}}}); err != nil {
		t.Fatal(err)
	}
	if list, last := c.indexOf("list *v1.Node"), c.indexOf("remove finalizer"); last < 0 || list > last {
		t.Errorf("%v", c.all)
	}
}

// TestIdleBlockIsReleased checks that a block that no Node has used for the grace period is deleted, after it is on
// record that nothing more is granted from it.
func TestIdleBlockIsReleased(t *testing.T) {
	m := newGrowingState(t, []Block{newTestBlock("prod-pods-4-1", "10.0.0.0/23")}, newTestNode("a", "10.0.0.0/24"))
	m.blocks.recordLiveBlock(newTestBlock("prod-pods-4-1", "10.0.0.0/23"), noon)
	m.planBlocksOnce(t, noon)
	m.forgetNode("a", noon)
	expectBlockRequests(t, m.planBlocksOnce(t, noon))
	expectBlockRequests(t, m.planBlocksOnce(t, noon.Add(2*time.Minute)))
	if len(m.record.openRanges) != 1 || !m.record.openRanges[0].Draining {
		t.Fatalf("open is %+v", m.record.openRanges)
	}
	expectBlockRequests(t, m.planBlocksOnce(t, noon.Add(2*time.Minute)), "delete prod-pods-4-1")
}

// TestAwaitedBlockStays checks that a block on its way stays while a Node waits, even if the plan leaves that
// Node out because so many are refused: otherwise the block would be requested again at the next trial. When no Node
// waits, it is deleted.
func TestAwaitedBlockStays(t *testing.T) {
	m := newGrowingState(t, []Block{newTestBlock("prod-pods-4-1", "")}, newTestNode("x"))
	m.writes.refused.nodeUIDs = map[types.UID]bool{}
	for i := range term.SerialRetryThreshold {
		m.writes.refused.nodeUIDs[types.UID(strconv.Itoa(i))] = true
	}
	m.writes.refused.nextRetryAt = noon.Add(time.Hour)
	expectBlockRequests(t, m.planBlocksOnce(t, noon))
	expectBlockRequests(t, m.planBlocksOnce(t, noon.Add(2*time.Minute)))
	m.forgetNode("x", noon)
	expectBlockRequests(t, m.planBlocksOnce(t, noon.Add(2*time.Minute)), "delete prod-pods-4-1")
}

// TestShortageRecordsNodeEvent checks that, where the pool is empty or the Cluster has as many blocks as it may, the
// waiting Node gets an event, and nothing is requested again.
func TestShortageRecordsNodeEvent(t *testing.T) {
	refused := func(b *Block) { b.RefusalMessage = "the pool has no free prefix of /23" }
	for name, tt := range map[string]struct {
		blocks []Block
		reason string
	}{
		"the pool is empty": {blocks: []Block{newTestBlock("prod-pods-4-1", "", refused)}, reason: v1alpha1.PoolExhaustedReason},
		"as many as it may": {blocks: []Block{newTestBlock("prod-pods-4-1", "10.0.0.0/23"), newTestBlock("prod-pods-4-2", "10.0.2.0/23")}, reason: v1alpha1.QuotaReachedReason},
	} {
		t.Run(name, func(t *testing.T) {
			var nodes []*podcidr.Node
			for i, at := range []string{"10.0.0.0/24", "10.0.1.0/24", "10.0.2.0/24", "10.0.3.0/24"} {
				nodes = append(nodes, newTestNode(string(rune('a'+i)), at))
			}
			m := newGrowingState(t, tt.blocks, append(nodes, newTestNode("x"))...)
			for _, b := range tt.blocks {
				m.blocks.recordLiveBlock(b, noon)
			}
			for range 3 {
				expectBlockRequests(t, m.planBlocksOnce(t, noon))
			}
			for _, u := range m.reports.buildReport().UsageByRange {
				i := slices.IndexFunc(u.Conditions, func(c metav1.Condition) bool { return c.Type == v1alpha1.ExhaustedCondition })
				if c := u.Conditions[i]; c.Status != metav1.ConditionTrue || c.Reason != tt.reason {
					t.Errorf("%+v", c)
				}
			}
			events := slices.DeleteFunc(m.events.pending, func(n pendingEvent) bool { return n.reason != CIDRNotAvailable })
			if len(events) != 1 || events[0].nodeName != "x" {
				t.Errorf("%+v", events)
			}
		})
	}
}

// blockCalls logs requests for blocks.
type blockCalls struct{ *requestLog }

func (c blockCalls) GetBlock(context.Context, string) (Block, bool, error) {
	return Block{}, false, nil
}

func (c blockCalls) CreateBlock(context.Context, string, podcidr.Ref, BlockSource, fence.OpenRange) (Block, bool, error) {
	return Block{}, false, nil
}

func (c blockCalls) AddFinalizer(context.Context, Block) error { return nil }

func (c blockCalls) RemoveFinalizer(context.Context, Block) error {
	c.recordf("remove finalizer")
	return nil
}

func (c blockCalls) DeleteBlock(context.Context, Block) error { return nil }

// TestLostBlockIsInUse checks R15: a block has the addresses that are on record, even while its own status does not
// show them.
func TestLostBlockIsInUse(t *testing.T) {
	b := newTestBlock("prod-pods-4-1", "")
	m := newGrowingState(t, []Block{b}, newTestNode("a", "10.0.0.0/24"))
	m.blocks.setOpenRanges([]fence.OpenRange{{Kind: v1alpha1.IPAllocationKind, Name: b.Name, UID: b.UID, ClusterCIDRName: "c", Draining: true, CIDRs: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/23")}}})
	if m.blocks.countBlockUsers(b) == 0 {
		t.Fatal("it is reported as unused")
	}
	for _, e := range m.growth.planBlocks(noon.Add(time.Hour)).requests {
		if e.verb == carve.DeleteBlock || e.verb == carve.RemoveBlockFinalizer {
			t.Errorf("it goes: %+v", e)
		}
	}
}

// TestLostBlockIsNotForServices checks that a ClusterCIDR whose blocks are all awaited, and which therefore has
// nothing to grant, is not reported as being for Services.
func TestLostBlockIsNotForServices(t *testing.T) {
	b := newTestBlock("prod-pods-4-1", "")
	m := newGrowingState(t, []Block{b}, newTestNode("a", "10.0.0.0/24"))
	m.setServiceCIDRs(prefixes("10.96.0.0/12"))
	m.blocks.setOpenRanges([]fence.OpenRange{{Kind: v1alpha1.IPAllocationKind, Name: b.Name, UID: b.UID, ClusterCIDRName: "c", Draining: true, CIDRs: prefixes("10.0.0.0/23")}})
	for _, u := range m.reports.buildReport().UsageByRange {
		if u.Capacity != 2 || u.Allocated != 1 {
			t.Fatalf("setup: %+v", u)
		}
		for _, c := range u.Conditions {
			if c.Reason == v1alpha1.ServiceCIDRReason {
				t.Errorf("%+v", c)
			}
		}
	}
}

// TestBothFamiliesAreRequestedAgain checks a ClusterCIDR with a pool of each family where the API server has refused
// one request: the request is made again after a while, and awaited blocks are not deleted meanwhile.
func TestBothFamiliesAreRequestedAgain(t *testing.T) {
	refused := func(b *Block) { b.RefusalMessage = "the pool has no free prefix" }
	ofIPv6 := func(b *Block) { b.PrefixLength, b.PoolRef.Name = 119, "pods6" }
	for name, tt := range map[string]struct {
		blocks []Block
		err    error
		want   []string
	}{
		"one was refused for good": {err: forbidden, want: []string{"create prod-pods-4-1", "create prod-pods-6-1"}},
		"both pools are empty":     {blocks: []Block{newTestBlock("prod-pods-4-1", "", refused), newTestBlock("prod-pods-6-1", "", refused, ofIPv6)}},
	} {
		t.Run(name, func(t *testing.T) {
			m := newGrowingStateWith(t, tt.blocks, func(s *v1alpha1.ClusterCIDRSpec) {
				s.IPv6Pool = &v1alpha1.PodPool{Kind: v1alpha1.GlobalNetworkPoolKind, Name: "pods6", NodesPerBlock: 2}
			}, newTestNode("a"))
			m.requests.createErr = tt.err
			expectBlockRequests(t, m.planBlocksOnce(t, noon), tt.want...)
			expectBlockRequests(t, m.planBlocksOnce(t, noon.Add(time.Hour)), tt.want...)
		})
	}
}

func recordedRanges(cidrs ...string) (out []netipx.IPRange) {
	for _, p := range prefixes(cidrs...) {
		out = append(out, netipx.RangeOfPrefix(p))
	}
	return out
}
