package elastic

import (
	"math"
	"time"
)

// PlanSettings are the settings of the ProviderConfig and of the manager.
type PlanSettings struct {
	// Increment is the minimum number of addresses that a cluster grows by.
	Increment int64
	// Quota is the maximum number of addresses of all blocks of a cluster together; a negative value means no limit.
	Quota int64
	// GracePeriod is how long a block that no Service uses stays.
	GracePeriod time.Duration
}

// Growth is the number of addresses of one family that a cluster gets in addition.
type Growth struct {
	Family Family
	// Shortfall is what Services lack beyond what is requested already. Count is what to request, 0 if the quota
	// leaves nothing.
	Shortfall, Count int64
}

// UsageChange is a change of the InUse condition of a block.
type UsageChange struct {
	Block string
	// IdleSince is the time since when the block is not in use, zero if it is in use.
	IdleSince time.Time
}

// Plan is the result of PlanBlocks for a cluster.
type Plan struct {
	// Growths has an entry for each family with a shortfall.
	Growths []Growth
	// QuotaReached reports whether the quota is the reason why less is requested than is missing.
	QuotaReached bool
	// UsageChanges are the blocks that have become idle or busy.
	UsageChanges []UsageChange
	// BlocksToDrain are the blocks to withdraw from the cluster. BlocksToResume are draining blocks that stay after
	// all.
	BlocksToDrain, BlocksToResume []string
	// NextCheck is the time when the next block has been idle for the grace period, zero if none is idle.
	NextCheck time.Time
}

// PlanBlocks plans growth and shrinking. The assessment already covers blocks that are granted and not yet used, so
// only pending requests are subtracted here. The quota is spent on the shortfall of both families before it is spent
// on the increment of either.
//
// A block is withdrawn after it has been idle for the grace period, which begins again with each use. A block is not
// withdrawn if a Service has, or is about to get, one of its addresses, nor while Services lack addresses of its
// family, so that nothing is withdrawn that would be requested again.
func PlanBlocks(a Assessment, blocks []Block, s PlanSettings, now time.Time) Plan {
	var p Plan
	var total int64
	var requested [2]int64
	for i := range blocks {
		b := &blocks[i]
		if b.Deleting {
			if b.Range.IsValid() {
				total += b.Count // it is not released yet
			}
			continue
		}
		total += b.Count
		if !b.Range.IsValid() {
			requested[b.Family] += b.Count
		}
	}
	for _, f := range []Family{IPv4, IPv6} {
		if shortfall := a.Shortfall[f] - requested[f]; shortfall > 0 {
			p.Growths = append(p.Growths, Growth{Family: f, Shortfall: shortfall})
		}
	}
	p.distributeQuota(s, total)
	for i := range blocks {
		if b := &blocks[i]; !b.Deleting && b.Range.IsValid() {
			p.reviewBlock(b, !b.isRemovable() || b.hasAnyAddress(a.UsedAddresses), a.Shortfall[b.Family] > 0, s.GracePeriod, now)
		}
	}
	return p
}

// distributeQuota sets how many addresses to request, within what the quota leaves.
func (p *Plan) distributeQuota(s PlanSettings, total int64) {
	left := int64(math.MaxInt64)
	if s.Quota >= 0 {
		left = s.Quota - total
	}
	growBy := func(g *Growth, want int64) {
		more := max(0, min(want-g.Count, left))
		g.Count += more
		left -= more
	}
	for i := range p.Growths {
		growBy(&p.Growths[i], p.Growths[i].Shortfall)
		p.QuotaReached = p.QuotaReached || p.Growths[i].Count < p.Growths[i].Shortfall
	}
	for i := range p.Growths {
		growBy(&p.Growths[i], s.Increment)
	}
}

// reviewBlock plans the next step for a block.
func (p *Plan) reviewBlock(b *Block, busy, hasShortfall bool, grace time.Duration, now time.Time) {
	switch {
	case busy:
		if !b.IdleSince.IsZero() {
			p.UsageChanges = append(p.UsageChanges, UsageChange{Block: b.Name})
		}
		if b.Draining {
			p.BlocksToResume = append(p.BlocksToResume, b.Name)
		}
	case b.Draining:
	case b.IdleSince.IsZero():
		since := roundUpToSecond(now)
		p.UsageChanges = append(p.UsageChanges, UsageChange{Block: b.Name, IdleSince: since})
		p.scheduleCheck(since.Add(grace))
	case now.Before(b.IdleSince.Add(grace)):
		p.scheduleCheck(b.IdleSince.Add(grace))
	case !hasShortfall:
		p.BlocksToDrain = append(p.BlocksToDrain, b.Name)
	}
}

func (p *Plan) scheduleCheck(at time.Time) {
	if p.NextCheck.IsZero() || at.Before(p.NextCheck) {
		p.NextCheck = at
	}
}

// roundUpToSecond rounds t up to a whole second, because conditions keep whole seconds: rounded down, the grace
// period would end early.
func roundUpToSecond(t time.Time) time.Time {
	if down := t.Truncate(time.Second); down.Before(t) {
		return down.Add(time.Second)
	}
	return t
}
