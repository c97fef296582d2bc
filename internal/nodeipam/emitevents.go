package nodeipam

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/flowcontrol"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/fence"
)

// EmitEvents records the pending events, as many as the limit allows. It reports whether some have to wait. A manager
// that is neither the holder nor elected records none, as another one may.
func (ca *ClusterAllocator) EmitEvents() (more bool) {
	ca.emitDeletingEvent()
	m := ca.state.lock()
	if !m.term.isHolder && !ca.Elected {
		m.events.deferEvents(0)
	}
	var now []pendingEvent
	for len(m.events.pending) > 0 && ca.eventLimiter.TryAccept() {
		n := m.events.pending[0]
		m.events.pending = m.events.pending[1:]
		known := m.nodes.byUID[n.nodeUID]
		if known != nil && (n.reason != CIDRNotAvailable || len(known.CIDRs) == 0) {
			now = append(now, n)
		}
	}
	more = len(m.events.pending) > 0
	m.Unlock()
	for _, n := range now {
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: n.nodeName, UID: n.nodeUID}}
		ca.Recorder.Eventf(node, nil, corev1.EventTypeWarning, n.reason, "Allocate", "%s", n.message)
	}
	return more
}

// emitDeletingEvent records once that the ConfigMap is being deleted, and the consequences.
func (ca *ClusterAllocator) emitDeletingEvent() {
	emitted := ca.deletingEmitted
	if ca.deletingEmitted = ca.IsHolder() && ca.fence.IsDeleting(); emitted || !ca.deletingEmitted {
		return
	}
	o := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: fence.ConfigMapNamespace, Name: fence.ConfigMapName}}
	ca.Recorder.Eventf(o, nil, corev1.EventTypeWarning, FenceDeleted, "Commit",
		"it is being deleted; the finalizer %s keeps it, and it remains in use: to rebuild the state, remove the finalizer; 75 seconds later the manager resumes allocation", fence.Finalizer)
}

// newEventLimiter returns the rate limiter of events.
func newEventLimiter() flowcontrol.PassiveRateLimiter {
	return flowcontrol.NewTokenBucketPassiveRateLimiter(eventsPerSecond, eventBurst)
}
