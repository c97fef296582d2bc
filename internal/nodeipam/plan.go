package nodeipam

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/fence"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/podcidr"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/term"
)

const (
	// maxGrants bounds the new grants of a commit, maxInFlight those on record of which no write has failed, and
	// maxOnRecord all of them: what hangs, or is refused after it was in doubt, leaves room for others.
	maxGrants   = 128
	maxInFlight = 512
	maxOnRecord = 2048
	// maxBytes bounds what is on record, as a ConfigMap has at most 1 MiB; mostBytes is what one more grant takes at most:
	// names of 253, two CIDRs, and the range that is opened for it.
	maxBytes  = 950 << 10
	mostBytes = 2 << 10
	// settleAfter is how long what is settled stays on record where nothing else is committed.
	settleAfter = time.Second
	// fewJobs is when more Nodes are planned, while as many writes are under way: the writers never wait for a commit.
	fewJobs = maxGrants * 3 / 4
	// adoption is how long nothing is given where another allocator, or a state that was lost, may still write: longer
	// than any request lasts (R10).
	adoption = 75 * time.Second
)

// trouble is what is known of writes that the API server refuses for good: it refuses those of other Nodes as well, most
// often.
type trouble struct {
	// nodes are those that were refused since one was served.
	nodes map[types.UID]bool
	next  time.Time
	pause time.Duration
	// why is the last refusal.
	why error
}

// limit is how many Nodes may be granted something now, or how long until one is.
func (m *memory) limit(now time.Time) (int, time.Duration) {
	switch {
	case now.Before(m.adoptUntil):
		return 0, m.adoptUntil.Sub(now)
	case now.Before(m.commitAfter):
		return 0, m.commitAfter.Sub(now)
	case m.inTrouble() && now.Before(m.trouble.next):
		return 0, m.trouble.next.Sub(now)
	case m.inTrouble():
		return 1, 0
	case m.firsts > fewJobs:
		return 0, 0 // the end of one of them wakes the site
	}
	fresh := 0
	for _, g := range m.grants {
		if g.failures == 0 {
			fresh++
		}
	}
	return max(min(maxGrants, maxInFlight-fresh, maxOnRecord-len(m.grants), m.room()), 0), 0
}

// room is how many more grants the ConfigMap has room for, whatever their names.
func (m *memory) room() int {
	const fixed, cidr = 80, len(`"1234:1234:1234:1234:1234:1234:1234:1234/128",`)
	left := maxBytes
	for _, o := range m.open {
		left -= fixed + len(o.Kind) + len(o.Name) + len(o.UID) + len(o.For) + len(o.CIDRs)*cidr
	}
	for uid, g := range m.grants {
		left -= fixed + len(uid) + len(g.Node.Name) + len(g.From.Name) + len(g.CIDRs)*cidr
	}
	return left / mostBytes
}

// inTrouble reports whether so many Nodes were refused that they are tried one at a time.
func (m *memory) inTrouble() bool { return len(m.trouble.nodes) >= term.MaxTroubled }

// plan makes grants for Nodes that wait, which are not on record yet, and returns those objects that must be protected
// first. It returns how long to wait for Nodes that cannot be planned now.
func (m *memory) plan(now time.Time) (protect []podcidr.Ref, wait time.Duration) {
	limit, wait := m.limit(now)
	if limit == 0 {
		if len(m.todo) == 0 {
			wait = 0
		}
		return nil, wait
	}
	var waiting []*podcidr.Node
	chooses := m.chooses()
	for _, n := range m.todo {
		if until := n.plannedAt(chooses); until.After(now) {
			wait = sooner(wait, until.Sub(now))
		} else {
			waiting = append(waiting, n.Node)
		}
	}
	if len(waiting) == 0 {
		return nil, wait
	}
	if !m.inTrouble() {
		_, protect, later := m.grantTo(waiting, limit, now)
		return protect, sooner(wait, later)
	}
	// One of them is a trial: the next in turn to which something can be granted. Those before it wait for something else.
	slices.SortFunc(waiting, m.inTurn)
	for i := range waiting {
		made, protect, later := m.grantTo(waiting[i:i+1:i+1], 1, now)
		wait = sooner(wait, later)
		if made > 0 {
			m.trouble.pause = term.NextPause(m.trouble.pause)
			m.trouble.next = now.Add(m.trouble.pause)
			return protect, wait
		}
	}
	return nil, wait
}

// grantTo makes grants for some of the Nodes that wait, or notes why they get nothing. It returns how many it made, which
// objects must be protected first, and how long to wait for those Nodes that wait for one which could not be.
func (m *memory) grantTo(waiting []*podcidr.Node, limit int, now time.Time) (made int, protect []podcidr.Ref, wait time.Duration) {
	for again := true; again && made < limit; {
		d := podcidr.Plan(m.books, m.ranges(), waiting, limit-made, now)
		again = false
		m.refuse(d.Refused)
		for _, g := range d.Grants {
			if until := m.blocked[g.From].until; until.After(now) {
				// Its Node waits for that: another range would be of the wrong size. Others take its place.
				m.books.Withdraw(g.Node.UID)
				m.todo[g.Node.UID].waits.retryAt = until
				wait, again = sooner(wait, until.Sub(now)), true
				continue
			}
			made++
			g.CIDRs = inOrder(g.CIDRs, m.first)
			m.touch()
			m.grants[g.Node.UID] = &grant{Grant: g, since: m.todo[g.Node.UID].waits.since}
			delete(m.todo, g.Node.UID)
			if !m.isOpen(g.From) && !slices.Contains(protect, g.From) {
				protect = append(protect, g.From)
			}
		}
		if again { // else all of them would be looked through for nothing
			waiting = slices.DeleteFunc(waiting, func(n *podcidr.Node) bool {
				return m.todo[n.UID] == nil || m.todo[n.UID].waits.retryAt.After(now)
			})
		}
	}
	return made, protect, wait
}

// chooses reports whether labels decide what Nodes get: an object is for certain Nodes.
func (m *memory) chooses() bool {
	return slices.ContainsFunc(m.ranges(), func(r *podcidr.Range) bool { return !r.Closing && r.Chooses() })
}

// plannedAt is when a Node that waits can be planned: where labels decide, not before they are there. What it gets is for life.
func (n *node) plannedAt(chooses bool) time.Time {
	if due := n.waits.since.Add(n.LabelsDue); chooses && n.LabelsDue > 0 && due.After(n.waits.retryAt) {
		return due
	}
	return n.waits.retryAt
}

// refuse notes which Nodes get nothing for now. Who waits for a block to come is not told.
func (m *memory) refuse(nodes map[types.UID]podcidr.Refusal) {
	for uid, why := range nodes {
		m.refused[uid] = why
		if !why.Growing {
			m.noteRefusal(m.todo[uid], why)
		}
		delete(m.todo, uid)
	}
}

// block notes that an object could not be protected: it is tried again after a while, and its Nodes wait so long.
func (m *memory) block(ref podcidr.Ref, err error, now time.Time) {
	b := m.blocked[ref]
	m.postpone(ref, blocked{failures: b.failures + 1, until: term.Later(now, term.RetryDelay(b.failures))}, func(n *podcidr.Node) {
		m.notef(n, CIDRNotAvailable, "%v; the manager tries again", err)
	})
}

// postpone has an object protected later, and calls each for the Nodes that wait so long.
func (m *memory) postpone(ref podcidr.Ref, b blocked, each func(*podcidr.Node)) {
	m.blocked[ref], m.checkHeld = b, true
	for _, g := range m.grants {
		if n := m.nodes[g.Node.UID]; n != nil && n.waits != nil && !g.committed && g.From == ref {
			n.waits.retryAt = b.until
			each(g.Node)
		}
	}
	m.withdraw(&ref)
}

// unheld adds to the objects that are to be protected those that Nodes use, and that are not: they were adopted, or somebody
// took our finalizer off.
func (m *memory) unheld(out []podcidr.Ref, now time.Time) []podcidr.Ref {
	if !m.holder || !m.checkHeld {
		return out
	}
	m.checkHeld = false
	for ref, o := range m.objects {
		switch {
		case o.Held || o.Closing || slices.Contains(out, ref):
		case m.blocked[ref].until.After(now):
			m.checkHeld = true // it is tried again
		case len(m.users(o)) > 0:
			out = append(out, ref)
		}
	}
	return out
}

// inTurn is the order in which Nodes are tried: those first of which the fewest writes were refused, the oldest of those.
func (m *memory) inTurn(a, b *podcidr.Node) int {
	return cmp.Or(cmp.Compare(m.todo[a.UID].waits.failures, m.todo[b.UID].waits.failures), a.Created.Compare(b.Created), cmp.Compare(a.Name, b.Name))
}

func (m *memory) isOpen(ref podcidr.Ref) bool {
	return slices.ContainsFunc(m.open, func(o fence.Open) bool { return o.UID == ref.UID && o.Kind == ref.Kind && o.Name == ref.Name })
}

// withdraw takes back grants that are not on record, all or those of some object: their Nodes are planned again.
func (m *memory) withdraw(from *podcidr.Ref) {
	for uid, g := range m.grants {
		if !g.committed && (from == nil || g.From == *from) {
			m.drop(uid)
		}
	}
}

// drop takes a grant back that is not on record, or not any more.
func (m *memory) drop(uid types.UID) {
	m.touch()
	delete(m.grants, uid)
	m.books.Withdraw(uid)
	m.reconsider() // there is room again
	if n := m.nodes[uid]; n != nil && len(n.CIDRs) == 0 && !n.Deleting {
		m.todo[uid] = n
	}
}

// close notes that nothing more is to be given of an object, though the watch has not shown that.
func (m *memory) close(ref podcidr.Ref) {
	m.shut[ref] = true
	if o := m.objects[ref]; o.Range != nil {
		o.Range.Closing = true
	}
	m.withdraw(&ref)
}

// pending is a commit, until it is known what became of it.
type pending struct {
	added, dropped []types.UID
	open           []fence.Open
	closed         map[podcidr.Ref]string
	ended          map[types.UID]bool
}

// next returns the next state, if there is a reason to commit one; else how long until there is, 0 if nothing is known.
func (m *memory) next(now time.Time) (fence.State, *pending, time.Duration) {
	var s fence.State
	p := &pending{}
	for _, uid := range slices.Sorted(maps.Keys(m.grants)) {
		g := m.grants[uid]
		switch {
		case !g.committed && (g.settled || !m.stands(g)):
			m.drop(uid) // what came meanwhile has overtaken it
		case g.committed && (g.settled || g.refused) && !g.busy:
			p.dropped = append(p.dropped, uid)
		default:
			if !g.committed {
				p.added = append(p.added, uid)
			}
			s.InFlight = append(s.InFlight, fence.Grant{Node: g.Node.Name, UID: uid, From: g.From.Name, CIDRs: g.CIDRs})
		}
	}
	p.open = m.wantOpen(p.added)
	p.closed, p.ended = m.closing(), m.endingBlocks()
	s.Open = p.open
	var wait time.Duration
	if m.adopting && now.Before(m.adoptUntil) {
		since := m.adoptBegan // as it is on record: others know the adoption by it
		s.Adopting, wait = &since, m.adoptUntil.Sub(now)
	}
	news := !slices.EqualFunc(p.open, m.open, fence.Open.Same)
	switch {
	case now.Before(m.commitAfter):
		return s, nil, m.commitAfter.Sub(now)
	case len(p.added) > 0, news, m.adopting && s.Adopting == nil, m.closingNow(), m.blocksEnd():
	case len(p.dropped) > 0 && m.jobs == 0:
		if m.settleAt.IsZero() {
			m.settleAt = now.Add(settleAfter)
		}
		if left := m.settleAt.Sub(now); left > 0 {
			return s, nil, sooner(wait, left)
		}
	default:
		return s, nil, wait
	}
	return s, p, wait
}

// stands reports whether a grant that is not on record may still go there: nothing that came since it was planned is in
// its way.
func (m *memory) stands(g *grant) bool {
	n, o := m.nodes[g.Node.UID], m.objects[g.From]
	return n != nil && len(n.CIDRs) == 0 && !n.Deleting && o.Range != nil && !o.Range.Closing && o.Range.Has(g.CIDRs) && m.books.Alone(g.Node.UID, g.CIDRs)
}

// wantOpen is what may be given from after the next commit: what is open and not to be closed, what is granted from, and
// the blocks that were decided on.
func (m *memory) wantOpen(added []types.UID) []fence.Open {
	var out []fence.Open
	for _, o := range m.open {
		if o.For != "" {
			continue
		}
		ref := podcidr.Ref{Kind: o.Kind, Name: o.Name, UID: o.UID}
		if is := m.objects[ref]; is.Range != nil && !is.Range.Closing {
			out = append(out, o)
		}
	}
	for _, uid := range added {
		from := m.grants[uid].From
		if !slices.ContainsFunc(out, func(o fence.Open) bool { return o.UID == from.UID && o.Name == from.Name }) {
			out = append(out, fence.Open{Kind: from.Kind, Name: from.Name, UID: from.UID, CIDRs: m.objects[from].Range.Named()})
		}
	}
	out = append(out, m.listed...)
	slices.SortFunc(out, func(a, b fence.Open) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.UID, b.UID))
	})
	return out
}

// landed notes that a commit is on record.
func (m *memory) landed(p *pending, adopting bool, now time.Time) {
	for _, uid := range p.added {
		if g := m.grants[uid]; g != nil {
			g.committed = true
		}
	}
	for _, uid := range p.dropped {
		if g := m.grants[uid]; g != nil && g.refused && !g.settled {
			m.drop(uid)
		} else {
			delete(m.grants, uid)
		}
	}
	maps.Copy(m.closed, p.closed)
	maps.Copy(m.ended, p.ended)
	m.relisted = m.relisted || !slices.EqualFunc(p.open, m.open, fence.Open.Same)
	m.adopting, m.settleAt, m.recordedAt = adopting, time.Time{}, now
	m.setOpen(p.open)
	m.commitErr, m.commitPause, m.commitAfter = nil, 0, time.Time{}
	m.Win()
}

// refusedCommit notes that the API server refuses a commit for good. The next one is planned anew, after a pause.
func (m *memory) refusedCommit(err error, now time.Time) {
	m.withdraw(nil)
	m.commitErr = err
	m.commitPause = term.NextPause(m.commitPause)
	m.commitAfter = now.Add(m.commitPause)
}

// stale reports whether what is on record was last seen so long ago that it may have been lost since, and given on: as by a
// process that was paused. It is looked at before another write (R10, R14).
func (m *memory) stale(now time.Time) bool {
	return term.Elapsed(m.recordedAt, now) > term.RequestTimeout
}

// due are the grants to be written now, oldest Node first, and how long until others are.
func (m *memory) due(now time.Time) (out []*grant, wait time.Duration) {
	for _, g := range m.grants {
		switch {
		case !g.committed || g.settled || g.refused || g.busy:
		case g.retryAt.After(now):
			wait = sooner(wait, g.retryAt.Sub(now))
		case m.books.OthersHave(g.Node.UID, g.CIDRs):
			// Another writer has set what was granted. It is not written knowingly. What was never sent is over, and what was
			// is when no write of it can land any more (R10): until then no other Node gets it, even if that other Node goes.
			left := g.writtenAt.Add(adoption).Sub(now)
			if g.refused = (!g.sent && !g.inherited) || left <= 0; !g.refused {
				wait = sooner(wait, left)
			}
			m.notef(g.Node, CIDRNotAvailable, "another allocator has given %v to another Node, which were granted to it: it gets others within %v; run kube-controller-manager with --allocate-node-cidrs=false, and one allocator only", g.CIDRs, adoption)
		default:
			out = append(out, g)
		}
	}
	slices.SortFunc(out, func(a, b *grant) int {
		return cmp.Or(a.Node.Created.Compare(b.Node.Created), cmp.Compare(a.Node.Name, b.Node.Name), cmp.Compare(a.Node.UID, b.Node.UID))
	})
	return out, wait
}

// begin notes that a write of a grant is handed out, end that it is over.
func (m *memory) begin(g *grant) {
	g.busy, g.sent = true, true
	m.jobs++
	if g.failures == 0 {
		m.firsts++
	}
}

func (m *memory) end(g *grant) {
	g.busy = false
	m.jobs--
	if g.failures == 0 {
		m.firsts--
	}
}

// wrote notes how a write went, and reports whether there is something to do.
func (m *memory) wrote(g *grant, err error, now time.Time) (wake bool) {
	m.end(g)
	g.writtenAt = now
	n := m.nodes[g.Node.UID]
	switch {
	case err == nil && (g.settled || n == nil):
		m.trouble = trouble{}
	case term.RefusedForGood(err) && !g.doubtful && !g.inherited && !g.settled:
		g.refused, m.trouble.why = true, err
		if m.trouble.nodes == nil {
			m.trouble.nodes = map[types.UID]bool{}
		}
		was := m.inTrouble()
		if m.trouble.nodes[g.Node.UID] = true; !was && m.inTrouble() {
			m.trouble.pause, m.trouble.next = term.FirstTry, now.Add(term.FirstTry)
		}
		if n != nil && n.waits != nil {
			n.waits.retryAt = term.Later(now, term.RetryDelay(n.waits.failures))
			n.waits.failures++
			m.notef(n.Node, CIDRNotAvailable, "%v; the manager tries again", err)
		}
	default:
		g.doubtful = true
		delay := term.RetryDelay(g.failures) // of a write that says nothing of itself too
		if err != nil && term.RefusedForGood(err) {
			delay *= 10 // it stays on record, as an earlier write may land
		}
		g.retryAt = term.Later(now, delay)
		wake = err != nil && m.isBeforeLook(g.retryAt, now)
		if g.failures++; g.failures == toldFrom && err != nil && n != nil && !g.settled {
			m.notef(n.Node, CIDRNotAvailable, "writing its pod CIDRs fails: %v; the manager tries again", err)
		}
	}
	return wake || m.jobs == 0 || (m.firsts == fewJobs && len(m.todo) > 0)
}

// toldFrom is how many times in a row a write may fail that is not refused for good, before its Node is told.
const toldFrom = 4

// isBeforeLook reports whether the site has to be woken for what is due at a time: its next look is later, or not known. One that
// has passed did not come, as what calls the site pauses after an error: what is due within a second does not wait for that.
func (m *memory) isBeforeLook(due, now time.Time) bool {
	switch {
	case m.nextLook.IsZero():
		return true
	case now.Before(m.nextLook):
		return due.Before(m.nextLook)
	}
	return due.Before(now.Add(time.Second))
}

// lose notes that another manager has the site: what was planned is void, and what is on record is its business,
// unless it leaves it unfinished.
func (m *memory) lose(now time.Time, jitter func(time.Duration) time.Duration) {
	m.holder, m.unread, m.suspect, m.workSince = false, true, false, time.Time{}
	m.setOpen(nil)
	for uid := range m.grants {
		m.drop(uid)
	}
	m.Lose(now, 0, jitter)
}

// mayTakeOver reports whether this manager should become the holder now, or how long to wait; 0: there is nothing to do.
// Only the amount of work depends on the answer, never its safety.
func (m *memory) mayTakeOver(now time.Time, elected bool) (bool, time.Duration) {
	if now.Before(m.NotBefore) {
		return false, m.NotBefore.Sub(now)
	}
	work, wait := m.hasWork(now)
	switch {
	case work:
	case elected:
		m.workSince = time.Time{}
		m.tellRefusals()
		return false, wait
	default:
		m.workSince = time.Time{}
		return m.mayTell(now, wait)
	}
	if (!m.triedOnce && !m.left) || (elected && m.Backoff == 0) {
		return true, 0
	}
	if m.workSince.IsZero() {
		m.workSince = now
	}
	if left := term.Patience - now.Sub(m.workSince); left > 0 {
		return false, left
	}
	return true, 0
}

// hasWork reports whether a holder would have something to do. What it finds that can be given to no Node is not work: what there
// is to tell such Nodes stays untold. What was refused before, another manager's writes may not be.
func (m *memory) hasWork(now time.Time) (bool, time.Duration) {
	if m.suspect || m.claimed || m.closingNow() {
		return true, 0
	}
	trouble, notes := m.trouble, len(m.notes)
	m.trouble.nodes = nil
	m.setGrows(now)
	_, wait := m.plan(now)
	m.trouble = trouble
	m.leaveUntold(notes)
	growth := m.decideBlocks(now)
	wait = sooner(wait, growth.wait)
	work := m.left || len(m.grants) > 0 || growth.something()
	m.withdraw(nil)
	return work, wait
}

// onlyLeft reports whether there is nothing to do but what another holder may have left.
func (m *memory) onlyLeft(now time.Time) bool {
	left := m.left
	m.left = false
	work, _ := m.hasWork(now)
	m.left = left
	return left && !work
}

// closingNow reports whether an object is to be closed that no Node uses. It is committed without it in any case: another
// manager may have opened it meanwhile, and the commit finds out.
func (m *memory) closingNow() bool {
	for _, o := range m.objects {
		if o.Closing && o.Held && !m.isClosed(o) && len(m.users(o)) == 0 {
			return true
		}
	}
	return false
}

// isClosed reports whether this manager has closed an object, and nobody was seen to have opened it since.
func (m *memory) isClosed(o Object) bool {
	mark, is := m.closed[o.Ref]
	return is && mark == o.Mark && !m.isOpen(o.Ref)
}

// closing are the marks of the objects that are to be closed.
func (m *memory) closing() map[podcidr.Ref]string {
	out := map[podcidr.Ref]string{}
	for ref, o := range m.objects {
		if o.Closing {
			out[ref] = o.Mark
		}
	}
	return out
}

// sooner returns the shorter of two waits, of which 0 is none at all.
func sooner(a, b time.Duration) time.Duration {
	if a == 0 || (b > 0 && b < a) {
		return b
	}
	return a
}
