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

// scheme knows the kinds that the plugin reads as types.
func scheme() (*runtime.Scheme, error) {
	s := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, clusterv1.AddToScheme, ipamv1.AddToScheme, v1alpha1.AddToScheme, m3ipamv1.AddToScheme} {
		if err := add(s); err != nil {
			return nil, fmt.Errorf("building the scheme: %w", err)
		}
	}
	return s, nil
}

// connect returns a client for the cluster that the flags name.
func (p *plugin) connect() (client.WithWatch, error) {
	cfg, err := p.flags.ToRESTConfig()
	if err != nil {
		return nil, fmt.Errorf("reading the kubeconfig: %w", err)
	}
	return clientFor(cfg)
}

func clientFor(cfg *rest.Config) (client.WithWatch, error) {
	s, err := scheme()
	if err != nil {
		return nil, err
	}
	cfg = rest.CopyConfig(cfg)
	cfg.QPS = -1 // the API server's own fairness is enough
	cfg.WarningHandler = rest.NoWarnings{}
	c, err := client.NewWithWatch(cfg, client.Options{Scheme: s})
	if err != nil {
		return nil, fmt.Errorf("connecting to the cluster: %w", err)
	}
	return c, nil
}

// read reads the pools, claims, IPAddresses, IPAllocations and IPLeases of a namespace, of all if it is empty, and the
// global pools.
func read(ctx context.Context, from client.Reader, namespace string) (o pools.Objects, err error) {
	locals, globals := &v1alpha1.NetworkPoolList{}, &v1alpha1.GlobalNetworkPoolList{}
	claims, addresses, blocks, leases := &ipamv1.IPAddressClaimList{}, &ipamv1.IPAddressList{}, &v1alpha1.IPAllocationList{}, &v1alpha1.IPLeaseList{}
	// Addresses before claims: a claim goes after its address.
	if err := list(ctx, from, namespace, addresses, claims, blocks, leases, locals, globals); err != nil {
		return o, err
	}
	o.Claims, o.Addresses, o.Allocations, o.Leases = claims.Items, addresses.Items, blocks.Items, leases.Items
	o.Pools = pools.Of(locals, globals)
	return o, nil
}

// look looks at a pool beside all others, which may have its addresses; at those of its namespace, and the global ones, where
// no more may be read.
func look(ctx context.Context, from client.Reader, pool v1alpha1.Pool) (*allocator.Snapshot, error) {
	o, err := read(ctx, from, "")
	if err != nil && pool.GetNamespace() != "" {
		o, err = read(ctx, from, pool.GetNamespace())
	}
	if err != nil {
		return nil, err
	}
	key := pools.KeyOf(pool)
	if !slices.ContainsFunc(o.Pools, func(p v1alpha1.Pool) bool { return pools.KeyOf(p) == key }) {
		o.Pools = append(o.Pools, pool) // it went between the reads
	}
	return allocator.SnapshotsOf(&o).Of(key), nil
}

// readPools reads the pools alone.
func readPools(ctx context.Context, from client.Reader, namespace string) ([]v1alpha1.Pool, error) {
	locals, globals := &v1alpha1.NetworkPoolList{}, &v1alpha1.GlobalNetworkPoolList{}
	err := list(ctx, from, namespace, locals, globals)
	return pools.Of(locals, globals), err
}

// list fills lists, and tells all the rights at once that are missing for that.
func list(ctx context.Context, from client.Reader, namespace string, lists ...client.ObjectList) error {
	var missing []string
	for _, l := range lists {
		err := from.List(ctx, l, client.InNamespace(namespace))
		_, leases := l.(*v1alpha1.IPLeaseList)
		switch {
		case err == nil, leases && meta.IsNoMatchError(err): // an earlier version has no leases
		case apierrors.IsForbidden(err):
			missing = append(missing, resourceOf(err, l))
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

// missingKinds says of an error that the cluster does not have a kind, and what to do; nil: it says something else. A
// kind without which a command can do is no error of it.
func missingKinds(err error) error {
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

// hasPools is an error where the cluster has no pools of ours: in the wrong cluster, "none" of a kind that may be missing
// would be a wrong answer.
func hasPools(c client.Client) error {
	return hasKind(c, v1alpha1.GroupVersion.WithKind(v1alpha1.NetworkPoolKind))
}

// hasKind is an error where the cluster does not have a kind.
func hasKind(c client.Client, kind schema.GroupVersionKind) error {
	_, err := c.RESTMapper().RESTMapping(kind.GroupKind(), kind.Version)
	return err
}

// resourceOf names what a refusal is about.
func resourceOf(err error, l client.ObjectList) string {
	if status := apierrors.APIStatus(nil); errors.As(err, &status) && status.Status().Details != nil {
		d := status.Status().Details
		return d.Kind + "." + d.Group // of a refused list, kind is the resource
	}
	return fmt.Sprintf("%T", l)
}
