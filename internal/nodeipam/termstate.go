package nodeipam

import (
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/term"
)

// termState is whether this manager is the holder, and what calls for a takeover. A manager that is not the holder
// commits nothing, and begins no write to a Node.
type termState struct {
	// TakeoverBackoff is about the ConfigMap.
	term.TakeoverBackoff
	// isHolder reports whether this manager is the holder; wasHolder reports whether it ever was.
	isHolder, wasHolder bool
	// takeoverCount counts the takeovers that were begun.
	takeoverCount int
	// needsRecordRead reports whether the work that the last holder has left was not read yet; hasInheritedWork reports
	// whether there is some: grants in flight, or an open block that is unknown here.
	needsRecordRead, hasInheritedWork bool
	// takeoverRequested reports whether the cluster has to be taken over although no Node waits.
	takeoverRequested bool
	// needsRevalidation reports whether a Node that had CIDRs was seen without any, so that the state may be from
	// before a restore. The next reconcile takes the cluster over anew.
	needsRevalidation bool
}

// beginTakeover records that a takeover begins, which may be written without an answer.
func (ts *termState) beginTakeover() {
	ts.isHolder, ts.needsRecordRead = false, true
	ts.takeoverCount++
}

// beginTerm records that this manager is the holder, and knows what the last one has left.
func (ts *termState) beginTerm() {
	ts.isHolder, ts.wasHolder, ts.needsRevalidation = true, true, false
	ts.needsRecordRead, ts.hasInheritedWork, ts.takeoverRequested = false, false, false
}

// endTerm records that another manager is the holder.
func (ts *termState) endTerm() {
	ts.isHolder, ts.needsRecordRead, ts.needsRevalidation = false, true, false
}
