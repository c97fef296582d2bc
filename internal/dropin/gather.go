package dropin

import (
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/incluster"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"
)

// serveFlag is the flag by which a manager serves the pools of the in-cluster provider.
const serveFlag = "--serve-in-cluster-pools"

// planInput is the input of a hand-back plan.
type planInput struct {
	// mirrors are the pools that mirror one of the in-cluster provider; handedOver are that provider's pools that were
	// handed over for good.
	mirrors    []v1alpha1.Pool
	handedOver []sourcePool
	// deletingSources are the pools of handedOver that are being deleted; endedMirrors are the former mirrors of
	// deleted pools.
	deletingSources []sourcePool
	endedMirrors    []pools.Key
	// servingManagers are the Deployments and Pods of managers whose arguments have serveFlag. managers are all of
	// them, since a component enables the same without an argument.
	servingManagers, managers []string
	claims                    []ipamv1.IPAddressClaim
	addresses                 []ipamv1.IPAddress
	allocations               []v1alpha1.IPAllocation
}

// sourcePool identifies a pool of the in-cluster provider.
type sourcePool struct {
	kind incluster.PoolKind
	client.ObjectKey
}

// String returns the kind, namespace and name, as users write them.
func (s sourcePool) String() string {
	if s.Namespace == "" {
		return s.kind.Name + " " + s.Name
	}
	return s.kind.Name + " " + s.Namespace + "/" + s.Name
}

// gatherInput reads the input of a plan.
func gatherInput(ctx context.Context, from client.Reader) (*planInput, error) {
	out := &planInput{}
	managers, err := listWorkloads(ctx, from, providerButler)
	if err != nil {
		return nil, err
	}
	out.servingManagers, out.managers = workloadNames(managers, hasServeFlag), workloadNames(managers, isAnyWorkload)
	// Addresses are read before claims: a claim is gone later than its address.
	addresses, claims, allocations := &ipamv1.IPAddressList{}, &ipamv1.IPAddressClaimList{}, &v1alpha1.IPAllocationList{}
	for _, list := range []client.ObjectList{addresses, claims, allocations} {
		if err := from.List(ctx, list); err != nil {
			return nil, fmt.Errorf("listing the references to a mirror: %w", err)
		}
	}
	out.addresses, out.claims, out.allocations = addresses.Items, claims.Items, allocations.Items
	all, err := pools.List(ctx, from, "")
	if err != nil {
		return nil, fmt.Errorf("listing the pools: %w", err)
	}
	for _, p := range all {
		if _, ok := sourceForMirror(p); ok {
			out.mirrors = append(out.mirrors, p)
		} else if incluster.IsEnded(p) {
			out.endedMirrors = append(out.endedMirrors, pools.KeyForPool(p))
		}
	}
	err = out.findHandedOver(ctx, from)
	return out, err
}

// sourceForMirror returns the pool that a pool mirrors; false where it is no mirror: a user's pool with the name of a
// mirror is none.
func sourceForMirror(p v1alpha1.Pool) (sourcePool, bool) {
	owner := incluster.SourceOwnerRef(p)
	if owner == nil {
		return sourcePool{}, false
	}
	i := slices.IndexFunc(incluster.PoolKinds, func(k incluster.PoolKind) bool { return k.Name == owner.Kind })
	return sourcePool{incluster.PoolKinds[i], client.ObjectKey{Namespace: p.GetNamespace(), Name: owner.Name}}, true
}

// findHandedOver lists the pools that were handed over for good.
func (f *planInput) findHandedOver(ctx context.Context, from client.Reader) error {
	for _, k := range incluster.PoolKinds {
		items, err := listSourcePools(ctx, from, k, "")
		if err != nil {
			return err
		}
		for i := range items {
			if !incluster.HasHandedOverAnnotation(&items[i]) {
				continue
			}
			s := sourcePool{k, client.ObjectKeyFromObject(&items[i])}
			f.handedOver = append(f.handedOver, s)
			if items[i].GetDeletionTimestamp() != nil {
				f.deletingSources = append(f.deletingSources, s)
			}
		}
	}
	return nil
}

// hasServeFlag reports whether an argument of a container enables the service of the in-cluster provider's pools.
func hasServeFlag(p workload) bool {
	return slices.ContainsFunc(p.containers, func(c corev1.Container) bool {
		return slices.ContainsFunc(slices.Concat(c.Command, c.Args), func(arg string) bool {
			name, value, _ := strings.Cut(arg, "=")
			return name == serveFlag && value != "false"
		})
	})
}
