package allocator

import (
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/grants"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/incluster"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"
)

// servedScope decides what this manager serves, and what its watches show: which pools, which claimants, and which pool
// an object names. Its answers depend on the options and on the object alone, so that they never change.
type servedScope struct {
	*Options
}

// isInShard reports whether a pool is in the shard of this manager. Where two managers disagree, while their number
// changes, both serve the pool: that is as safe as ever (R5), and ends with the older of the two.
func (sc *servedScope) isInShard(key pools.Key) bool {
	return sc.Shard.Has(key.Kind, key.Namespace, key.Name)
}

// refusalIfUnserved returns why this manager does not serve a pool; nil means that it does. A manager that watches one
// namespace does not see the addresses of the others, so it can regard no address of a global pool as free; nor can a
// manager that leaves the pools of the in-cluster provider to that provider, for a pool that mirrors one.
func (sc *servedScope) refusalIfUnserved(key pools.Key, pool v1alpha1.Pool) *grants.Refusal {
	_, mirror := incluster.RefForMirror(key.Kind, key.Name)
	mirror = mirror && (pool == nil || !incluster.IsEnded(pool))
	switch {
	case !key.IsPoolKind():
		return UnknownPoolKindRefusal(key)
	case sc.Namespace != "" && key.Kind == v1alpha1.GlobalNetworkPoolKind:
		return grants.PoolNotReady("%s is not served by this manager, which watches only namespace %s; "+
			"run a manager without --namespace for global pools", key, sc.Namespace)
	case mirror && !sc.InClusterPools:
		return grants.PoolNotReady("%s mirrors a pool of the in-cluster provider, and this manager runs without --serve-in-cluster-pools; "+
			"add the component in-cluster-pools, or hand the pools back with kubectl butler-ipam hand-back", key)
	}
	return nil
}

// isOutOfView reports whether no watch of this manager shows a pool.
func (sc *servedScope) isOutOfView(key pools.Key) bool {
	return sc.Namespace != "" && key.Namespace != sc.Namespace
}

// shouldIgnoreClaimant reports whether this manager does nothing for a claimant: it is paused, or another manager's.
func (sc *servedScope) shouldIgnoreClaimant(c *grants.Claimant) bool {
	return c.Paused || sc.isForOtherManager(c)
}

// isForOtherManager reports whether a claimant is another manager's: by its watch-filter label, or because it is an
// IPLease and this manager serves no leases.
func (sc *servedScope) isForOtherManager(c *grants.Claimant) bool {
	return (sc.WatchFilter != "" && c.WatchLabel != sc.WatchFilter) || (sc.WithoutLeases && c.Owner.Kind == v1alpha1.IPLeaseKind)
}

// resourceKindForObject returns the kind of an object, and the pool that it names. The key is empty if this manager
// does not serve pools of that kind.
func (sc *servedScope) resourceKindForObject(o client.Object) (grants.ResourceKind, pools.Key) {
	for _, r := range resourceKinds {
		if key, ok := sc.poolKeyForObject(r, o); ok {
			return r, key
		}
	}
	return nil, pools.Key{}
}

// poolKeyForObject returns the pool that an object of a kind names: the key is empty if this manager does not serve
// pools of that kind, and the bool is false if the object is of another kind.
func (sc *servedScope) poolKeyForObject(r grants.ResourceKind, o client.Object) (pools.Key, bool) {
	key, ok := r.PoolKeyFor(o)
	if ok && !sc.InClusterPools && r.UsesMirroredPool(o) {
		return pools.Key{}, true
	}
	return key, ok
}

// blockFromObject returns what is remembered of an object that is a block of a carved pool, and that pool; nil means
// that it is none. Blocks of a GlobalNetworkPool are created in one namespace, where tenants create no objects.
func (sc *servedScope) blockFromObject(o client.Object) (*grants.Block, pools.Key) {
	b, child := blockKind.BlockFromObject(o)
	if b != nil {
		b.InOtherNamespace = child.Kind == v1alpha1.GlobalNetworkPoolKind && b.Namespace != sc.BlockNamespace
	}
	return b, child
}
