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

// These tests check that no Node waits forever for CIDRs that it can have, whatever happens to others.

// reconcileAt does one reconcile of a holder: plan, commit, write. write returns the result of a write.
func (ns *nodeState) reconcileAt(now time.Time, write func(g *nodeGrant) error) {
	ns.planner.planGrants(now)
	if _, p, _ := ns.commits.prepareCommit(now); p != nil {
		ns.commits.recordCommitted(p, false, noon)
	}
	due, _ := ns.writes.collectDueGrants(now)
	for _, g := range due {
		ns.writes.beginWrite(g)
	}
	for _, g := range due {
		err := write(g)
		if err == nil {
			n := *g.Node
			n.CIDRs = g.CIDRs
			ns.observeNode(&n, fmt.Sprint(now.UnixNano()), now)
		}
		ns.writes.recordWrite(g, err, now)
	}
}

// TestEndedGrantMakesRoom checks that the room of a grant that ends without CIDRs is granted to a Node that waits for
// it.
func TestEndedGrantMakesRoom(t *testing.T) {
	for name, end := range map[string]func(m *nodeState){
		"its Node is gone":         func(m *nodeState) { m.forgetNode("a", noon) },
		"its Node has other CIDRs": func(m *nodeState) { m.observeNode(newTestNode("a", "192.168.0.0/24"), "9", noon) },
		"refused, then being deleted": func(m *nodeState) {
			m.writes.beginWrite(m.grants.byNode["a"])
			m.writes.recordWrite(m.grants.byNode["a"], forbidden, noon)
			d := newTestNode("a")
			d.Deleting = true
			m.observeNode(d, "9", noon)
		},
	} {
		t.Run(name, func(t *testing.T) {
			m := newHolderState(t, "10.0.0.0/24", newTestNode("a"), newTestNode("b"))
			m.grantAll(t)
			if m.grants.byNode["a"] == nil || len(m.waiting.refused) != 1 {
				t.Fatal("setup")
			}
			end(m)
			for i := range 120 {
				m.reconcileAt(noon.Add(time.Duration(i)*time.Minute), func(*nodeGrant) error { return nil })
			}
			if len(m.nodes.byUID["b"].CIDRs) == 0 {
				t.Errorf("b has nothing after 2 h; todo %d refused %d grants %d", len(m.waiting.pending), len(m.waiting.refused), len(m.grants.byNode))
			}
		})
	}
}

// TestStandbyTakesOverAfterRefusals checks that a manager that lost its term while Nodes were refused takes over when
// no other manager does.
func TestStandbyTakesOverAfterRefusals(t *testing.T) {
	for _, elected := range []bool{false, true} {
		m := newHolderState(t, "10.0.0.0/16", newTestNode("a"))
		m.writes.refused.nodeUIDs = map[types.UID]bool{}
		for i := range term.SerialRetryThreshold {
			m.writes.refused.nodeUIDs[types.UID(string(rune('a'+i)))] = true
		}
		m.writes.refused.retryPause, m.writes.refused.nextRetryAt = term.MinRetryPause, noon.Add(term.MinRetryPause)
		m.recordTermLost(noon, func(d time.Duration) time.Duration { return d })
		m.term.needsRecordRead = false // nothing is in flight on record
		took := false
		for now := noon; now.Before(noon.Add(3 * time.Hour)); {
			may, wait := m.takeovers.decideTakeover(now, elected)
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
			t.Errorf("elected %v: a Node waits, the cluster has no holder, and this manager did not take over in 3 h", elected)
		}
	}
}

// TestStandbyCheckChangesNoState checks that a standby's check of what a holder would do leaves no trace in its state.
func TestStandbyCheckChangesNoState(t *testing.T) {
	m := newHolderState(t, "10.0.0.0/24", newTestNode("a"), newTestNode("b"))
	m.recordTermLost(noon, func(time.Duration) time.Duration { return 0 })
	m.term.needsRecordRead = false
	now := noon.Add(time.Second)
	m.takeovers.decideTakeover(now, false) // would take over if no manager did anything for 3 s
	m.forgetNode("a", now)
	for range 100 {
		now = now.Add(time.Minute)
		if may, _ := m.takeovers.decideTakeover(now, false); may {
			return
		}
	}
	t.Error("b waits, there is room, and no manager takes over")
}

// TestUnprotectedRangeDoesNotBlockOthers checks that Nodes of a ClusterCIDR that cannot be protected take no places of
// others.
func TestUnprotectedRangeDoesNotBlockOthers(t *testing.T) {
	var nodes []*podcidr.Node
	for i := range maxGrantsPerCommit {
		n := newTestNode(fmt.Sprintf("a%03d", i))
		n.Labels = map[string]string{"size": "big"}
		nodes = append(nodes, n)
	}
	good := newTestNode("z")
	nodes = append(nodes, good)
	m := newHolderState(t, "10.0.0.0/16", nodes...)
	c := forSizeObject("d", "10.1.0.0/16")
	var all []RangeObject
	for _, o := range m.ranges.objects {
		all = append(all, o)
	}
	m.setRangeObjects(append(all, c))
	protect, _ := m.planner.planGrants(noon)
	for _, ref := range protect {
		if ref.Name == "d" {
			m.protection.blockObject(ref, forbidden, noon)
		}
	}
	if m.planner.planGrants(noon); m.grants.byNode["z"] == nil {
		t.Error("z, of another ClusterCIDR, got nothing in the next turn")
	}
	if n := m.nodes.byUID["a000"]; n.waiting.RetryAt.Before(noon) || m.waiting.pending["a000"] == nil {
		t.Error("who waits for what is blocked is not to be tried again")
	}
}

// TestNodeWithCIDRsDoesNotWait checks that nothing is kept of the wait of a Node that has CIDRs, whatever is still
// found out about its grant: a watch may be faster than the answer to our write, and another writer faster than our
// commit.
func TestNodeWithCIDRsDoesNotWait(t *testing.T) {
	m := newHolderState(t, "10.0.0.0/16", newTestNode("a"), newTestNode("b"), newTestNode("c"))
	later := noon.Add(time.Minute)
	if m.planner.planGrants(later); len(m.grants.byNode) != 3 {
		t.Fatalf("%d Nodes are granted something", len(m.grants.byNode))
	}
	c := m.grants.byNode["c"]
	m.observeNode(newTestNode("c", c.CIDRs[0].String()), "2", later) // before the commit
	m.protection.blockObject(c.RangeRef, forbidden, later)
	m.planner.planGrants(later.Add(time.Hour))
	_, p, _ := m.commits.prepareCommit(later.Add(time.Hour))
	m.commits.recordCommitted(p, false, later.Add(time.Hour))
	for _, uid := range []types.UID{"a", "b"} {
		g := m.grants.byNode[uid]
		if !g.waitingSince.Equal(noon) {
			t.Errorf("%s waits since %s, and was seen at %s", uid, g.waitingSince, noon)
		}
		m.writes.beginWrite(g)
		m.observeNode(newTestNode(string(uid), g.CIDRs[0].String()), "2", later)
		m.writes.recordWrite(g, map[types.UID]error{"b": forbidden}[uid], later)
	}
	for uid, n := range m.nodes.byUID {
		if n.waiting != nil || m.waiting.pending[uid] != nil {
			t.Errorf("%s has %v, and waits", uid, n.CIDRs)
		}
	}
}

func forSizeObject(name, cidr string) RangeObject {
	c := &v1alpha1.ClusterCIDR{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)}}
	c.Spec = v1alpha1.ClusterCIDRSpec{PerNodeHostBits: 8, IPv4: cidr, NodeSelector: sizeSelector()}
	return RangeObjectFromClusterCIDR(c)
}

// TestTakenCIDRsAreNotWritten checks that CIDRs that another Node was seen with are not written knowingly.
func TestTakenCIDRsAreNotWritten(t *testing.T) {
	m := newHolderState(t, "10.0.0.0/23")
	m.term.takeoverCount++
	m.applyTakeover(fence.State{Holder: "me", Term: 2, InFlight: []fence.Grant{
		{NodeName: "a", NodeUID: "a", ClusterCIDRName: "c", CIDRs: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/24")}},
	}}, map[types.UID]*nodeEntry{"a": newNodeEntry(newTestNode("a"), "1", noon), "b": newNodeEntry(newTestNode("b", "10.0.0.0/24"), "1", noon)}, noon)
	if due, _ := m.writes.collectDueGrants(noon); len(due) > 0 {
		t.Errorf("%s is to be written %v, which living Node b is known to have", due[0].Node.Name, due[0].CIDRs)
	}
}

// TestHangingNodesDoNotBlockOthers checks that Nodes whose writes hang, for example in a webhook that selects them,
// exclude no others.
func TestHangingNodesDoNotBlockOthers(t *testing.T) {
	for _, n := range []int{100, 150, 200, 300, 520} {
		var nodes []*podcidr.Node
		for i := range n {
			nodes = append(nodes, newTestNode(fmt.Sprintf("hang%03d", i)))
		}
		m := newHolderState(t, "10.0.0.0/8", nodes...)
		type run struct {
			g   *nodeGrant
			end time.Time
		}
		var queue []*nodeGrant
		var running []run
		var good time.Time
		now, served := noon, time.Duration(0)
		for ; now.Before(noon.Add(4*time.Hour)) && served == 0; now = now.Add(250 * time.Millisecond) {
			if good.IsZero() && now.After(noon.Add(time.Hour)) {
				g := newTestNode("good")
				g.CreatedAt = now
				m.observeNode(g, "1", now)
				good = now
			}
			m.planner.planGrants(now)
			if _, p, _ := m.commits.prepareCommit(now); p != nil {
				m.commits.recordCommitted(p, false, noon)
			}
			due, _ := m.writes.collectDueGrants(now)
			for _, g := range due {
				m.writes.beginWrite(g)
				queue = append(queue, g)
			}
			still := running[:0]
			for _, r := range running {
				if r.end.After(now) {
					still = append(still, r)
				} else {
					m.writes.recordWrite(r.g, timeout, now)
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
			t.Errorf("%d hang: the good Node was not served in 3 h; %d in flight, %d jobs", n, len(m.grants.byNode), m.writes.inFlight)
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

// TestGrantOfAnotherAllocator checks a grant with an outcome that is unknown, so that its write may still land.
// When another allocator has given its CIDR to another Node meanwhile, the Node gets another CIDR as soon as no write
// of the first one can land any more, and no other Node gets the first one before that.
func TestGrantOfAnotherAllocator(t *testing.T) { // K51
	for name, inherited := range map[string]bool{"its own": false, "inherited": true} {
		t.Run(name, func(t *testing.T) {
			m := newHolderState(t, "10.0.0.0/23", newTestNode("a"))
			m.grantAll(t)
			m.writes.beginWrite(m.grants.byNode["a"])
			m.writes.recordWrite(m.grants.byNode["a"], timeout, noon)
			if inherited {
				state := fence.State{Holder: "me", Term: 2, InFlight: []fence.Grant{{NodeName: "a", NodeUID: "a", ClusterCIDRName: "c", CIDRs: m.grants.byNode["a"].CIDRs}}}
				m.term.takeoverCount++
				m.applyTakeover(state, map[types.UID]*nodeEntry{"a": newNodeEntry(newTestNode("a"), "1", noon)}, noon)
			}
			m.observeNode(newTestNode("b", m.grants.byNode["a"].CIDRs[0].String()), "2", noon)
			m.forgetNode("b", noon.Add(10*time.Second)) // the other Node is gone again
			m.observeNode(newTestNode("b2", m.grants.byNode["a"].CIDRs[0].String()), "3", noon.Add(11*time.Second))
			served := time.Duration(0)
			for now := noon; served == 0 && now.Before(noon.Add(10*time.Minute)); now = now.Add(time.Second) {
				m.reconcileAt(now, func(*nodeGrant) error { return nil })
				if len(m.nodes.byUID["a"].CIDRs) > 0 {
					served = now.Sub(noon)
				}
			}
			if served < adoptionPeriod || served > adoptionPeriod+10*time.Second {
				t.Errorf("a is served after %v; notes %v", served, m.events.pending)
			}
			if len(m.events.pending) == 0 || !strings.Contains(m.events.pending[0].message, "--allocate-node-cidrs=false") {
				t.Errorf("it says %v", m.events.pending)
			}
		})
	}
}

// TestFailedWritesEnqueueOncePerSecond checks that hundreds of writes that fail for hours enqueue the cluster once a
// second at most.
func TestFailedWritesEnqueueOncePerSecond(t *testing.T) {
	var nodes []*podcidr.Node
	for i := range maxInFlightGrants {
		nodes = append(nodes, newTestNode(fmt.Sprintf("n%03d", i)))
	}
	m := newHolderState(t, "10.0.0.0/8", nodes...)
	const step = 10 * time.Millisecond
	var running []*nodeGrant
	wake, next, turns := true, noon, 0
	for now := noon; now.Before(noon.Add(6 * time.Minute)); now = now.Add(step) {
		var still []*nodeGrant
		for i, g := range running {
			if i%3 == 0 { // the others take longer
				wake = m.writes.recordWrite(g, apierrors.NewInternalError(timeout), now) || wake
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
		_, wait := m.planner.planGrants(now)
		_, p, later := m.commits.prepareCommit(now)
		if p != nil {
			m.commits.recordCommitted(p, false, now)
		}
		due, again := m.writes.collectDueGrants(now)
		for _, g := range due {
			m.writes.beginWrite(g)
		}
		running = append(running, due...)
		if wait = term.MinWait(term.MinWait(wait, later), again); wait == 0 {
			wait = time.Minute
		}
		next = now.Add(wait)
	}
	if len(m.grants.byNode) < maxInFlightGrants {
		t.Fatalf("%d of %d fail", len(m.grants.byNode), maxInFlightGrants)
	}
	if turns > 2*120 {
		t.Errorf("%d reconciles in two minutes", turns)
	}
}

// TestAdoptionUsesHolderClock checks that a cluster is adopted for as long as its holder has waited by its own
// clock: the clock of the manager that began may have been ahead, or behind.
func TestAdoptionUsesHolderClock(t *testing.T) {
	for name, off := range map[string]time.Duration{"ahead": 8 * time.Hour, "right": 0, "behind": -8 * time.Hour} {
		m := newHolderState(t, "10.0.0.0/16", newTestNode("a"))
		since := noon.Add(off)
		m.term.takeoverCount++
		m.applyTakeover(fence.State{Holder: "me", Term: 2, AdoptingSince: &since}, map[types.UID]*nodeEntry{"a": newNodeEntry(newTestNode("a"), "1", noon)}, noon)
		for _, after := range []time.Duration{0, adoptionPeriod - time.Second} {
			if m.planner.planGrants(noon.Add(after)); len(m.grants.byNode) > 0 {
				t.Errorf("%s: something is granted after %v", name, after)
			}
		}
		if m.planner.planGrants(noon.Add(adoptionPeriod)); len(m.grants.byNode) != 1 {
			t.Errorf("%s: nothing is granted after %v", name, adoptionPeriod)
		}
	}
}

// TestRangeForServicesIsNotFull checks that a range that Services have completely is not reported as full, as no
// deleted Node makes room in it.
func TestRangeForServicesIsNotFull(t *testing.T) { // K52
	m := newHolderState(t, "10.96.0.0/16", newTestNode("a"))
	m.setServiceCIDRs(prefixes("10.96.0.0/12"))
	m.planner.planGrants(noon)
	for ref, u := range m.reports.buildReport().UsageByRange {
		ready, exhausted := u.Conditions[0], u.Conditions[1]
		if ready.Status != metav1.ConditionFalse || ready.Reason != v1alpha1.ServiceCIDRReason || exhausted.Reason != v1alpha1.ServiceCIDRReason {
			t.Errorf("%s: %v, %v", ref, ready, exhausted)
		}
	}
	want := "the ClusterCIDRs that match give nothing: c (all of it is for Services); add a ClusterCIDR with another range"
	if len(m.events.pending) != 1 || m.events.pending[0].message != want {
		t.Errorf("it says %v", m.events.pending)
	}
	m.setServiceCIDRs(prefixes("10.96.0.0/24")) // only a part is
	m.planner.planGrants(noon)
	for ref, u := range m.reports.buildReport().UsageByRange {
		if u.Conditions[0].Status != metav1.ConditionTrue || len(m.grants.byNode) != 1 {
			t.Errorf("%s, of which a part is for Services: %v, %d grants", ref, u.Conditions[0], len(m.grants.byNode))
		}
	}
}
