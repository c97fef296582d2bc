package elastic

import (
	"math"
	"slices"
	"time"
)

// Settings are those of the ProviderConfig and the manager.
type Settings struct {
	// Increment is the least that a cluster grows by.
	Increment int64
	// Quota is how many addresses a cluster may have, all blocks together; negative: any number.
	Quota int64
	// Grace is how long a block stays that no Service uses.
	Grace time.Duration
}

// Growth is what a cluster is to be given more of one family.
type Growth struct {
	Family Family
	// Lacking is what Services lack beyond what was asked for already, Count what to ask for: 0 where the quota
	// leaves nothing.
	Lacking, Count int64
}

// Mark is a change of whether a block is in use.
type Mark struct {
	Block string
	// IdleSince is since when it is not; zero: it is.
	IdleSince time.Time
}

// Plan is what to do for a cluster.
type Plan struct {
	// Grow, by family. Where nothing is lacking there is no entry.
	Grow []Growth
	// QuotaReached reports whether the quota is why less is asked for than is lacking.
	QuotaReached bool
	// Marks are the blocks that have become idle, or busy.
	Marks []Mark
	// Drain are the blocks to take away from the cluster, Resume those that are to stay after all.
	Drain, Resume []string
	// Next is when the next block has been idle for long enough; zero: none is idle.
	Next time.Time
}

// Empty reports whether there is nothing to do. What is lacking and cannot be asked for is nothing to do.
func (p *Plan) Empty() bool {
	asks := slices.ContainsFunc(p.Grow, func(g Growth) bool { return g.Count > 0 })
	return !asks && len(p.Marks)+len(p.Drain)+len(p.Resume) == 0
}

// Decide plans growth and shrinking. What blocks have been granted and not yet used is part of what is
// assessed, so only what is still on its way is subtracted here. The quota goes to what is lacking
// before it goes to the increment of either family.
//
// Idle blocks are given up after the grace, which begins again with each use: never one of which a
// Service has, or is about to be given, an address, and none while Services lack addresses of its family, so
// that nothing is given up that would be asked for again.
func Decide(a Assessment, blocks []Block, s Settings, now time.Time) Plan {
	var p Plan
	var total int64
	var onItsWay [2]int64
	for i := range blocks {
		b := &blocks[i]
		if b.Deleting {
			if b.Range.IsValid() {
				total += b.Count // it is not given back yet
			}
			continue
		}
		total += b.Count
		if !b.Range.IsValid() {
			onItsWay[b.Family] += b.Count
		}
	}
	for _, f := range []Family{IPv4, IPv6} {
		if lacking := a.Lacking[f] - onItsWay[f]; lacking > 0 {
			p.Grow = append(p.Grow, Growth{Family: f, Lacking: lacking})
		}
	}
	p.share(s, total)
	for i := range blocks {
		if b := &blocks[i]; !b.Deleting && b.Range.IsValid() {
			p.review(b, !b.mayGo() || b.held(a.Used), a.Lacking[b.Family] > 0, s.Grace, now)
		}
	}
	return p
}

// share says how many addresses to ask for, of what the quota leaves.
func (p *Plan) share(s Settings, total int64) {
	left := int64(math.MaxInt64)
	if s.Quota >= 0 {
		left = s.Quota - total
	}
	give := func(g *Growth, want int64) {
		more := max(0, min(want-g.Count, left))
		g.Count += more
		left -= more
	}
	for i := range p.Grow {
		give(&p.Grow[i], p.Grow[i].Lacking)
		p.QuotaReached = p.QuotaReached || p.Grow[i].Count < p.Grow[i].Lacking
	}
	for i := range p.Grow {
		give(&p.Grow[i], s.Increment)
	}
}

// review plans what becomes of a block.
func (p *Plan) review(b *Block, busy, lacking bool, grace time.Duration, now time.Time) {
	switch {
	case busy:
		if !b.IdleSince.IsZero() {
			p.Marks = append(p.Marks, Mark{Block: b.Name})
		}
		if b.Draining {
			p.Resume = append(p.Resume, b.Name)
		}
	case b.Draining:
	case b.IdleSince.IsZero():
		since := upToTheSecond(now)
		p.Marks = append(p.Marks, Mark{Block: b.Name, IdleSince: since})
		p.due(since.Add(grace))
	case now.Before(b.IdleSince.Add(grace)):
		p.due(b.IdleSince.Add(grace))
	case !lacking:
		p.Drain = append(p.Drain, b.Name)
	}
}

func (p *Plan) due(at time.Time) {
	if p.Next.IsZero() || at.Before(p.Next) {
		p.Next = at
	}
}

// upToTheSecond rounds up, as conditions keep whole seconds: rounded down, the grace would end early.
func upToTheSecond(t time.Time) time.Time {
	if down := t.Truncate(time.Second); down.Before(t) {
		return down.Add(time.Second)
	}
	return t
}
