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

// addNodeViolations adds overlapping pod CIDRs of Nodes to the result, where the Nodes get them from ClusterCIDRs of
// this cluster; CIDRs that another allocator assigns are not checked. Most users may not list Nodes: the result then
// has NodesUnchecked, and the pools are audited all the same.
func (a *auditResult) addNodeViolations(ctx context.Context, from client.Reader) error {
	var ranges v1alpha1.ClusterCIDRList
	var nodes corev1.NodeList
	switch err := from.List(ctx, &ranges); {
	case meta.IsNoMatchError(err):
		return nil // the installed release does not have the kind
	case apierrors.IsForbidden(err):
		a.NodesUnchecked = "you may not list " + forbiddenResource(err, &ranges)
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
		a.NodesUnchecked = "you may not list " + strings.TrimSuffix(forbiddenResource(err, &nodes), ".")
		return nil
	case err != nil:
		return fmt.Errorf("reading Nodes: %w", err)
	}
	a.Nodes = len(nodes.Items)
	var check nodeipam.NodeAudit
	for i := range nodes.Items {
		check.AddNode(&nodes.Items[i])
	}
	shares, _ := check.SharedRanges()
	for _, s := range shares {
		a.Violations = append(a.Violations, fmt.Sprintf("the pod CIDR %v is held by the Nodes %s", s, strings.Join(s.NodeNames, ", ")))
	}
	return nil
}
