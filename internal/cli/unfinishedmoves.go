package cli

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/incluster"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"
)

// addUnfinishedMoves adds the namespaces whose move has begun and has not ended.
func (a *auditResult) addUnfinishedMoves(ctx context.Context, from client.Reader, o pools.Objects) error {
	home := &corev1.Namespace{}
	if err := from.Get(ctx, client.ObjectKey{Name: metav1.NamespaceSystem}, home); err != nil {
		return a.recordMovesUnchecked(fmt.Errorf("reading the namespace %s: %w", metav1.NamespaceSystem, err))
	}
	clusters := &clusterv1.ClusterList{}
	if err := from.List(ctx, clusters); err != nil {
		return a.recordMovesUnchecked(fmt.Errorf("listing Clusters: %w", err))
	}
	a.UnfinishedMoves = findUnfinishedMoves(o.Pools, clusters.Items, home.UID)
	return nil
}

// recordMovesUnchecked records a Forbidden error as the reason why moves were not checked. It returns any other error.
func (a *auditResult) recordMovesUnchecked(err error) error {
	if !apierrors.IsForbidden(err) {
		return err
	}
	a.MovesUnchecked = err.Error()
	return nil
}

// moveState collects the signs of an unfinished move in one namespace.
type moveState struct{ pausedClusters, arrivedPools, departedPools []string }

// findUnfinishedMoves returns a line for each namespace whose move has begun and has not ended, on the target or on the
// source of the move; home is the UID of this management cluster. clusterctl pauses the Clusters of the source first,
// and unpauses those of the target last.
func findUnfinishedMoves(all []v1alpha1.Pool, clusters []clusterv1.Cluster, home types.UID) (out []string) {
	sides := map[string]*moveState{}
	of := func(namespace string) *moveState {
		if sides[namespace] == nil {
			sides[namespace] = &moveState{}
		}
		return sides[namespace]
	}
	for i := range clusters {
		if c := &clusters[i]; isPausedByClusterctl(c) {
			of(c.Namespace).pausedClusters = append(of(c.Namespace).pausedClusters, c.Name)
		}
	}
	for _, p := range all {
		marks := p.GetAnnotations()
		from := marks[v1alpha1.ManagementClusterAnnotation]
		switch side := p.GetNamespace(); {
		case side == "": // a pool without a namespace is copied, and stays on the source
		case from != "" && types.UID(from) != home:
			of(side).arrivedPools = append(of(side).arrivedPools, p.GetName())
		case hasMovedAddresses(p), types.UID(marks[incluster.MovedFromAnnotation]) == home && home != "":
			of(side).departedPools = append(of(side).departedPools, p.GetName())
		}
	}
	for _, namespace := range slices.Sorted(maps.Keys(sides)) {
		out = append(out, sides[namespace].describeMove(namespace))
	}
	return out
}

func (s *moveState) describeMove(namespace string) string {
	const read = " (docs/install.md#moving-to-another-management-cluster)"
	paused := ""
	if len(s.pausedClusters) > 0 {
		paused = "; clusterctl has paused " + formatKindAndNames("Cluster", s.pausedClusters)
	}
	switch {
	case len(s.arrivedPools) > 0:
		return fmt.Sprintf("a move of namespace %s to here has not ended: %s came from another management cluster, and nothing shows yet that all is here%s; "+
			"resume the move on its source"+read, namespace, formatKindAndNames(v1alpha1.NetworkPoolKind, s.arrivedPools), paused)
	case len(s.departedPools) > 0:
		return fmt.Sprintf("a move of namespace %s from here has not ended: %s is here, and addresses of it are not%s; "+
			"unpause the Clusters that are here, and resume the move"+read, namespace, formatKindAndNames(v1alpha1.NetworkPoolKind, s.departedPools), paused)
	}
	return fmt.Sprintf("a move of namespace %s has not ended%s; unpause them on the source, and resume the move there"+read, namespace, paused)
}

func formatKindAndNames(kind string, names []string) string {
	slices.Sort(names)
	return kind + " " + strings.Join(names, ", ")
}

// isPausedByClusterctl reports whether clusterctl, and not a user, has paused a Cluster.
func isPausedByClusterctl(c *clusterv1.Cluster) bool {
	return ptr.Deref(c.Spec.Paused, false) && slices.ContainsFunc(c.ManagedFields, func(e metav1.ManagedFieldsEntry) bool {
		return e.Manager == "clusterctl" && e.FieldsV1 != nil && strings.Contains(e.FieldsV1.GetRawString(), `"f:paused"`)
	})
}

// hasMovedAddresses reports whether addresses of a pool were moved to another management cluster.
func hasMovedAddresses(p v1alpha1.Pool) bool {
	return slices.ContainsFunc(p.PoolStatus().Held, func(h v1alpha1.HeldRange) bool { return h.Reason == v1alpha1.MovedReason })
}
