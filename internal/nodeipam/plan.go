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
	// maxGrantsPerCommit bounds the new grants of a commit, maxInFlightGrants the grants on record without a failed
	// write, and maxRecordedGrants all grants on record: grants that hang, or are refused after their outcome was
	// unknown, leave room for others.
	maxGrantsPerCommit = 128
	maxInFlightGrants  = 512
	maxRecordedGrants  = 2048
	// maxStateBytes bounds the state on record, as a ConfigMap has at most 1 MiB; maxGrantBytes is what one more grant
	// takes at most: names of 253 bytes, two CIDRs, and the range that is opened for it.
	maxStateBytes = 950 << 10
	maxGrantBytes = 2 << 10
	// settleDelay is how long settled grants stay on record where nothing else is committed.
	settleDelay = time.Second
	// refillThreshold is how many writes may be under way for more Nodes to be planned for: so the writers never wait
	// for a commit.
	refillThreshold = maxGrantsPerCommit * 3 / 4
	// adoptionPeriod is how long nothing is granted where another allocator, or a manager whose state was lost, may
	// still write: longer than any request lasts (R10).
	adoptionPeriod = 75 * time.Second
)

// refusedWrites is what is known of writes that the API server refuses permanently: most often it refuses those of
// other Nodes as well.
type refusedWrites struct {
	// nodeUIDs are the Nodes that were refused since one was served.
	nodeUIDs    map[types.UID]bool
	nextRetryAt time.Time
	retryPause  time.Duration
	// lastErr is the last refusal.
	lastErr error
}

// grantLimit returns how many Nodes may be granted something now, or how long until one may.
func (m *nodeState) grantLimit(now time.Time) (int, time.Duration) {
	switch {
	case now.Before(m.adoptUntil):
		return 0, m.adoptUntil.Sub(now)
	case now.Before(m.nextCommitTime):
		return 0, m.nextCommitTime.Sub(now)
	case m.isRetryingSerially() && now.Before(m.refusedWrites.nextRetryAt):
		return 0, m.refusedWrites.nextRetryAt.Sub(now)
	case m.isRetryingSerially():
		return 1, 0
	case m.firstWritesInFlight > refillThreshold:
		return 0, 0 // the end of one of them enqueues the cluster
	}
	unfailed := 0
	for _, g := range m.grants {
		if g.failures == 0 {
			unfailed++
		}
	}
	return max(min(maxGrantsPerCommit, maxInFlightGrants-unfailed, maxRecordedGrants-len(m.grants), m.remainingGrants()), 0), 0
}

// remainingGrants returns how many more grants the ConfigMap has room for, whatever their names.
func (m *nodeState) remainingGrants() int {
	const fixed, cidr = 80, len(`"1234:1234:1234:1234:1234:1234:1234:1234/128",`)
	left := maxStateBytes
	for _, o := range m.openRanges {
		left -= fixed + len(o.Kind) + len(o.Name) + len(o.UID) + len(o.ClusterCIDRName) + len(o.CIDRs)*cidr
	}
	for uid, g := range m.grants {
		left -= fixed + len(uid) + len(g.Node.Name) + len(g.RangeRef.Name) + len(g.CIDRs)*cidr
	}
	return left / maxGrantBytes
}

// isRetryingSerially reports whether so many Nodes were refused that they are tried one at a time.
func (m *nodeState) isRetryingSerially() bool {
	return len(m.refusedWrites.nodeUIDs) >= term.SerialRetryThreshold
}

// planGrants makes grants, not on record yet, for Nodes that wait, and returns the objects that must be protected
// first. It returns how long to wait for Nodes that cannot be planned for now.
func (m *nodeState) planGrants(now time.Time) (protect []podcidr.Ref, wait time.Duration) {
	limit, wait := m.grantLimit(now)
	if limit == 0 {
		if len(m.pendingNodes) == 0 {
			wait = 0
		}
		return nil, wait
	}
	var waiting []*podcidr.Node
	chooses := m.hasSelectors()
	for _, n := range m.pendingNodes {
		if until := n.plannableAt(chooses); until.After(now) {
			wait = minWait(wait, until.Sub(now))
		} else {
			waiting = append(waiting, n.Node)
		}
	}
	if len(waiting) == 0 {
		return nil, wait
	}
	if !m.isRetryingSerially() {
		_, protect, later := m.grantNodes(waiting, limit, now)
		return protect, minWait(wait, later)
	}
	// One Node is a trial: the next in order to which something can be granted. The Nodes before it wait for something
	// else.
	slices.SortFunc(waiting, m.compareRetryOrder)
	for i := range waiting {
		made, protect, later := m.grantNodes(waiting[i:i+1:i+1], 1, now)
		wait = minWait(wait, later)
		if made > 0 {
			m.refusedWrites.retryPause = term.NextRetryPause(m.refusedWrites.retryPause)
			m.refusedWrites.nextRetryAt = now.Add(m.refusedWrites.retryPause)
			return protect, wait
		}
	}
	return nil, wait
}

// grantNodes makes grants for some of the Nodes that wait, or records why they get nothing. It returns how many grants
// it made, which objects must be protected first, and how long to wait for the Nodes whose object could not be
// protected.
func (m *nodeState) grantNodes(waiting []*podcidr.Node, limit int, now time.Time) (made int, protect []podcidr.Ref, wait time.Duration) {
	for again := true; again && made < limit; {
		d := podcidr.PlanGrants(m.allocations, m.validRanges(), waiting, limit-made, now)
		again = false
		m.recordRefusals(d.Refusals)
		for _, g := range d.Grants {
			if until := m.blockedObjects[g.RangeRef].retryAt; until.After(now) {
				// The Node waits for this object, as a CIDR of another range would be of the wrong size. Other Nodes
				// take its place.
				m.allocations.WithdrawGrant(g.Node.UID)
				m.pendingNodes[g.Node.UID].waiting.retryAt = until
				wait, again = minWait(wait, until.Sub(now)), true
				continue
			}
			made++
			g.CIDRs = orderByFamily(g.CIDRs, m.primaryFamily)
			m.invalidateUsage()
			m.grants[g.Node.UID] = &nodeGrant{Grant: g, waitingSince: m.pendingNodes[g.Node.UID].waiting.firstSeen}
			delete(m.pendingNodes, g.Node.UID)
			if !m.isRangeOpen(g.RangeRef) && !slices.Contains(protect, g.RangeRef) {
				protect = append(protect, g.RangeRef)
			}
		}
		if again { // otherwise all of them would be scanned for nothing
			waiting = slices.DeleteFunc(waiting, func(n *podcidr.Node) bool {
				return m.pendingNodes[n.UID] == nil || m.pendingNodes[n.UID].waiting.retryAt.After(now)
			})
		}
	}
	return made, protect, wait
}

// hasSelectors reports whether labels decide what Nodes get, as an object is for certain Nodes.
func (m *nodeState) hasSelectors() bool {
	return slices.ContainsFunc(m.validRanges(), func(r *podcidr.Range) bool { return !r.Closing && r.HasSelector() })
}

// plannableAt returns when a Node that waits can be planned for: where labels decide, not before they are there, as the
// Node keeps what it gets for life.
func (n *nodeEntry) plannableAt(chooses bool) time.Time {
	if due := n.waiting.firstSeen.Add(n.LabelsTimeout); chooses && n.LabelsTimeout > 0 && due.After(n.waiting.retryAt) {
		return due
	}
	return n.waiting.retryAt
}

// recordRefusals records which Nodes get nothing for now. A Node that waits for a block gets no event.
func (m *nodeState) recordRefusals(nodes map[types.UID]podcidr.Refusal) {
	for uid, why := range nodes {
		m.refusedNodes[uid] = why
		if !why.AwaitsGrowth {
			m.addRefusalEvent(m.pendingNodes[uid], why)
		}
		delete(m.pendingNodes, uid)
	}
}

// blockObject records that an object could not be protected: it is retried after a while, and its Nodes wait for that.
func (m *nodeState) blockObject(ref podcidr.Ref, err error, now time.Time) {
	b := m.blockedObjects[ref]
	m.postponeObject(ref, retryState{failures: b.failures + 1, retryAt: term.RetryTimeAfter(now, term.RetryDelay(b.failures))}, func(n *podcidr.Node) {
		m.addEventf(n, CIDRNotAvailable, "%v; the manager tries again", err)
	})
}

// postponeObject delays the protection of an object, and calls each for the Nodes that wait for it.
func (m *nodeState) postponeObject(ref podcidr.Ref, b retryState, each func(*podcidr.Node)) {
	m.blockedObjects[ref], m.needsFinalizerCheck = b, true
	for _, g := range m.grants {
		if n := m.nodes[g.Node.UID]; n != nil && n.waiting != nil && !g.committed && g.RangeRef == ref {
			n.waiting.retryAt = b.retryAt
			each(g.Node)
		}
	}
	m.withdrawGrants(&ref)
}

// missingFinalizers adds to the objects to protect those that Nodes use and that are not protected: they were adopted,
// or another writer removed our finalizer.
func (m *nodeState) missingFinalizers(out []podcidr.Ref, now time.Time) []podcidr.Ref {
	if !m.isHolder || !m.needsFinalizerCheck {
		return out
	}
	m.needsFinalizerCheck = false
	for ref, o := range m.rangeObjects {
		switch {
		case o.HasFinalizer || o.Closing || slices.Contains(out, ref):
		case m.blockedObjects[ref].retryAt.After(now):
			m.needsFinalizerCheck = true // it is checked again
		case len(m.nodesUsing(o)) > 0:
			out = append(out, ref)
		}
	}
	return out
}

// compareRetryOrder orders Nodes for retries: first those with the fewest refused writes, and among these the oldest.
func (m *nodeState) compareRetryOrder(a, b *podcidr.Node) int {
	return cmp.Or(cmp.Compare(m.pendingNodes[a.UID].waiting.failures, m.pendingNodes[b.UID].waiting.failures), a.CreatedAt.Compare(b.CreatedAt), cmp.Compare(a.Name, b.Name))
}

func (m *nodeState) isRangeOpen(ref podcidr.Ref) bool {
	return slices.ContainsFunc(m.openRanges, func(o fence.OpenRange) bool { return o.UID == ref.UID && o.Kind == ref.Kind && o.Name == ref.Name })
}

// withdrawGrants withdraws the grants that are not on record, all of them or those of one object: their Nodes are
// planned for again.
func (m *nodeState) withdrawGrants(from *podcidr.Ref) {
	for uid, g := range m.grants {
		if !g.committed && (from == nil || g.RangeRef == *from) {
			m.dropGrant(uid)
		}
	}
}

// dropGrant drops a grant that is not on record, or not any more.
func (m *nodeState) dropGrant(uid types.UID) {
	m.invalidateUsage()
	delete(m.grants, uid)
	m.allocations.WithdrawGrant(uid)
	m.requeueRefused() // there is room again
	if n := m.nodes[uid]; n != nil && len(n.CIDRs) == 0 && !n.Deleting {
		m.pendingNodes[uid] = n
	}
}

// closeRange records that nothing more may be granted from an object, although the watch does not show that yet.
func (m *nodeState) closeRange(ref podcidr.Ref) {
	m.closedByLiveRead[ref] = true
	if o := m.rangeObjects[ref]; o.Range != nil {
		o.Range.Closing = true
	}
	m.withdrawGrants(&ref)
}

// pendingCommit is a commit until its outcome is known.
type pendingCommit struct {
	addedGrants, droppedGrants []types.UID
	openRanges                 []fence.OpenRange
	closedMarks                map[podcidr.Ref]string
	closedBlocks               map[types.UID]bool
}

// nextCommit returns the next state if there is a reason to commit one; otherwise it returns how long until there is, 0
// if nothing is known.
func (m *nodeState) nextCommit(now time.Time) (fence.State, *pendingCommit, time.Duration) {
	var s fence.State
	p := &pendingCommit{}
	for _, uid := range slices.Sorted(maps.Keys(m.grants)) {
		g := m.grants[uid]
		switch {
		case !g.committed && (g.settled || !m.stillValid(g)):
			m.dropGrant(uid) // something that was seen meanwhile rules it out
		case g.committed && (g.settled || g.refused) && !g.writing:
			p.droppedGrants = append(p.droppedGrants, uid)
		default:
			if !g.committed {
				p.addedGrants = append(p.addedGrants, uid)
			}
			s.InFlight = append(s.InFlight, fence.Grant{NodeName: g.Node.Name, NodeUID: uid, ClusterCIDRName: g.RangeRef.Name, CIDRs: g.CIDRs})
		}
	}
	p.openRanges = m.rangesToOpen(p.addedGrants)
	p.closedMarks, p.closedBlocks = m.marksToClose(), m.blocksToClose()
	s.OpenRanges = p.openRanges
	var wait time.Duration
	if m.adopting && now.Before(m.adoptUntil) {
		since := m.adoptionStart // as it is on record: other managers know the adoption by it
		s.AdoptingSince, wait = &since, m.adoptUntil.Sub(now)
	}
	rangesChanged := !slices.EqualFunc(p.openRanges, m.openRanges, fence.OpenRange.Equal)
	switch {
	case now.Before(m.nextCommitTime):
		return s, nil, m.nextCommitTime.Sub(now)
	case len(p.addedGrants) > 0, rangesChanged, m.adopting && s.AdoptingSince == nil, m.hasObjectToClose(), m.hasBlockToRelease():
	case len(p.droppedGrants) > 0 && m.writesInFlight == 0:
		if m.settleAt.IsZero() {
			m.settleAt = now.Add(settleDelay)
		}
		if left := m.settleAt.Sub(now); left > 0 {
			return s, nil, minWait(wait, left)
		}
	default:
		return s, nil, wait
	}
	return s, p, wait
}

// stillValid reports whether a grant that is not on record may still be committed: nothing that was seen since it was
// planned rules it out (R15).
func (m *nodeState) stillValid(g *nodeGrant) bool {
	n, o := m.nodes[g.Node.UID], m.rangeObjects[g.RangeRef]
	return n != nil && len(n.CIDRs) == 0 && !n.Deleting && o.Range != nil && !o.Range.Closing && o.Range.ContainsAll(g.CIDRs) && m.allocations.IsExclusive(g.Node.UID, g.CIDRs)
}

// rangesToOpen returns what may be granted from after the next commit: the open objects that must not be closed, the
// objects that are granted from, and the blocks that were decided on.
func (m *nodeState) rangesToOpen(added []types.UID) []fence.OpenRange {
	var out []fence.OpenRange
	for _, o := range m.openRanges {
		if o.ClusterCIDRName != "" {
			continue
		}
		ref := podcidr.Ref{Kind: o.Kind, Name: o.Name, UID: o.UID}
		if object := m.rangeObjects[ref]; object.Range != nil && !object.Range.Closing {
			out = append(out, o)
		}
	}
	for _, uid := range added {
		from := m.grants[uid].RangeRef
		if !slices.ContainsFunc(out, func(o fence.OpenRange) bool { return o.UID == from.UID && o.Name == from.Name }) {
			out = append(out, fence.OpenRange{Kind: from.Kind, Name: from.Name, UID: from.UID, CIDRs: m.rangeObjects[from].Range.StaticCIDRs()})
		}
	}
	out = append(out, m.nextOpenBlocks...)
	slices.SortFunc(out, func(a, b fence.OpenRange) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.UID, b.UID))
	})
	return out
}

// recordCommitted records that a commit is on record.
func (m *nodeState) recordCommitted(p *pendingCommit, adopting bool, now time.Time) {
	for _, uid := range p.addedGrants {
		if g := m.grants[uid]; g != nil {
			g.committed = true
		}
	}
	for _, uid := range p.droppedGrants {
		if g := m.grants[uid]; g != nil && g.refused && !g.settled {
			m.dropGrant(uid)
		} else {
			delete(m.grants, uid)
		}
	}
	maps.Copy(m.closedMarks, p.closedMarks)
	maps.Copy(m.closedInTerm, p.closedBlocks)
	m.openBlocksChanged = m.openBlocksChanged || !slices.EqualFunc(p.openRanges, m.openRanges, fence.OpenRange.Equal)
	m.adopting, m.settleAt, m.recordVerifiedAt = adopting, time.Time{}, now
	m.setOpenRanges(p.openRanges)
	m.commitErr, m.commitPause, m.nextCommitTime = nil, 0, time.Time{}
	m.Reset()
}

// recordRefusedCommit records that the API server refuses a commit permanently. The next one is planned from scratch,
// after a pause.
func (m *nodeState) recordRefusedCommit(err error, now time.Time) {
	m.withdrawGrants(nil)
	m.commitErr = err
	m.commitPause = term.NextRetryPause(m.commitPause)
	m.nextCommitTime = now.Add(m.commitPause)
}

// isRecordStale reports whether the record was last seen so long ago that it may have been lost since and its CIDRs
// granted to others, as after a pause of the process. It is read again before the next write (R10, R14).
func (m *nodeState) isRecordStale(now time.Time) bool {
	return term.ElapsedTime(m.recordVerifiedAt, now) > term.RequestTimeout
}

// dueGrants returns the grants to be written now, oldest Node first, and how long until others are due.
func (m *nodeState) dueGrants(now time.Time) (out []*nodeGrant, wait time.Duration) {
	for _, g := range m.grants {
		switch {
		case !g.committed || g.settled || g.refused || g.writing:
		case g.retryAt.After(now):
			wait = minWait(wait, g.retryAt.Sub(now))
		case m.allocations.IsUsedByOther(g.Node.UID, g.CIDRs):
			// Another writer has set what was granted. The grant is not written any more. If it was never sent, it is
			// over at once; otherwise it is over when no write of it can land any more (R10): until then no other Node
			// gets its CIDRs, even if that other Node is deleted.
			left := g.lastWriteEnd.Add(adoptionPeriod).Sub(now)
			if g.refused = (!g.writeStarted && !g.inherited) || left <= 0; !g.refused {
				wait = minWait(wait, left)
			}
			m.addEventf(g.Node, CIDRNotAvailable, "another allocator has given %v to another Node, which were granted to it: it gets others within %v; run kube-controller-manager with --allocate-node-cidrs=false, and one allocator only", g.CIDRs, adoptionPeriod)
		default:
			out = append(out, g)
		}
	}
	slices.SortFunc(out, func(a, b *nodeGrant) int {
		return cmp.Or(a.Node.CreatedAt.Compare(b.Node.CreatedAt), cmp.Compare(a.Node.Name, b.Node.Name), cmp.Compare(a.Node.UID, b.Node.UID))
	})
	return out, wait
}

// beginWrite records that a write of a grant is submitted; endWrite records that it has ended.
func (m *nodeState) beginWrite(g *nodeGrant) {
	g.writing, g.writeStarted = true, true
	m.writesInFlight++
	if g.failures == 0 {
		m.firstWritesInFlight++
	}
}

func (m *nodeState) endWrite(g *nodeGrant) {
	g.writing = false
	m.writesInFlight--
	if g.failures == 0 {
		m.firstWritesInFlight--
	}
}

// recordWrite records the result of a write, and reports whether there is something to do.
func (m *nodeState) recordWrite(g *nodeGrant, err error, now time.Time) (wake bool) {
	m.endWrite(g)
	g.lastWriteEnd = now
	n := m.nodes[g.Node.UID]
	switch {
	case err == nil && (g.settled || n == nil):
		m.refusedWrites = refusedWrites{}
	case term.IsPermanentRefusal(err) && !g.outcomeUnknown && !g.inherited && !g.settled:
		g.refused, m.refusedWrites.lastErr = true, err
		if m.refusedWrites.nodeUIDs == nil {
			m.refusedWrites.nodeUIDs = map[types.UID]bool{}
		}
		wasRetryingSerially := m.isRetryingSerially()
		if m.refusedWrites.nodeUIDs[g.Node.UID] = true; !wasRetryingSerially && m.isRetryingSerially() {
			m.refusedWrites.retryPause, m.refusedWrites.nextRetryAt = term.MinRetryPause, now.Add(term.MinRetryPause)
		}
		if n != nil && n.waiting != nil {
			n.waiting.retryAt = term.RetryTimeAfter(now, term.RetryDelay(n.waiting.failures))
			n.waiting.failures++
			m.addEventf(n.Node, CIDRNotAvailable, "%v; the manager tries again", err)
		}
	default:
		g.outcomeUnknown = true
		delay := term.RetryDelay(g.failures) // also after a write that succeeded without showing its result
		if err != nil && term.IsPermanentRefusal(err) {
			delay *= 10 // the grant stays on record, as an earlier write may land
		}
		g.retryAt = term.RetryTimeAfter(now, delay)
		wake = err != nil && m.isBeforeNextReconcile(g.retryAt, now)
		if g.failures++; g.failures == failuresBeforeEvent && err != nil && n != nil && !g.settled {
			m.addEventf(n.Node, CIDRNotAvailable, "writing its pod CIDRs fails: %v; the manager tries again", err)
		}
	}
	return wake || m.writesInFlight == 0 || (m.firstWritesInFlight == refillThreshold && len(m.pendingNodes) > 0)
}

// failuresBeforeEvent is how many times in a row a write may fail without being refused permanently before its Node
// gets an event.
const failuresBeforeEvent = 4

// isBeforeNextReconcile reports whether the cluster has to be enqueued for a retry that is due at the given time,
// because its next reconcile is later or unknown. A planned reconcile whose time has passed did not happen, as the
// caller backs off after an error: a retry that is due within a second does not wait for that.
func (m *nodeState) isBeforeNextReconcile(due, now time.Time) bool {
	switch {
	case m.nextReconcile.IsZero():
		return true
	case now.Before(m.nextReconcile):
		return due.Before(m.nextReconcile)
	}
	return due.Before(now.Add(time.Second))
}

// recordTermLost records that another manager holds the cluster: what was planned is void, and what is on record is for
// the other manager to finish, unless it leaves it unfinished.
func (m *nodeState) recordTermLost(now time.Time, jitter func(time.Duration) time.Duration) {
	m.isHolder, m.needsRecordRead, m.needsRevalidation, m.workSince = false, true, false, time.Time{}
	m.setOpenRanges(nil)
	for uid := range m.grants {
		m.dropGrant(uid)
	}
	m.Next(now, 0, jitter)
}

// mayTakeOver reports whether this manager should become the holder now, or how long to wait; 0 means that there is
// nothing to do. Only the amount of work depends on the result, never safety.
func (m *nodeState) mayTakeOver(now time.Time, elected bool) (bool, time.Duration) {
	if now.Before(m.NotBefore) {
		return false, m.NotBefore.Sub(now)
	}
	work, wait := m.hasWork(now)
	switch {
	case work:
	case elected:
		m.workSince = time.Time{}
		m.addDeferredRefusals()
		return false, wait
	default:
		m.workSince = time.Time{}
		return m.needsTakeoverForEvents(now, wait)
	}
	if (!m.wasHolder && !m.hasInheritedWork) || (elected && m.Backoff == 0) {
		return true, 0
	}
	if m.workSince.IsZero() {
		m.workSince = now
	}
	if left := term.TakeoverDelay - now.Sub(m.workSince); left > 0 {
		return false, left
	}
	return true, 0
}

// hasWork reports whether a holder would have something to do. Nodes that can be granted nothing are not work: their
// events are deferred. Nodes whose writes were refused before count, as those of another manager may not be refused.
func (m *nodeState) hasWork(now time.Time) (bool, time.Duration) {
	if m.needsRevalidation || m.takeoverRequested || m.hasObjectToClose() {
		return true, 0
	}
	savedRefusedWrites, notes := m.refusedWrites, len(m.events)
	m.refusedWrites.nodeUIDs = nil
	m.updateCanGrow(now)
	_, wait := m.planGrants(now)
	m.refusedWrites = savedRefusedWrites
	m.deferEvents(notes)
	growth := m.planBlocks(now)
	wait = minWait(wait, growth.requeueAfter)
	work := m.hasInheritedWork || len(m.grants) > 0 || growth.hasRequests()
	m.withdrawGrants(nil)
	return work, wait
}

// hasOnlyInheritedWork reports whether there is nothing to do except what another holder may have left.
func (m *nodeState) hasOnlyInheritedWork(now time.Time) bool {
	left := m.hasInheritedWork
	m.hasInheritedWork = false
	work, _ := m.hasWork(now)
	m.hasInheritedWork = left
	return left && !work
}

// hasObjectToClose reports whether an object that no Node uses has to be closed. The commit without it is made in any
// case: another manager may have opened the object meanwhile, and the commit finds out.
func (m *nodeState) hasObjectToClose() bool {
	for _, o := range m.rangeObjects {
		if o.Closing && o.HasFinalizer && !m.isObjectClosed(o) && len(m.nodesUsing(o)) == 0 {
			return true
		}
	}
	return false
}

// isObjectClosed reports whether this manager has closed an object, and no manager was seen to have opened it since.
func (m *nodeState) isObjectClosed(o RangeObject) bool {
	mark, ok := m.closedMarks[o.Ref]
	return ok && mark == o.EntryMark && !m.isRangeOpen(o.Ref)
}

// marksToClose returns the marks of the objects that have to be closed.
func (m *nodeState) marksToClose() map[podcidr.Ref]string {
	out := map[podcidr.Ref]string{}
	for ref, o := range m.rangeObjects {
		if o.Closing {
			out[ref] = o.EntryMark
		}
	}
	return out
}

// minWait returns the shorter of two waits; 0 means no wait at all, and is ignored.
func minWait(a, b time.Duration) time.Duration {
	if a == 0 || (b > 0 && b < a) {
		return b
	}
	return a
}
