package nodeipam

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/flowcontrol"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/fence"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/podcidr"
)

// Reasons of events on Nodes. CIDRNotAvailable is what kube-controller-manager calls it.
const (
	CIDRNotAvailable      = "CIDRNotAvailable"
	PodCIDRForeign        = "PodCIDRForeign"
	PodCIDRConflict       = "PodCIDRConflict"
	PodCIDRInServiceRange = "PodCIDRInServiceRange"
	PodCIDRSetByOther     = "PodCIDRSetByOther"
	PodCIDRLabelsLate     = "PodCIDRLabelsLate"
)

// FenceDeleted is the reason of an event on the ConfigMap: it is being deleted.
const FenceDeleted = "FenceDeleted"

const (
	// notesPerSecond bounds the events of a site, notesAtOnce those at one time. A cluster of which all Nodes are foreign
	// must not cost as many writes.
	notesPerSecond = 5
	notesAtOnce    = 25
	// namesShown is how many names a message has.
	namesShown = 5
	// more is in the place of the others.
	more = "…"
)

// note is what is to be said about a Node.
type note struct {
	uid                   types.UID
	node, reason, message string
}

// notef has something said about a Node, if it was not said before.
func (m *memory) notef(n *podcidr.Node, reason, format string, args ...any) {
	m.tell(note{n.UID, n.Name, reason, fmt.Sprintf(format, args...)})
}

// tell has something said, if it was not said before.
func (m *memory) tell(n note) {
	if !slices.Contains(m.said[n.uid], n) {
		m.notes, m.said[n.uid] = append(m.notes, n), append(m.said[n.uid], n)
	}
}

// unsay forgets that something was to be said.
func (m *memory) unsay(n note) {
	if m.said[n.uid] = slices.DeleteFunc(m.said[n.uid], func(o note) bool { return o == n }); len(m.said[n.uid]) == 0 {
		delete(m.said, n.uid)
	}
}

// untold is what a manager knows that is neither the holder nor elected: another one may have told the Nodes. Where none holds the
// site, this one takes it over to do so.
type untold struct {
	// refusals are why Nodes get nothing; others is what else there is to say of Nodes.
	refusals map[types.UID]note
	others   map[types.UID][]note
	// since is when there was something first.
	since time.Time
}

// tellPatience is how long what is untold waits for a holder, which shows refusals in a status.
const tellPatience = 2 * time.Minute

// leaveUntold has what was noted since there were some notes stay untold.
func (m *memory) leaveUntold(since int) {
	for _, n := range m.notes[since:] {
		m.unsay(n)
		switch all := m.untold.others[n.uid]; {
		case n.reason == CIDRNotAvailable:
			m.untold.refusals[n.uid] = n
		case !slices.Contains(all, n):
			m.untold.others[n.uid] = append(all, n)
		}
	}
	m.notes = m.notes[:since]
}

// mayTell reports whether the site is to be taken over for what is untold. The one that takes it over for that has told it,
// and does not take it over for the same again.
func (m *memory) mayTell(now time.Time, wait time.Duration) (bool, time.Duration) {
	if len(m.untold.refusals)+len(m.untold.others) == 0 {
		m.untold.since = time.Time{}
		return false, wait
	}
	if m.untold.since.IsZero() {
		m.untold.since = now
	}
	if left := tellPatience - now.Sub(m.untold.since); left > 0 {
		return false, sooner(wait, left)
	}
	return true, 0
}

// tellRefusals has Nodes told why they get nothing, by a leader that has nothing to take the site over for.
func (m *memory) tellRefusals() {
	for _, uid := range slices.Sorted(maps.Keys(m.untold.refusals)) {
		m.tell(m.untold.refusals[uid])
	}
	clear(m.untold.refusals)
}

// tellOthers has what is untold said by a holder. Which Nodes it refuses, it finds itself.
func (m *memory) tellOthers() {
	for _, uid := range slices.Sorted(maps.Keys(m.untold.others)) {
		for _, n := range m.untold.others[uid] {
			m.tell(n)
		}
	}
	clear(m.untold.refusals)
	clear(m.untold.others)
	m.untold.since = time.Time{}
}

// takeAsTold takes refusals as told that statuses count, which are right: their holder has told them.
func (m *memory) takeAsTold() {
	counts := m.countsRefusals()
	for uid, n := range m.untold.refusals {
		if counts(m.refused[uid]) {
			m.said[uid] = append(m.said[uid], n)
			delete(m.untold.refusals, uid)
		}
	}
}

// countsRefusals returns what reports whether a status counts a Node that is refused: of a Cluster, its condition does, if nothing
// is worse; else the condition Exhausted of a ClusterCIDR that is full.
func (m *memory) countsRefusals() func(podcidr.Refusal) bool {
	if m.fleet {
		shows := len(m.objects) > 0 && len(m.clashes) == 0 && m.stopped() == nil && len(m.contested()) == 0
		return func(podcidr.Refusal) bool { return shows }
	}
	return func(why podcidr.Refusal) bool {
		return slices.ContainsFunc(why.Full, func(ref podcidr.Ref) bool {
			o := m.objects[ref]
			return ref.Kind == v1alpha1.ClusterCIDRKind && o.Range != nil && !m.isUselessRange(o.Range)
		})
	}
}

// noteRefusal says why a Node gets nothing. That nothing here is for it, where another site of the cluster serves Nodes, is no
// news: the Node may be that one's.
func (m *memory) noteRefusal(n *node, why podcidr.Refusal) {
	if full, useless := m.sizes(why.Full); len(why.Full) > 0 {
		text := "all ClusterCIDRs that match are full: %s; add a ClusterCIDR, or delete Nodes"
		if useless == len(why.Full) {
			text = "the ClusterCIDRs that match give nothing: %s; add a ClusterCIDR with another range"
		}
		m.notef(n.Node, CIDRNotAvailable, text, full)
		return
	}
	if m.neighbour {
		return
	}
	var all []string
	for _, r := range m.ranges() {
		if !r.Closing {
			all = append(all, r.Name)
		}
	}
	if len(all) == 0 && m.fleet {
		m.notef(n.Node, CIDRNotAvailable, "no ClusterCIDR of the management cluster is for this cluster; add one whose clusterSelector selects its Cluster")
		return
	}
	if len(all) == 0 {
		m.notef(n.Node, CIDRNotAvailable, "there is no ClusterCIDR; add one")
		return
	}
	m.notef(n.Node, CIDRNotAvailable, "no ClusterCIDR selects it; there are %s: add one that does, or change its labels", shown(all))
}

// sizes names ranges, and for how many Nodes each is. It counts those of which Services have all.
func (m *memory) sizes(refs []podcidr.Ref) (text string, useless int) {
	var out []string
	for _, ref := range refs {
		switch o := m.objects[ref]; {
		case o.Range == nil:
		case m.isUselessRange(o.Range):
			useless++
			out = append(out, ref.Name+" (all of it is for Services)")
		default:
			out = append(out, fmt.Sprintf("%s (%s)", ref.Name, nodes(o.Range.Serves(), "", "")))
		}
	}
	return shown(out), useless
}

// noteClash tells both Nodes that they have the same addresses.
func (m *memory) noteClash(n *podcidr.Node, c podcidr.Clash) {
	const text = "its pod CIDRs %v overlap those of Node %s: drain and delete one of the two, so that it registers anew, and see that nobody else sets pod CIDRs (kube-controller-manager: --allocate-node-cidrs=false)"
	m.notef(n, PodCIDRConflict, text, n.CIDRs, c.Other)
	if other := m.nodes[c.OtherUID]; other != nil {
		m.notef(other.Node, PodCIDRConflict, text, other.CIDRs, n.Name)
	}
}

// noteForeign says of Nodes that they have CIDRs which no ClusterCIDR has, or which are of Services. Where another site of
// the cluster has held its ConfigMap, what names a ClusterCIDR that is not known here was given by that site.
func (m *memory) noteForeign(n *podcidr.Node, of *podcidr.Index) (foreign bool) {
	others := m.neighbour && n.From != "" && len(m.byName[n.From]) == 0
	for _, p := range n.CIDRs {
		if !others && len(of.Covering([]netip.Prefix{p})) == 0 {
			foreign = true
			m.notef(n, PodCIDRForeign, "its pod CIDR %s is in no ClusterCIDR; it stays", p)
		}
		if service, is := m.books.Excluded(p); is {
			m.notef(n, PodCIDRInServiceRange, "its pod CIDR %s overlaps %s, which is for Services: drain and delete the Node, so that it registers anew", p, service)
		}
	}
	return foreign
}

// nodes is a number of Nodes, and what one of them, or several, do.
func nodes(n int64, does, do string) string {
	if n == 1 {
		return strings.TrimSpace("1 Node " + does)
	}
	return strings.TrimSpace(fmt.Sprintf("%d Nodes %s", n, do))
}

// shown lists names, the first few of them.
func shown(names []string) string {
	if len(names) <= namesShown {
		return strings.Join(names, ", ")
	}
	return strings.Join(names[:namesShown], ", ") + ", " + more
}

// Say records the events that are due, as many as the limit allows. It reports whether some have to wait. A manager that is
// neither the holder nor elected says nothing: another one may.
func (s *Site) Say() (more bool) {
	s.sayDeleting()
	m := s.lock()
	if !m.holder && !s.Elected {
		m.leaveUntold(0)
	}
	var now []note
	for len(m.notes) > 0 && s.limit.TryAccept() {
		n := m.notes[0]
		m.notes = m.notes[1:]
		known := m.nodes[n.uid]
		if known != nil && (n.reason != CIDRNotAvailable || len(known.CIDRs) == 0) {
			now = append(now, n)
		}
	}
	more = len(m.notes) > 0
	m.Unlock()
	for _, n := range now {
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: n.node, UID: n.uid}}
		s.Recorder.Eventf(node, nil, corev1.EventTypeWarning, n.reason, "Allocate", "%s", n.message)
	}
	return more
}

// sayDeleting says once of the ConfigMap that it is being deleted, and what comes of that.
func (s *Site) sayDeleting() {
	said := s.saidDeleting
	if s.saidDeleting = s.Holds() && s.fence.Deleting(); said || !s.saidDeleting {
		return
	}
	o := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: fence.Namespace, Name: fence.Name}}
	s.Recorder.Eventf(o, nil, corev1.EventTypeWarning, FenceDeleted, "Commit",
		"it is being deleted; the finalizer %s keeps it, and it goes on being used: to begin anew, take the finalizer off, and 75 seconds later the next Nodes are served", fence.Finalizer)
}

// newLimit returns the limit of events.
func newLimit() flowcontrol.PassiveRateLimiter {
	return flowcontrol.NewTokenBucketPassiveRateLimiter(notesPerSecond, notesAtOnce)
}
