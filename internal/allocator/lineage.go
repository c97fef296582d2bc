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

// lineage returns the pools that a carved pool is below, its parent first, as far as they are known. problem: why nothing
// can be carved for it.
func (o *overlaps) lineage(key pools.Key) (above []pools.Key, problem string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return carve.Lineage(key, func(at pools.Key) (pools.Key, bool) {
		is, known := o.specs[at]
		return is.parent, known
	})
}

// children returns the pools that are carved from a pool.
func (o *overlaps) children(key pools.Key) (out []pools.Key) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.childrenOf(key)
}

func (o *overlaps) childrenOf(key pools.Key) []pools.Key {
	return slices.Collect(maps.Keys(o.carved[key]))
}

// noteChild notes which pool another one is carved from by now.
func (o *overlaps) noteChild(key, was, is pools.Key) {
	if delete(o.carved[was], key); len(o.carved[was]) == 0 {
		delete(o.carved, was)
	}
	if is == (pools.Key{}) {
		return
	}
	if o.carved[is] == nil {
		o.carved[is] = map[pools.Key]struct{}{}
	}
	o.carved[is][key] = struct{}{}
}

// trees returns pools, and all that are carved from them.
func (o *overlaps) trees(keys []pools.Key) (out []pools.Key) {
	o.mu.Lock()
	defer o.mu.Unlock()
	known := map[pools.Key]struct{}{}
	for len(keys) > 0 {
		key := keys[0]
		keys = keys[1:]
		if _, is := known[key]; is {
			continue
		}
		known[key] = struct{}{}
		out, keys = append(out, key), append(keys, o.childrenOf(key)...)
	}
	return out
}

// childToward returns the pool below another one on the way to a third, or that itself where it is not below.
func (o *overlaps) childToward(pool, below pools.Key) pools.Key {
	at := below
	above, _ := o.lineage(below)
	for _, next := range above {
		if next == pool {
			return at
		}
		at = next
	}
	return below
}

// root returns the pool that the addresses of a pool come from in the end.
func (o *overlaps) root(key pools.Key) pools.Key {
	if above, _ := o.lineage(key); len(above) > 0 {
		return above[len(above)-1]
	}
	return key
}

// above says which pool overlaps with that which the blocks of a carved pool come from, in these blocks; empty: none. It is
// for people: what the blocks have is in use above, and kept apart there.
func (o *overlaps) above(key pools.Key, blocks []netipx.IPRange) string {
	root := o.root(key)
	_, neighbours := o.neighbours(root)
	for _, n := range neighbours {
		for _, shared := range n.shared {
			if i := slices.IndexFunc(blocks, shared.Overlaps); i >= 0 {
				return fmt.Sprintf("%s has addresses of the block %s too, as it overlaps with %s; use different addresses, or different values of spec.network if these are different networks",
					n.key, poolutil.ShowRange(blocks[i]), root)
			}
		}
	}
	return ""
}
