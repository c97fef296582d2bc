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

// NetworkingX are the ClusterCIDRs of node-ipam-controller, beside ours. They have no status: what conditions say on ours,
// events say on them.
type NetworkingX struct {
	Recorder events.EventRecorder
	Now      func() time.Time

	all []unstructured.Unstructured
	// said is what was said of each object, at is when that was last, by reason.
	said map[types.UID]map[string]bool
	at   map[types.UID]map[string]time.Time
}

// read returns what they say, as the cache has them.
func (n *NetworkingX) read(ctx context.Context, c client.Reader) ([]nodeipam.Object, error) {
	if n == nil {
		return nil, nil
	}
	all := nodeipam.NewNetworkingXList()
	if err := c.List(ctx, all); err != nil {
		return nil, fmt.Errorf("reading the ClusterCIDRs of %s: %w", nodeipam.NetworkingXVersion, err)
	}
	n.all = all.Items
	out := make([]nodeipam.Object, len(n.all))
	for i := range n.all {
		out[i] = nodeipam.NetworkingXObject(&n.all[i])
	}
	return out, nil
}

// say says what is known of them: each thing once, and the same with other names and numbers no more often than the
// numbers of ours are written. It returns how long until there is more.
func (n *NetworkingX) say(found nodeipam.Report) (wait time.Duration) {
	if n == nil {
		return 0
	}
	n.forget()
	now := n.Now()
	for i := range n.all {
		o := &n.all[i]
		uid := o.GetUID()
		for _, c := range found.Ranges[nodeipam.NetworkingXRef(o)].Conditions {
			key := c.Reason + " " + c.Message
			if !worthSaying(c) || n.said[uid][key] {
				continue
			}
			if since := now.Sub(n.at[uid][c.Reason]); since < numbersEvery {
				wait = max(wait, numbersEvery-since)
				continue
			}
			if n.said[uid] == nil {
				n.said[uid], n.at[uid] = map[string]bool{}, map[string]time.Time{}
			}
			n.said[uid][key], n.at[uid][c.Reason] = true, now
			kind := corev1.EventTypeWarning
			if c.Type == v1alpha1.OverlapCondition || c.Reason == v1alpha1.DeletingReason {
				kind = corev1.EventTypeNormal
			}
			n.Recorder.Eventf(o, nil, kind, c.Reason, "Allocate", "%s", c.Message)
		}
	}
	return wait
}

// unsaid adds what there is to say of them, and what this manager has not said yet, to the statuses that no holder writes.
func (n *NetworkingX) unsaid(found nodeipam.Report, out map[string]nodeipam.Difference) {
	if n == nil {
		return
	}
	for i := range n.all {
		o := &n.all[i]
		for _, c := range found.Ranges[nodeipam.NetworkingXRef(o)].Conditions {
			if worthSaying(c) && n.at[o.GetUID()][c.Reason].IsZero() {
				out[fmt.Sprint(nodeipam.NetworkingXKind, " ", o.GetUID(), " ", c.Type)] = nodeipam.Difference{In: c.Reason}
			}
		}
	}
}

// worthSaying reports whether a condition says that something is not as it should be. How many CIDRs are free is none: it
// changes with each Node.
func worthSaying(c metav1.Condition) bool {
	return (c.Type == v1alpha1.ReadyCondition) == (c.Status != metav1.ConditionTrue)
}

// forget forgets what was said of objects that are gone.
func (n *NetworkingX) forget() {
	for uid := range n.said {
		if !slices.ContainsFunc(n.all, func(o unstructured.Unstructured) bool { return o.GetUID() == uid }) {
			delete(n.said, uid)
			delete(n.at, uid)
		}
	}
}
