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

// poolGone is said of what is in use and whose pool is not there: nobody keeps it from others.
const poolGone = "its pool does not exist, so nothing keeps another pool from giving it away"

// withoutPool tells who has some of an address, or a prefix, of a pool that is not here: of another provider's, or of one
// of ours that does not exist.
func withoutPool(o pools.Objects, here map[pools.Key]bool, a netip.Prefix) (out []Standing) {
	add := func(pool, detail string, owner ledger.Owner) {
		out = append(out, Standing{Pool: pool, State: Used, Detail: detail, Holders: []Holder{holderOf(o, owner)}})
	}
	for i := range o.Addresses {
		addr := &o.Addresses[i]
		ip, err := netip.ParseAddr(addr.Spec.Address)
		if err != nil || !a.Contains(ip.Unmap()) {
			continue
		}
		ref := addr.Spec.PoolRef
		key, _ := pools.KeyOfRef(addr.Namespace, ref)
		switch {
		case here[key]: // itself, or as the mirror of it
		case ref.APIGroup != v1alpha1.GroupVersion.Group:
			add(fmt.Sprintf("%s.%s %s", ref.Kind, ref.APIGroup, ref.Name), "the pool belongs to another provider", ownerOf(addr))
		case key == pools.Key{}: // a kind that there is not
			add(ref.Kind+" "+ref.Name, poolGone, ownerOf(addr))
		default:
			add(key.String(), poolGone, ownerOf(addr))
		}
	}
	ofOurs := func(kind, namespace, name string, key pools.Key, r netipx.IPRange, has bool) {
		if has && !here[key] && r.Overlaps(netipx.RangeOfPrefix(a)) {
			add(key.String(), poolGone, ledger.Owner{Kind: kind, Namespace: namespace, Name: name})
		}
	}
	for i := range o.Allocations {
		b := &o.Allocations[i]
		r, has := blocks.RangeOf(b)
		ofOurs(v1alpha1.IPAllocationKind, b.Namespace, b.Name, pools.KeyOfAllocation(b), r, has)
	}
	for i := range o.Leases {
		l := &o.Leases[i]
		r, has := leases.AddressOf(l)
		ofOurs(v1alpha1.IPLeaseKind, l.Namespace, l.Name, pools.KeyOfPool(l.Namespace, l.Spec.PoolRef), r, has)
	}
	return out
}
