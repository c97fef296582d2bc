package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	m3ipamv1 "github.com/metal3-io/ip-address-manager/api/v1alpha1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/allocator"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"
)

// newScheme returns a scheme with the kinds that the plugin reads as typed objects.
func newScheme() (*runtime.Scheme, error) {
	s := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, clusterv1.AddToScheme, ipamv1.AddToScheme, v1alpha1.AddToScheme, m3ipamv1.AddToScheme} {
		if err := add(s); err != nil {
			return nil, fmt.Errorf("building the scheme: %w", err)
		}
	}
	return s, nil
}

// connectToCluster returns a client for the cluster that the flags name.
func (p *plugin) connectToCluster() (client.WithWatch, error) {
	cfg, err := p.flags.ToRESTConfig()
	if err != nil {
		return nil, fmt.Errorf("reading the kubeconfig: %w", err)
	}
	return newClientForConfig(cfg)
}

func newClientForConfig(cfg *rest.Config) (client.WithWatch, error) {
	s, err := newScheme()
	if err != nil {
		return nil, err
	}
	cfg = rest.CopyConfig(cfg)
	cfg.QPS = -1 // the API server's own priority and fairness suffices
	cfg.WarningHandler = rest.NoWarnings{}
	c, err := client.NewWithWatch(cfg, client.Options{Scheme: s})
	if err != nil {
		return nil, fmt.Errorf("connecting to the cluster: %w", err)
	}
	return c, nil
}

// readObjects reads the global pools, and the pools, claims, IPAddresses, IPAllocations and IPLeases of a namespace; an
// empty namespace means all.
func readObjects(ctx context.Context, from client.Reader, namespace string) (o pools.Objects, err error) {
	locals, globals := &v1alpha1.NetworkPoolList{}, &v1alpha1.GlobalNetworkPoolList{}
	claims, addresses, blocks, leases := &ipamv1.IPAddressClaimList{}, &ipamv1.IPAddressList{}, &v1alpha1.IPAllocationList{}, &v1alpha1.IPLeaseList{}
	// Addresses are read before claims: a claim is gone later than its address.
	if err := listObjects(ctx, from, namespace, addresses, claims, blocks, leases, locals, globals); err != nil {
		return o, err
	}
	o.Claims, o.Addresses, o.Allocations, o.Leases = claims.Items, addresses.Items, blocks.Items, leases.Items
	o.Pools = pools.FromLists(locals, globals)
	return o, nil
}

// loadPoolSnapshot returns a snapshot of a pool, computed with all other pools, which may hold its addresses. Where the
// user may not list all namespaces, it is computed with the pools of its own namespace and the global ones.
func loadPoolSnapshot(ctx context.Context, from client.Reader, pool v1alpha1.Pool) (*allocator.Snapshot, error) {
	o, err := readObjects(ctx, from, "")
	if err != nil && pool.GetNamespace() != "" {
		o, err = readObjects(ctx, from, pool.GetNamespace())
	}
	if err != nil {
		return nil, err
	}
	key := pools.KeyForPool(pool)
	if !slices.ContainsFunc(o.Pools, func(p v1alpha1.Pool) bool { return pools.KeyForPool(p) == key }) {
		o.Pools = append(o.Pools, pool) // the pool was deleted between the two reads
	}
	return allocator.NewSnapshots(&o).ForPool(key), nil
}

// readPools reads the pools of a namespace and the global ones, and nothing else; an empty namespace means all.
func readPools(ctx context.Context, from client.Reader, namespace string) ([]v1alpha1.Pool, error) {
	locals, globals := &v1alpha1.NetworkPoolList{}, &v1alpha1.GlobalNetworkPoolList{}
	err := listObjects(ctx, from, namespace, locals, globals)
	return pools.FromLists(locals, globals), err
}

// listObjects fills the lists. Its error names all missing permissions at once.
func listObjects(ctx context.Context, from client.Reader, namespace string, lists ...client.ObjectList) error {
	var missing []string
	for _, l := range lists {
		err := from.List(ctx, l, client.InNamespace(namespace))
		_, leases := l.(*v1alpha1.IPLeaseList)
		switch {
		case err == nil, leases && meta.IsNoMatchError(err): // an earlier version has no leases
		case apierrors.IsForbidden(err):
			missing = append(missing, forbiddenResource(err, l))
		default:
			return err
		}
	}
	if len(missing) == 0 {
		return nil
	}
	where := "in all namespaces"
	if namespace != "" {
		where = "in namespace " + namespace + ", or in the cluster where they have no namespace"
	}
	return fmt.Errorf("you have no permission to list %s %s; ask for the verbs get and list on these resources (the cluster role view includes them for pools)",
		strings.Join(missing, ", "), where)
}

// newMissingKindsError returns an error that names the API group that the cluster does not have, and the remedy, where
// err is about a missing kind; else nil. Commands that can do without a kind ignore its absence, and do not return it
// as an error.
func newMissingKindsError(err error) error {
	var kind *meta.NoKindMatchError
	var resource *meta.NoResourceMatchError
	var group string
	switch {
	case errors.As(err, &kind):
		group = kind.GroupKind.Group
	case errors.As(err, &resource):
		group = resource.PartialResource.Group
	default:
		return nil
	}
	return fmt.Errorf("this cluster does not have the kinds of %s: check that the kubeconfig is that of the management cluster, and that Cluster API and this provider are installed there", group)
}

// requirePoolKind returns an error where the cluster does not have the kind NetworkPool: in the wrong cluster, "none"
// would be a wrong answer.
func requirePoolKind(c client.Client) error {
	return requireKind(c, v1alpha1.GroupVersion.WithKind(v1alpha1.NetworkPoolKind))
}

// requireKind returns an error where the cluster does not have a kind.
func requireKind(c client.Client, kind schema.GroupVersionKind) error {
	_, err := c.RESTMapper().RESTMapping(kind.GroupKind(), kind.Version)
	return err
}

// forbiddenResource returns the name of the resource that the API server refused to list, as "resource.group".
func forbiddenResource(err error, l client.ObjectList) string {
	if status := apierrors.APIStatus(nil); errors.As(err, &status) && status.Status().Details != nil {
		d := status.Status().Details
		return d.Kind + "." + d.Group // where a list is refused, Kind holds the name of the resource
	}
	return fmt.Sprintf("%T", l)
}
