package allocator

import (
	"fmt"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/poolspec"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/poolutil"
)

// findOverlap notes which other pool of the same network has addresses of this one (R11).
func (a *Allocator) findOverlap(p *pool) {
	p.mu.Lock()
	layout, mine := p.layout, p.base
	p.mu.Unlock()
	text, younger := "", false
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
}

// yields tells whether an overlap keeps this pool from granting: it is the younger of two.
func (p *pool) yields() bool { return p.younger }
