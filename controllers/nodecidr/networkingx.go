package nodecidr

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/nodeipam"
)

// NetworkingXReporter reports on the ClusterCIDRs of node-ipam-controller, which are served beside ours. They have no
// status, so events report what conditions report on ours.
type NetworkingXReporter struct {
	Recorder events.EventRecorder
	Now      func() time.Time

	clusterCIDRs []unstructured.Unstructured
	// emitted are the events that were recorded on each object; emittedAt is when the last one was, by reason.
	emitted   map[types.UID]map[string]bool
	emittedAt map[types.UID]map[string]time.Time
}

// listRangeObjects returns them as RangeObjects, from the cache.
func (n *NetworkingXReporter) listRangeObjects(ctx context.Context, c client.Reader) ([]nodeipam.RangeObject, error) {
	if n == nil {
		return nil, nil
	}
	all := nodeipam.NewNetworkingXClusterCIDRList()
	if err := c.List(ctx, all); err != nil {
		return nil, fmt.Errorf("reading the ClusterCIDRs of %s: %w", nodeipam.NetworkingXGroupVersion, err)
	}
	n.clusterCIDRs = all.Items
	out := make([]nodeipam.RangeObject, len(n.clusterCIDRs))
	for i := range n.clusterCIDRs {
		out[i] = nodeipam.RangeObjectFromNetworkingX(&n.clusterCIDRs[i])
	}
	return out, nil
}

// emitEvents records events with the conditions of a report, each once, and those of one reason no more often than the
// numbers of our kind are written. It returns how long until there is more to record.
func (n *NetworkingXReporter) emitEvents(found nodeipam.Report) (wait time.Duration) {
	if n == nil {
		return 0
	}
	n.forgetDeleted()
	now := n.Now()
	for i := range n.clusterCIDRs {
		o := &n.clusterCIDRs[i]
		uid := o.GetUID()
		for _, c := range found.UsageByRange[nodeipam.RefForNetworkingX(o)].Conditions {
			key := c.Reason + " " + c.Message
			if !isReportable(c) || n.emitted[uid][key] {
				continue
			}
			if since := now.Sub(n.emittedAt[uid][c.Reason]); since < numbersInterval {
				wait = max(wait, numbersInterval-since)
				continue
			}
			if n.emitted[uid] == nil {
				n.emitted[uid], n.emittedAt[uid] = map[string]bool{}, map[string]time.Time{}
			}
			n.emitted[uid][key], n.emittedAt[uid][c.Reason] = true, now
			kind := corev1.EventTypeWarning
			if c.Type == v1alpha1.OverlapCondition || c.Reason == v1alpha1.DeletingReason {
				kind = corev1.EventTypeNormal
			}
			n.Recorder.Eventf(o, nil, kind, c.Reason, "Allocate", "%s", c.Message)
		}
	}
	return wait
}

// addUnemitted adds the events that this manager has not recorded yet to the statuses that no holder writes.
func (n *NetworkingXReporter) addUnemitted(found nodeipam.Report, out map[string]nodeipam.StatusDifference) {
	if n == nil {
		return
	}
	for i := range n.clusterCIDRs {
		o := &n.clusterCIDRs[i]
		for _, c := range found.UsageByRange[nodeipam.RefForNetworkingX(o)].Conditions {
			if isReportable(c) && n.emittedAt[o.GetUID()][c.Reason].IsZero() {
				out[fmt.Sprint(nodeipam.NetworkingXKind, " ", o.GetUID(), " ", c.Type)] = nodeipam.StatusDifference{DifferingFields: c.Reason}
			}
		}
	}
}

// isReportable reports whether a condition shows a problem. The number of free CIDRs is none, as it changes with each
// Node.
func isReportable(c metav1.Condition) bool {
	return (c.Type == v1alpha1.ReadyCondition) == (c.Status != metav1.ConditionTrue)
}

// forgetDeleted drops the records of objects that are gone.
func (n *NetworkingXReporter) forgetDeleted() {
	for uid := range n.emitted {
		if !slices.ContainsFunc(n.clusterCIDRs, func(o unstructured.Unstructured) bool { return o.GetUID() == uid }) {
			delete(n.emitted, uid)
			delete(n.emittedAt, uid)
		}
	}
}
