package cli

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterctlv1 "sigs.k8s.io/cluster-api/cmd/clusterctl/api/v1alpha3"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/inspect"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"
)

// listMoveBlockers returns a line for each object that clusterctl move would leave behind, or would have in two
// management clusters: claims with an address whose owners do not lead to a Cluster, and GlobalNetworkPools that
// several namespaces use.
func listMoveBlockers(ctx context.Context, from client.Client, o pools.Objects) (out []string) {
	namespaces := map[pools.Key]map[string]bool{}
	for i := range o.Claims {
		c := &o.Claims[i]
		key, ok := pools.KeyFromIPPoolReference(c.Namespace, c.Spec.PoolRef)
		if !ok || c.Status.AddressRef.Name == "" {
			continue
		}
		if key.Kind == v1alpha1.GlobalNetworkPoolKind {
			if namespaces[key] == nil {
				namespaces[key] = map[string]bool{}
			}
			namespaces[key][c.Namespace] = true
		}
		if !isMovedByClusterctl(ctx, from, c) {
			out = append(out, fmt.Sprintf("IPAddressClaim %s/%s has an address of %v, and its owners lead to no Cluster: clusterctl leaves it behind, and the pool grants its address to another claimant; "+
				"label it %s first", c.Namespace, c.Name, key, clusterctlv1.ClusterctlMoveLabel))
		}
	}
	for _, key := range slices.SortedFunc(maps.Keys(namespaces), func(a, b pools.Key) int { return strings.Compare(a.String(), b.String()) }) {
		if used := slices.Sorted(maps.Keys(namespaces[key])); len(used) > 1 {
			out = append(out, fmt.Sprintf("%v is used in the namespaces %s: clusterctl copies it with each, and the copy grants nothing until you open it; "+
				"move all of them before you do (docs/install.md#moving-to-another-management-cluster)", key, strings.Join(used, ", ")))
		}
	}
	return out
}

// isMovedByClusterctl reports whether clusterctl move includes an object: it has one of clusterctl's labels, or its
// owners lead to a Cluster. An owner that the user may not read counts as one that leads to a Cluster.
func isMovedByClusterctl(ctx context.Context, from client.Client, obj metav1.Object) bool {
	for _, label := range []string{clusterctlv1.ClusterctlMoveLabel, clusterctlv1.ClusterctlMoveHierarchyLabel} {
		if _, ok := obj.GetLabels()[label]; ok {
			return true
		}
	}
	owners, unread := resolveOwners(ctx, from, obj)
	return apierrors.IsForbidden(unread) || slices.ContainsFunc(owners, func(o inspect.Owner) bool { return o.Kind == "Cluster" })
}
