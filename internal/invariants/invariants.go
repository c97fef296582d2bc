// Package invariants checks objects of the API server against the promise of docs/design.md: an
// address is never held twice and never lost. Every level of tests uses it.
package invariants

import (
	"fmt"
	"net/netip"

	"k8s.io/apimachinery/pkg/types"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
)

// History remembers which address each claim was seen with. The zero value is ready to use.
type History struct{ given map[types.UID]string }

// Objects are what the API server has at one moment.
type Objects struct {
	Pools     []v1alpha1.Pool
	Claims    []ipamv1.IPAddressClaim
	Addresses []ipamv1.IPAddress
}

type poolRef struct{ kind, namespace, name string }

func refOf(namespace string, r ipamv1.IPPoolReference) (poolRef, bool) {
	if r.Kind == v1alpha1.GlobalNetworkPoolKind {
		namespace = ""
	}
	return poolRef{r.Kind, namespace, r.Name}, r.APIGroup == v1alpha1.GroupVersion.Group
}

// Moment returns what must not be at any moment: an address of two living claims (I1), and a claim
// whose address changed (I4).
func (h *History) Moment(o Objects) []string {
	if h.given == nil {
		h.given = map[types.UID]string{}
	}
	var bad []string
	living := map[types.UID]bool{}
	for i := range o.Claims {
		living[o.Claims[i].UID] = true
	}
	type place struct {
		pool poolRef
		addr string
	}
	held := map[place]string{}
	for i := range o.Addresses {
		a := &o.Addresses[i]
		pool, ours := refOf(a.Namespace, a.Spec.PoolRef)
		uid := claimUID(a)
		if !ours || !living[uid] {
			continue // void: no living claim can use it (R2)
		}
		address := canonical(a.Spec.Address)
		at, who := place{pool, address}, a.Namespace+"/"+a.Name
		if other, taken := held[at]; taken {
			bad = append(bad, fmt.Sprintf("I1: %s of %v is held by %s and %s", address, pool, other, who))
		}
		held[at] = who
		if before, seen := h.given[uid]; seen && before != address {
			bad = append(bad, fmt.Sprintf("I4: the address of claim %s changed from %s to %s", who, before, address))
		}
		h.given[uid] = address
	}
	return bad
}

// AtRest returns what must not be once nothing is under way any more: besides Moment, addresses
// without a claim, grants that were never settled, and counts that do not match (I2).
func (h *History) AtRest(o Objects) []string {
	bad := h.Moment(o)
	living := map[types.UID]bool{}
	for i := range o.Claims {
		living[o.Claims[i].UID] = true
	}
	used := map[poolRef]int64{}
	for i := range o.Addresses {
		a := &o.Addresses[i]
		pool, ours := refOf(a.Namespace, a.Spec.PoolRef)
		if !ours {
			continue
		}
		used[pool]++
		if uid := claimUID(a); uid != "" && !living[uid] {
			bad = append(bad, fmt.Sprintf("I2: IPAddress %s/%s has no claim", a.Namespace, a.Name))
		}
	}
	for _, p := range o.Pools {
		ref := poolRef{v1alpha1.NetworkPoolKind, p.GetNamespace(), p.GetName()}
		if p.GetNamespace() == "" {
			ref.kind = v1alpha1.GlobalNetworkPoolKind
		}
		s := p.PoolStatus()
		if s.Allocator != nil && len(s.Allocator.InFlight) > 0 {
			bad = append(bad, fmt.Sprintf("I2: %d grants of %v are still in flight", len(s.Allocator.InFlight), ref))
		}
		if n := s.AllocatedIPs + s.OutOfRangeIPs; n != used[ref] {
			bad = append(bad, fmt.Sprintf("I2: %v counts %d addresses in use, there are %d", ref, n, used[ref]))
		}
	}
	return bad
}

// canonical makes equal addresses equal texts; what is no address stays as it is.
func canonical(address string) string {
	if ip, err := netip.ParseAddr(address); err == nil {
		return ip.Unmap().String()
	}
	return address
}

func claimUID(a *ipamv1.IPAddress) types.UID {
	for _, ref := range a.OwnerReferences {
		if ref.Kind == "IPAddressClaim" && ref.Name == a.Spec.ClaimRef.Name {
			return ref.UID
		}
	}
	return ""
}
