package nodeipam

import (
	"context"
	"net/netip"
	"slices"
	"strconv"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/fence"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/podcidr"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/term"
)

// growing is the memory of a holder of a ClusterCIDR of blocks for two Nodes each, at most two of them.
func growing(t *testing.T, blocks []Block, nodes ...*podcidr.Node) *memory {
	t.Helper()
	return growingOf(t, blocks, func(*v1alpha1.ClusterCIDRSpec) {}, nodes...)
}

func growingOf(t *testing.T, blocks []Block, change func(*v1alpha1.ClusterCIDRSpec), nodes ...*podcidr.Node) *memory {
	t.Helper()
	c := fleetRange(use(prod, "m", 0, 0))
	c.Spec.IPv4, c.Spec.IPv4Pool = "", &v1alpha1.PodPool{Kind: v1alpha1.GlobalNetworkPoolKind, Name: "pods", NodesPerBlock: 2, MaxBlocks: new(int32(2))}
	change(&c.Spec)
	o, _ := ObjectFor(c, prod, map[string]string{"net": "edge"})
	m := newMemory(prod, time.Minute)
	m.setObjects([]Object{o})
	m.setBlocks(blocks, noon)
	listed := map[types.UID]*node{}
	for _, n := range nodes {
		listed[n.UID] = seen(n, "1", noon)
	}
	m.takeovers++
	m.tookOver(fence.State{Holder: "me", Term: 1, Seq: 1}, listed, noon)
	return m
}

func aBlock(name, prefix string, change ...func(*Block)) Block {
	b := Block{
		Ref: podcidr.Ref{Kind: v1alpha1.IPAllocationKind, Name: name, UID: types.UID("uid-" + name)}, Version: "5", For: "c",
		Pool: v1alpha1.PoolReference{Kind: v1alpha1.GlobalNetworkPoolKind, Name: "pods"}, Length: 23, Protected: true,
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

// turn is what a site decides on blocks, and commits.
func (m *memory) turnOnce(t *testing.T, now time.Time) []string {
	t.Helper()
	m.setGrows(now)
	m.plan(now)
	g := m.decideBlocks(now)
	m.listed = g.next
	if _, p, _ := m.next(now); p != nil {
		m.landed(p, false, now)
	}
	return namesOf(g.errands)
}

func namesOf(errands []errand) (out []string) {
	for _, e := range errands {
		out = append(out, [...]string{"look at ", "guard ", "give back ", "let go of ", "ask for "}[e.do]+e.name)
	}
	return out
}

func expectErrands(t *testing.T, got []string, want ...string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("it is to %q, want %q", got, want)
	}
}

// A Node that finds no room has its Cluster ask for a block; what is on its way is not asked for again; a Node is given
// something when the block is open on record.
func TestBlocksAreAskedFor(t *testing.T) {
	m := growing(t, nil, aNode("a"), aNode("b"), aNode("x"))
	expectErrands(t, m.turnOnce(t, noon), "ask for prod-pods-4-1", "ask for prod-pods-4-2")
	m.setBlocks([]Block{aBlock("prod-pods-4-1", ""), aBlock("prod-pods-4-2", "")}, noon)
	expectErrands(t, m.turnOnce(t, noon))
	m.setBlocks([]Block{aBlock("prod-pods-4-1", "10.0.0.0/23"), aBlock("prod-pods-4-2", "")}, noon)
	expectErrands(t, m.turnOnce(t, noon), "look at prod-pods-4-1")
	m.sawBlock(aBlock("prod-pods-4-1", "10.0.0.0/23"), noon)
	m.turnOnce(t, noon)
	if len(m.grants) > 0 {
		t.Error("something is granted of a block that is not on record")
	}
	m.turnOnce(t, noon)
	if len(m.grants) != 2 || !slices.ContainsFunc(m.open, func(o fence.Open) bool { return o.Name == "prod-pods-4-1" && o.For == "c" }) {
		t.Errorf("%d grants, and open is %+v", len(m.grants), m.open)
	}
}

// R15: what a watch shows, which may be old, opens no block.
func TestABlockIsLookedAtBeforeItIsOpen(t *testing.T) {
	m := growing(t, []Block{aBlock("prod-pods-4-1", "10.0.0.0/23")}, aNode("a"))
	expectErrands(t, m.turnOnce(t, noon), "look at prod-pods-4-1")
	if len(m.open) > 0 {
		t.Errorf("a block is opened unseen: %+v", m.open)
	}
}

// R15: a block that is being deleted goes back after a commit of the own term, and when no Node has any of it.
func TestABlockGoesBackAfterACommit(t *testing.T) {
	s, c := siteOf(t)
	b := aBlock("prod-pods-4-1", "10.0.0.0/23", isDeleted)
	s.memory = growing(t, []Block{b})
	s.Blocks = blocksOf{c}
	if _, err := s.tend(t.Context(), growth{errands: []errand{{do: letGo, name: b.Name, block: b}}}); err != nil {
		t.Fatal(err)
	}
	if c.at("let go") >= 0 {
		t.Fatal("a block goes back without a commit that it is not open")
	}
	expectErrands(t, s.memory.turnOnce(t, noon), "let go of prod-pods-4-1")
	if _, err := s.tend(t.Context(), growth{errands: []errand{{do: letGo, name: b.Name, block: b}}}); err != nil {
		t.Fatal(err)
	}
	if list, last := c.at("list *v1.Node"), c.at("let go"); last < 0 || list > last {
		t.Errorf("%v", c.all)
	}
}

// A block that no Node has used for the grace goes back: first it is on record that nothing more is given of it.
func TestAnIdleBlockGoesBack(t *testing.T) {
	m := growing(t, []Block{aBlock("prod-pods-4-1", "10.0.0.0/23")}, aNode("a", "10.0.0.0/24"))
	m.sawBlock(aBlock("prod-pods-4-1", "10.0.0.0/23"), noon)
	m.turnOnce(t, noon)
	m.forget("a", noon)
	expectErrands(t, m.turnOnce(t, noon))
	expectErrands(t, m.turnOnce(t, noon.Add(2*time.Minute)))
	if len(m.open) != 1 || !m.open[0].Draining {
		t.Fatalf("open is %+v", m.open)
	}
	expectErrands(t, m.turnOnce(t, noon.Add(2*time.Minute)), "give back prod-pods-4-1")
}

// A Node waits that the plan does not look at, as so many are refused: a block that is on its way stays, or it would be asked for
// again at the next trial. When no Node waits it goes.
func TestABlockThatIsWaitedForStays(t *testing.T) {
	m := growing(t, []Block{aBlock("prod-pods-4-1", "")}, aNode("x"))
	m.trouble.nodes = map[types.UID]bool{}
	for i := range term.MaxTroubled {
		m.trouble.nodes[types.UID(strconv.Itoa(i))] = true
	}
	m.trouble.next = noon.Add(time.Hour)
	expectErrands(t, m.turnOnce(t, noon))
	expectErrands(t, m.turnOnce(t, noon.Add(2*time.Minute)))
	m.forget("x", noon)
	expectErrands(t, m.turnOnce(t, noon.Add(2*time.Minute)), "give back prod-pods-4-1")
}

// The pool has nothing, or the Cluster has as many as it may: who waits is told, and nothing is asked for again.
func TestShortage(t *testing.T) {
	refused := func(b *Block) { b.Refused = "the pool has no free prefix of /23" }
	for name, tt := range map[string]struct {
		blocks []Block
		reason string
	}{
		"the pool is empty": {blocks: []Block{aBlock("prod-pods-4-1", "", refused)}, reason: v1alpha1.PoolExhaustedReason},
		"as many as it may": {blocks: []Block{aBlock("prod-pods-4-1", "10.0.0.0/23"), aBlock("prod-pods-4-2", "10.0.2.0/23")}, reason: v1alpha1.QuotaReachedReason},
	} {
		t.Run(name, func(t *testing.T) {
			var nodes []*podcidr.Node
			for i, at := range []string{"10.0.0.0/24", "10.0.1.0/24", "10.0.2.0/24", "10.0.3.0/24"} {
				nodes = append(nodes, aNode(string(rune('a'+i)), at))
			}
			m := growing(t, tt.blocks, append(nodes, aNode("x"))...)
			for _, b := range tt.blocks {
				m.sawBlock(b, noon)
			}
			for range 3 {
				expectErrands(t, m.turnOnce(t, noon))
			}
			for _, u := range m.report().Ranges {
				i := slices.IndexFunc(u.Conditions, func(c metav1.Condition) bool { return c.Type == v1alpha1.ExhaustedCondition })
				if c := u.Conditions[i]; c.Status != metav1.ConditionTrue || c.Reason != tt.reason {
					t.Errorf("%+v", c)
				}
			}
			told := slices.DeleteFunc(m.notes, func(n note) bool { return n.reason != CIDRNotAvailable })
			if len(told) != 1 || told[0].node != "x" {
				t.Errorf("%+v", told)
			}
		})
	}
}

// blocksOf notes what is asked for.
type blocksOf struct{ *calls }

func (c blocksOf) Look(context.Context, string) (Block, bool, error) { return Block{}, false, nil }

func (c blocksOf) Ask(context.Context, string, podcidr.Ref, Source, fence.Open) (Block, bool, error) {
	return Block{}, false, nil
}

func (c blocksOf) Guard(context.Context, Block) error { return nil }

func (c blocksOf) LetGo(context.Context, Block) error { c.notef("let go"); return nil }

func (c blocksOf) Delete(context.Context, Block) error { return nil }

// R15: what a block has is what is on record of it, also while its own status does not say that.
func TestALostBlockIsInUse(t *testing.T) {
	b := aBlock("prod-pods-4-1", "")
	m := growing(t, []Block{b}, aNode("a", "10.0.0.0/24"))
	m.setOpen([]fence.Open{{Kind: b.Kind, Name: b.Name, UID: b.UID, For: "c", Draining: true, CIDRs: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/23")}}})
	if m.used(b) == 0 {
		t.Fatal("nobody uses it, it is said")
	}
	for _, e := range m.decideBlocks(noon.Add(time.Hour)).errands {
		if e.do == giveBack || e.do == letGo {
			t.Errorf("it goes: %+v", e)
		}
	}
}

// A ClusterCIDR whose blocks are all waited for gives nothing now, which is not for the CIDRs of Services.
func TestALostBlockIsNotForServices(t *testing.T) {
	b := aBlock("prod-pods-4-1", "")
	m := growing(t, []Block{b}, aNode("a", "10.0.0.0/24"))
	m.setServices(prefixes("10.96.0.0/12"))
	m.setOpen([]fence.Open{{Kind: b.Kind, Name: b.Name, UID: b.UID, For: "c", Draining: true, CIDRs: prefixes("10.0.0.0/23")}})
	for _, u := range m.report().Ranges {
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

// A ClusterCIDR with a pool of each family, of which the API server has refused one request: it is made again after a while,
// and blocks that are waited for are not given back meanwhile.
func TestBothFamiliesAreAskedForAgain(t *testing.T) {
	refused := func(b *Block) { b.Refused = "the pool has no free prefix" }
	ofIPv6 := func(b *Block) { b.Length, b.Pool.Name = 119, "pods6" }
	for name, tt := range map[string]struct {
		blocks []Block
		err    error
		want   []string
	}{
		"one was refused for good": {err: forbidden, want: []string{"ask for prod-pods-4-1", "ask for prod-pods-6-1"}},
		"both pools are empty":     {blocks: []Block{aBlock("prod-pods-4-1", "", refused), aBlock("prod-pods-6-1", "", refused, ofIPv6)}},
	} {
		t.Run(name, func(t *testing.T) {
			m := growingOf(t, tt.blocks, func(s *v1alpha1.ClusterCIDRSpec) {
				s.IPv6Pool = &v1alpha1.PodPool{Kind: v1alpha1.GlobalNetworkPoolKind, Name: "pods6", NodesPerBlock: 2}
			}, aNode("a"))
			m.askErr = tt.err
			expectErrands(t, m.turnOnce(t, noon), tt.want...)
			expectErrands(t, m.turnOnce(t, noon.Add(time.Hour)), tt.want...)
		})
	}
}
