package allocator

import (
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// dueWrites are what is to be written now for single claimants and IPAddresses.
type dueWrites struct {
	// serve and release are claimants, resolve are IPAddresses without one.
	serve, release []types.UID
	resolve        []*attached
}

// due returns the writes of a pool that are due, of each sort at most free, and how long until one is that has to wait:
// 0, if none does. It changes nothing: admission and releases decide on the claimants that are served and released. It
// is called with the pool locked.
func (p *memory) due(now time.Time, free int, grace time.Duration, admission, releases admit) (out dueWrites, wait time.Duration) {
	wait = p.nextRetry(now)
	for uid, c := range p.todo {
		if len(out.serve)+len(out.release) >= free {
			break
		}
		switch g := p.grants[uid]; {
		case c.busy || c.retryAt.After(now):
		case c.deleting:
			// A grant that a commit is to end holds up the release.
			if (g != nil && g.confirmed) || releases(c).waits {
				continue
			}
			// One that came up during the commit rests first (R9): the next batch notes it.
			if p.needsCooling(p.releasable(c), c.owner, now) {
				wait = p.soonIfNoted(wait, now)
				continue
			}
			out.release = append(out.release, uid)
		case p.base == nil: // without a pool nothing is served
		case g != nil && !g.writable(now) && (!g.confirmed || !c.kind.confirmed(p, c)): // a commit comes first
		case !admission(c).waits:
			out.serve = append(out.serve, uid)
		}
	}
	for _, o := range p.orphans {
		if o.busy || o.byHand || len(out.resolve) >= free {
			continue
		}
		if p.orphanNeedsCooling(o, now) {
			wait = p.soonIfNoted(wait, now)
			continue
		}
		if d := p.nextCheck(o, grace).Sub(now); d > 0 {
			wait = sooner(wait, d)
			continue
		}
		out.resolve = append(out.resolve, o.attached)
	}
	return out, wait
}

// soonIfNoted is a wait that the next batch ends, if it can note what is to rest.
func (p *memory) soonIfNoted(wait time.Duration, now time.Time) time.Duration {
	if p.mayNote(now) {
		return time.Millisecond
	}
	return wait
}
