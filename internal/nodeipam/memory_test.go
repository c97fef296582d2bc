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

// holding is the memory of a holder of a ClusterCIDR of so many Nodes, with Nodes.
func holding(t *testing.T, cidr string, nodes ...*podcidr.Node) *memory {
	t.Helper()
	c := &v1alpha1.ClusterCIDR{ObjectMeta: metav1.ObjectMeta{Name: "c", UID: "c", Finalizers: []string{v1alpha1.ClusterCIDRFinalizer}}}
	c.Spec = v1alpha1.ClusterCIDRSpec{PerNodeHostBits: 8, IPv4: cidr}
	m := newMemory(Key{}, 0)
	m.setObjects([]Object{ObjectOf(c)})
	listed := map[types.UID]*node{}
	for _, n := range nodes {
		listed[n.UID] = seen(n, "1", noon)
	}
	m.takeovers++
	m.tookOver(fence.State{Holder: "me", Term: 1}, listed, noon)
	return m
}

func aNode(name string, cidrs ...string) *podcidr.Node {
	n := &podcidr.Node{Name: name, UID: types.UID(name), Created: noon}
	for _, text := range cidrs {
		n.CIDRs = append(n.CIDRs, netip.MustParsePrefix(text))
	}
	return n
}

// grants plans, commits what there is, and returns what each Node was granted.
func (m *memory) grantAll(t *testing.T) map[string]string {
	t.Helper()
	m.plan(noon)
	if _, p, _ := m.next(noon); p != nil {
		m.landed(p, false, noon)
	}
	out := map[string]string{}
	for _, g := range m.grants {
		out[g.Node.Name] = g.CIDRs[0].String()
	}
	return out
}

// R17: a Node that is being deleted has its CIDRs, as long as somebody's finalizer keeps it.
func TestADeletingNodeKeepsItsCIDRs(t *testing.T) {
	m := holding(t, "10.0.0.0/24", aNode("a", "10.0.0.0/24"), aNode("b"))
	deleting := aNode("a", "10.0.0.0/24")
	deleting.Deleting = true
	m.observe(deleting, "2", noon)
	if got := m.grantAll(t); len(got) > 0 {
		t.Fatalf("granted %v while a Node that is being deleted has it", got)
	}
	m.forget("a", noon)
	if got := m.grantAll(t); got["b"] != "10.0.0.0/24" {
		t.Errorf("granted %v when the Node is gone", got)
	}
}

// R16: what becomes of a grant whose write failed.
func TestAGrantOutlivesItsFailedWrite(t *testing.T) {
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
			m := holding(t, "10.0.0.0/24", aNode("a"))
			m.grantAll(t)
			g := m.grants["a"]
			g.inherited = tc.inherited
			for _, err := range tc.errs {
				m.begin(g)
				m.wrote(g, err, noon)
			}
			_, p, _ := m.next(noon.Add(time.Hour))
			if ended := p != nil && len(p.dropped) == 1; ended {
				t.Fatal("it ends at once: what is settled is committed a second later")
			}
			_, p, _ = m.next(noon.Add(2 * time.Hour))
			if ended := p != nil && len(p.dropped) == 1; ended != tc.ends {
				t.Fatalf("the grant ends: %v", ended)
			}
			if !tc.ends {
				return
			}
			m.landed(p, false, noon)
			if m.grants["a"] != nil || m.todo["a"] == nil {
				t.Error("its Node is not planned again")
			}
		})
	}
}

// K32: a Node whose CIDRs cannot be written has one event that says so, also where the API server does not refuse them for good.
func TestANodeIsToldOfWritesThatFail(t *testing.T) {
	webhook := apierrors.NewInternalError(errors.New("failed calling webhook"))
	for name, errs := range map[string][]error{
		"a webhook that does not answer": {webhook, webhook, webhook, webhook},
		"refused after no answer":        {timeout, forbidden, forbidden, forbidden},
	} {
		t.Run(name, func(t *testing.T) {
			m := holding(t, "10.0.0.0/24", aNode("a"))
			m.grantAll(t)
			g := m.grants["a"]
			for i, err := range append(errs, errs...) {
				if told := len(m.notes) > 0; told != (i >= toldFrom) {
					t.Errorf("after %d failures it is told: %v", i, told)
				}
				m.begin(g)
				m.wrote(g, err, noon)
			}
			if len(m.notes) != 1 || m.notes[0].reason != CIDRNotAvailable || !strings.Contains(m.notes[0].message, errs[3].Error()) {
				t.Errorf("it is told %v", m.notes)
			}
		})
	}
}

// N2, K28, K35: what a Node has counts by its addresses. Its labels may select nothing now.
func TestAdoptionIsByAddress(t *testing.T) {
	m := newMemory(Key{}, 0)
	c := &v1alpha1.ClusterCIDR{ObjectMeta: metav1.ObjectMeta{Name: "c", UID: "c"}}
	c.Spec = v1alpha1.ClusterCIDRSpec{PerNodeHostBits: 8, IPv4: "10.0.0.0/23", NodeSelector: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
		MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "size", Operator: corev1.NodeSelectorOpExists}},
	}}}}
	m.setObjects([]Object{ObjectOf(c)})
	big := aNode("b")
	big.Labels = map[string]string{"size": "big"}
	m.tookOver(fence.State{Holder: "me", Term: 1}, map[types.UID]*node{
		"a": seen(aNode("a", "10.0.0.0/24", "fd00::/64"), "1", noon), "b": seen(big, "1", noon),
	}, noon)
	if got := m.grantAll(t); got["b"] != "10.0.1.0/24" {
		t.Errorf("granted %v", got)
	}
	if r := m.report(); r.Foreign != 1 || r.Ranges[m.objects[podcidr.Ref{Kind: v1alpha1.ClusterCIDRKind, Name: "c", UID: "c"}].Ref].Allocated != 1 {
		t.Errorf("reported %+v", r)
	}
}

// R14, R16: what was in flight under the holder before is taken, and written again.
func TestInheritedGrantsAreFinished(t *testing.T) {
	m := holding(t, "10.0.0.0/23")
	m.takeovers++
	m.tookOver(fence.State{Holder: "me", Term: 2, InFlight: []fence.Grant{
		{Node: "a", UID: "a", From: "c", CIDRs: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/24")}},
		{Node: "gone", UID: "gone", From: "c", CIDRs: []netip.Prefix{netip.MustParsePrefix("10.0.1.0/24")}},
	}}, map[types.UID]*node{"a": seen(aNode("a"), "1", noon), "b": seen(aNode("b"), "1", noon)}, noon)
	due, _ := m.due(noon)
	if len(due) != 1 || due[0].Node.Name != "a" {
		t.Fatalf("%d grants are to be written", len(due))
	}
	if got := m.grantAll(t); got["b"] != "10.0.1.0/24" {
		t.Errorf("granted %v", got)
	}
}

// R15: nothing is granted but from what is open, and what is closed is not open.
func TestWhatIsClosedIsNotOpen(t *testing.T) {
	m := holding(t, "10.0.0.0/23", aNode("a"))
	m.grantAll(t)
	if len(m.open) != 1 {
		t.Fatalf("open is %v", m.open)
	}
	closing := m.objects[podcidr.Ref{Kind: v1alpha1.ClusterCIDRKind, Name: "c", UID: "c"}]
	closing.Closing = true
	m.setObjects([]Object{closing})
	m.observe(aNode("b"), "2", noon)
	s, p, _ := m.next(noon)
	if p == nil || len(s.Open) > 0 || len(s.InFlight) != 1 {
		t.Fatalf("the next state is %+v", s)
	}
	m.landed(p, false, noon)
	if got := m.grantAll(t); got["b"] != "" {
		t.Errorf("granted %v", got)
	}
	if closed := m.ending(); len(closed) > 0 {
		t.Errorf("%v goes while a grant of it is in flight", closed)
	}
	m.observe(aNode("a", "10.0.0.0/24"), "3", noon)
	m.forget("a", noon)
	if closed := m.ending(); len(closed) != 1 {
		t.Error("it stays, though no Node uses it")
	}
}

// R15: what is being deleted is committed as closed in the own term before its finalizer goes, though it does not seem to
// be open: another manager may have opened it since. While what was before is adopted, it stays.
func TestWhatEndsIsClosedByCommit(t *testing.T) {
	m := holding(t, "10.0.0.0/23")
	for ref, o := range m.objects {
		o.Closing = true
		m.objects[ref] = o
	}
	if ending := m.ending(); len(ending) > 0 {
		t.Fatal("it ends without a commit")
	}
	_, p, _ := m.next(noon)
	if p == nil {
		t.Fatal("there is nothing to commit")
	}
	m.landed(p, false, noon)
	if ending := m.ending(); len(ending) != 1 {
		t.Fatal("it does not end")
	}
	if _, p, _ := m.next(noon); p != nil {
		t.Error("it is committed again")
	}
	m.adopting = true
	if ending := m.ending(); len(ending) > 0 {
		t.Error("it ends while what was before is adopted")
	}
}

// K16, K17: what Nodes use is held by our finalizer, also what was adopted, or has lost it; a failure is tried again.
func TestWhatIsUsedIsHeld(t *testing.T) {
	m := holding(t, "10.0.0.0/23", aNode("a", "10.0.0.0/24"))
	held := func(is bool) {
		var all []Object
		for _, o := range m.objects {
			o.Held = is
			all = append(all, o)
		}
		m.setObjects(all)
	}
	if refs := m.unheld(nil, noon); len(refs) > 0 {
		t.Fatal("it is held")
	}
	held(false)
	refs := m.unheld(nil, noon)
	if len(refs) != 1 {
		t.Fatal("nobody sees that the finalizer is gone")
	}
	m.block(refs[0], forbidden, noon)
	if refs := m.unheld(nil, noon); len(refs) > 0 {
		t.Error("it is tried again at once")
	}
	if refs := m.unheld(nil, noon.Add(time.Minute)); len(refs) != 1 {
		t.Error("it is not tried again")
	}
	held(true)
	if refs := m.unheld(nil, noon.Add(time.Hour)); len(refs) > 0 {
		t.Error("it is held again")
	}
}

// The bound of what is in flight leaves nobody out for good: what is refused makes room, and the one Node that the API
// server does not refuse has its turn.
func TestRefusedNodesHoldUpNoOther(t *testing.T) {
	var nodes []*podcidr.Node
	for i := range maxInFlight + 10 {
		nodes = append(nodes, aNode(fmt.Sprintf("n%04d", i)))
	}
	last := nodes[len(nodes)-1]
	m := holding(t, "10.0.0.0/8", nodes...)
	writes := 0
	for now := noon; now.Before(noon.Add(24 * time.Hour)); now = now.Add(time.Minute) {
		m.plan(now)
		if _, p, _ := m.next(now); p != nil {
			m.landed(p, false, noon)
		}
		due, _ := m.due(now)
		for _, g := range due {
			if g.Node.UID == last.UID {
				return
			}
			writes++
			m.begin(g)
			m.wrote(g, forbidden, now)
		}
		if limit := maxGrants + int(now.Sub(noon)/time.Minute); writes > limit {
			t.Fatalf("%d writes were refused within %v", writes, now.Sub(noon))
		}
	}
	t.Errorf("the last Node has no turn; %d in flight, %d to do, %d refused in a row", len(m.grants), len(m.todo), len(m.trouble.nodes))
}

// While the API server refuses writes, one Node after the other is tried. Those for which nothing is free, however many, and
// those that wait for an object to be protected are no reason to come back at once.
func TestATrialLooksOnce(t *testing.T) {
	inTrouble := func(m *memory) *memory {
		m.trouble.nodes = map[types.UID]bool{}
		for i := range term.MaxTroubled {
			m.trouble.nodes[types.UID(fmt.Sprint("refused-", i))] = true
		}
		return m
	}
	var nodes []*podcidr.Node
	for i := range 100 {
		nodes = append(nodes, aNode(fmt.Sprintf("n%03d", i)))
	}
	full := inTrouble(holding(t, "10.0.0.0/24", append(nodes, aNode("has", "10.0.0.0/24"))...))
	if protect, wait := full.plan(noon); wait != 0 || len(protect) > 0 || len(full.todo) > 0 || len(full.refused) != len(nodes) {
		t.Errorf("it comes back after %v to protect %v; %d Nodes are to be planned, %d are told", wait, protect, len(full.todo), len(full.refused))
	}

	m := inTrouble(holding(t, "10.0.0.0/16", nodes...))
	m.block(podcidr.Ref{Kind: v1alpha1.ClusterCIDRKind, Name: "c", UID: "c"}, forbidden, noon)
	if _, wait := m.plan(noon); wait < term.RetryDelay(0) || len(m.grants) > 0 {
		t.Errorf("it comes back after %v; %d grants of an object that is not protected", wait, len(m.grants))
	}
	later := noon.Add(time.Hour)
	if m.plan(later); len(m.grants) != 1 || m.grants["n000"] == nil || !m.trouble.next.After(later) {
		t.Errorf("%d grants, not one as a trial; the next is at %v", len(m.grants), m.trouble.next)
	}
}
