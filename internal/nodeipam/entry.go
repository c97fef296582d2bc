package nodeipam

import (
	"context"
	"errors"
	"fmt"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/podcidr"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/term"
)

// IsLocal reports whether a ClusterCIDR is for the Nodes of the cluster that it is in.
func IsLocal(c *v1alpha1.ClusterCIDR) bool { return c.Spec.ClusterSelector == nil }

// EntryOf is the entry of a Cluster in the status of a ClusterCIDR; nil: there is none.
func EntryOf(c *v1alpha1.ClusterCIDR, cluster Key) *v1alpha1.ClusterUse {
	i := slices.IndexFunc(c.Status.Clusters, isOf(cluster))
	if i < 0 {
		return nil
	}
	return &c.Status.Clusters[i]
}

func isOf(cluster Key) func(v1alpha1.ClusterUse) bool {
	return func(u v1alpha1.ClusterUse) bool { return u.Namespace == cluster.Namespace && u.Name == cluster.Name }
}

// ObjectFor is what a ClusterCIDR says to a Cluster that has those labels. It reports whether it is of any concern to
// that: it selects the Cluster, or is in use there. Nil: the Cluster is not to get anything new.
func ObjectFor(c *v1alpha1.ClusterCIDR, cluster Key, has labels.Set) (Object, bool) {
	if IsLocal(c) {
		return Object{}, false
	}
	out := ObjectOf(c)
	entry := EntryOf(c, cluster)
	if out.Held = entry != nil; out.Held {
		out.Mark = entry.Mark
	}
	selector, err := metav1.LabelSelectorAsSelector(c.Spec.ClusterSelector)
	if err != nil {
		return out, out.Held // ObjectOf says why it is not valid
	}
	selected := has != nil && selector.Matches(has)
	if !selected {
		out.Closing = true
		if out.Range != nil {
			out.Range.Closing = true
		}
	}
	return out, selected || out.Held
}

// checkClusters reports what is wrong with a clusterSelector.
func checkClusters(s *metav1.LabelSelector) field.ErrorList {
	if s == nil {
		return nil
	}
	if _, err := metav1.LabelSelectorAsSelector(s); err != nil {
		return field.ErrorList{field.Invalid(field.NewPath("spec", "clusterSelector"), metav1.FormatLabelSelector(s), err.Error())}
	}
	return nil
}

// Entries are the ClusterCIDRs of the management cluster, as they are for one of its Clusters: what is in use there has an
// entry in the status.
type Entries struct {
	ClusterCIDRs
	Cluster Key
}

// Protect implements Objects: it puts our finalizer on, and writes the entry, with another mark than it had.
func (e Entries) Protect(ctx context.Context, ref podcidr.Ref) error {
	if err := e.ClusterCIDRs.Protect(ctx, ref); err != nil {
		return err
	}
	mark := string(uuid.NewUUID())
	return e.write(ctx, ref, func(c *v1alpha1.ClusterCIDR) error {
		if c.DeletionTimestamp != nil || !controllerutil.ContainsFinalizer(c, v1alpha1.ClusterCIDRFinalizer) {
			return errClosing
		}
		if entry := EntryOf(c, e.Cluster); entry != nil {
			entry.Mark = mark
			return nil
		}
		c.Status.Clusters = append(c.Status.Clusters, v1alpha1.ClusterUse{Namespace: e.Cluster.Namespace, Name: e.Cluster.Name, Mark: mark})
		return nil
	})
}

// Release implements Objects: it takes the entry away.
func (e Entries) Release(ctx context.Context, ref podcidr.Ref, mark string) error {
	err := e.write(ctx, ref, func(c *v1alpha1.ClusterCIDR) error {
		if entry := EntryOf(c, e.Cluster); entry == nil || entry.Mark != mark {
			return errClosing
		}
		c.Status.Clusters = slices.DeleteFunc(c.Status.Clusters, isOf(e.Cluster))
		return nil
	})
	if errors.Is(err, errClosing) {
		return nil
	}
	return err
}

// write changes the status of a ClusterCIDR as it is now. Many Clusters write it.
func (e Entries) write(ctx context.Context, ref podcidr.Ref, change func(*v1alpha1.ClusterCIDR) error) error {
	return retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		live, err := e.read(ctx, ref)
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
			return fmt.Errorf("writing into ClusterCIDR %s that Cluster %s uses it: %w", live.Name, e.Cluster, err)
		}
		return nil
	})
}

// AnyProtected implements Objects.
func (e Entries) AnyProtected(ctx context.Context) (bool, error) {
	return e.any(ctx, func(c *v1alpha1.ClusterCIDR) bool { return EntryOf(c, e.Cluster) != nil })
}
