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

// settleDelay is how long settled grants stay on record where nothing else is committed.
const settleDelay = time.Second

// commitPlanner composes the next state that goes on record, and records the outcome of a commit. A commit adds a grant
// only if nothing that was seen since it was planned rules it out (R15).
type commitPlanner struct {
	// settleAt is when settled grants are committed off the record, if no other commit comes before.
	settleAt time.Time

	ranges     *knownRanges
	term       *termState
	adoption   *adoptionState
	record     *recordState
	grants     *nodeGrants
	cidrs      *nodeCIDRs
	writes     *nodeWrites
	blocks     *knownBlocks
	protection *objectProtection
}

// pendingCommit is a commit until its outcome is known.
type pendingCommit struct {
	addedGrants, droppedGrants []types.UID
	openRanges                 []fence.OpenRange
	closedMarks                map[podcidr.Ref]string
	closedBlocks               map[types.UID]bool
}

// prepareCommit drops the grants that something seen since they were planned rules out, and returns the next state if
// there is a reason to commit one; otherwise it returns how long until there is, 0 if nothing is known.
func (cp *commitPlanner) prepareCommit(now time.Time) (fence.State, *pendingCommit, time.Duration) {
	var s fence.State
	p := &pendingCommit{}
	for _, uid := range slices.Sorted(maps.Keys(cp.grants.byNode)) {
		g := cp.grants.byNode[uid]
		switch {
		case !g.committed && (g.settled || !cp.cidrs.stillValid(g)):
			cp.cidrs.dropGrant(uid) // something that was seen meanwhile rules it out
		case g.committed && (g.settled || g.refused) && !g.Busy:
			p.droppedGrants = append(p.droppedGrants, uid)
		default:
			if !g.committed {
				p.addedGrants = append(p.addedGrants, uid)
			}
			s.InFlight = append(s.InFlight, fence.Grant{NodeName: g.Node.Name, NodeUID: uid, ClusterCIDRName: g.RangeRef.Name, CIDRs: g.CIDRs})
		}
	}
	p.openRanges = cp.rangesToOpen(p.addedGrants)
	p.closedMarks, p.closedBlocks = cp.ranges.marksToClose(), cp.blocks.blocksToClose()
	s.OpenRanges = p.openRanges
	var wait time.Duration
	if cp.adoption.adopting && now.Before(cp.adoption.until) {
		since := cp.adoption.start // as it is on record: other managers know the adoption by it
		s.AdoptingSince, wait = &since, cp.adoption.until.Sub(now)
	}
	rangesChanged := !slices.EqualFunc(p.openRanges, cp.record.openRanges, fence.OpenRange.Equal)
	switch {
	case now.Before(cp.record.nextCommitTime):
		return s, nil, cp.record.nextCommitTime.Sub(now)
	case len(p.addedGrants) > 0, rangesChanged, cp.adoption.adopting && s.AdoptingSince == nil, cp.protection.hasObjectToClose(), cp.blocks.hasBlockToRelease():
	case len(p.droppedGrants) > 0 && cp.writes.inFlight == 0:
		if cp.settleAt.IsZero() {
			cp.settleAt = now.Add(settleDelay)
		}
		if left := cp.settleAt.Sub(now); left > 0 {
			return s, nil, term.MinWait(wait, left)
		}
	default:
		return s, nil, wait
	}
	return s, p, wait
}

// rangesToOpen returns what may be granted from after the next commit: the open objects that must not be closed, the
// objects that are granted from, and the blocks that were decided on.
func (cp *commitPlanner) rangesToOpen(added []types.UID) []fence.OpenRange {
	var out []fence.OpenRange
	for _, o := range cp.record.openRanges {
		if o.ClusterCIDRName != "" {
			continue
		}
		ref := podcidr.Ref{Kind: o.Kind, Name: o.Name, UID: o.UID}
		if object := cp.ranges.objects[ref]; object.Range != nil && !object.Range.Closing {
			out = append(out, o)
		}
	}
	for _, uid := range added {
		from := cp.grants.byNode[uid].RangeRef
		if !slices.ContainsFunc(out, func(o fence.OpenRange) bool { return o.UID == from.UID && o.Name == from.Name }) {
			out = append(out, fence.OpenRange{Kind: from.Kind, Name: from.Name, UID: from.UID, CIDRs: cp.ranges.objects[from].Range.StaticCIDRs()})
		}
	}
	out = append(out, cp.blocks.nextOpen...)
	slices.SortFunc(out, func(a, b fence.OpenRange) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.UID, b.UID))
	})
	return out
}

// recordCommitted records that a commit is on record.
func (cp *commitPlanner) recordCommitted(p *pendingCommit, adopting bool, now time.Time) {
	for _, uid := range p.addedGrants {
		if g := cp.grants.byNode[uid]; g != nil {
			g.committed = true
		}
	}
	for _, uid := range p.droppedGrants {
		if g := cp.grants.byNode[uid]; g != nil && g.refused && !g.settled {
			cp.cidrs.dropGrant(uid)
		} else {
			delete(cp.grants.byNode, uid)
		}
	}
	cp.adoption.adopting, cp.settleAt = adopting, time.Time{}
	cp.record.recordCommit(p.closedMarks, now)
	cp.blocks.recordCommit(p.openRanges, p.closedBlocks)
	cp.term.Reset()
}

// recordRefusedCommit records that the API server refuses a commit permanently. The next one is planned from scratch,
// after a pause.
func (cp *commitPlanner) recordRefusedCommit(err error, now time.Time) {
	cp.cidrs.withdrawGrants(nil)
	cp.record.recordRefusal(err, now)
}
