package nodeipam

import (
	"context"
	"fmt"

	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/podcidr"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/term"
)

// ClusterCIDRProtector protects the ClusterCIDRs of the manager's own cluster.
type ClusterCIDRProtector struct {
	Client client.Client
	// Live reads the current state of the API server.
	Live client.Reader
}

func (c ClusterCIDRProtector) finalizerProtector() finalizerProtector {
	return finalizerProtector{client: c.Client, live: c.Live, finalizer: v1alpha1.ClusterCIDRFinalizer, isInUse: func(o client.Object) bool {
		clusterCIDR, ok := o.(*v1alpha1.ClusterCIDR)
		return ok && len(clusterCIDR.Status.Clusters) > 0
	}}
}

func (c ClusterCIDRProtector) getLive(ctx context.Context, ref podcidr.Ref) (*v1alpha1.ClusterCIDR, error) {
	out := &v1alpha1.ClusterCIDR{}
	return out, c.finalizerProtector().getLive(ctx, ref, out)
}

// ProtectObject implements ObjectProtector: it adds our finalizer.
func (c ClusterCIDRProtector) ProtectObject(ctx context.Context, ref podcidr.Ref) error {
	return c.finalizerProtector().addFinalizer(ctx, ref, &v1alpha1.ClusterCIDR{})
}

// UnprotectObject implements ObjectProtector: it removes our finalizer from an object that is being deleted and in
// which no Cluster has an entry. No manager opens it again.
func (c ClusterCIDRProtector) UnprotectObject(ctx context.Context, ref podcidr.Ref, _ string) error {
	return c.finalizerProtector().removeFinalizer(ctx, ref, &v1alpha1.ClusterCIDR{})
}

// HasProtectedObjects implements ObjectProtector.
func (c ClusterCIDRProtector) HasProtectedObjects(ctx context.Context) (bool, error) {
	return c.hasMatching(ctx, func(o *v1alpha1.ClusterCIDR) bool {
		return IsLocal(o) && controllerutil.ContainsFinalizer(o, v1alpha1.ClusterCIDRFinalizer)
	})
}

func (c ClusterCIDRProtector) hasMatching(ctx context.Context, matches func(*v1alpha1.ClusterCIDR) bool) (bool, error) {
	var all v1alpha1.ClusterCIDRList
	ctx, cancel := context.WithTimeout(ctx, term.RequestTimeout)
	defer cancel()
	if err := c.Live.List(ctx, &all); err != nil {
		return false, fmt.Errorf("listing ClusterCIDRs: %w", err)
	}
	for i := range all.Items {
		if matches(&all.Items[i]) {
			return true, nil
		}
	}
	return false, nil
}
