package webhooks

import (
	"context"
	"fmt"
	"net/netip"

	"go4.org/netipx"
	"k8s.io/utils/ptr"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/kinds/blocks"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/kinds/leases"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/poolspec"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/poolutil"
)

// +kubebuilder:rbac:groups=ipam.cluster.x-k8s.io,resources=ipaddresses,verbs=list
// +kubebuilder:rbac:groups=butler.butlerlabs.dev,resources=ipallocations;ipleases,verbs=list

// pageSize limits the objects of a page of a live list, and so the memory that the list needs at once.
const pageSize = 500

// HolderLister lists the current holders of addresses of a pool.
type HolderLister interface {
	ListHolders(ctx context.Context, pool v1alpha1.Pool) ([]poolspec.Holder, error)
}

// LiveHolderLister lists holders with live reads: an admission request is rare, and a cache may be behind.
type LiveHolderLister struct{ Reader client.Reader }

// ListHolders lists the claims that have an IPAddress of the pool, the IPAllocations that have a block of it, the
// IPLeases that have an address of it, and the claimants of the grants in flight, each once. The pool is the stored
// one: its status has the grants in flight.
func (l *LiveHolderLister) ListHolders(ctx context.Context, pool v1alpha1.Pool) ([]poolspec.Holder, error) {
	var found holderList
	if state := pool.PoolStatus().Allocator; state != nil {
		for _, g := range state.InFlight {
			if r, err := poolutil.ParseRange(g.First + "-" + g.Last); err == nil {
				found.add(poolspec.Holder{Kind: g.Kind, Namespace: g.Namespace, Name: g.Name, Range: r})
			}
		}
	}
	err := listPages(ctx, l.Reader, pool, func(addresses *ipamv1.IPAddressList) {
		for i := range addresses.Items {
			a := &addresses.Items[i]
			if refersToPool(a.Spec.PoolRef, pool) {
				if r, ok := rangeForAddress(a, pool.PoolSpec().AllocationPrefixLength); ok {
					network := poolspec.Network{Prefix: ptr.Deref(a.Spec.Prefix, 0), Gateway: a.Spec.Gateway}
					found.add(poolspec.Holder{Kind: "IPAddressClaim", Namespace: a.Namespace, Name: a.Spec.ClaimRef.Name, Range: r, Network: network})
				}
			}
		}
	})
	if err != nil {
		return nil, fmt.Errorf("listing the IPAddresses of %s: %w", describePool(pool), err)
	}
	err = listPages(ctx, l.Reader, pool, func(all *v1alpha1.IPAllocationList) {
		for i := range all.Items {
			a := &all.Items[i]
			if r, ok := blocks.RangeForAllocation(a); ok && pools.KeyFromAllocation(a) == pools.KeyForPool(pool) {
				found.add(poolspec.Holder{Kind: v1alpha1.IPAllocationKind, Namespace: a.Namespace, Name: a.Name, Range: r})
			}
		}
	})
	if err != nil {
		return nil, fmt.Errorf("listing the IPAllocations of %s: %w", describePool(pool), err)
	}
	err = listPages(ctx, l.Reader, pool, func(all *v1alpha1.IPLeaseList) {
		for i := range all.Items {
			o := &all.Items[i]
			if r, ok := leases.AddressForLease(o); ok && pools.KeyFromPoolReference(o.Namespace, o.Spec.PoolRef) == pools.KeyForPool(pool) {
				found.add(poolspec.Holder{Kind: v1alpha1.IPLeaseKind, Namespace: o.Namespace, Name: o.Name, Range: r})
			}
		}
	})
	if err != nil {
		return nil, fmt.Errorf("listing the IPLeases of %s: %w", describePool(pool), err)
	}
	return found.list, nil
}

// listPages lists the objects that a pool may serve, page by page. The namespace of a global pool is empty, which lists
// all.
func listPages[T any, L interface {
	*T
	client.ObjectList
}](ctx context.Context, from client.Reader, pool v1alpha1.Pool, part func(L)) error {
	for next := ""; ; {
		list := L(new(T))
		err := from.List(ctx, list, client.InNamespace(pool.GetNamespace()), client.Limit(pageSize), client.Continue(next))
		if err != nil {
			return err
		}
		part(list)
		if next = list.GetContinue(); next == "" {
			return nil
		}
	}
}

// refersToPool reports whether a reference names the pool, by group, kind and name.
func refersToPool(ref ipamv1.IPPoolReference, pool v1alpha1.Pool) bool {
	return ref.APIGroup == v1alpha1.GroupVersion.Group && ref.Kind == kindForPool(pool) && ref.Name == pool.GetName()
}

// rangeForAddress returns the range that an IPAddress takes of its pool: its address, or the prefix that starts with it
// where the pool hands out prefixes. It returns false for an address that cannot be parsed, which takes nothing.
func rangeForAddress(a *ipamv1.IPAddress, unitBits *int32) (netipx.IPRange, bool) {
	addr, err := netip.ParseAddr(a.Spec.Address)
	if err != nil || addr.Zone() != "" {
		return netipx.IPRange{}, false
	}
	addr = addr.Unmap()
	if unitBits != nil {
		if unit, err := addr.Prefix(int(*unitBits)); err == nil {
			return netipx.RangeOfPrefix(unit), true
		}
	}
	return netipx.IPRangeFrom(addr, addr), true
}

// holderList has the holders in the order in which they are found. A grant in flight may already have its IPAddress,
// which replaces it: only the IPAddress has the network.
type holderList struct {
	list          []poolspec.Holder
	indexByHolder map[poolspec.Holder]int
}

func (h *holderList) add(holder poolspec.Holder) {
	same := holder
	same.Network = poolspec.Network{}
	if i, known := h.indexByHolder[same]; known {
		h.list[i] = holder
		return
	}
	if h.indexByHolder == nil {
		h.indexByHolder = map[poolspec.Holder]int{}
	}
	h.indexByHolder[same] = len(h.list)
	h.list = append(h.list, holder)
}
