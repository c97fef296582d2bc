package fleetcidr

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/controllers/clustercache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/nodeipam"
)

// servicesTimeout is how long the first list of ServiceCIDRs may take: without the right to it, for ever.
const servicesTimeout = 10 * time.Second

// services are the CIDRs of Services in a workload cluster: those that its Cluster says, and its ServiceCIDRs, where it has
// them.
func (r *Reconciler) services(ctx context.Context, cluster *clusterv1.Cluster, s *site) ([]netip.Prefix, error) {
	out := nodeipam.Prefixes(cluster.Spec.ClusterNetwork.Services.CIDRBlocks)
	gvk := networkingv1.SchemeGroupVersion.WithKind("ServiceCIDR")
	_, err := s.connection.RESTMapper().RESTMapping(gvk.GroupKind(), gvk.Version)
	if meta.IsNoMatchError(err) {
		return out, nil
	}
	if err != nil {
		return nil, fmt.Errorf("asking the API server of Cluster %s whether it has ServiceCIDRs: %w", s.Key, err)
	}
	request := []reconcile.Request{{NamespacedName: s.Key}}
	err = r.Clusters.Watch(ctx, s.Key, clustercache.NewWatcher(clustercache.WatcherOptions{
		Name: "fleetcidr-services", Watcher: r.controller, Kind: &networkingv1.ServiceCIDR{},
		EventHandler: handler.EnqueueRequestsFromMapFunc(func(context.Context, client.Object) []reconcile.Request { return request }),
	}))
	if err != nil {
		return nil, fmt.Errorf("watching the ServiceCIDRs of Cluster %s: %w", s.Key, err)
	}
	cached, err := r.Clusters.GetReader(ctx, s.Key)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, servicesTimeout)
	defer cancel()
	var all networkingv1.ServiceCIDRList
	if err := cached.List(ctx, &all); err != nil {
		return nil, fmt.Errorf("reading the ServiceCIDRs of Cluster %s: %w", s.Key, err)
	}
	return append(out, nodeipam.ServicesOf(all.Items)...), nil
}
