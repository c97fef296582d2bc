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

// takeServices has a site know the CIDRs of Services in its workload cluster: those that its Cluster says, and its
// ServiceCIDRs, where it has them.
func (s *site) takeServices(cluster *clusterv1.Cluster) error {
	if s.serviceFeed == nil {
		gvk := networkingv1.SchemeGroupVersion.WithKind("ServiceCIDR")
		_, err := s.connection.RESTMapper().RESTMapping(gvk.GroupKind(), gvk.Version)
		if err != nil && !meta.IsNoMatchError(err) {
			return fmt.Errorf("asking the API server of Cluster %s whether it has ServiceCIDRs: %w", s.Key, err)
		}
		if err == nil {
			s.watchServices()
		}
	}
	s.SetServices(append(nodeipam.Prefixes(cluster.Spec.ClusterNetwork.Services.CIDRBlocks), s.services.Prefixes()...))
	return nil
}

// watchServices begins to watch ServiceCIDRs. A cache of the connection would be waited for: without the right to list them it
// is never filled, and does not say so.
func (s *site) watchServices() {
	s.serviceFeed = feed.New(&networkingv1.ServiceCIDR{}, "", serviceCIDRs{s.direct}, s.direct, s.services)
	s.begin(s.serviceFeed)
}

// serviceCIDRs reads the ServiceCIDRs of a cluster: some few.
type serviceCIDRs struct{ client.WithWatch }

// List shows all ServiceCIDRs.
func (r serviceCIDRs) List(ctx context.Context, _ client.Object, _ string, visit func(client.Object)) (string, error) {
	var all networkingv1.ServiceCIDRList
	if err := r.WithWatch.List(ctx, &all); err != nil {
		return "", err
	}
	for i := range all.Items {
		visit(&all.Items[i])
	}
	return all.ResourceVersion, nil
}

// Watch watches them.
func (r serviceCIDRs) Watch(ctx context.Context, _ client.Object, _ string, o metav1.ListOptions) (watch.Interface, error) {
	return r.WithWatch.Watch(ctx, &networkingv1.ServiceCIDRList{}, &client.ListOptions{Raw: &o})
}
