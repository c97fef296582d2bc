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

// Observed is what a workload cluster has.
type Observed struct {
	// Installed is whether MetalLB's kinds exist. Without them there are Services and nothing else.
	Installed bool
	Services  []elastic.Service
	// Problems are IPAddressPools that cannot be read.
	Problems []error

	pools []metallbv1beta1.IPAddressPool
	read  []elastic.Pool
	// advertisement is the L2Advertisement of our name, nil if there is none.
	advertisement *metallbv1beta1.L2Advertisement
}

// Observe reads a workload cluster, from its cache, and what it has in MetalLB's namespace from another. A cache
// of a kind that was taken away shows none of it, so none is read live.
func Observe(ctx context.Context, tenant, inMetalLB, live client.Reader) (*Observed, error) {
	o := &Observed{}
	services, err := balancer.Services(ctx, tenant)
	if err != nil {
		return nil, err
	}
	for _, s := range services {
		o.Services = append(o.Services, ServiceOf(s))
	}
	err = o.readMetalLB(ctx, inMetalLB)
	if err == nil && len(o.pools) == 0 {
		err = live.List(ctx, &metallbv1beta1.IPAddressPoolList{}, client.InNamespace(Namespace))
	}
	if balancer.Missing(err) {
		return o, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading MetalLB: %w", err)
	}
	o.Installed = true
	namespaces, err := o.namespaces(ctx, tenant)
	if err != nil {
		return nil, err
	}
	for i := range o.pools {
		p, err := PoolOf(&o.pools[i], namespaces)
		if err != nil {
			o.Problems = append(o.Problems, err)
		}
		o.read = append(o.read, p)
	}
	return o, nil
}

// readMetalLB reads the objects of MetalLB.
func (o *Observed) readMetalLB(ctx context.Context, from client.Reader) error {
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

// advertisable reports whether the L2Advertisement that announces the blocks is to be written.
func (o *Observed) advertisable(want []elastic.Desired) bool {
	a := o.advertisement
	return a == nil || (!advertises(a, want) && mayWrite(a) && a.DeletionTimestamp == nil)
}

// namespaces reads the labels of all namespaces, where a pool selects by them.
func (o *Observed) namespaces(ctx context.Context, tenant client.Reader) (map[string]map[string]string, error) {
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

// Shows reports whether there is a pool of this name that shows blocks.
func (o *Observed) Shows(name string) bool {
	return slices.ContainsFunc(o.pools, func(p metallbv1beta1.IPAddressPool) bool { return p.Name == name && managed(&p) })
}

// Pools are those of the workload cluster as they are to be: those that show blocks as wanted, the others as
// they are. What the cluster would grow by is in the pool of that name; with none, in a pool of its own.
func (o *Observed) Pools(want []elastic.Desired, grows string) []elastic.Pool {
	var out []elastic.Pool
	seen := map[string]elastic.Pool{}
	for i := range o.pools {
		seen[o.pools[i].Name] = o.read[i]
		if !managed(&o.pools[i]) {
			out = append(out, o.read[i])
		}
	}
	grown := false
	for _, d := range want {
		p := seen[d.Name] // what a person restricts it to stays
		p.Name, p.Ranges, p.AutoAssign, p.Grows, p.Leaving = d.Name, d.Ranges, d.AutoAssign, d.Name == grows, d.Leaving
		grown = grown || p.Grows
		out = append(out, p)
	}
	if !grown {
		p := seen[grows]
		p.Name, p.Ranges, p.AutoAssign, p.Grows, p.Apart = grows, nil, true, true, grows == ""
		out = append(out, p)
	}
	return out
}
