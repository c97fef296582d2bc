package allocator

import (
	"cmp"
	"fmt"
	"sync"
	"time"

	"go4.org/netipx"
	"k8s.io/apimachinery/pkg/types"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/poolspec"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/poolutil"
)

// overlaps knows which pools of one network have addresses in common (R11). A pool is compared with all others when it
// comes, goes or has another spec, and not at each of its reconciles: of those there are many, and of pools a thousand.
type overlaps struct {
	mu    sync.Mutex
	specs map[PoolKey]declared
	// shared are the pools that overlap with a pool, and the first range that both have.
	shared map[PoolKey]map[PoolKey]netipx.IPRange
}

// declared is what decides whether a pool overlaps with others, and which of two is the younger.
type declared struct {
	layout  *poolspec.Layout
	network string
	created time.Time
	uid     types.UID
}

// before tells whether a pool is the older of two.
func (d declared) before(other declared) bool {
	if !d.created.Equal(other.created) {
		return d.created.Before(other.created)
	}
	return d.uid < other.uid
}

// set notes what a pool declares, no layout: nothing. It returns the pools for which an overlap with it is new or over.
func (o *overlaps) set(key PoolKey, is declared) (changed []PoolKey) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.specs[key] == is {
		return nil
	}
	if o.specs == nil {
		o.specs, o.shared = map[PoolKey]declared{}, map[PoolKey]map[PoolKey]netipx.IPRange{}
	}
	was := o.shared[key]
	delete(o.shared, key)
	delete(o.specs, key)
	for other := range was {
		delete(o.shared[other], key)
	}
	if is.layout != nil {
		for other, its := range o.specs {
			if its.network == is.network {
				o.note(key, other, poolspec.Overlap(is.layout, its.layout))
			}
		}
		o.specs[key] = is
	}
	for other := range was {
		if _, still := o.shared[key][other]; !still {
			changed = append(changed, other)
		}
	}
	for other := range o.shared[key] {
		if _, before := was[other]; !before {
			changed = append(changed, other)
		}
	}
	return changed
}

// note has two pools overlap in what they share.
func (o *overlaps) note(a, b PoolKey, shared []netipx.IPRange) {
	if len(shared) == 0 {
		return
	}
	for key, other := range map[PoolKey]PoolKey{a: b, b: a} {
		if o.shared[key] == nil {
			o.shared[key] = map[PoolKey]netipx.IPRange{}
		}
		o.shared[key][other] = shared[0]
	}
}

// of says with which pool a pool overlaps, empty: with none, and whether it is the younger of two. Of several pools it names an
// older one, and of these always the same: what a condition says is not to change by itself.
func (o *overlaps) of(key PoolKey) (text string, younger bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	var named PoolKey
	for other := range o.shared[key] {
		elder := o.specs[other].before(o.specs[key])
		if named == (PoolKey{}) || (elder && !younger) || (elder == younger && compareKeys(other, named) < 0) {
			named = other
		}
		younger = younger || elder
	}
	if named == (PoolKey{}) {
		return "", false
	}
	return fmt.Sprintf("%s has %s too; use different addresses, or different values of spec.network if these are different networks",
		named, poolutil.FormatRange(o.shared[key][named])), younger
}

func compareKeys(a, b PoolKey) int {
	return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
}

// declare notes what a pool declares, and wakes those for which an overlap with it is new or over.
func (a *Allocator) declare(p *pool) {
	p.mu.Lock()
	var is declared
	if p.base != nil && p.layout != nil {
		is = declared{p.layout, p.base.PoolSpec().Network, p.base.GetCreationTimestamp().Time, p.base.GetUID()}
	}
	p.mu.Unlock()
	for _, other := range a.overlaps.set(p.key, is) {
		a.wake(other)
	}
}

// findOverlap notes which other pool of the same network has addresses of this one.
func (a *Allocator) findOverlap(p *pool) {
	text, younger := a.overlaps.of(p.key)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.overlap, p.younger = text, younger
}

// yields tells whether an overlap keeps this pool from granting: it is the younger of two.
func (p *pool) yields() bool { return p.younger }
