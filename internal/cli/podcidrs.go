package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/fence"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/inspect"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/nodeipam"
)

// readPodCIDRs reads the objects that determine which Nodes have which pod CIDRs. Each note names objects that the user
// may not read. A kind that the cluster does not have is no error: a workload cluster has the Nodes and the ConfigMap
// alone.
func readPodCIDRs(ctx context.Context, from client.Reader) (out inspect.PodCIDRs, notes []string, err error) {
	hidden := func(err error, action, so string) (bool, error) {
		if !apierrors.IsForbidden(err) {
			return false, err
		}
		notes = append(notes, fmt.Sprintf("you have no permission to %s, so %s", action, so))
		return true, nil
	}
	// The ConfigMap is read before the Nodes: a grant leaves it once its Node has the CIDRs.
	state, found, err := fence.New(nil, from, "").ReadState(ctx)
	var damaged *fence.DamagedError
	switch {
	case errors.As(err, &damaged):
		out.FenceDamage = damaged
	case err != nil:
		action := fmt.Sprintf("get the ConfigMap %s/%s", fence.ConfigMapNamespace, fence.ConfigMapName)
		if out.FenceHidden, err = hidden(err, action, "grants in flight to Nodes are not shown"); err != nil {
			return out, nil, err
		}
	case found:
		out.FenceState = &state
	}
	nodes := &corev1.NodeList{}
	if err := from.List(ctx, nodes); err != nil {
		if out.NodesHidden, err = hidden(err, "list nodes", "their pod CIDRs are not checked"); err != nil {
			return out, nil, err
		}
	}
	out.Nodes = nodes.Items
	ranges := &v1alpha1.ClusterCIDRList{}
	switch err := from.List(ctx, ranges); {
	case meta.IsNoMatchError(err):
		out.ManagedElsewhere = true
	case err != nil:
		if out.RangesHidden, err = hidden(err, "list clustercidrs.butler.butlerlabs.dev", "the ranges for Nodes are not checked"); err != nil {
			return out, nil, err
		}
	}
	out.ClusterCIDRs = ranges.Items
	services := &networkingv1.ServiceCIDRList{}
	if err := from.List(ctx, services); err != nil && !meta.IsNoMatchError(err) { // the kind exists since Kubernetes 1.33
		if _, err := hidden(err, "list servicecidrs.networking.k8s.io", "the Service CIDRs are unknown"); err != nil {
			return out, nil, err
		}
	}
	out.ServiceCIDRs = nodeipam.ServiceCIDRPrefixes(services.Items)
	if !out.ManagedElsewhere && !out.RangesHidden {
		out.SelfCluster, out.SelfBlocks = readSelfCluster(ctx, from, out.ClusterName())
	}
	return out, notes, nil
}

// readSelfCluster returns the Cluster named "namespace/name" and its blocks; nil where there is none here, or it may
// not be read.
func readSelfCluster(ctx context.Context, from client.Reader, named string) (*clusterv1.Cluster, []nodeipam.Block) {
	namespace, name, _ := strings.Cut(named, "/")
	out := &clusterv1.Cluster{}
	if name == "" || from.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, out) != nil {
		return nil, nil
	}
	all := &v1alpha1.IPAllocationList{}
	if from.List(ctx, all, client.InNamespace(namespace)) != nil {
		return out, nil
	}
	var blocks []nodeipam.Block
	for i := range all.Items {
		if b, ok := nodeipam.BlockFromAllocation(&all.Items[i]); ok && all.Items[i].Spec.TenantClusterRef.Name == name {
			blocks = append(blocks, b)
		}
	}
	return out, blocks
}
