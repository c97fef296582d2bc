package cli

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/inspect"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/nodeipam"
)

func explainNode(ctx context.Context, from client.Reader, name string, now time.Time) (inspect.Explanation, error) {
	of, notes, err := readPodCIDRs(ctx, from)
	if err != nil {
		return inspect.Explanation{}, err
	}
	if of.NodesHidden {
		one := corev1.Node{}
		if err := from.Get(ctx, client.ObjectKey{Name: name}, &one); err != nil {
			return inspect.Explanation{}, fmt.Errorf("reading the Node: %w", err)
		}
		of.Nodes = []corev1.Node{one}
	}
	if of.ManagedElsewhere || of.RangesHidden {
		of.LastEvent = lastNodeEvent(ctx, from, name)
	}
	e, found := inspect.ExplainNode(of, name, now)
	if !found {
		return e, fmt.Errorf("this cluster has no Node %s; for one of a workload cluster, use the kubeconfig of that", name)
	}
	e.Notes = notes
	return e, nil
}

// lastNodeEvent returns the message of the manager's last event CIDRNotAvailable for a Node; "" where there is none, or
// events may not be read.
func lastNodeEvent(ctx context.Context, from client.Reader, node string) (text string) {
	list := &corev1.EventList{}
	about := client.MatchingFields{"involvedObject.kind": "Node", "involvedObject.name": node, "reason": nodeipam.CIDRNotAvailable}
	if from.List(ctx, list, client.InNamespace(metav1.NamespaceDefault), about) != nil {
		return ""
	}
	var last time.Time
	for i := range list.Items {
		e := &list.Items[i]
		at := e.EventTime.Time
		if e.Series != nil {
			at = e.Series.LastObservedTime.Time
		}
		if at.IsZero() {
			at = e.LastTimestamp.Time
		}
		if text == "" || at.After(last) {
			text, last = e.Message, at
		}
	}
	return text
}

func explainClusterCIDR(ctx context.Context, from client.Reader, name string, now time.Time) (inspect.Explanation, error) {
	one := &v1alpha1.ClusterCIDR{}
	switch err := from.Get(ctx, client.ObjectKey{Name: name}, one); {
	case meta.IsNoMatchError(err):
		return inspect.Explanation{}, errors.New("this cluster has no ClusterCIDRs; for those of a fleet, use the kubeconfig of its management cluster")
	case err != nil:
		return inspect.Explanation{}, fmt.Errorf("reading the ClusterCIDR: %w", err)
	}
	of, notes, err := readPodCIDRs(ctx, from)
	if err != nil {
		return inspect.Explanation{}, err
	}
	if of.RangesHidden {
		of.ClusterCIDRs = []v1alpha1.ClusterCIDR{*one}
	}
	if !nodeipam.IsLocal(one) {
		clusters := &clusterv1.ClusterList{}
		if err := from.List(ctx, clusters); apierrors.IsForbidden(err) {
			notes = append(notes, "you have no permission to list clusters.cluster.x-k8s.io, so those that have not used it are not shown")
		} else if err != nil {
			return inspect.Explanation{}, fmt.Errorf("listing the Clusters: %w", err)
		}
		of.Clusters = clusters.Items
	}
	e, found := inspect.ExplainClusterCIDR(of, name, now)
	if !found {
		return e, fmt.Errorf("the ClusterCIDR %s has gone meanwhile", name)
	}
	e.Notes = notes
	return e, nil
}
