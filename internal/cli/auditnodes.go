package cli

import (
	"context"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/nodeipam"
)

// addNodes adds the Nodes of the cluster to an answer, where they get their pod CIDRs from ClusterCIDRs: whoever gives them
// elsewhere answers for that. Most users may not list Nodes; the pools are audited all the same.
func (a *auditAnswer) addNodes(ctx context.Context, from client.Reader) error {
	var ranges v1alpha1.ClusterCIDRList
	var nodes corev1.NodeList
	switch err := from.List(ctx, &ranges); {
	case meta.IsNoMatchError(err):
		return nil // a release without the kind is installed
	case apierrors.IsForbidden(err):
		a.NodesUnchecked = "you may not list " + resourceOf(err, &ranges)
		return nil
	case err != nil:
		return fmt.Errorf("reading ClusterCIDRs: %w", err)
	}
	local := false
	for i := range ranges.Items {
		local = local || nodeipam.IsLocal(&ranges.Items[i])
	}
	if !local {
		return nil
	}
	switch err := from.List(ctx, &nodes); {
	case apierrors.IsForbidden(err):
		a.NodesUnchecked = "you may not list " + strings.TrimSuffix(resourceOf(err, &nodes), ".")
		return nil
	case err != nil:
		return fmt.Errorf("reading Nodes: %w", err)
	}
	a.Nodes = len(nodes.Items)
	var check nodeipam.Check
	for i := range nodes.Items {
		check.Add(&nodes.Items[i])
	}
	shares, _ := check.Shares()
	for _, s := range shares {
		a.Violations = append(a.Violations, fmt.Sprintf("the pod CIDR %v is held by the Nodes %s", s, strings.Join(s.Nodes, ", ")))
	}
	return nil
}
