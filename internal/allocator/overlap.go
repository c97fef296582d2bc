package allocator

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"go4.org/netipx"
	"k8s.io/apimachinery/pkg/types"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/grants"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/poolspec"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/poolutil"
)

// overlaps knows which pools of one network have addresses in common (R11). A pool is compared with all others when it
// comes, goes or has another spec, and not at each of its reconciles: of those there are many, and of pools a thousand.
type overlaps struct {
	mu    sync.Mutex
	specs map[pools.Key]declared
	// looked is a copy of specs that is never changed, nil since they were.
	looked map[pools.Key]declared
	// shared are the pools that overlap with a pool, and the ranges that both have.
	shared map[pools.Key]map[pools.Key][]netipx.IPRange
	// carved are the pools that are carved from a pool.
	carved map[pools.Key]map[pools.Key]struct{}
}

// declared is what decides whether a pool overlaps with others, and which of two is the younger.
type declared struct {
	key    pools.Key
	layout *poolspec.Layout
	// laidOut is the spec that the layout is of: an older one, where this one cannot be served.
	laidOut grants.SpecVersion
	network string
	created time.Time
	uid     types.UID
	// generation is that of the spec; allows, that it says spec.allowOverlap.
	generation int64
	allows     bool
	// parent is the pool that it is carved from: its addresses are in use in that, so it is compared with no other.
	parent pools.Key
	// mirrored names the pool of the in-cluster provider that it mirrors; empty: none.
	mirrored string
}

// mayBeIn reports whether a pool may be of a network. Of one that is gone, or that is carved from one that is, nobody
// knows the network.
func (d declared) mayBeIn(network string) bool {
	return d.network == network || d.uid == "" || d.parent != pools.Key{}
}

// before reports whether a pool is the older of two. Times of creation are of whole seconds, and pools of one manifest have the
// same one: then their names decide, so that a user can tell which it is. All managers see the same at all times.
func (d declared) before(other declared) bool {
	if !d.created.Equal(other.created) {
		return d.created.Before(other.created)
	}
	return cmp.Or(d.key.Compare(other.key), cmp.Compare(d.uid, other.uid)) < 0
}

// set notes what a pool declares, no layout: nothing. It returns the pools that overlap with it now, or did before.
func (o *overlaps) set(key pools.Key, is declared) (changed []pools.Key) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if was := o.specs[key]; was == is || (was.uid == is.uid && was.generation > is.generation) {
		return nil // a watch has shown a newer one meanwhile
	}
	o.looked = nil
	if o.specs == nil {
		o.specs, o.shared = map[pools.Key]declared{}, map[pools.Key]map[pools.Key][]netipx.IPRange{}
		o.carved = map[pools.Key]map[pools.Key]struct{}{}
	}
	o.noteChild(key, o.specs[key].parent, is.parent)
	was := o.shared[key]
	delete(o.shared, key)
	delete(o.specs, key)
	for other := range was {
		delete(o.shared[other], key)
	}
	if is.layout != nil {
		for other, its := range o.specs {
			if its.layout != nil && its.network == is.network {
				o.note(key, other, poolspec.Overlap(is.layout, its.layout))
			}
		}
	}
	if is != (declared{}) {
		o.specs[key] = is
	}
	for other := range was {
		if _, still := o.shared[key][other]; !still {
			changed = append(changed, other)
		}
	}
	for other := range o.shared[key] {
		changed = append(changed, other) // it yields to this generation, or keeps apart what is shared now
	}
	return changed
}

// note has two pools overlap in what they share.
func (o *overlaps) note(a, b pools.Key, shared []netipx.IPRange) {
	if len(shared) == 0 {
		return
	}
	for key, other := range map[pools.Key]pools.Key{a: b, b: a} {
		if o.shared[key] == nil {
			o.shared[key] = map[pools.Key][]netipx.IPRange{}
		}
		o.shared[key][other] = shared
	}
}

// of says with which pool a pool overlaps, empty: with none, and whether it is the younger of two. Of several pools it
// names an older one, and of these always the same: what a condition says is not to change by itself.
func (o *overlaps) of(key pools.Key) (text string, younger bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	var named pools.Key
	for other := range o.shared[key] {
		elder := o.specs[other].before(o.specs[key])
		if named == (pools.Key{}) || (elder && !younger) || (elder == younger && other.Compare(named) < 0) {
			named = other
		}
		younger = younger || elder
	}
	if named == (pools.Key{}) {
		return "", false
	}
	sameAge := younger && o.specs[named].created.Equal(o.specs[key].created)
	text = overlapText(o.specs[key], cmp.Or(o.specs[named].mirrored, named.String()), o.shared[key][named][0])
	if sameAge {
		text += "; both were created in the same second, of which the first by kind, namespace and name counts as the older"
	}
	return text, younger
}

// overlapText says that another pool has addresses of a pool, and what to do about it.
func overlapText(is declared, other string, shared netipx.IPRange) string {
	if is.mirrored != "" {
		return fmt.Sprintf("%s has %s too, and both give the same addresses; change spec.addresses of %s, "+
			"or have its claims name the other pool, unless these are different networks", other, poolutil.ShowRange(shared), is.mirrored)
	}
	return fmt.Sprintf("%s has %s too; use different addresses, or different values of spec.network if these are different networks",
		other, poolutil.ShowRange(shared))
}

// neighbour is a pool that overlaps with another one.
type neighbour struct {
	key    pools.Key
	is     declared
	shared []netipx.IPRange
	// elder: it is the older of the two.
	elder bool
}

// neighbours returns the pools that overlap with a pool, in the order of their keys, and what that pool declares.
func (o *overlaps) neighbours(key pools.Key) (declared, []neighbour) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.specs[key], o.neighboursOf(key)
}

// look returns what all pools declare at one time, and which of them overlap with a pool by that.
func (o *overlaps) look(key pools.Key) (map[pools.Key]declared, []neighbour) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.looked == nil {
		o.looked = maps.Clone(o.specs)
	}
	return o.looked, o.neighboursOf(key)
}

func (o *overlaps) neighboursOf(key pools.Key) []neighbour {
	mine := o.specs[key]
	var out []neighbour
	for other, shared := range o.shared[key] {
		its := o.specs[other]
		out = append(out, neighbour{key: other, is: its, shared: shared, elder: its.before(mine)})
	}
	slices.SortFunc(out, func(a, b neighbour) int { return a.key.Compare(b.key) })
	return out
}

// declared returns what a pool declares.
func (o *overlaps) declared(key pools.Key) declared {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.specs[key]
}

// publish notes what a pool says that was seen, whichever manager serves it, and wakes those with which it overlaps.
// What is in flight is noted before the spec: a manager that reads that another pool leaves addresses alone must know
// what it had granted of them by then. A spec that cannot be served leaves the addresses as they were: what they are
// given to is given.
func (a *Allocator) publish(obj v1alpha1.Pool) {
	key, uid, generation := pools.KeyOf(obj), obj.GetUID(), obj.GetGeneration()
	m := a.locked(key)
	m.NoteSeen(obj)
	m.Unlock()
	was := a.overlaps.declared(key)
	if was.uid == uid && was.generation >= generation {
		return
	}
	spec := obj.PoolSpec()
	is := declared{
		key: key, network: spec.Network, created: obj.GetCreationTimestamp().Time, uid: uid, generation: generation, allows: spec.AllowOverlap, mirrored: grants.MirroredPool(obj),
	}
	if parent, carved := pools.ParentOf(obj); carved {
		is.parent, is.laidOut = parent, grants.SpecVersionOf(obj)
	} else if layout, errs := poolspec.Compile(spec); len(errs) == 0 {
		is.layout, is.laidOut = layout, grants.SpecVersionOf(obj)
	} else if was.uid == uid {
		is.layout, is.laidOut = was.layout, was.laidOut
	}
	changed := a.overlaps.set(key, is)
	a.wakeTrees(append(changed, a.overlaps.children(key)...))
	if was.uid != uid && is.parent != (pools.Key{}) {
		a.wake(is.parent) // blocks may wait for this pool
	}
}

// withdrawSpec notes that a pool is gone.
func (a *Allocator) withdrawSpec(key pools.Key) {
	if a.overlaps.declared(key) != (declared{}) {
		a.wakeTrees(append(a.overlaps.set(key, declared{}), a.overlaps.children(key)...))
	}
}

// wakeTrees wakes pools, and those that are carved from them.
func (a *Allocator) wakeTrees(keys []pools.Key) {
	for _, key := range a.overlaps.trees(keys) {
		a.wake(key)
	}
}

// findOverlap notes which other pool of the same network has addresses of this one.
func (a *Allocator) findOverlap(m *grants.Memory) {
	if m.Base.PoolSpec().Carve != nil {
		m.Overlap, m.Younger, m.Owes = a.overlaps.above(m.Key, m.OpenRanges()), false, false
		return
	}
	text, younger := a.overlaps.of(m.Key)
	mine, neighbours := a.overlaps.neighbours(m.Key)
	m.Overlap, m.Younger, m.Owes = text, younger, false
	for i, n := range slices.DeleteFunc(neighbours, func(n neighbour) bool { return !n.elder || mine.allows }) {
		m.Owes = m.Owes || (i < maxYields && !slices.Contains(m.Base.PoolStatus().Yields, yielded(n.key, n.is.uid, n.is.generation)))
	}
}
