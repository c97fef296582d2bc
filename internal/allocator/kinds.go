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

// kinds are those of claimants. A grant on record that names none of them is an IPAddressClaim's.
var kinds = []grants.Kind{claims.Kind, blocks.Kind, leases.Kind}

// resources are the kinds of objects that are fed and listed: claimants, and what is attached to them.
var resources = func() []grants.Resource {
	var out []grants.Resource
	for _, k := range kinds {
		if at := k.Traits().Attaches; at != nil {
			out = append(out, at)
		}
		out = append(out, k)
	}
	return out
}()

// resourceOf returns the kind of an object, and the pool that it names: an empty key, if that is none that this manager
// looks after.
func (a *Allocator) resourceOf(o client.Object) (grants.Resource, pools.Key) {
	for _, r := range resources {
		if key, is := a.poolOf(r, o); is {
			return r, key
		}
	}
	return nil, pools.Key{}
}

// poolOf returns the pool that an object of a kind names: an empty key, if that is none that this manager looks after.
// False: the object is of another kind.
func (a *Allocator) poolOf(r grants.Resource, o client.Object) (pools.Key, bool) {
	key, is := r.PoolOf(o)
	if is && !a.InClusterPools && r.Mirrors(o) {
		return pools.Key{}, true
	}
	return key, is
}

// NoSuchKind says which kind a claim should have named.
func NoSuchKind(key pools.Key) *grants.Refusal {
	means := v1alpha1.NetworkPoolKind
	if strings.HasPrefix(strings.ToLower(key.Kind), "global") {
		means = v1alpha1.GlobalNetworkPoolKind
	}
	return grants.NotReady("its poolRef names kind %s, which the group %s does not have; poolRef is immutable, so create the claim again with kind %s",
		key.Kind, v1alpha1.GroupVersion.Group, means)
}
