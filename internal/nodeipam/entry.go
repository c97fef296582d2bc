package nodeipam

import (
	"context"
	"errors"
	"fmt"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/podcidr"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/term"
)

// EntryForCluster returns the entry of a Cluster in the status of a ClusterCIDR; nil means that there is none.
func EntryForCluster(c *v1alpha1.ClusterCIDR, cluster ClusterKey) *v1alpha1.ClusterUse {
	i := slices.IndexFunc(c.Status.Clusters, matchesCluster(cluster))
	if i < 0 {
		return nil
	}
	return &c.Status.Clusters[i]
}

func matchesCluster(cluster ClusterKey) func(v1alpha1.ClusterUse) bool {
	return func(u v1alpha1.ClusterUse) bool { return u.Namespace == cluster.Namespace && u.Name == cluster.Name }
}

// RangeObjectForCluster returns a ClusterCIDR as it applies to a Cluster with the given labels, and reports whether it
// concerns the Cluster: it selects the Cluster, or is in use there. Nil labels mean that the Cluster must not get
// anything new.
func RangeObjectForCluster(c *v1alpha1.ClusterCIDR, cluster ClusterKey, clusterLabels labels.Set) (RangeObject, bool) {
	if IsLocal(c) {
		return RangeObject{}, false
	}
	out := RangeObjectFromClusterCIDR(c)
	entry := EntryForCluster(c, cluster)
	if out.HasFinalizer = entry != nil; out.HasFinalizer {
		out.EntryMark = entry.Mark
	}
	selector, err := metav1.LabelSelectorAsSelector(c.Spec.ClusterSelector)
	if err != nil {
		return out, out.HasFinalizer // RangeObjectFromClusterCIDR has recorded why it is not valid
	}
	selected := clusterLabels != nil && selector.Matches(clusterLabels)
	if !selected {
		out.Closing = true
		if out.Range != nil {
			out.Range.Closing = true
		}
	}
	return out, selected || out.HasFinalizer
}

// EntryProtector protects the ClusterCIDRs of the management cluster for one of its Clusters: those in use there have
// an entry for the Cluster in their status.
type EntryProtector struct {
	ClusterCIDRProtector
	ClusterKey ClusterKey
}

// ProtectObject implements ObjectProtector: it adds our finalizer, and writes the entry, with a new mark.
func (e EntryProtector) ProtectObject(ctx context.Context, ref podcidr.Ref) error {
	if err := e.ClusterCIDRProtector.ProtectObject(ctx, ref); err != nil {
		return err
	}
	mark := string(uuid.NewUUID())
	return e.patchStatus(ctx, ref, func(c *v1alpha1.ClusterCIDR) error {
		if c.DeletionTimestamp != nil || !controllerutil.ContainsFinalizer(c, v1alpha1.ClusterCIDRFinalizer) {
			return errClosing
		}
		if entry := EntryForCluster(c, e.ClusterKey); entry != nil {
			entry.Mark = mark
			return nil
		}
		c.Status.Clusters = append(c.Status.Clusters, v1alpha1.ClusterUse{Namespace: e.ClusterKey.Namespace, Name: e.ClusterKey.Name, Mark: mark})
		return nil
	})
}

// UnprotectObject implements ObjectProtector: it removes the entry, if that still has the mark.
func (e EntryProtector) UnprotectObject(ctx context.Context, ref podcidr.Ref, mark string) error {
	err := e.patchStatus(ctx, ref, func(c *v1alpha1.ClusterCIDR) error {
		if entry := EntryForCluster(c, e.ClusterKey); entry == nil || entry.Mark != mark {
			return errClosing
		}
		c.Status.Clusters = slices.DeleteFunc(c.Status.Clusters, matchesCluster(e.ClusterKey))
		return nil
	})
	if errors.Is(err, errClosing) {
		return nil
	}
	return err
}

// patchStatus changes the current status of a ClusterCIDR, and retries on conflicts, as many Clusters write it.
func (e EntryProtector) patchStatus(ctx context.Context, ref podcidr.Ref, change func(*v1alpha1.ClusterCIDR) error) error {
	return retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		live, err := e.getLive(ctx, ref)
		if err != nil {
			return err
		}
		next := live.DeepCopy()
		if err := change(next); err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(ctx, term.RequestTimeout)
		defer cancel()
		err = e.Client.Status().Patch(ctx, next, client.MergeFromWithOptions(live, client.MergeFromWithOptimisticLock{}))
		if err != nil {
			return fmt.Errorf("writing into ClusterCIDR %s that Cluster %s uses it: %w", live.Name, e.ClusterKey, err)
		}
		return nil
	})
}

// HasProtectedObjects implements ObjectProtector.
func (e EntryProtector) HasProtectedObjects(ctx context.Context) (bool, error) {
	return e.hasMatching(ctx, func(c *v1alpha1.ClusterCIDR) bool { return EntryForCluster(c, e.ClusterKey) != nil })
}
