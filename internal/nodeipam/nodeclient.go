package nodeipam

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/metrics"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/podcidr"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/term"
)

// listTimeout bounds a list of all Nodes: an API server works on one list for as long as that.
const listTimeout = time.Minute

// nodeClient reads and writes the Nodes of a cluster, and records in the state what each answer shows.
type nodeClient struct {
	*Options
	state      *nodeState
	logLimiter logLimiter
}

// observeNode records a Node as it was seen, and reports whether the cluster has to be reconciled.
func (nc *nodeClient) observeNode(n *corev1.Node) bool {
	m := nc.state.lock()
	defer m.Unlock()
	wake := m.observeNode(nodeFromObject(n), n.ResourceVersion, nc.Now())
	m.cidrs.checkLateLabels(n.UID, n.ResourceVersion, n.Labels)
	return wake
}

// forgetNode records the proof that the UID of a Node is gone, and reports whether the cluster has to be reconciled.
func (nc *nodeClient) forgetNode(uid types.UID) bool {
	m := nc.state.lock()
	defer m.Unlock()
	if n := m.nodes.byUID[uid]; n != nil && len(n.CIDRs) > 0 {
		if r := m.ranges.rangeForNode(n.Node); r != nil {
			metrics.NodeCIDRReleases.WithLabelValues(formatRangeCIDRs(r), r.Name, nc.ClusterKey.Namespace, nc.ClusterKey.Name).Inc()
		}
	}
	return m.forgetNode(uid, nc.Now())
}

// patchNode sets the CIDRs of a Node, once they are on record. The patch carries the UID of the Node and not its
// resource version: podCIDRs are written once, so the patch may be repeated, and may land at any time. After a refusal,
// the Node is read live.
func (nc *nodeClient) patchNode(ctx context.Context, g podcidr.Grant) error {
	texts := make([]string, len(g.CIDRs))
	for i, p := range g.CIDRs {
		texts[i] = p.String()
	}
	meta := map[string]any{"uid": g.Node.UID}
	if g.RangeRef.Name != "" {
		meta["annotations"] = map[string]string{v1alpha1.ClusterCIDRAnnotation: g.RangeRef.Name}
	}
	body, err := json.Marshal(map[string]any{"metadata": meta, "spec": map[string]any{"podCIDR": texts[0], "podCIDRs": texts}})
	if err != nil {
		return err
	}
	timed, cancel := context.WithTimeout(ctx, term.RequestTimeout)
	defer cancel()
	o := &corev1.Node{}
	o.Name = g.Node.Name
	err = nc.Client.Patch(timed, o, client.RawPatch(types.MergePatchType, body))
	if err == nil && len(podCIDRsForNode(o)) == 0 {
		return fmt.Errorf("the API server takes the pod CIDRs %v of Node %s, and does not show them: something changes what is written", texts, g.Node.Name)
	}
	if err == nil {
		nc.observeNode(o)
		return nil
	}
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) || apierrors.IsInvalid(err) {
		settled, readErr := nc.checkLiveNode(ctx, g)
		if readErr != nil || settled {
			return readErr
		}
	}
	return fmt.Errorf("setting the pod CIDRs of Node %s to %v: %w", g.Node.Name, texts, err)
}

// checkLiveNode reads a Node live, and reports whether it is gone, or has CIDRs.
func (nc *nodeClient) checkLiveNode(ctx context.Context, g podcidr.Grant) (settled bool, err error) {
	n := g.Node
	ctx, cancel := context.WithTimeout(ctx, term.RequestTimeout)
	defer cancel()
	live := &corev1.Node{}
	err = nc.Live.Get(ctx, client.ObjectKey{Name: n.Name}, live)
	if client.IgnoreNotFound(err) != nil {
		return false, err
	}
	if err != nil || live.UID != n.UID {
		nc.forgetNode(n.UID)
		settled = true
	}
	if err == nil {
		nc.observeNode(live)
	}
	if cidrs := podCIDRsForNode(live); !settled && len(cidrs) > 0 {
		settled = true
		m := nc.state.lock()
		if !slices.Equal(cidrs, g.CIDRs) {
			m.events.addEventf(n, PodCIDRSetByOther, "another allocator has set its pod CIDRs to %v, where %v were granted: run kube-controller-manager with --allocate-node-cidrs=false, and one allocator only", cidrs, g.CIDRs)
		}
		m.Unlock()
	}
	return settled, nil
}

// relistNodes observes all Nodes from a new list.
func (nc *nodeClient) relistNodes(ctx context.Context) error {
	return nc.listNodes(ctx, func(n *corev1.Node) { nc.observeNode(n) })
}

// listNodes lists all Nodes. The timeout keeps a server that does not finish the list from blocking other clusters.
func (nc *nodeClient) listNodes(ctx context.Context, each func(*corev1.Node)) error {
	ctx, cancel := context.WithTimeout(ctx, listTimeout)
	defer cancel()
	_, err := nc.Lister.List(ctx, &corev1.Node{}, "", func(o client.Object) {
		if n, ok := o.(*corev1.Node); ok {
			each(n)
		}
	})
	if err != nil {
		return fmt.Errorf("listing Nodes: %w", err)
	}
	return nil
}
