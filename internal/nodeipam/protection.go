package nodeipam

import (
	"slices"
	"time"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/podcidr"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/term"
)

// objectProtection decides which objects are marked as in use on the API server (R15): an object is marked before it is
// opened, and the mark is removed after the object is closed on record and no Node uses it.
type objectProtection struct {
	// blocked are the objects that could not be protected. Nothing is granted from one before its retry is due.
	blocked map[podcidr.Ref]term.Retry
	// needsCheck reports whether it has to be checked that our finalizer is on all objects that Nodes use.
	needsCheck bool

	nodes    *knownNodes
	ranges   *knownRanges
	term     *termState
	adoption *adoptionState
	record   *recordState
	events   *nodeEvents
	grants   *nodeGrants
	usage    *rangeUsers
	cidrs    *nodeCIDRs
	blocks   *knownBlocks
}

// objectsToUnprotect returns the objects that were closed by a commit of this term, and that no Node is known to use.
// It returns none while the state before is adopted, as not everything is known then.
func (op *objectProtection) objectsToUnprotect() []RangeObject {
	if !op.term.isHolder || op.adoption.adopting {
		return nil
	}
	var out []RangeObject
	for _, o := range op.ranges.objects {
		if o.Closing && o.HasFinalizer && op.record.isObjectClosed(o) && len(op.usage.nodesUsing(o)) == 0 && !op.blocks.hasBlocks(o) {
			out = append(out, o)
		}
	}
	return out
}

// blockObject records that an object could not be protected: it is retried after a while, and its Nodes wait for that.
func (op *objectProtection) blockObject(ref podcidr.Ref, err error, now time.Time) {
	b := op.blocked[ref]
	b.FailTransiently(now)
	op.postponeObject(ref, b, func(n *podcidr.Node) {
		op.events.addEventf(n, CIDRNotAvailable, "%v; the manager tries again", err)
	})
}

// postponeObject delays the protection of an object, and calls each for the Nodes that wait for it.
func (op *objectProtection) postponeObject(ref podcidr.Ref, b term.Retry, each func(*podcidr.Node)) {
	op.blocked[ref], op.needsCheck = b, true
	for _, g := range op.grants.byNode {
		if n := op.nodes.byUID[g.Node.UID]; n != nil && n.waiting != nil && !g.committed && g.RangeRef == ref {
			n.waiting.RetryAt = b.RetryAt
			each(g.Node)
		}
	}
	op.cidrs.withdrawGrants(&ref)
}

// checkFinalizers adds to the objects to protect those that Nodes use and that are not protected: they were adopted,
// or another writer removed our finalizer.
func (op *objectProtection) checkFinalizers(out []podcidr.Ref, now time.Time) []podcidr.Ref {
	if !op.term.isHolder || !op.needsCheck {
		return out
	}
	op.needsCheck = false
	for ref, o := range op.ranges.objects {
		switch {
		case o.HasFinalizer || o.Closing || slices.Contains(out, ref):
		case op.blocked[ref].RetryAt.After(now):
			op.needsCheck = true // it is checked again
		case len(op.usage.nodesUsing(o)) > 0:
			out = append(out, ref)
		}
	}
	return out
}

// closeRange records that nothing more may be granted from an object, although the watch does not show that yet.
func (op *objectProtection) closeRange(ref podcidr.Ref) {
	op.ranges.closeRange(ref)
	op.cidrs.withdrawGrants(&ref)
}

// hasObjectToClose reports whether an object that no Node uses has to be closed. The commit without it is made in any
// case: another manager may have opened the object meanwhile, and the commit finds out.
func (op *objectProtection) hasObjectToClose() bool {
	for _, o := range op.ranges.objects {
		if o.Closing && o.HasFinalizer && !op.record.isObjectClosed(o) && len(op.usage.nodesUsing(o)) == 0 {
			return true
		}
	}
	return false
}
