package allocator

import (
	"fmt"
	"maps"
	"slices"

	"go4.org/netipx"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/carve"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/poolutil"
)

// ancestors returns the pools that a carved pool is carved from, directly and indirectly, its parent first, as far as
// they are known. A non-empty problem is why nothing can be carved for it.
func (o *overlapIndex) ancestors(key pools.Key) (above []pools.Key, problem string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return carve.Ancestors(key, func(at pools.Key) (pools.Key, bool) {
		declaration, known := o.specs[at]
		return declaration.parent, known
	})
}

// children returns the pools that are carved from a pool.
func (o *overlapIndex) children(key pools.Key) (out []pools.Key) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.childrenLocked(key)
}

func (o *overlapIndex) childrenLocked(key pools.Key) []pools.Key {
	return slices.Collect(maps.Keys(o.childrenByParent[key]))
}

// withDescendants returns the pools and all that are carved from them.
func (o *overlapIndex) withDescendants(keys []pools.Key) (out []pools.Key) {
	o.mu.Lock()
	defer o.mu.Unlock()
	known := map[pools.Key]struct{}{}
	for len(keys) > 0 {
		key := keys[0]
		keys = keys[1:]
		if _, ok := known[key]; ok {
			continue
		}
		known[key] = struct{}{}
		out, keys = append(out, key), append(keys, o.childrenLocked(key)...)
	}
	return out
}

// childOnPathTo returns the child of pool that below descends from or is, or below itself where it does not descend
// from pool.
func (o *overlapIndex) childOnPathTo(pool, below pools.Key) pools.Key {
	at := below
	above, _ := o.ancestors(below)
	for _, next := range above {
		if next == pool {
			return at
		}
		at = next
	}
	return below
}

// rootPool returns the pool that the addresses of a pool come from in the end.
func (o *overlapIndex) rootPool(key pools.Key) pools.Key {
	if above, _ := o.ancestors(key); len(above) > 0 {
		return above[len(above)-1]
	}
	return key
}

// rootOverlapMessage returns which pool overlaps with the root of a carved pool within the given blocks; empty means
// none. It is for users only: the root has the blocks in use, and the overlap is excluded there.
func (o *overlapIndex) rootOverlapMessage(key pools.Key, blocks []netipx.IPRange) string {
	root := o.rootPool(key)
	_, neighbours := o.overlappingPools(root)
	for _, n := range neighbours {
		for _, shared := range n.sharedRanges {
			if i := slices.IndexFunc(blocks, shared.Overlaps); i >= 0 {
				return fmt.Sprintf("%s has addresses of the block %s too, as it overlaps with %s; use different addresses, or different values of spec.network if these are different networks",
					n.key, poolutil.ShowRange(blocks[i]), root)
			}
		}
	}
	return ""
}
