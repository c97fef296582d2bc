package invariants

import (
	"fmt"
	"slices"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/incluster"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/poolutil"
)

// FindAbandonedUse returns what a move, a restored backup, or the forced deletion of a pool leaves behind: addresses
// in use that no pool counts, so that another pool can grant them, and claims with a recorded address that another
// claimant has. No manager can correct this; it takes a user.
func FindAbandonedUse(o pools.Objects) (bad []string) {
	all := listHeldRanges(o)
	there := map[pools.Key]bool{}
	for _, p := range o.Pools {
		there[pools.KeyForPool(p)] = true
	}
	for _, x := range all {
		// The mirrored name of a pool without a mirror belongs to a pool of the in-cluster provider, which serves it.
		if _, mirror := incluster.RefForMirror(x.pool.Kind, x.pool.Name); x.isLiving && !mirror && !there[x.pool] {
			bad = append(bad, fmt.Sprintf("%s %s has %s of %v, which does not exist, so that another pool may give it: create the pool again, or delete the %s", x.kind, x.objectName, x.addressText, x.pool, x.kind))
		}
	}
	for i := range o.Claims {
		c := &o.Claims[i]
		pool, ok := pools.KeyFromIPPoolReference(c.Namespace, c.Spec.PoolRef)
		r, err := poolutil.ParseRange(c.Annotations[v1alpha1.AddressAnnotation])
		if !ok || err != nil {
			continue
		}
		conflicts := func(x heldRange) bool {
			return x.isLiving && x.ownerUID != c.UID && x.pool == pool && x.ipRange.Overlaps(r)
		}
		if at := slices.IndexFunc(all, conflicts); at >= 0 {
			bad = append(bad, fmt.Sprintf("claim %s/%s remembers %s of %v, which %s has: find out which of the two uses it, and delete the other",
				c.Namespace, c.Name, poolutil.ShowRange(r), pool, all[at].objectName))
		}
	}
	return bad
}
