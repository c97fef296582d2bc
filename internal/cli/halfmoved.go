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

// addHalfMoved adds the namespaces of which a move has begun and not ended.
func (a *auditAnswer) addHalfMoved(ctx context.Context, from client.Reader, o pools.Objects) error {
	home := &corev1.Namespace{}
	if err := from.Get(ctx, client.ObjectKey{Name: metav1.NamespaceSystem}, home); err != nil {
		return a.notHalfMoved(fmt.Errorf("reading the namespace %s: %w", metav1.NamespaceSystem, err))
	}
	clusters := &clusterv1.ClusterList{}
	if err := from.List(ctx, clusters); err != nil {
		return a.notHalfMoved(fmt.Errorf("listing Clusters: %w", err))
	}
	a.HalfMoved = halfMoved(o.Pools, clusters.Items, home.UID)
	return nil
}

// notHalfMoved notes what may not be read. Other errors are errors.
func (a *auditAnswer) notHalfMoved(err error) error {
	if !apierrors.IsForbidden(err) {
		return err
	}
	a.MovesUnchecked = err.Error()
	return nil
}

// sideOfMove is what a namespace shows of a move that has not ended.
type sideOfMove struct{ paused, came, left []string }

// halfMoved names the namespaces of which a move has begun and not ended, on its target and on its source. clusterctl pauses
// the Clusters of the source first, and unpauses those of the target last.
func halfMoved(all []v1alpha1.Pool, clusters []clusterv1.Cluster, home types.UID) (out []string) {
	sides := map[string]*sideOfMove{}
	of := func(namespace string) *sideOfMove {
		if sides[namespace] == nil {
			sides[namespace] = &sideOfMove{}
		}
		return sides[namespace]
	}
	for i := range clusters {
		if c := &clusters[i]; pausedByClusterctl(c) {
			of(c.Namespace).paused = append(of(c.Namespace).paused, c.Name)
		}
	}
	for _, p := range all {
		marks := p.GetAnnotations()
		from := marks[v1alpha1.ManagementClusterAnnotation]
		switch side := p.GetNamespace(); {
		case side == "": // one that is in no namespace is copied, and stays
		case from != "" && types.UID(from) != home:
			of(side).came = append(of(side).came, p.GetName())
		case gaveAway(p), types.UID(marks[incluster.MovedFromAnnotation]) == home && home != "":
			of(side).left = append(of(side).left, p.GetName())
		}
	}
	for _, namespace := range slices.Sorted(maps.Keys(sides)) {
		out = append(out, sides[namespace].text(namespace))
	}
	return out
}

func (s *sideOfMove) text(namespace string) string {
	const read = " (docs/install.md#moving-to-another-management-cluster)"
	paused := ""
	if len(s.paused) > 0 {
		paused = "; clusterctl has paused " + kindAndNames("Cluster", s.paused)
	}
	switch {
	case len(s.came) > 0:
		return fmt.Sprintf("a move of namespace %s to here has not ended: %s came from another management cluster, and nothing shows yet that all is here%s; "+
			"resume the move on its source"+read, namespace, kindAndNames(v1alpha1.NetworkPoolKind, s.came), paused)
	case len(s.left) > 0:
		return fmt.Sprintf("a move of namespace %s from here has not ended: %s is here, and addresses of it are not%s; "+
			"unpause the Clusters that are here, and resume the move"+read, namespace, kindAndNames(v1alpha1.NetworkPoolKind, s.left), paused)
	}
	return fmt.Sprintf("a move of namespace %s has not ended%s; unpause them on the source, and resume the move there"+read, namespace, paused)
}

func kindAndNames(kind string, names []string) string {
	slices.Sort(names)
	return kind + " " + strings.Join(names, ", ")
}

// pausedByClusterctl reports whether clusterctl has paused a Cluster, and not a person.
func pausedByClusterctl(c *clusterv1.Cluster) bool {
	return ptr.Deref(c.Spec.Paused, false) && slices.ContainsFunc(c.ManagedFields, func(e metav1.ManagedFieldsEntry) bool {
		return e.Manager == "clusterctl" && e.FieldsV1 != nil && strings.Contains(e.FieldsV1.GetRawString(), `"f:paused"`)
	})
}

// gaveAway reports whether addresses of a pool went to another management cluster.
func gaveAway(p v1alpha1.Pool) bool {
	return slices.ContainsFunc(p.PoolStatus().Held, func(h v1alpha1.HeldRange) bool { return h.Reason == v1alpha1.MovedReason })
}
