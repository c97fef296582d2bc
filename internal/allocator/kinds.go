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

// resourceKindForObject returns the kind of an object, and the pool that it names. The key is empty if this manager
// does not serve pools of that kind.
func (a *Allocator) resourceKindForObject(o client.Object) (grants.ResourceKind, pools.Key) {
	for _, r := range resourceKinds {
		if key, ok := a.poolKeyForObject(r, o); ok {
			return r, key
		}
	}
	return nil, pools.Key{}
}

// poolKeyForObject returns the pool that an object of a kind names: the key is empty if this manager does not serve
// pools of that kind, and the bool is false if the object is of another kind.
func (a *Allocator) poolKeyForObject(r grants.ResourceKind, o client.Object) (pools.Key, bool) {
	key, ok := r.PoolKeyFor(o)
	if ok && !a.InClusterPools && r.UsesMirroredPool(o) {
		return pools.Key{}, true
	}
	return key, ok
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
