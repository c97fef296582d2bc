package inspect

import (
	"fmt"
	"net/netip"

	"go4.org/netipx"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/kinds/blocks"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/kinds/leases"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/ledger"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"
)

// poolMissingDetail describes an address in use whose pool does not exist, so that nothing reserves the address.
const poolMissingDetail = "its pool does not exist, so nothing keeps another pool from giving it away"

// describeWithoutPool returns the holders of an address, or of some of a prefix, whose pool is not among here: a pool
// of another provider, or one of ours that does not exist.
func describeWithoutPool(o pools.Objects, here map[pools.Key]bool, a netip.Prefix) (out []AddressStatus) {
	add := func(pool, detail string, owner ledger.Owner) {
		out = append(out, AddressStatus{Pool: pool, State: StateUsed, Detail: detail, Holders: []Holder{newHolder(o, owner)}})
	}
	for i := range o.Addresses {
		addr := &o.Addresses[i]
		ip, err := netip.ParseAddr(addr.Spec.Address)
		if err != nil || !a.Contains(ip.Unmap()) {
			continue
		}
		ref := addr.Spec.PoolRef
		key, _ := pools.KeyFromIPPoolReference(addr.Namespace, ref)
		switch {
		case here[key]: // its own pool, or the mirror of it
		case ref.APIGroup != v1alpha1.GroupVersion.Group:
			add(fmt.Sprintf("%s.%s %s", ref.Kind, ref.APIGroup, ref.Name), "the pool belongs to another provider", ownerForAddress(addr))
		case key == pools.Key{}: // a kind that does not exist
			add(ref.Kind+" "+ref.Name, poolMissingDetail, ownerForAddress(addr))
		default:
			add(key.String(), poolMissingDetail, ownerForAddress(addr))
		}
	}
	addObject := func(kind, namespace, name string, key pools.Key, r netipx.IPRange, ok bool) {
		if ok && !here[key] && r.Overlaps(netipx.RangeOfPrefix(a)) {
			add(key.String(), poolMissingDetail, ledger.Owner{Kind: kind, Namespace: namespace, Name: name})
		}
	}
	for i := range o.Allocations {
		b := &o.Allocations[i]
		r, ok := blocks.RangeForAllocation(b)
		addObject(v1alpha1.IPAllocationKind, b.Namespace, b.Name, pools.KeyFromAllocation(b), r, ok)
	}
	for i := range o.Leases {
		l := &o.Leases[i]
		r, ok := leases.AddressForLease(l)
		addObject(v1alpha1.IPLeaseKind, l.Namespace, l.Name, pools.KeyFromPoolReference(l.Namespace, l.Spec.PoolRef), r, ok)
	}
	return out
}
