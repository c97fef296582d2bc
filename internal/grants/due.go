package grants

import (
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// DueWrites are what is to be written now for single claimants and IPAddresses.
type DueWrites struct {
	// Serve and Release are claimants, Resolve are IPAddresses without one.
	Serve, Release []types.UID
	Resolve        []*Attached
}

// Due returns the writes of a pool that are due, of each sort at most free, and how long until one is that has to wait:
// 0, if none does. It changes nothing: admission and releases decide on the claimants that are served and released.
func (m *Memory) Due(now time.Time, free int, grace time.Duration, admission, releases Admit) (out DueWrites, wait time.Duration) {
	wait = m.NextRetry(now)
	for uid, c := range m.Todo {
		if len(out.Serve)+len(out.Release) >= free {
			break
		}
		switch g := m.Grants[uid]; {
		case !c.MayBeTried(now):
		case c.Deleting:
			// A grant that a commit is to end holds up the release.
			if (g != nil && g.Confirmed) || releases(c).Waits {
				continue
			}
			// One that came up during the commit rests first (R9): the next batch notes it.
			if m.NeedsCooling(m.EndingOf(c), now) {
				wait = m.soonIfNoted(wait, now)
				continue
			}
			out.Release = append(out.Release, uid)
		case m.Base == nil: // without a pool nothing is served
		case g != nil && !g.Writable(now) && (!g.Confirmed || !c.Kind.Confirmed(m, c)): // a commit comes first
		case !admission(c).Waits:
			out.Serve = append(out.Serve, uid)
		}
	}
	if idle := m.Jobs+len(out.Serve)+len(out.Release) == 0; idle && len(m.deferred.claims) > 0 && !now.Before(m.CommitAfter) {
		wait = Sooner(wait, time.Second) // those that were noted wait by now, so that the end of no job has the others noted
	}
	for _, o := range m.Orphans {
		if o.Busy || m.StaysByHand(o) || len(out.Resolve) >= free {
			continue
		}
		if m.OrphanNeedsCooling(o, now) {
			wait = m.soonIfNoted(wait, now)
			continue
		}
		if d := m.NextCheck(o, grace).Sub(now); d > 0 {
			wait = Sooner(wait, d)
			continue
		}
		out.Resolve = append(out.Resolve, o.Attached)
	}
	return out, wait
}

// soonIfNoted is a wait that the next batch ends, if it can note what is to rest.
func (m *Memory) soonIfNoted(wait time.Duration, now time.Time) time.Duration {
	if m.mayNote(now) {
		return time.Millisecond
	}
	return wait
}

// MaxJobs bounds the jobs of a pool that wait for a writer, and with them the memory they take.
const MaxJobs = 256

// EndJob notes that a job has ended, and what failed is tried again at a time; zero: nothing did. It reports whether the pool is
// to be reconciled: there is room for jobs again, or it is not looked at before that time anyway. Many fail while an obstacle
// lasts: an idle pool is woken for what is due next, and not for each of them.
func (m *Memory) EndJob(again time.Time) (wake bool) {
	m.Jobs--
	switch {
	case m.Jobs == 0, m.Jobs == MaxJobs/4:
		return true
	case again.IsZero():
		return false
	}
	return m.NextLook.IsZero() || again.Before(m.NextLook)
}

// NextRetry is how long until a claim is due whose last try failed, 0 if there is none.
func (m *Memory) NextRetry(now time.Time) time.Duration {
	var wait time.Duration
	for uid := range m.Retrying {
		if c := m.Claimants[uid]; c != nil && c.RetryAt.After(now) {
			wait = Sooner(wait, c.RetryAt.Sub(now))
		} else {
			delete(m.Retrying, uid)
		}
	}
	return wait
}

// NextWake is how long until the pool has something to do by itself, wait at most; 0: never. What is past by now this turn
// has dealt with, or it waits for something else.
func (m *Memory) NextWake(now time.Time, wait time.Duration) time.Duration {
	waits := []time.Duration{m.QuarantineUntil.Sub(now), m.CommitAfter.Sub(now), m.Arriving.TryAfter.Sub(now)}
	there := m.atAPI(now)
	for _, rest := range m.Cooling.All() {
		waits = append(waits, rest.Until.Sub(there))
	}
	for _, d := range waits {
		if d > 0 {
			wait = Sooner(wait, d)
		}
	}
	if m.Outstanding != "" {
		wait = Sooner(wait, time.Second)
	}
	return wait
}

// BeginTurn forgets what the turn before has found.
func (m *Memory) BeginTurn() {
	m.trialAt, m.NextLook = time.Time{}, time.Time{}
	clear(m.ToTell)
}

// ComeBack ends a turn: the pool is looked at again after a wait, or before that if a claim is to be tried then that waits for
// others; 0: never.
func (m *Memory) ComeBack(now time.Time, wait time.Duration) time.Duration {
	if d := m.trialAt.Sub(now); d > 0 {
		wait = Sooner(wait, d)
	}
	if wait > 0 {
		m.NextLook = now.Add(wait)
	}
	return wait
}

// Sooner returns the shorter of two waits, of which 0 is none at all.
func Sooner(a, b time.Duration) time.Duration {
	if a == 0 || b < a {
		return b
	}
	return a
}
