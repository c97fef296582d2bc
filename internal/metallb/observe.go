package metallb

import (
	"context"
	"fmt"
	"slices"

	metallbv1beta1 "go.universe.tf/metallb/api/v1beta1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/balancer"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/elastic"
)

// ObservedCluster is the observed state of a workload cluster.
type ObservedCluster struct {
	// Installed reports whether MetalLB's kinds exist. Without them, only Services are observed.
	Installed bool
	Services  []elastic.Service
	// Problems describe IPAddressPools that cannot be parsed.
	Problems []error

	pools       []metallbv1beta1.IPAddressPool
	parsedPools []elastic.Pool
	// advertisement is the L2Advertisement with our name, nil if there is none.
	advertisement *metallbv1beta1.L2Advertisement
}

// ObserveCluster reads a workload cluster: Services from its cache, MetalLB's objects from another. The cache of a
// kind that was removed is empty, so if it has no pools, ObserveCluster lists them live.
func ObserveCluster(ctx context.Context, tenant, inMetalLB, live client.Reader) (*ObservedCluster, error) {
	o := &ObservedCluster{}
	services, err := balancer.ListServices(ctx, tenant)
	if err != nil {
		return nil, err
	}
	for _, s := range services {
		o.Services = append(o.Services, NewService(s))
	}
	err = o.readMetalLB(ctx, inMetalLB)
	if err == nil && len(o.pools) == 0 {
		err = live.List(ctx, &metallbv1beta1.IPAddressPoolList{}, client.InNamespace(Namespace))
	}
	if balancer.IsMissing(err) {
		return o, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading MetalLB: %w", err)
	}
	o.Installed = true
	namespaces, err := o.listNamespaceLabels(ctx, tenant)
	if err != nil {
		return nil, err
	}
	for i := range o.pools {
		p, err := NewPool(&o.pools[i], namespaces)
		if err != nil {
			o.Problems = append(o.Problems, err)
		}
		o.parsedPools = append(o.parsedPools, p)
	}
	return o, nil
}

// readMetalLB reads the objects of MetalLB.
func (o *ObservedCluster) readMetalLB(ctx context.Context, from client.Reader) error {
	pools := &metallbv1beta1.IPAddressPoolList{}
	if err := from.List(ctx, pools, client.InNamespace(Namespace)); err != nil {
		return err
	}
	o.pools = pools.Items
	adv := &metallbv1beta1.L2Advertisement{}
	err := from.Get(ctx, client.ObjectKey{Namespace: Namespace, Name: DefaultPool}, adv)
	if err == nil {
		o.advertisement = adv
	}
	return client.IgnoreNotFound(err)
}

// needsAdvertisement reports whether the L2Advertisement that announces the blocks must be written.
func (o *ObservedCluster) needsAdvertisement(want []elastic.DesiredPool) bool {
	a := o.advertisement
	return a == nil || (!advertisesPools(a, want) && isWritable(a) && a.DeletionTimestamp == nil)
}

// listNamespaceLabels returns the labels of all namespaces if a pool selects namespaces by label, else nil.
func (o *ObservedCluster) listNamespaceLabels(ctx context.Context, tenant client.Reader) (map[string]map[string]string, error) {
	if !slices.ContainsFunc(o.pools, func(p metallbv1beta1.IPAddressPool) bool {
		return p.Spec.AllocateTo != nil && len(p.Spec.AllocateTo.NamespaceSelectors) > 0
	}) {
		return nil, nil
	}
	list := &metav1.PartialObjectMetadataList{}
	list.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("NamespaceList"))
	if err := tenant.List(ctx, list); err != nil {
		return nil, fmt.Errorf("listing the namespaces: %w", err)
	}
	out := map[string]map[string]string{}
	for i := range list.Items {
		out[list.Items[i].Name] = list.Items[i].Labels
	}
	return out, nil
}

// HasProjectedPool reports whether there is a pool of this name that contains blocks.
func (o *ObservedCluster) HasProjectedPool(name string) bool {
	return slices.ContainsFunc(o.pools, func(p metallbv1beta1.IPAddressPool) bool { return p.Name == name && isProjectedPool(&p) })
}

// PlanPools returns the desired pools of the workload cluster: those with blocks as in want, the others as they are.
// The pool named grows receives growth; if grows is empty, a pool of its own does.
func (o *ObservedCluster) PlanPools(want []elastic.DesiredPool, grows string) []elastic.Pool {
	var out []elastic.Pool
	seen := map[string]elastic.Pool{}
	for i := range o.pools {
		seen[o.pools[i].Name] = o.parsedPools[i]
		if !isProjectedPool(&o.pools[i]) {
			out = append(out, o.parsedPools[i])
		}
	}
	grown := false
	for _, d := range want {
		p := seen[d.Name] // restrictions that a user has set stay
		p.Name, p.Ranges, p.AutoAssign, p.ReceivesGrowth, p.Draining = d.Name, d.Ranges, d.AutoAssign, d.Name == grows, d.Draining
		grown = grown || p.ReceivesGrowth
		out = append(out, p)
	}
	if !grown {
		p := seen[grows]
		p.Name, p.Ranges, p.AutoAssign, p.ReceivesGrowth, p.PoolPerAllocation = grows, nil, true, true, grows == ""
		out = append(out, p)
	}
	return out
}
