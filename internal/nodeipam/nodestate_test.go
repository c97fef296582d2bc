package nodeipam

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/fence"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/podcidr"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/term"
)

var (
	noon      = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	timeout   = apierrors.NewTimeoutError("the answer was lost", 1)
	forbidden = apierrors.NewForbidden(schema.GroupResource{Resource: "nodes"}, "a", nil)
)

// newHolderState returns the state of a holder with a ClusterCIDR, for one Node per /24 of cidr, and the given Nodes.
func newHolderState(t *testing.T, cidr string, nodes ...*podcidr.Node) *nodeState {
	t.Helper()
	c := &v1alpha1.ClusterCIDR{ObjectMeta: metav1.ObjectMeta{Name: "c", UID: "c", Finalizers: []string{v1alpha1.ClusterCIDRFinalizer}}}
	c.Spec = v1alpha1.ClusterCIDRSpec{PerNodeHostBits: 8, IPv4: cidr}
	m := newNodeState(ClusterKey{}, 0)
	m.setRangeObjects([]RangeObject{RangeObjectFromClusterCIDR(c)})
	listed := map[types.UID]*nodeEntry{}
	for _, n := range nodes {
		listed[n.UID] = newNodeEntry(n, "1", noon)
	}
	m.term.takeoverCount++
	m.applyTakeover(fence.State{Holder: "me", Term: 1}, listed, noon)
	return m
}

func newTestNode(name string, cidrs ...string) *podcidr.Node {
	n := &podcidr.Node{Name: name, UID: types.UID(name), CreatedAt: noon}
	for _, text := range cidrs {
		n.CIDRs = append(n.CIDRs, netip.MustParsePrefix(text))
	}
	return n
}

// grantAll plans, commits, and returns what each Node was granted.
func (ns *nodeState) grantAll(t *testing.T) map[string]string {
	t.Helper()
	ns.planner.planGrants(noon)
	if _, p, _ := ns.commits.prepareCommit(noon); p != nil {
		ns.commits.recordCommitted(p, false, noon)
	}
	out := map[string]string{}
	for _, g := range ns.grants.byNode {
		out[g.Node.Name] = g.CIDRs[0].String()
	}
	return out
}

// TestDeletingNodeKeepsItsCIDRs checks R17: a Node that is being deleted keeps its CIDRs, as long as any finalizer
// keeps it.
func TestDeletingNodeKeepsItsCIDRs(t *testing.T) {
	m := newHolderState(t, "10.0.0.0/24", newTestNode("a", "10.0.0.0/24"), newTestNode("b"))
	deleting := newTestNode("a", "10.0.0.0/24")
	deleting.Deleting = true
	m.observeNode(deleting, "2", noon)
	if got := m.grantAll(t); len(got) > 0 {
		t.Fatalf("granted %v while a Node that is being deleted has it", got)
	}
	m.forgetNode("a", noon)
	if got := m.grantAll(t); got["b"] != "10.0.0.0/24" {
		t.Errorf("granted %v when the Node is gone", got)
	}
}

// TestGrantOutlivesFailedWrite checks R16: when a grant ends whose write failed.
func TestGrantOutlivesFailedWrite(t *testing.T) {
	for name, tc := range map[string]struct {
		errs      []error
		inherited bool
		ends      bool
	}{
		"no answer":                       {errs: []error{timeout}},
		"refused for good":                {errs: []error{forbidden}, ends: true},
		"refused after no answer":         {errs: []error{timeout, forbidden}},
		"refused, inherited":              {errs: []error{forbidden}, inherited: true},
		"the API server failed":           {errs: []error{apierrors.NewInternalError(timeout)}},
		"a conflict, which may be undone": {errs: []error{apierrors.NewConflict(schema.GroupResource{}, "a", nil)}},
	} {
		t.Run(name, func(t *testing.T) {
			m := newHolderState(t, "10.0.0.0/24", newTestNode("a"))
			m.grantAll(t)
			g := m.grants.byNode["a"]
			g.inherited = tc.inherited
			for _, err := range tc.errs {
				m.writes.beginWrite(g)
				m.writes.recordWrite(g, err, noon)
			}
			_, p, _ := m.commits.prepareCommit(noon.Add(time.Hour))
			if ended := p != nil && len(p.droppedGrants) == 1; ended {
				t.Fatal("it ends at once: what is settled is committed a second later")
			}
			_, p, _ = m.commits.prepareCommit(noon.Add(2 * time.Hour))
			if ended := p != nil && len(p.droppedGrants) == 1; ended != tc.ends {
				t.Fatalf("the grant ends: %v", ended)
			}
			if !tc.ends {
				return
			}
			m.commits.recordCommitted(p, false, noon)
			if m.grants.byNode["a"] != nil || m.waiting.pending["a"] == nil {
				t.Error("its Node is not planned again")
			}
		})
	}
}

// TestNodeReportsFailedWrites checks K32: a Node whose CIDRs cannot be written gets one event with the reason, even
// where the API server does not refuse them permanently.
func TestNodeReportsFailedWrites(t *testing.T) {
	webhook := apierrors.NewInternalError(errors.New("failed calling webhook"))
	for name, errs := range map[string][]error{
		"a webhook that does not answer": {webhook, webhook, webhook, webhook},
		"refused after no answer":        {timeout, forbidden, forbidden, forbidden},
	} {
		t.Run(name, func(t *testing.T) {
			m := newHolderState(t, "10.0.0.0/24", newTestNode("a"))
			m.grantAll(t)
			g := m.grants.byNode["a"]
			for i, err := range append(errs, errs...) {
				if emitted := len(m.events.pending) > 0; emitted != (i >= failuresBeforeEvent) {
					t.Errorf("after %d failures it has an event: %v", i, emitted)
				}
				m.writes.beginWrite(g)
				m.writes.recordWrite(g, err, noon)
			}
			if len(m.events.pending) != 1 || m.events.pending[0].reason != CIDRNotAvailable || !strings.Contains(m.events.pending[0].message, errs[3].Error()) {
				t.Errorf("its events are %v", m.events.pending)
			}
		})
	}
}

// TestAdoptionIsByAddress checks N2, K28 and K35: the CIDRs of a Node count by their addresses, even if its labels
// select nothing now.
func TestAdoptionIsByAddress(t *testing.T) {
	m := newNodeState(ClusterKey{}, 0)
	c := &v1alpha1.ClusterCIDR{ObjectMeta: metav1.ObjectMeta{Name: "c", UID: "c"}}
	c.Spec = v1alpha1.ClusterCIDRSpec{PerNodeHostBits: 8, IPv4: "10.0.0.0/23", NodeSelector: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
		MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "size", Operator: corev1.NodeSelectorOpExists}},
	}}}}
	m.setRangeObjects([]RangeObject{RangeObjectFromClusterCIDR(c)})
	big := newTestNode("b")
	big.Labels = map[string]string{"size": "big"}
	m.applyTakeover(fence.State{Holder: "me", Term: 1}, map[types.UID]*nodeEntry{
		"a": newNodeEntry(newTestNode("a", "10.0.0.0/24", "fd00::/64"), "1", noon), "b": newNodeEntry(big, "1", noon),
	}, noon)
	if got := m.grantAll(t); got["b"] != "10.0.1.0/24" {
		t.Errorf("granted %v", got)
	}
	if r := m.reports.buildReport(); r.ForeignNodes != 1 || r.UsageByRange[m.ranges.objects[podcidr.Ref{Kind: v1alpha1.ClusterCIDRKind, Name: "c", UID: "c"}].Ref].Allocated != 1 {
		t.Errorf("reported %+v", r)
	}
}

// TestInheritedGrantsAreFinished checks R14 and R16: grants that were in flight under the previous holder are taken,
// and written again.
func TestInheritedGrantsAreFinished(t *testing.T) {
	m := newHolderState(t, "10.0.0.0/23")
	m.term.takeoverCount++
	m.applyTakeover(fence.State{Holder: "me", Term: 2, InFlight: []fence.Grant{
		{NodeName: "a", NodeUID: "a", ClusterCIDRName: "c", CIDRs: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/24")}},
		{NodeName: "gone", NodeUID: "gone", ClusterCIDRName: "c", CIDRs: []netip.Prefix{netip.MustParsePrefix("10.0.1.0/24")}},
	}}, map[types.UID]*nodeEntry{"a": newNodeEntry(newTestNode("a"), "1", noon), "b": newNodeEntry(newTestNode("b"), "1", noon)}, noon)
	due, _ := m.writes.collectDueGrants(noon)
	if len(due) != 1 || due[0].Node.Name != "a" {
		t.Fatalf("%d grants are to be written", len(due))
	}
	if got := m.grantAll(t); got["b"] != "10.0.1.0/24" {
		t.Errorf("granted %v", got)
	}
}

// TestClosedObjectIsNotOpen checks R15: nothing is granted except from open objects, and a closed object is not open.
func TestClosedObjectIsNotOpen(t *testing.T) {
	m := newHolderState(t, "10.0.0.0/23", newTestNode("a"))
	m.grantAll(t)
	if len(m.record.openRanges) != 1 {
		t.Fatalf("open is %v", m.record.openRanges)
	}
	closing := m.ranges.objects[podcidr.Ref{Kind: v1alpha1.ClusterCIDRKind, Name: "c", UID: "c"}]
	closing.Closing = true
	m.setRangeObjects([]RangeObject{closing})
	m.observeNode(newTestNode("b"), "2", noon)
	s, p, _ := m.commits.prepareCommit(noon)
	if p == nil || len(s.OpenRanges) > 0 || len(s.InFlight) != 1 {
		t.Fatalf("the next state is %+v", s)
	}
	m.commits.recordCommitted(p, false, noon)
	if got := m.grantAll(t); got["b"] != "" {
		t.Errorf("granted %v", got)
	}
	if closed := m.protection.objectsToUnprotect(); len(closed) > 0 {
		t.Errorf("%v goes while a grant of it is in flight", closed)
	}
	m.observeNode(newTestNode("a", "10.0.0.0/24"), "3", noon)
	m.forgetNode("a", noon)
	if closed := m.protection.objectsToUnprotect(); len(closed) != 1 {
		t.Error("it stays, though no Node uses it")
	}
}

// TestDeletedObjectIsClosedByCommit checks R15: an object that is being deleted is committed as closed in the manager's
// own term before its finalizer is removed, even if it does not seem to be open, as another manager may have opened it
// since. While the previous state is adopted, it stays.
func TestDeletedObjectIsClosedByCommit(t *testing.T) {
	m := newHolderState(t, "10.0.0.0/23")
	for ref, o := range m.ranges.objects {
		o.Closing = true
		m.ranges.objects[ref] = o
	}
	if ending := m.protection.objectsToUnprotect(); len(ending) > 0 {
		t.Fatal("it ends without a commit")
	}
	_, p, _ := m.commits.prepareCommit(noon)
	if p == nil {
		t.Fatal("there is nothing to commit")
	}
	m.commits.recordCommitted(p, false, noon)
	if ending := m.protection.objectsToUnprotect(); len(ending) != 1 {
		t.Fatal("it does not end")
	}
	if _, p, _ := m.commits.prepareCommit(noon); p != nil {
		t.Error("it is committed again")
	}
	m.adoption.adopting = true
	if ending := m.protection.objectsToUnprotect(); len(ending) > 0 {
		t.Error("it ends while what was before is adopted")
	}
}

// TestUsedObjectsHaveFinalizer checks K16 and K17: our finalizer is on every object that Nodes use, also on one that
// was adopted or has lost the finalizer, and a failure is retried.
func TestUsedObjectsHaveFinalizer(t *testing.T) {
	m := newHolderState(t, "10.0.0.0/23", newTestNode("a", "10.0.0.0/24"))
	held := func(hasFinalizer bool) {
		var all []RangeObject
		for _, o := range m.ranges.objects {
			o.HasFinalizer = hasFinalizer
			all = append(all, o)
		}
		m.setRangeObjects(all)
	}
	if refs := m.protection.checkFinalizers(nil, noon); len(refs) > 0 {
		t.Fatal("it is held")
	}
	held(false)
	refs := m.protection.checkFinalizers(nil, noon)
	if len(refs) != 1 {
		t.Fatal("the missing finalizer is not noticed")
	}
	m.protection.blockObject(refs[0], forbidden, noon)
	if refs := m.protection.checkFinalizers(nil, noon); len(refs) > 0 {
		t.Error("it is tried again at once")
	}
	if refs := m.protection.checkFinalizers(nil, noon.Add(time.Minute)); len(refs) != 1 {
		t.Error("it is not tried again")
	}
	held(true)
	if refs := m.protection.checkFinalizers(nil, noon.Add(time.Hour)); len(refs) > 0 {
		t.Error("it is held again")
	}
}

// TestRefusedNodesDoNotBlockOthers checks that the bound on grants in flight excludes no Node permanently: refused
// grants make room, and the one Node that the API server does not refuse gets its turn.
func TestRefusedNodesDoNotBlockOthers(t *testing.T) {
	var nodes []*podcidr.Node
	for i := range maxInFlightGrants + 10 {
		nodes = append(nodes, newTestNode(fmt.Sprintf("n%04d", i)))
	}
	last := nodes[len(nodes)-1]
	m := newHolderState(t, "10.0.0.0/8", nodes...)
	writes := 0
	for now := noon; now.Before(noon.Add(24 * time.Hour)); now = now.Add(time.Minute) {
		m.planner.planGrants(now)
		if _, p, _ := m.commits.prepareCommit(now); p != nil {
			m.commits.recordCommitted(p, false, noon)
		}
		due, _ := m.writes.collectDueGrants(now)
		for _, g := range due {
			if g.Node.UID == last.UID {
				return
			}
			writes++
			m.writes.beginWrite(g)
			m.writes.recordWrite(g, forbidden, now)
		}
		if limit := maxGrantsPerCommit + int(now.Sub(noon)/time.Minute); writes > limit {
			t.Fatalf("%d writes were refused within %v", writes, now.Sub(noon))
		}
	}
	t.Errorf("the last Node has no turn; %d in flight, %d to do, %d refused in a row", len(m.grants.byNode), len(m.waiting.pending), len(m.writes.refused.nodeUIDs))
}

// TestTrialsCauseNoExtraReconciles checks that, while the API server refuses writes and Nodes are tried one at a time,
// neither Nodes for which nothing is free, however many, nor Nodes that wait for an object to be protected cause
// another reconcile at once.
func TestTrialsCauseNoExtraReconciles(t *testing.T) {
	withFailingNodes := func(m *nodeState) *nodeState {
		m.writes.refused.nodeUIDs = map[types.UID]bool{}
		for i := range term.SerialRetryThreshold {
			m.writes.refused.nodeUIDs[types.UID(fmt.Sprint("refused-", i))] = true
		}
		return m
	}
	var nodes []*podcidr.Node
	for i := range 100 {
		nodes = append(nodes, newTestNode(fmt.Sprintf("n%03d", i)))
	}
	full := withFailingNodes(newHolderState(t, "10.0.0.0/24", append(nodes, newTestNode("has", "10.0.0.0/24"))...))
	if protect, wait := full.planner.planGrants(noon); wait != 0 || len(protect) > 0 || len(full.waiting.pending) > 0 || len(full.waiting.refused) != len(nodes) {
		t.Errorf("it comes back after %v to protect %v; %d Nodes are to be planned, %d have a refusal", wait, protect, len(full.waiting.pending), len(full.waiting.refused))
	}

	m := withFailingNodes(newHolderState(t, "10.0.0.0/16", nodes...))
	m.protection.blockObject(podcidr.Ref{Kind: v1alpha1.ClusterCIDRKind, Name: "c", UID: "c"}, forbidden, noon)
	if _, wait := m.planner.planGrants(noon); wait < term.RetryDelay(0) || len(m.grants.byNode) > 0 {
		t.Errorf("it comes back after %v; %d grants of an object that is not protected", wait, len(m.grants.byNode))
	}
	later := noon.Add(time.Hour)
	if m.planner.planGrants(later); len(m.grants.byNode) != 1 || m.grants.byNode["n000"] == nil || !m.writes.refused.nextRetryAt.After(later) {
		t.Errorf("%d grants, not one as a trial; the next is at %v", len(m.grants.byNode), m.writes.refused.nextRetryAt)
	}
}
