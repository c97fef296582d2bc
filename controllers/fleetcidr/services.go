package fleetcidr

import (
	"context"
	"fmt"

	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/feed"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/nodeipam"
)

// updateServiceCIDRs sets the CIDRs of Services in the workload cluster: those in the spec of its Cluster, and its
// ServiceCIDR objects, if it has any.
func (cc *connectedCluster) updateServiceCIDRs(cluster *clusterv1.Cluster) error {
	if cc.serviceCIDRFeed == nil {
		gvk := networkingv1.SchemeGroupVersion.WithKind("ServiceCIDR")
		_, err := cc.uncachedClient.RESTMapper().RESTMapping(gvk.GroupKind(), gvk.Version)
		if err != nil && !meta.IsNoMatchError(err) {
			return fmt.Errorf("asking the API server of Cluster %s whether it has ServiceCIDRs: %w", cc.ClusterKey, err)
		}
		if err == nil {
			cc.watchServiceCIDRs()
		}
	}
	cc.SetServiceCIDRs(append(nodeipam.ParsePrefixes(cluster.Spec.ClusterNetwork.Services.CIDRBlocks), cc.serviceCIDRs.Prefixes()...))
	return nil
}

// watchServiceCIDRs begins to watch ServiceCIDRs. A cache of the connection would block: without the right to list them
// it never syncs, and does not report why.
func (cc *connectedCluster) watchServiceCIDRs() {
	cc.serviceCIDRFeed = feed.New(&networkingv1.ServiceCIDR{}, "", serviceCIDRSource{cc.directClient}, cc.directClient, cc.serviceCIDRs)
	cc.startFeed(cc.serviceCIDRFeed)
}

// serviceCIDRSource reads the ServiceCIDRs of a cluster, which are few.
type serviceCIDRSource struct{ client.WithWatch }

// List visits all ServiceCIDRs.
func (r serviceCIDRSource) List(ctx context.Context, _ client.Object, _ string, visit func(client.Object)) (string, error) {
	var all networkingv1.ServiceCIDRList
	if err := r.WithWatch.List(ctx, &all); err != nil {
		return "", err
	}
	for i := range all.Items {
		visit(&all.Items[i])
	}
	return all.ResourceVersion, nil
}

// Watch watches ServiceCIDRs.
func (r serviceCIDRSource) Watch(ctx context.Context, _ client.Object, _ string, o metav1.ListOptions) (watch.Interface, error) {
	return r.WithWatch.Watch(ctx, &networkingv1.ServiceCIDRList{}, &client.ListOptions{Raw: &o})
}
