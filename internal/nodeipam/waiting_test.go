package nodeipam

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
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

// A write of which nothing is known may still land. When another allocator has given the CIDR to another Node meanwhile, the
// Node gets another one as soon as no such write can land any more, and no other Node gets the first one before.
func TestAGrantThatAnotherAllocatorGave(t *testing.T) { // K51
	for name, inherited := range map[string]bool{"its own": false, "inherited": true} {
		t.Run(name, func(t *testing.T) {
			m := holding(t, "10.0.0.0/23", aNode("a"))
			m.grantAll(t)
			m.begin(m.grants["a"])
			m.wrote(m.grants["a"], timeout, noon)
			if inherited {
				state := fence.State{Holder: "me", Term: 2, InFlight: []fence.Grant{{Node: "a", UID: "a", From: "c", CIDRs: m.grants["a"].CIDRs}}}
				m.takeovers++
				m.tookOver(state, map[types.UID]*node{"a": seen(aNode("a"), "1", noon)}, noon)
			}
			m.observe(aNode("b", m.grants["a"].CIDRs[0].String()), "2", noon)
			m.forget("b", noon.Add(10*time.Second)) // the other Node is gone again
			m.observe(aNode("b2", m.grants["a"].CIDRs[0].String()), "3", noon.Add(11*time.Second))
			served := time.Duration(0)
			for now := noon; served == 0 && now.Before(noon.Add(10*time.Minute)); now = now.Add(time.Second) {
				m.turnAt(now, func(*grant) error { return nil })
				if len(m.nodes["a"].CIDRs) > 0 {
					served = now.Sub(noon)
				}
			}
			if served < adoption || served > adoption+10*time.Second {
				t.Errorf("a is served after %v; notes %v", served, m.notes)
			}
			if len(m.notes) == 0 || !strings.Contains(m.notes[0].message, "--allocate-node-cidrs=false") {
				t.Errorf("it says %v", m.notes)
			}
		})
	}
}

// Hundreds of writes that fail for hours wake the site once a second at most.
func TestWritesThatFailWakeOnceASecond(t *testing.T) {
	var nodes []*podcidr.Node
	for i := range maxInFlight {
		nodes = append(nodes, aNode(fmt.Sprintf("n%03d", i)))
	}
	m := holding(t, "10.0.0.0/8", nodes...)
	const step = 10 * time.Millisecond
	var running []*grant
	wake, next, turns := true, noon, 0
	for now := noon; now.Before(noon.Add(6 * time.Minute)); now = now.Add(step) {
		var still []*grant
		for i, g := range running {
			if i%3 == 0 { // the others take longer
				wake = m.wrote(g, apierrors.NewInternalError(timeout), now) || wake
			} else {
				still = append(still, g)
			}
		}
		if running = still; !wake && now.Before(next) {
			continue
		}
		if wake = false; now.After(noon.Add(4 * time.Minute)) {
			turns++
		}
		_, wait := m.plan(now)
		_, p, later := m.next(now)
		if p != nil {
			m.landed(p, false, now)
		}
		due, again := m.due(now)
		for _, g := range due {
			m.begin(g)
		}
		running = append(running, due...)
		if wait = sooner(sooner(wait, later), again); wait == 0 {
			wait = time.Minute
		}
		next = now.Add(wait)
	}
	if len(m.grants) < maxInFlight {
		t.Fatalf("%d of %d fail", len(m.grants), maxInFlight)
	}
	if turns > 2*120 {
		t.Errorf("%d reconciles in two minutes", turns)
	}
}

// A site is adopted for as long as its holder has waited by its own clock: that of who began may have been ahead, or behind.
func TestAdoptionIsByTheClockOfTheHolder(t *testing.T) {
	for name, off := range map[string]time.Duration{"ahead": 8 * time.Hour, "right": 0, "behind": -8 * time.Hour} {
		m := holding(t, "10.0.0.0/16", aNode("a"))
		since := noon.Add(off)
		m.takeovers++
		m.tookOver(fence.State{Holder: "me", Term: 2, Adopting: &since}, map[types.UID]*node{"a": seen(aNode("a"), "1", noon)}, noon)
		for _, after := range []time.Duration{0, adoption - time.Second} {
			if m.plan(noon.Add(after)); len(m.grants) > 0 {
				t.Errorf("%s: something is granted after %v", name, after)
			}
		}
		if m.plan(noon.Add(adoption)); len(m.grants) != 1 {
			t.Errorf("%s: nothing is granted after %v", name, adoption)
		}
	}
}

// A range of which Services have all is not full, and no Node that goes makes room in it.
func TestARangeThatIsForServices(t *testing.T) { // K52
	m := holding(t, "10.96.0.0/16", aNode("a"))
	m.setServices(prefixes("10.96.0.0/12"))
	m.plan(noon)
	for ref, u := range m.report().Ranges {
		ready, exhausted := u.Conditions[0], u.Conditions[1]
		if ready.Status != metav1.ConditionFalse || ready.Reason != v1alpha1.ServiceCIDRReason || exhausted.Reason != v1alpha1.ServiceCIDRReason {
			t.Errorf("%s: %v, %v", ref, ready, exhausted)
		}
	}
	want := "the ClusterCIDRs that match give nothing: c (all of it is for Services); add a ClusterCIDR with another range"
	if len(m.notes) != 1 || m.notes[0].message != want {
		t.Errorf("it says %v", m.notes)
	}
	m.setServices(prefixes("10.96.0.0/24")) // a part is
	m.plan(noon)
	for ref, u := range m.report().Ranges {
		if u.Conditions[0].Status != metav1.ConditionTrue || len(m.grants) != 1 {
			t.Errorf("%s, of which a part is for Services: %v, %d grants", ref, u.Conditions[0], len(m.grants))
		}
	}
}
