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

// overlapIndex records which pools of one network have addresses in common (R11). It compares a pool with all others
// when the pool appears, ends or has another spec, and not at each reconcile: there are many reconciles, and a thousand
// pools.
type overlapIndex struct {
	mu    sync.Mutex
	specs map[pools.Key]poolDeclaration
	// specsSnapshot is a copy of specs that is never changed; nil after specs has changed.
	specsSnapshot map[pools.Key]poolDeclaration
	// sharedRanges are the pools that overlap with a pool, and the ranges that both have.
	sharedRanges map[pools.Key]map[pools.Key][]netipx.IPRange
	// childrenByParent are the pools that are carved from a pool.
	childrenByParent map[pools.Key]map[pools.Key]struct{}
}

// poolDeclaration is what decides whether a pool overlaps with others, and which of two is the younger.
type poolDeclaration struct {
	key    pools.Key
	layout *poolspec.Layout
	// layoutVersion is the version of the spec that layout is compiled from: an older one, where the current spec
	// cannot be served.
	layoutVersion grants.SpecVersion
	network       string
	createdAt     time.Time
	uid           types.UID
	// generation is that of the spec; allowsOverlap reports whether the spec sets spec.allowOverlap.
	generation    int64
	allowsOverlap bool
	// parent is the pool that this one is carved from: its addresses are in use there, so it is compared with no other
	// pool.
	parent pools.Key
	// mirroredPool names the pool of the in-cluster provider that this pool mirrors; empty if none.
	mirroredPool string
}

// mayBeInNetwork reports whether a pool may be in a network. The network is unknown for a pool that is gone, or that is
// carved from one that is.
func (d poolDeclaration) mayBeInNetwork(network string) bool {
	return d.network == network || d.uid == "" || d.parent != pools.Key{}
}

// isOlderThan reports whether a pool is the older of two. Creation times have whole seconds, and pools of one manifest
// have the same one: then their names decide, so that a user can see which is older. All managers see the same order at
// all times.
func (d poolDeclaration) isOlderThan(other poolDeclaration) bool {
	if !d.createdAt.Equal(other.createdAt) {
		return d.createdAt.Before(other.createdAt)
	}
	return cmp.Or(d.key.Compare(other.key), cmp.Compare(d.uid, other.uid)) < 0
}

// setDeclaration records what a pool declares; no layout means nothing. It returns the pools that overlap with it now,
// or did before.
func (o *overlapIndex) setDeclaration(key pools.Key, declaration poolDeclaration) (changed []pools.Key) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if old := o.specs[key]; old == declaration || (old.uid == declaration.uid && old.generation > declaration.generation) {
		return nil // a watch has shown a newer one meanwhile
	}
	o.specsSnapshot = nil
	if o.specs == nil {
		o.specs, o.sharedRanges = map[pools.Key]poolDeclaration{}, map[pools.Key]map[pools.Key][]netipx.IPRange{}
		o.childrenByParent = map[pools.Key]map[pools.Key]struct{}{}
	}
	o.setParentLocked(key, o.specs[key].parent, declaration.parent)
	old := o.sharedRanges[key]
	delete(o.sharedRanges, key)
	delete(o.specs, key)
	for other := range old {
		delete(o.sharedRanges[other], key)
	}
	if declaration.layout != nil {
		for other, otherSpec := range o.specs {
			if otherSpec.layout != nil && otherSpec.network == declaration.network {
				o.addOverlapLocked(key, other, poolspec.OverlappingRanges(declaration.layout, otherSpec.layout))
			}
		}
	}
	if declaration != (poolDeclaration{}) {
		o.specs[key] = declaration
	}
	for other := range old {
		if _, still := o.sharedRanges[key][other]; !still {
			changed = append(changed, other)
		}
	}
	for other := range o.sharedRanges[key] {
		changed = append(changed, other) // it yields to this generation, or excludes what is shared now
	}
	return changed
}

// addOverlapLocked records the ranges that two pools share.
func (o *overlapIndex) addOverlapLocked(a, b pools.Key, shared []netipx.IPRange) {
	if len(shared) == 0 {
		return
	}
	for key, other := range map[pools.Key]pools.Key{a: b, b: a} {
		if o.sharedRanges[key] == nil {
			o.sharedRanges[key] = map[pools.Key][]netipx.IPRange{}
		}
		o.sharedRanges[key][other] = shared
	}
}

// declarationFor returns what a pool declares.
func (o *overlapIndex) declarationFor(key pools.Key) poolDeclaration {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.specs[key]
}

// describeOverlap returns which pool a pool overlaps with, empty if none, and whether the pool is the younger of two.
// Of several pools it names an older one, and always the same: the message of a condition must not change by itself.
func (o *overlapIndex) describeOverlap(key pools.Key) (text string, younger bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	var named pools.Key
	for other := range o.sharedRanges[key] {
		older := o.specs[other].isOlderThan(o.specs[key])
		if named == (pools.Key{}) || (older && !younger) || (older == younger && other.Compare(named) < 0) {
			named = other
		}
		younger = younger || older
	}
	if named == (pools.Key{}) {
		return "", false
	}
	sameAge := younger && o.specs[named].createdAt.Equal(o.specs[key].createdAt)
	text = overlapMessage(o.specs[key], cmp.Or(o.specs[named].mirroredPool, named.String()), o.sharedRanges[key][named][0])
	if sameAge {
		text += "; both were created in the same second, of which the first by kind, namespace and name counts as the older"
	}
	return text, younger
}

// overlapMessage returns a message that another pool has addresses of a pool, and what to do about it.
func overlapMessage(declaration poolDeclaration, other string, shared netipx.IPRange) string {
	if declaration.mirroredPool != "" {
		return fmt.Sprintf("%s has %s too, and both give the same addresses; change spec.addresses of %s, "+
			"or have its claims name the other pool, unless these are different networks", other, poolutil.ShowRange(shared), declaration.mirroredPool)
	}
	return fmt.Sprintf("%s has %s too; use different addresses, or different values of spec.network if these are different networks",
		other, poolutil.ShowRange(shared))
}

// overlappingPool is a pool that overlaps with another one.
type overlappingPool struct {
	key          pools.Key
	declaration  poolDeclaration
	sharedRanges []netipx.IPRange
	// isOlder reports whether it is the older of the two.
	isOlder bool
}

// overlappingPools returns what a pool declares, and the pools that overlap with it in the order of their keys.
func (o *overlapIndex) overlappingPools(key pools.Key) (poolDeclaration, []overlappingPool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.specs[key], o.overlappingPoolsLocked(key)
}

// snapshotFor returns what all pools declare at one time, and which of them overlap with a pool by these declarations.
func (o *overlapIndex) snapshotFor(key pools.Key) (map[pools.Key]poolDeclaration, []overlappingPool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.specsSnapshot == nil {
		o.specsSnapshot = maps.Clone(o.specs)
	}
	return o.specsSnapshot, o.overlappingPoolsLocked(key)
}

func (o *overlapIndex) overlappingPoolsLocked(key pools.Key) []overlappingPool {
	own := o.specs[key]
	var out []overlappingPool
	for other, shared := range o.sharedRanges[key] {
		otherSpec := o.specs[other]
		out = append(out, overlappingPool{key: other, declaration: otherSpec, sharedRanges: shared, isOlder: otherSpec.isOlderThan(own)})
	}
	slices.SortFunc(out, func(a, b overlappingPool) int { return a.key.Compare(b.key) })
	return out
}

// maxYields bounds status.yields: a pool that overlaps with more pools leaves the others waiting.
const maxYields = 64

func newYieldedPool(key pools.Key, uid types.UID, generation int64) v1alpha1.YieldedPool {
	return v1alpha1.YieldedPool{Kind: key.Kind, Namespace: key.Namespace, Name: key.Name, UID: string(uid), Generation: generation}
}

func yieldedPoolKey(y v1alpha1.YieldedPool) pools.Key {
	return pools.Key{Kind: y.Kind, Namespace: y.Namespace, Name: y.Name}
}

// setParentLocked records the pool that another one is carved from now.
func (o *overlapIndex) setParentLocked(key, old, parent pools.Key) {
	if delete(o.childrenByParent[old], key); len(o.childrenByParent[old]) == 0 {
		delete(o.childrenByParent, old)
	}
	if parent == (pools.Key{}) {
		return
	}
	if o.childrenByParent[parent] == nil {
		o.childrenByParent[parent] = map[pools.Key]struct{}{}
	}
	o.childrenByParent[parent][key] = struct{}{}
}
