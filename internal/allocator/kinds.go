package allocator

import (
	"strings"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/grants"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/kinds/blocks"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/kinds/claims"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/kinds/leases"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"
)

// claimantKinds are the kinds of claimants. A grant on record that names no kind is an IPAddressClaim's.
var claimantKinds = []grants.ClaimantKind{claims.ClaimantKind, blocks.ClaimantKind, leases.ClaimantKind}

// resourceKinds are the kinds of objects that are fed and listed: claimants, and the objects attached to them.
var resourceKinds = func() []grants.ResourceKind {
	var out []grants.ResourceKind
	for _, k := range claimantKinds {
		if at := k.Traits().AddressKind; at != nil {
			out = append(out, at)
		}
		out = append(out, k)
	}
	return out
}()

// blockKind is the kind whose objects may be blocks of carved pools.
var blockKind = func() grants.BlockKind {
	for _, r := range resourceKinds {
		if c, ok := r.(grants.BlockKind); ok {
			return c
		}
	}
	return nil
}()

// WatchedObjects returns empty objects of the kinds that are fed to the allocator.
func WatchedObjects() []client.Object {
	var out []client.Object
	for _, r := range resourceKinds {
		out = append(out, r.NewObject())
	}
	return out
}

// UnknownPoolKindRefusal returns a refusal that names the kind that the claim should have named.
func UnknownPoolKindRefusal(key pools.Key) *grants.Refusal {
	means := v1alpha1.NetworkPoolKind
	if strings.HasPrefix(strings.ToLower(key.Kind), "global") {
		means = v1alpha1.GlobalNetworkPoolKind
	}
	return grants.PoolNotReady("its poolRef names kind %s, which the group %s does not have; poolRef is immutable, so create the claim again with kind %s",
		key.Kind, v1alpha1.GroupVersion.Group, means)
}
