package allocator

import "time"

// quarantineAfterOther holds new grants back where the in-cluster provider has served the pool since we last did: of its last
// requests one may still be on its way (R10). It puts its finalizer on a claim before it gives it anything; ours comes with a record,
// in one write. The condition Adopting, which the first commit writes before any record, carries the wait over a restart.
func (p *pool) quarantineAfterOther(now time.Time, length time.Duration) {
	if p.adopting {
		return // and counted from its beginning
	}
	for _, c := range p.claims {
		if c.mirrored && c.finalized && c.recordText == "" {
			p.quarantineUntil = now.Add(length)
			return
		}
	}
}
