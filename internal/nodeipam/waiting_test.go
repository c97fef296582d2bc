package nodeipam

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/fence"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/podcidr"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/term"
)

// No Node waits for ever for what it can have, whatever others do.

// turnAt is one turn of a holder: plan, commit, write. Writes of Nodes named bad... are refused for good.
func (m *memory) turnAt(now time.Time, write func(g *grant) error) {
	m.plan(now)
	if _, p, _ := m.next(now); p != nil {
		m.landed(p, false, noon)
	}
	due, _ := m.due(now)
	for _, g := range due {
		m.begin(g)
	}
	for _, g := range due {
		err := write(g)
		if err == nil {
			n := *g.Node
			n.CIDRs = g.CIDRs
			m.observe(&n, fmt.Sprint(now.UnixNano()), now)
		}
		m.wrote(g, err, now)
	}
}

// Room that a grant leaves which ends without CIDRs is given to who waits for it.
func TestRoomOfAnEndedGrant(t *testing.T) {
	for name, end := range map[string]func(m *memory){
		"its Node is gone":         func(m *memory) { m.forget("a", noon) },
		"its Node has other CIDRs": func(m *memory) { m.observe(aNode("a", "192.168.0.0/24"), "9", noon) },
		"refused, then being deleted": func(m *memory) {
			m.begin(m.grants["a"])
			m.wrote(m.grants["a"], forbidden, noon)
			d := aNode("a")
			d.Deleting = true
			m.observe(d, "9", noon)
		},
	} {
		t.Run(name, func(t *testing.T) {
			m := holding(t, "10.0.0.0/24", aNode("a"), aNode("b"))
			m.grantAll(t)
			if m.grants["a"] == nil || len(m.refused) != 1 {
				t.Fatal("setup")
			}
			end(m)
			for i := range 120 {
				m.turnAt(noon.Add(time.Duration(i)*time.Minute), func(*grant) error { return nil })
			}
			if len(m.nodes["b"].CIDRs) == 0 {
				t.Errorf("b has nothing after 2 h; todo %d refused %d grants %d", len(m.todo), len(m.refused), len(m.grants))
			}
		})
	}
}

// A manager that lost its term while Nodes were refused takes over when nobody else does.
func TestAStandbyInTroubleTakesOver(t *testing.T) {
	for _, elected := range []bool{false, true} {
		m := holding(t, "10.0.0.0/16", aNode("a"))
		m.trouble.nodes = map[types.UID]bool{}
		for i := range term.MaxTroubled {
			m.trouble.nodes[types.UID(string(rune('a'+i)))] = true
		}
		m.trouble.pause, m.trouble.next = term.FirstTry, noon.Add(term.FirstTry)
		m.lose(noon, func(d time.Duration) time.Duration { return d })
		m.unread = false // nothing is in flight on record
		took := false
		for now := noon; now.Before(noon.Add(3 * time.Hour)); {
			may, wait := m.mayTakeOver(now, elected)
			if may {
				took = true
				break
			}
			if wait <= 0 || wait > time.Minute {
				wait = time.Minute
			}
			now = now.Add(wait)
		}
		if !took {
			t.Errorf("elected %v: a Node waits, nobody holds it, and this manager did not take over in 3 h", elected)
		}
	}
}

// A standby leaves no trace of its look at what a holder would do.
func TestAStandbyForgetsNobody(t *testing.T) {
	m := holding(t, "10.0.0.0/24", aNode("a"), aNode("b"))
	m.lose(noon, func(time.Duration) time.Duration { return 0 })
	m.unread = false
	now := noon.Add(time.Second)
	m.mayTakeOver(now, false) // would take over if nobody did anything for 3 s
	m.forget("a", now)
	for range 100 {
		now = now.Add(time.Minute)
		if may, _ := m.mayTakeOver(now, false); may {
			return
		}
	}
	t.Error("b waits, there is room, and nobody takes over")
}

// Nodes of a ClusterCIDR that cannot be protected take no places of others.
func TestABlockedRangeHoldsUpNoOther(t *testing.T) {
	var nodes []*podcidr.Node
	for i := range maxGrants {
		n := aNode(fmt.Sprintf("a%03d", i))
		n.Labels = map[string]string{"size": "big"}
		nodes = append(nodes, n)
	}
	good := aNode("z")
	nodes = append(nodes, good)
	m := holding(t, "10.0.0.0/16", nodes...)
	c := forSizeObject("d", "10.1.0.0/16")
	var all []Object
	for _, o := range m.objects {
		all = append(all, o)
	}
	m.setObjects(append(all, c))
	protect, _ := m.plan(noon)
	for _, ref := range protect {
		if ref.Name == "d" {
			m.block(ref, forbidden, noon)
		}
	}
	if m.plan(noon); m.grants["z"] == nil {
		t.Error("z, of another ClusterCIDR, got nothing in the next turn")
	}
	if n := m.nodes["a000"]; n.waits.retryAt.Before(noon) || m.todo["a000"] == nil {
		t.Error("who waits for what is blocked is not to be tried again")
	}
}

// A watch may be faster than the answer to our write, and somebody else faster than our commit: of a Node that has CIDRs
// nothing is remembered of its wait, whatever is still found out about its grant.
func TestWhoHasCIDRsWaitsNoMore(t *testing.T) {
	m := holding(t, "10.0.0.0/16", aNode("a"), aNode("b"), aNode("c"))
	later := noon.Add(time.Minute)
	if m.plan(later); len(m.grants) != 3 {
		t.Fatalf("%d Nodes are granted something", len(m.grants))
	}
	c := m.grants["c"]
	m.observe(aNode("c", c.CIDRs[0].String()), "2", later) // before the commit
	m.block(c.From, forbidden, later)
	m.plan(later.Add(time.Hour))
	_, p, _ := m.next(later.Add(time.Hour))
	m.landed(p, false, later.Add(time.Hour))
	for _, uid := range []types.UID{"a", "b"} {
		g := m.grants[uid]
		if !g.since.Equal(noon) {
			t.Errorf("%s waits since %s, and was seen at %s", uid, g.since, noon)
		}
		m.begin(g)
		m.observe(aNode(string(uid), g.CIDRs[0].String()), "2", later)
		m.wrote(g, map[types.UID]error{"b": forbidden}[uid], later)
	}
	for uid, n := range m.nodes {
		if n.waits != nil || m.todo[uid] != nil {
			t.Errorf("%s has %v, and waits", uid, n.CIDRs)
		}
	}
}

func forSizeObject(name, cidr string) Object {
	c := &v1alpha1.ClusterCIDR{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)}}
	c.Spec = v1alpha1.ClusterCIDRSpec{PerNodeHostBits: 8, IPv4: cidr, NodeSelector: sizeSelector()}
	return ObjectOf(c)
}

// What another Node was seen with is not written knowingly.
func TestNothingIsWrittenIntoWhatIsTaken(t *testing.T) {
	m := holding(t, "10.0.0.0/23")
	m.takeovers++
	m.tookOver(fence.State{Holder: "me", Term: 2, InFlight: []fence.Grant{
		{Node: "a", UID: "a", From: "c", CIDRs: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/24")}},
	}}, map[types.UID]*node{"a": seen(aNode("a"), "1", noon), "b": seen(aNode("b", "10.0.0.0/24"), "1", noon)}, noon)
	if due, _ := m.due(noon); len(due) > 0 {
		t.Errorf("%s is to be written %v, which living Node b is known to have", due[0].Node.Name, due[0].CIDRs)
	}
}

// Nodes of which the writes hang, by a webhook that selects them, keep no other out.
func TestHangingNodesKeepNoOtherOut(t *testing.T) {
	for _, n := range []int{100, 150, 200, 300, 520} {
		var nodes []*podcidr.Node
		for i := range n {
			nodes = append(nodes, aNode(fmt.Sprintf("hang%03d", i)))
		}
		m := holding(t, "10.0.0.0/8", nodes...)
		type run struct {
			g   *grant
			end time.Time
		}
		var queue []*grant
		var running []run
		var good time.Time
		now, served := noon, time.Duration(0)
		for ; now.Before(noon.Add(4*time.Hour)) && served == 0; now = now.Add(250 * time.Millisecond) {
			if good.IsZero() && now.After(noon.Add(time.Hour)) {
				g := aNode("good")
				g.Created = now
				m.observe(g, "1", now)
				good = now
			}
			m.plan(now)
			if _, p, _ := m.next(now); p != nil {
				m.landed(p, false, noon)
			}
			due, _ := m.due(now)
			for _, g := range due {
				m.begin(g)
				queue = append(queue, g)
			}
			still := running[:0]
			for _, r := range running {
				if r.end.After(now) {
					still = append(still, r)
				} else {
					m.wrote(r.g, timeout, now)
				}
			}
			running = still
			for len(running) < 32 && len(queue) > 0 {
				g := queue[0]
				queue = queue[1:]
				if g.Node.Name == "good" {
					served = now.Sub(good)
					continue
				}
				running = append(running, run{g, now.Add(15 * time.Second)})
			}
		}
		if served == 0 {
			t.Errorf("%d hang: the good Node was not served in 3 h; %d in flight, %d jobs", n, len(m.grants), m.jobs)
		} else {
			t.Logf("%d hang: served after %v", n, served)
		}
	}
}

func sizeSelector() *corev1.NodeSelector {
	return &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
		MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "size", Operator: corev1.NodeSelectorOpExists}},
	}}}
}
