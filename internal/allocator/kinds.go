package allocator

import (
	"strings"

	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/grants"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/incluster"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/kinds/blocks"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/kinds/claims"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"
)

// kinds are those of claimants. A grant on record that names none of them is an IPAddressClaim's.
var kinds = []grants.Kind{claims.Kind, blocks.Kind}

// kindOfObject is the kind of a claimant's object; nil, if it is none.
func kindOfObject(o client.Object) (grants.Kind, pools.Key) {
	for _, k := range kinds {
		if key, is := k.PoolOf(o); is {
			return k, key
		}
	}
	return nil, pools.Key{}
}

// attacherOfObject is the kind of an object that is attached to a claimant; nil, if it is none.
func attacherOfObject(o client.Object) (grants.Attacher, pools.Key) {
	for _, k := range kinds {
		if of := k.Traits().Attaches; of != nil {
			if key, is := of.PoolOf(o); is {
				return of, key
			}
		}
	}
	return nil, pools.Key{}
}

// keyOfClaim is keyOf for a claim, whose pool may be of a kind that our group does not have.
func (a *Allocator) keyOfClaim(c *ipamv1.IPAddressClaim) (pools.Key, bool) {
	ref := c.Spec.PoolRef
	if key, ours := a.keyOf(c.Namespace, ref); ours || ref.APIGroup != v1alpha1.GroupVersion.Group {
		return key, ours
	}
	return pools.Key{Kind: ref.Kind, Namespace: c.Namespace, Name: ref.Name}, true
}

// noSuchKind says which kind a claim should have named.
func noSuchKind(key pools.Key) *grants.Refusal {
	means := v1alpha1.NetworkPoolKind
	if strings.HasPrefix(strings.ToLower(key.Kind), "global") {
		means = v1alpha1.GlobalNetworkPoolKind
	}
	return grants.NotReady("its poolRef names kind %s, which the group %s does not have; write %s, in a new claim: poolRef cannot be changed",
		key.Kind, v1alpha1.GroupVersion.Group, means)
}

// keyOf is pools.KeyOfRef for a manager that may leave the pools of the in-cluster provider to that.
func (a *Allocator) keyOf(namespace string, ref ipamv1.IPPoolReference) (pools.Key, bool) {
	if !a.InClusterPools && incluster.Is(ref) {
		return pools.Key{}, false
	}
	return pools.KeyOfRef(namespace, ref)
}
