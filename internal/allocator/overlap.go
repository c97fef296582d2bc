package allocator

import (
	"fmt"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/poolspec"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/poolutil"
)

// findOverlap notes which other pools of the same network have addresses of this one (R11), and wakes
// those for which that is new or over.
func (a *Allocator) findOverlap(p *pool) {
	p.mu.Lock()
	layout, mine := p.layout, p.base
	p.mu.Unlock()
	text, younger := "", false
	overlaps := map[PoolKey]bool{}
	if layout != nil {
		for _, other := range a.all() {
			if other == p {
				continue
			}
			other.mu.Lock()
			base, theirs := other.base, other.layout
			other.mu.Unlock()
			if base == nil || theirs == nil || base.PoolSpec().Network != mine.PoolSpec().Network {
				continue
			}
			shared := poolspec.Overlap(layout, theirs)
			if len(shared) == 0 {
				continue
			}
			overlaps[other.key] = true
			laterBorn := base.GetCreationTimestamp().Time.Before(mine.GetCreationTimestamp().Time) ||
				(base.GetCreationTimestamp() == mine.GetCreationTimestamp() && base.GetUID() < mine.GetUID())
			if text == "" || (laterBorn && !younger) {
				text = fmt.Sprintf("%s has %s too; use different addresses, or different values of spec.network if these are different networks",
					other.key, poolutil.FormatRange(shared[0]))
			}
			younger = younger || laterBorn
		}
	}
	p.mu.Lock()
	p.overlap, p.younger = text, younger
	p.mu.Unlock()
	a.wakeOverlapping(p, overlaps)
}

// wakeOverlapping notes with which pools a pool overlaps, and wakes those that it did not overlap with
// before, or does no longer.
func (a *Allocator) wakeOverlapping(p *pool, overlaps map[PoolKey]bool) {
	for key := range p.overlaps {
		if !overlaps[key] {
			a.wake(key)
		}
	}
	for key := range overlaps {
		if !p.overlaps[key] {
			a.wake(key)
		}
	}
	p.overlaps = overlaps
}

// yields tells whether an overlap keeps this pool from granting: it is the younger of two.
func (p *pool) yields() bool { return p.younger }
