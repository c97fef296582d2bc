package grants

import (
	"regexp"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/term"
)

// troubles are the namespaces of which claims cannot be written, by name.
type troubles map[string]*trouble

// trouble is what a pool knows of a namespace of which claims cannot be written.
type trouble struct {
	// claims are those that failed last.
	claims map[types.UID]struct{}
	// err is what the others are told: the last answer that refuses a write for good, else the first error. since is when
	// that was.
	err   error
	since time.Time
	// next is when another of its claims is tried; pause, how long the one after that waits.
	next  time.Time
	pause time.Duration
}

// NoteTrouble notes that a claim could not be served, and is tried again after a while. Of a grant that the API server
// refused for good nothing can land any more, so the next commit ends it, and the claim is granted what it remembers when
// it is tried again (R6).
func (m *Memory) NoteTrouble(c *Claimant, err error, now time.Time) {
	if g := m.Grants[c.Owner.UID]; g != nil {
		if !term.RefusedForGood(err) {
			g.doubtful = true
		} else if !g.doubtful && !g.Inherited {
			g.Confirmed = g.Confirmed || g.Committed
		}
	}
	delete(m.well, c.Owner.Namespace)
	m.troubled.note(c, err, now)
}

// NoteUnheard notes that a claim could not be told why it waits, and is told after a while.
func (m *Memory) NoteUnheard(c *Claimant, err error, now time.Time) { m.unheard.note(c, err, now) }

func (ts troubles) note(c *Claimant, err error, now time.Time) {
	t := ts[c.Owner.Namespace]
	if t == nil {
		t = &trouble{claims: map[types.UID]struct{}{}, pause: term.FirstTry}
		ts[c.Owner.Namespace] = t
	}
	t.learn(err, now)
	_, again := t.claims[c.Owner.UID]
	t.claims[c.Owner.UID] = struct{}{}
	// Those of one namespace are not tried all at once.
	c.RetryAt = term.NextTry(now, c.Failures, len(t.claims)-1, err)
	if !again && len(t.claims) == term.MaxTroubled {
		t.next = now.Add(t.pause)
	}
}

// learn takes an error for what others are told, unless that says as much: each of them is written when it changes.
func (t *trouble) learn(err error, now time.Time) {
	knew, knows := t.err != nil && term.RefusedForGood(t.err), term.RefusedForGood(err)
	switch {
	case t.err == nil, knows && !knew:
	case !knows, cause(err) == cause(t.err), now.Before(t.since.Add(term.LastTry)):
		return
	}
	t.err, t.since = err, now
}

// EndTrouble notes that a claim of a namespace was served, or is gone. The others are tried again at once where one was
// served. It reports whether there are such.
func (m *Memory) EndTrouble(c *Claimant, served bool) bool {
	if served {
		m.well[c.Owner.Namespace] = struct{}{}
	}
	return m.troubled.end(m, c, served)
}

// IsUnheard reports whether a claim could not be told why it waits, when that was tried last.
func (m *Memory) IsUnheard(c *Claimant) bool {
	t := m.unheard[c.Owner.Namespace]
	if t == nil {
		return false
	}
	_, is := t.claims[c.Owner.UID]
	return is
}

// EndUnheard notes that a claim of a namespace was told why it waits. The others are told at once. It reports whether there
// are such.
func (m *Memory) EndUnheard(c *Claimant) bool { return m.unheard.end(m, c, true) }

func (ts troubles) end(m *Memory, c *Claimant, well bool) bool {
	t := ts[c.Owner.Namespace]
	if t == nil {
		return false
	}
	if delete(t.claims, c.Owner.UID); !well {
		if len(t.claims) == 0 {
			delete(ts, c.Owner.Namespace)
		}
		return true
	}
	delete(ts, c.Owner.Namespace)
	for uid := range t.claims {
		if other := m.Claimants[uid]; other != nil && !other.Busy {
			other.Failures, other.RetryAt = 0, time.Time{}
		}
	}
	return true
}

// InTrouble says why a claim is not tried now: too many of its namespace fail. Now and then one of those that wait is
// tried, to which something can be granted: NoteTrial counts it. One that could be given nothing now, however the others fare,
// is told that.
func (m *Memory) InTrouble(c *Claimant, now time.Time) *Refusal {
	t := m.troubled.withholds(c, now)
	if t == nil {
		return nil
	}
	no, full := m.without(c)
	if no == nil || full { // what a trial lacks, a carved pool asks for
		t.isAwaited(m)
	}
	if no != nil {
		return no
	}
	return t.refusal(c.Owner.Namespace)
}

// NoteTrial notes that a claim is granted something: it is the trial where its namespace is in trouble.
func (m *Memory) NoteTrial(c *Claimant, now time.Time) { m.troubled.try(c, now) }

// MayTell reports whether a claim may be told now why it waits.
func (m *Memory) MayTell(c *Claimant, now time.Time) bool {
	if !c.MayBeTried(now) {
		return false
	}
	t := m.unheard.withholds(c, now)
	if t != nil {
		t.isAwaited(m)
	}
	return t == nil
}

// NoteTelling notes that a claim is being told why it waits: it is the trial where others of its namespace cannot be told.
func (m *Memory) NoteTelling(c *Claimant, now time.Time) { m.unheard.try(c, now) }

// withholds returns why a claim that may be tried is not: too many of its namespace fail, and it is not the time of a trial.
func (ts troubles) withholds(c *Claimant, now time.Time) *trouble {
	if t := ts.awaiting(c); t != nil && now.Before(t.next) {
		return t
	}
	return nil
}

// try counts a claim that is tried as the trial of its namespace, if that is in trouble.
func (ts troubles) try(c *Claimant, now time.Time) {
	if t := ts.awaiting(c); t != nil && !now.Before(t.next) {
		t.pause = term.NextPause(t.pause)
		t.next = term.Together(now.Add(t.pause))
	}
}

// awaiting is the trouble whose trials a claim waits for; nil: it waits for none, or has failed and has a time of its own.
func (ts troubles) awaiting(c *Claimant) *trouble {
	t := ts[c.Owner.Namespace]
	if t == nil || len(t.claims) < term.MaxTroubled {
		return nil
	}
	if _, failed := t.claims[c.Owner.UID]; failed {
		return nil
	}
	return t
}

// isAwaited has the pool looked at when the next trial is to be: only where a claim waits for it.
func (t *trouble) isAwaited(m *Memory) {
	if m.trialAt.IsZero() || t.next.Before(m.trialAt) {
		m.trialAt = t.next
	}
}

// refusal is what the claims of a namespace are told that wait for others.
func (t *trouble) refusal(namespace string) *Refusal {
	if !term.RefusedForGood(t.err) {
		return writeFailed("writing the IPAddresses of other claims in namespace %s fails: %v; this claim is tried when one of those is served", namespace, t.err)
	}
	return writeFailed("%s the IPAddresses of other claims in namespace %s: %v; change what refuses them: this claim is tried when one of those is served", refusedText, namespace, t.err)
}

// particulars are what differs between answers that say the same: names, and what a quota has counted.
var particulars = regexp.MustCompile(`"[^"]*"|[0-9]+`)

// cause is what an error says whatever object it is of.
func cause(err error) string { return particulars.ReplaceAllString(err.Error(), "") }
