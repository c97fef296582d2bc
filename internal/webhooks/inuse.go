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

// pageSize bounds the memory a live list takes at once.
const pageSize = 500

// InUse finds who holds addresses of a pool now.
type InUse interface {
	Holders(ctx context.Context, pool v1alpha1.Pool) ([]poolspec.Holder, error)
}

// Live finds holders with live reads: an admission call is rare, and a cache may be behind.
type Live struct{ Reader client.Reader }

// Holders lists the claims that hold an IPAddress of the pool, the IPAllocations that have a block of it, the IPLeases
// that have an address of it, and who has a grant in flight, each once. The pool is the stored one: its status says what
// is in flight.
func (l *Live) Holders(ctx context.Context, pool v1alpha1.Pool) ([]poolspec.Holder, error) {
	var found holders
	if state := pool.PoolStatus().Allocator; state != nil {
		for _, g := range state.InFlight {
			if r, err := poolutil.ParseRange(g.First + "-" + g.Last); err == nil {
				found.add(poolspec.Holder{Kind: g.Kind, Namespace: g.Namespace, Name: g.Name, Range: r})
			}
		}
	}
	err := pages(ctx, l.Reader, pool, func(addresses *ipamv1.IPAddressList) {
		for i := range addresses.Items {
			a := &addresses.Items[i]
			if refersTo(a.Spec.PoolRef, pool) {
				if r, ok := heldBy(a, pool.PoolSpec().AllocationPrefixLength); ok {
					network := poolspec.Network{Prefix: ptr.Deref(a.Spec.Prefix, 0), Gateway: a.Spec.Gateway}
					found.add(poolspec.Holder{Kind: "IPAddressClaim", Namespace: a.Namespace, Name: a.Spec.ClaimRef.Name, Range: r, Network: network})
				}
			}
		}
	})
	if err != nil {
		return nil, fmt.Errorf("listing the IPAddresses of %s: %w", describe(pool), err)
	}
	err = pages(ctx, l.Reader, pool, func(all *v1alpha1.IPAllocationList) {
		for i := range all.Items {
			a := &all.Items[i]
			if r, has := blocks.RangeOf(a); has && pools.KeyOfAllocation(a) == pools.KeyOf(pool) {
				found.add(poolspec.Holder{Kind: v1alpha1.IPAllocationKind, Namespace: a.Namespace, Name: a.Name, Range: r})
			}
		}
	})
	if err != nil {
		return nil, fmt.Errorf("listing the IPAllocations of %s: %w", describe(pool), err)
	}
	err = pages(ctx, l.Reader, pool, func(all *v1alpha1.IPLeaseList) {
		for i := range all.Items {
			o := &all.Items[i]
			if r, has := leases.AddressOf(o); has && pools.KeyOfPool(o.Namespace, o.Spec.PoolRef) == pools.KeyOf(pool) {
				found.add(poolspec.Holder{Kind: v1alpha1.IPLeaseKind, Namespace: o.Namespace, Name: o.Name, Range: r})
			}
		}
	})
	if err != nil {
		return nil, fmt.Errorf("listing the IPLeases of %s: %w", describe(pool), err)
	}
	return found.list, nil
}

// pages lists what a pool serves, part by part. The namespace of a global pool is empty, which lists all.
func pages[T any, L interface {
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

// refersTo reports whether a reference names the pool: by group, kind and name.
func refersTo(ref ipamv1.IPPoolReference, pool v1alpha1.Pool) bool {
	return ref.APIGroup == v1alpha1.GroupVersion.Group && ref.Kind == kindOf(pool) && ref.Name == pool.GetName()
}

// heldBy is what an IPAddress takes from its pool: its address, or the prefix that starts with it
// where the pool hands out prefixes. An address that cannot be read takes nothing.
func heldBy(a *ipamv1.IPAddress, unitBits *int32) (netipx.IPRange, bool) {
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

// holders are listed in the order they are found. A grant in flight may have its IPAddress already, which says more.
type holders struct {
	list []poolspec.Holder
	at   map[poolspec.Holder]int
}

func (h *holders) add(holder poolspec.Holder) {
	same := holder
	same.Network = poolspec.Network{}
	if i, known := h.at[same]; known {
		h.list[i] = holder
		return
	}
	if h.at == nil {
		h.at = map[poolspec.Holder]int{}
	}
	h.at[same] = len(h.list)
	h.list = append(h.list, holder)
}
