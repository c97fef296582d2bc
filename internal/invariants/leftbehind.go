package invariants

import (
	"fmt"
	"slices"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/incluster"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/poolutil"
)

// LeftBehind returns what a move, a backup that was restored, or a pool that was deleted by force leaves behind: addresses in
// use that no pool counts, so that another pool can give them, and claims that remember what somebody else has. No manager
// can put that right: it is for a person.
func LeftBehind(o pools.Objects) (bad []string) {
	all := holdings(o)
	there := map[pools.Key]bool{}
	for _, p := range o.Pools {
		there[pools.KeyOf(p)] = true
	}
	for _, x := range all {
		// What has no mirror is of a pool of the in-cluster provider, which serves it.
		if _, mirror := incluster.MirroredBy(x.pool.Kind, x.pool.Name); x.living && !mirror && !there[x.pool] {
			bad = append(bad, fmt.Sprintf("%s %s has %s of %v, which does not exist, so that another pool may give it: create the pool again, or delete the %s", x.kind, x.who, x.text, x.pool, x.kind))
		}
	}
	for i := range o.Claims {
		c := &o.Claims[i]
		pool, ours := pools.KeyOfRef(c.Namespace, c.Spec.PoolRef)
		r, err := poolutil.ParseRange(c.Annotations[v1alpha1.AddressAnnotation])
		if !ours || err != nil {
			continue
		}
		has := func(x holding) bool { return x.living && x.owner != c.UID && x.pool == pool && x.rng.Overlaps(r) }
		if at := slices.IndexFunc(all, has); at >= 0 {
			bad = append(bad, fmt.Sprintf("claim %s/%s remembers %s of %v, which %s has: find out which of the two uses it, and delete the other",
				c.Namespace, c.Name, poolutil.ShowRange(r), pool, all[at].who))
		}
	}
	return bad
}
