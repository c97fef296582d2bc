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

// flag has a manager serve the pools of the in-cluster provider.
const flag = "--serve-in-cluster-pools"

// found is what a hand-back is planned from.
type found struct {
	// mirrors are the pools that mirror one of the in-cluster provider's; given are those that were handed over for
	// good.
	mirrors []v1alpha1.Pool
	given   []source
	// deleting are those of the given that are being deleted; ended are the pools that were mirrors of such.
	deleting []source
	ended    []pools.Key
	// running are the Deployments and pods of managers whose arguments have the flag; managers are all, since a component
	// sets it without an argument.
	running, managers []string
	claims            []ipamv1.IPAddressClaim
	addresses         []ipamv1.IPAddress
	allocations       []v1alpha1.IPAllocation
}

// source is a pool of the in-cluster provider.
type source struct {
	kind incluster.Kind
	client.ObjectKey
}

// String is how a person writes it.
func (s source) String() string {
	if s.Namespace == "" {
		return s.kind.Name + " " + s.Name
	}
	return s.kind.Name + " " + s.Namespace + "/" + s.Name
}

// gather reads what there is.
func gather(ctx context.Context, from client.Reader) (*found, error) {
	out := &found{}
	managers, err := running(ctx, from, thisProvider)
	if err != nil {
		return nil, err
	}
	out.running, out.managers = namesOf(managers, serves), namesOf(managers, anyProgram)
	// Addresses before claims: a claim goes after its address.
	addresses, claims, allocations := &ipamv1.IPAddressList{}, &ipamv1.IPAddressClaimList{}, &v1alpha1.IPAllocationList{}
	for _, list := range []client.ObjectList{addresses, claims, allocations} {
		if err := from.List(ctx, list); err != nil {
			return nil, fmt.Errorf("looking for who names a mirror: %w", err)
		}
	}
	out.addresses, out.claims, out.allocations = addresses.Items, claims.Items, allocations.Items
	all, err := pools.List(ctx, from, "")
	if err != nil {
		return nil, fmt.Errorf("listing the pools: %w", err)
	}
	for _, p := range all {
		if _, is := sourceOf(p); is {
			out.mirrors = append(out.mirrors, p)
		} else if incluster.Ended(p) {
			out.ended = append(out.ended, pools.KeyOf(p))
		}
	}
	err = out.findGiven(ctx, from)
	return out, err
}

// sourceOf returns what a pool mirrors, false where it mirrors nothing: a pool of somebody's that has the name of a
// mirror is none.
func sourceOf(p v1alpha1.Pool) (source, bool) {
	owner := incluster.SourceOf(p)
	if owner == nil {
		return source{}, false
	}
	i := slices.IndexFunc(incluster.Kinds, func(k incluster.Kind) bool { return k.Name == owner.Kind })
	return source{incluster.Kinds[i], client.ObjectKey{Namespace: p.GetNamespace(), Name: owner.Name}}, true
}

// findGiven lists the pools that were handed over for good.
func (f *found) findGiven(ctx context.Context, from client.Reader) error {
	for _, k := range incluster.Kinds {
		items, err := sources(ctx, from, k, "")
		if err != nil {
			return err
		}
		for i := range items {
			if !incluster.Given(&items[i]) {
				continue
			}
			s := source{k, client.ObjectKeyFromObject(&items[i])}
			f.given = append(f.given, s)
			if items[i].GetDeletionTimestamp() != nil {
				f.deleting = append(f.deleting, s)
			}
		}
	}
	return nil
}

// serves reports whether a container is told to serve the pools of the in-cluster provider.
func serves(p program) bool {
	return slices.ContainsFunc(p.containers, func(c corev1.Container) bool {
		return slices.ContainsFunc(slices.Concat(c.Command, c.Args), func(arg string) bool {
			name, value, _ := strings.Cut(arg, "=")
			return name == flag && value != "false"
		})
	})
}
