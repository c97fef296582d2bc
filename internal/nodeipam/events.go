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

// Reasons of events on Nodes. CIDRNotAvailable is the reason that kube-controller-manager uses.
const (
	CIDRNotAvailable      = "CIDRNotAvailable"
	PodCIDRForeign        = "PodCIDRForeign"
	PodCIDRConflict       = "PodCIDRConflict"
	PodCIDRInServiceRange = "PodCIDRInServiceRange"
	PodCIDRSetByOther     = "PodCIDRSetByOther"
	PodCIDRLabelsLate     = "PodCIDRLabelsLate"
)

// FenceDeleted is the reason of the event that the ConfigMap is being deleted.
const FenceDeleted = "FenceDeleted"

const (
	// eventsPerSecond bounds the rate of the events of an allocator, eventBurst their burst. A cluster whose Nodes are
	// all foreign must not cost as many writes.
	eventsPerSecond = 5
	eventBurst      = 25
	// maxNamesShown is how many names a message has.
	maxNamesShown = 5
	// ellipsis replaces the other names.
	ellipsis = "…"
)

// pendingEvent is an event on a Node that is still to be recorded.
type pendingEvent struct {
	nodeUID                   types.UID
	nodeName, reason, message string
}

// addEventf adds an event on a Node, unless the same one was added before.
func (m *nodeState) addEventf(n *podcidr.Node, reason, format string, args ...any) {
	m.addEvent(pendingEvent{n.UID, n.Name, reason, fmt.Sprintf(format, args...)})
}

// addEvent adds an event, unless the same one was added before.
func (m *nodeState) addEvent(n pendingEvent) {
	if !slices.Contains(m.emitted[n.nodeUID], n) {
		m.events, m.emitted[n.nodeUID] = append(m.events, n), append(m.emitted[n.nodeUID], n)
	}
}

// dropEvent forgets that an event was added.
func (m *nodeState) dropEvent(n pendingEvent) {
	if m.emitted[n.nodeUID] = slices.DeleteFunc(m.emitted[n.nodeUID], func(o pendingEvent) bool { return o == n }); len(m.emitted[n.nodeUID]) == 0 {
		delete(m.emitted, n.nodeUID)
	}
}

// deferredEvents are the events of a manager that is neither the holder nor elected: another manager may have recorded
// them. Where none holds the cluster, this manager takes it over to record them.
type deferredEvents struct {
	// refusalEvents are the events with the reason why a Node gets nothing; otherEvents are all others.
	refusalEvents map[types.UID]pendingEvent
	otherEvents   map[types.UID][]pendingEvent
	// deferredSince is the time since which there are any.
	deferredSince time.Time
}

// deferredEventDelay is how long deferred events wait for a holder, which publishes refusals in a status.
const deferredEventDelay = 2 * time.Minute

// deferEvents defers the events from the given index on.
func (m *nodeState) deferEvents(since int) {
	for _, n := range m.events[since:] {
		m.dropEvent(n)
		switch all := m.deferredEvents.otherEvents[n.nodeUID]; {
		case n.reason == CIDRNotAvailable:
			m.deferredEvents.refusalEvents[n.nodeUID] = n
		case !slices.Contains(all, n):
			m.deferredEvents.otherEvents[n.nodeUID] = append(all, n)
		}
	}
	m.events = m.events[:since]
}

// needsTakeoverForEvents reports whether the cluster has to be taken over to record deferred events. The manager that
// takes it over has recorded them then, and does not take it over for the same events again.
func (m *nodeState) needsTakeoverForEvents(now time.Time, wait time.Duration) (bool, time.Duration) {
	if len(m.deferredEvents.refusalEvents)+len(m.deferredEvents.otherEvents) == 0 {
		m.deferredEvents.deferredSince = time.Time{}
		return false, wait
	}
	if m.deferredEvents.deferredSince.IsZero() {
		m.deferredEvents.deferredSince = now
	}
	if left := deferredEventDelay - now.Sub(m.deferredEvents.deferredSince); left > 0 {
		return false, minWait(wait, left)
	}
	return true, 0
}

// addDeferredRefusals adds the events with the reason why Nodes get nothing, for a leader that has no reason to take
// the cluster over.
func (m *nodeState) addDeferredRefusals() {
	for _, uid := range slices.Sorted(maps.Keys(m.deferredEvents.refusalEvents)) {
		m.addEvent(m.deferredEvents.refusalEvents[uid])
	}
	clear(m.deferredEvents.refusalEvents)
}

// addDeferredEvents adds the deferred events of a manager that became the holder, except refusals, which it finds
// itself.
func (m *nodeState) addDeferredEvents() {
	for _, uid := range slices.Sorted(maps.Keys(m.deferredEvents.otherEvents)) {
		for _, n := range m.deferredEvents.otherEvents[uid] {
			m.addEvent(n)
		}
	}
	clear(m.deferredEvents.refusalEvents)
	clear(m.deferredEvents.otherEvents)
	m.deferredEvents.deferredSince = time.Time{}
}

// dropPublishedRefusals marks refusals as recorded that current statuses count: their holder has recorded the events.
func (m *nodeState) dropPublishedRefusals() {
	counts := m.publishedRefusalFilter()
	for uid, n := range m.deferredEvents.refusalEvents {
		if counts(m.refusedNodes[uid]) {
			m.emitted[uid] = append(m.emitted[uid], n)
			delete(m.deferredEvents.refusalEvents, uid)
		}
	}
}

// publishedRefusalFilter returns a function that reports whether a status counts a refused Node. In a fleet, the
// condition of the Cluster does, unless it shows something worse; otherwise the condition Exhausted of a full
// ClusterCIDR does.
func (m *nodeState) publishedRefusalFilter() func(podcidr.Refusal) bool {
	if m.inFleet {
		shows := len(m.rangeObjects) > 0 && len(m.conflicts) == 0 && m.stoppedCondition() == nil && len(m.conflictingBlocks()) == 0
		return func(podcidr.Refusal) bool { return shows }
	}
	return func(why podcidr.Refusal) bool {
		return slices.ContainsFunc(why.FullRanges, func(ref podcidr.Ref) bool {
			o := m.rangeObjects[ref]
			return ref.Kind == v1alpha1.ClusterCIDRKind && o.Range != nil && !m.isUselessRange(o.Range)
		})
	}
}

// addRefusalEvent adds an event with the reason why a Node gets nothing. Where another allocator of the cluster serves
// Nodes too, it adds none if no range here is for the Node, as the Node may be served by the other one.
func (m *nodeState) addRefusalEvent(n *nodeEntry, why podcidr.Refusal) {
	if full, useless := m.describeRanges(why.FullRanges); len(why.FullRanges) > 0 {
		text := "all ClusterCIDRs that match are full: %s; add a ClusterCIDR, or delete Nodes"
		if useless == len(why.FullRanges) {
			text = "the ClusterCIDRs that match give nothing: %s; add a ClusterCIDR with another range"
		}
		m.addEventf(n.Node, CIDRNotAvailable, text, full)
		return
	}
	if m.hasPeerAllocator {
		return
	}
	var all []string
	for _, r := range m.validRanges() {
		if !r.Closing {
			all = append(all, r.Name)
		}
	}
	if len(all) == 0 && m.inFleet {
		m.addEventf(n.Node, CIDRNotAvailable, "no ClusterCIDR of the management cluster is for this cluster; add one whose clusterSelector selects its Cluster")
		return
	}
	if len(all) == 0 {
		m.addEventf(n.Node, CIDRNotAvailable, "there is no ClusterCIDR; add one")
		return
	}
	m.addEventf(n.Node, CIDRNotAvailable, "no ClusterCIDR selects it; there are %s: add one that does, or change its labels", joinNames(all))
}

// describeRanges returns the names of ranges and for how many Nodes each is, and how many of them Services have
// completely.
func (m *nodeState) describeRanges(refs []podcidr.Ref) (text string, useless int) {
	var out []string
	for _, ref := range refs {
		switch o := m.rangeObjects[ref]; {
		case o.Range == nil:
		case m.isUselessRange(o.Range):
			useless++
			out = append(out, ref.Name+" (all of it is for Services)")
		default:
			out = append(out, fmt.Sprintf("%s (%s)", ref.Name, formatNodeCount(o.Range.CurrentCapacity(), "", "")))
		}
	}
	return joinNames(out), useless
}

// addConflictEvents adds to both Nodes the event that they have the same addresses.
func (m *nodeState) addConflictEvents(n *podcidr.Node, c podcidr.Conflict) {
	const text = "its pod CIDRs %v overlap those of Node %s: drain and delete one of the two, so that it registers anew, and see that nobody else sets pod CIDRs (kube-controller-manager: --allocate-node-cidrs=false)"
	m.addEventf(n, PodCIDRConflict, text, n.CIDRs, c.OtherNodeName)
	if other := m.nodes[c.OtherNodeUID]; other != nil {
		m.addEventf(other.Node, PodCIDRConflict, text, other.CIDRs, n.Name)
	}
}

// addForeignEvents adds events to a Node whose CIDRs are in no ClusterCIDR, or are of Services, and reports whether
// some are in no ClusterCIDR. Where another allocator of the cluster has held its ConfigMap, CIDRs of a Node that names
// an unknown ClusterCIDR were granted by that allocator.
func (m *nodeState) addForeignEvents(n *podcidr.Node, of *podcidr.RangeIndex) (foreign bool) {
	others := m.hasPeerAllocator && n.ClusterCIDRName != "" && len(m.rangesByName[n.ClusterCIDRName]) == 0
	for _, p := range n.CIDRs {
		if !others && len(of.OverlappingRanges([]netip.Prefix{p})) == 0 {
			foreign = true
			m.addEventf(n, PodCIDRForeign, "its pod CIDR %s is in no ClusterCIDR; it stays", p)
		}
		if service, ok := m.allocations.OverlappingExclusion(p); ok {
			m.addEventf(n, PodCIDRInServiceRange, "its pod CIDR %s overlaps %s, which is for Services: drain and delete the Node, so that it registers anew", p, service)
		}
	}
	return foreign
}

// formatNodeCount formats a number of Nodes, followed by the verb for one or for several.
func formatNodeCount(n int64, does, do string) string {
	if n == 1 {
		return strings.TrimSpace("1 Node " + does)
	}
	return strings.TrimSpace(fmt.Sprintf("%d Nodes %s", n, do))
}

// joinNames joins the first maxNamesShown names.
func joinNames(names []string) string {
	if len(names) <= maxNamesShown {
		return strings.Join(names, ", ")
	}
	return strings.Join(names[:maxNamesShown], ", ") + ", " + ellipsis
}

// EmitEvents records the pending events, as many as the limit allows. It reports whether some have to wait. A manager
// that is neither the holder nor elected records none, as another one may.
func (s *ClusterAllocator) EmitEvents() (more bool) {
	s.emitDeletingEvent()
	m := s.lockState()
	if !m.isHolder && !s.Elected {
		m.deferEvents(0)
	}
	var now []pendingEvent
	for len(m.events) > 0 && s.eventLimiter.TryAccept() {
		n := m.events[0]
		m.events = m.events[1:]
		known := m.nodes[n.nodeUID]
		if known != nil && (n.reason != CIDRNotAvailable || len(known.CIDRs) == 0) {
			now = append(now, n)
		}
	}
	more = len(m.events) > 0
	m.Unlock()
	for _, n := range now {
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: n.nodeName, UID: n.nodeUID}}
		s.Recorder.Eventf(node, nil, corev1.EventTypeWarning, n.reason, "Allocate", "%s", n.message)
	}
	return more
}

// emitDeletingEvent records once that the ConfigMap is being deleted, and the consequences.
func (s *ClusterAllocator) emitDeletingEvent() {
	emitted := s.deletingEmitted
	if s.deletingEmitted = s.IsHolder() && s.fence.IsDeleting(); emitted || !s.deletingEmitted {
		return
	}
	o := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: fence.ConfigMapNamespace, Name: fence.ConfigMapName}}
	s.Recorder.Eventf(o, nil, corev1.EventTypeWarning, FenceDeleted, "Commit",
		"it is being deleted; the finalizer %s keeps it, and it goes on being used: to begin anew, take the finalizer off, and 75 seconds later the next Nodes are served", fence.Finalizer)
}

// newEventLimiter returns the rate limiter of events.
func newEventLimiter() flowcontrol.PassiveRateLimiter {
	return flowcontrol.NewTokenBucketPassiveRateLimiter(eventsPerSecond, eventBurst)
}
