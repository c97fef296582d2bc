package nodeipam

import (
	"maps"
	"slices"
	"time"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/fence"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/podcidr"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/term"
)

// recordState is what is on record as of the last commit, and when the next commit may be tried. knownBlocks sets
// openRanges, together with the open blocks.
type recordState struct {
	// openRanges are the objects that CIDRs may be granted from, and the open blocks.
	openRanges []fence.OpenRange
	// closedMarks are the objects that a commit of this manager in this term does not list as open, made since they
	// were seen closing, with the mark that each had before that commit.
	closedMarks map[podcidr.Ref]string
	// verifiedAt is when the state on record was last seen to be this manager's.
	verifiedAt time.Time
	// commitErr is why the last commit was refused permanently. commitPause is the pause after it, and nextCommitTime
	// is when the next commit is tried.
	commitErr      error
	commitPause    time.Duration
	nextCommitTime time.Time
}

// isRangeOpen reports whether an object is open on record.
func (rs *recordState) isRangeOpen(ref podcidr.Ref) bool {
	return slices.ContainsFunc(rs.openRanges, func(o fence.OpenRange) bool { return o.UID == ref.UID && o.Kind == ref.Kind && o.Name == ref.Name })
}

// beginTerm records that the state on record is this manager's, and that nothing was committed in its term yet.
func (rs *recordState) beginTerm(now time.Time) {
	rs.closedMarks = map[podcidr.Ref]string{}
	rs.recordCommit(nil, now)
}

// recordCommit records that a commit of this manager is on record, with the marks of the objects that it has closed.
func (rs *recordState) recordCommit(closedMarks map[podcidr.Ref]string, now time.Time) {
	maps.Copy(rs.closedMarks, closedMarks)
	rs.verifiedAt = now
	rs.commitErr, rs.commitPause, rs.nextCommitTime = nil, 0, time.Time{}
}

// recordRefusal records that the API server refuses a commit permanently, and when the next one is tried.
func (rs *recordState) recordRefusal(err error, now time.Time) {
	rs.commitErr = err
	rs.commitPause = term.NextRetryPause(rs.commitPause)
	rs.nextCommitTime = now.Add(rs.commitPause)
}

// isRecordStale reports whether the record was last seen so long ago that it may have been lost since and its CIDRs
// granted to others, as after a pause of the process. It is read again before the next write (R10, R14).
func (rs *recordState) isRecordStale(now time.Time) bool {
	return term.ElapsedTime(rs.verifiedAt, now) > term.RequestTimeout
}

// isObjectClosed reports whether this manager has closed an object, and no manager was seen to have opened it since.
func (rs *recordState) isObjectClosed(o RangeObject) bool {
	mark, ok := rs.closedMarks[o.Ref]
	return ok && mark == o.EntryMark && !rs.isRangeOpen(o.Ref)
}
