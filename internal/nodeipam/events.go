package nodeipam

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/podcidr"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/term"
)

// nodeEvents are the events on Nodes. An event that was added once is not added again while its Node exists. A manager
// that is neither the holder nor elected defers all events.
type nodeEvents struct {
	// pending are the events to record; emitted are those that were added before, by Node.
	pending []pendingEvent
	emitted map[types.UID][]pendingEvent
	// deferred are the events that only the holder may record.
	deferred deferredEvents

	nodes *knownNodes
}

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
func (ne *nodeEvents) addEventf(n *podcidr.Node, reason, format string, args ...any) {
	ne.addEvent(pendingEvent{n.UID, n.Name, reason, fmt.Sprintf(format, args...)})
}

// addEvent adds an event, unless the same one was added before.
func (ne *nodeEvents) addEvent(n pendingEvent) {
	if !slices.Contains(ne.emitted[n.nodeUID], n) {
		ne.pending, ne.emitted[n.nodeUID] = append(ne.pending, n), append(ne.emitted[n.nodeUID], n)
	}
}

// dropEvent forgets that an event was added.
func (ne *nodeEvents) dropEvent(n pendingEvent) {
	if ne.emitted[n.nodeUID] = slices.DeleteFunc(ne.emitted[n.nodeUID], func(o pendingEvent) bool { return o == n }); len(ne.emitted[n.nodeUID]) == 0 {
		delete(ne.emitted, n.nodeUID)
	}
}

// dropRefusal drops the deferred event with the reason why a Node gets nothing; dropRefusals drops those of all Nodes.
func (ne *nodeEvents) dropRefusal(uid types.UID) { delete(ne.deferred.refusalEvents, uid) }

func (ne *nodeEvents) dropRefusals() { clear(ne.deferred.refusalEvents) }

// forgetNode forgets which events of a Node were added or deferred, as the Node is gone.
func (ne *nodeEvents) forgetNode(uid types.UID) {
	delete(ne.emitted, uid)
	delete(ne.deferred.otherEvents, uid)
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
func (ne *nodeEvents) deferEvents(since int) {
	for _, n := range ne.pending[since:] {
		ne.dropEvent(n)
		switch all := ne.deferred.otherEvents[n.nodeUID]; {
		case n.reason == CIDRNotAvailable:
			ne.deferred.refusalEvents[n.nodeUID] = n
		case !slices.Contains(all, n):
			ne.deferred.otherEvents[n.nodeUID] = append(all, n)
		}
	}
	ne.pending = ne.pending[:since]
}

// needsTakeoverForEvents reports whether the cluster has to be taken over to record deferred events, and updates since
// when there are any. The manager that takes it over has recorded them then, and does not take it over for the same
// events again.
func (ne *nodeEvents) needsTakeoverForEvents(now time.Time, wait time.Duration) (bool, time.Duration) {
	if len(ne.deferred.refusalEvents)+len(ne.deferred.otherEvents) == 0 {
		ne.deferred.deferredSince = time.Time{}
		return false, wait
	}
	if ne.deferred.deferredSince.IsZero() {
		ne.deferred.deferredSince = now
	}
	if left := deferredEventDelay - now.Sub(ne.deferred.deferredSince); left > 0 {
		return false, term.MinWait(wait, left)
	}
	return true, 0
}

// addDeferredRefusals adds the events with the reason why Nodes get nothing, for a leader that has no reason to take
// the cluster over.
func (ne *nodeEvents) addDeferredRefusals() {
	for _, uid := range slices.Sorted(maps.Keys(ne.deferred.refusalEvents)) {
		ne.addEvent(ne.deferred.refusalEvents[uid])
	}
	clear(ne.deferred.refusalEvents)
}

// addDeferredEvents adds the deferred events of a manager that became the holder, except refusals, which it finds
// itself.
func (ne *nodeEvents) addDeferredEvents() {
	for _, uid := range slices.Sorted(maps.Keys(ne.deferred.otherEvents)) {
		for _, n := range ne.deferred.otherEvents[uid] {
			ne.addEvent(n)
		}
	}
	clear(ne.deferred.refusalEvents)
	clear(ne.deferred.otherEvents)
	ne.deferred.deferredSince = time.Time{}
}

// addConflictEvents adds to both Nodes the event that they have the same addresses.
func (ne *nodeEvents) addConflictEvents(n *podcidr.Node, c podcidr.Conflict) {
	const text = "its pod CIDRs %v overlap those of Node %s: drain and delete one of the two, so that it registers again, and make sure that no other allocator sets pod CIDRs (kube-controller-manager: --allocate-node-cidrs=false)"
	ne.addEventf(n, PodCIDRConflict, text, n.CIDRs, c.OtherNodeName)
	if other := ne.nodes.byUID[c.OtherNodeUID]; other != nil {
		ne.addEventf(other.Node, PodCIDRConflict, text, other.CIDRs, n.Name)
	}
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
