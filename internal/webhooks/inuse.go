package webhooks

import (
	"context"
	"net/netip"

	"go4.org/netipx"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/poolspec"
)

// pageSize bounds the memory a live list takes at once.
const pageSize = 500

// Live finds holders with live reads: an admission call is rare, and a cache may be behind (W14).
type Live struct{ Reader client.Reader }

// Holders lists the IPAddresses of a pool and its grants in flight.
func (l *Live) Holders(ctx context.Context, pool v1alpha1.Pool) ([]poolspec.Holder, error) {
	kind := v1alpha1.NetworkPoolKind
	if pool.GetNamespace() == "" {
		kind = v1alpha1.GlobalNetworkPoolKind
	}
	var out []poolspec.Holder
	if state := pool.PoolStatus().Allocator; state != nil {
		for _, g := range state.InFlight {
			out = appendHolder(out, g.Kind, g.Namespace, g.Name, g.First, g.Last)
		}
	}
	next := ""
	for {
		list := &ipamv1.IPAddressList{}
		err := l.Reader.List(ctx, list, client.InNamespace(pool.GetNamespace()), client.Limit(pageSize), client.Continue(next))
		if err != nil {
			return nil, err
		}
		for i := range list.Items {
			a := &list.Items[i]
			ref := a.Spec.PoolRef
			if ref.APIGroup == v1alpha1.GroupVersion.Group && ref.Kind == kind && ref.Name == pool.GetName() {
				out = appendHolder(out, "IPAddressClaim", a.Namespace, a.Spec.ClaimRef.Name, a.Spec.Address, a.Spec.Address)
			}
		}
		if next = list.Continue; next == "" {
			return out, nil
		}
	}
}

func appendHolder(out []poolspec.Holder, kind, namespace, name, first, last string) []poolspec.Holder {
	from, err1 := netip.ParseAddr(first)
	to, err2 := netip.ParseAddr(last)
	if err1 != nil || err2 != nil {
		return out
	}
	return append(out, poolspec.Holder{Kind: kind, Namespace: namespace, Name: name, Range: netipx.IPRangeFrom(from, to)})
}
