package nodeipam

import (
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/fence"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/podcidr"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/term"
)

// nodeGrants are the grants that are on record, and those that the next commit is to add to it. There is at most one
// for each Node.
type nodeGrants struct {
	byNode map[types.UID]*nodeGrant

	nodes  *knownNodes
	record *recordState
}

// nodeGrant is a grant that has not left the record yet.
type nodeGrant struct {
	podcidr.Grant
	// committed reports whether the grant is on record; inherited reports whether another manager has committed it, or
	// this one in an earlier term.
	committed, inherited bool
	// Retry is the progress of its writes; outcomeUnknown reports whether the answer to one is missing.
	term.Retry
	outcomeUnknown bool
	// writeStarted reports whether a write of it was begun.
	writeStarted bool
	// settled reports whether it is proven that the Node has CIDRs, or is gone; refused reports whether nothing of the
	// grant was written or ever will be. Either way the grant leaves the record with the next commit.
	settled, refused bool
	// lastWriteEnd is when the last write of it ended, as far as is known; for an inherited grant, when it was taken
	// over.
	lastWriteEnd time.Time
	// waitingSince is when the Node was first seen without CIDRs.
	waitingSince time.Time
}

// remainingGrants returns how many more grants the ConfigMap has room for, whatever their names.
func (ng *nodeGrants) remainingGrants() int {
	const fixed, cidr = 80, len(`"1234:1234:1234:1234:1234:1234:1234:1234/128",`)
	left := maxStateBytes
	for _, o := range ng.record.openRanges {
		left -= fixed + len(o.Kind) + len(o.Name) + len(o.UID) + len(o.ClusterCIDRName) + len(o.CIDRs)*cidr
	}
	for uid, g := range ng.byNode {
		left -= fixed + len(uid) + len(g.Node.Name) + len(g.RangeRef.Name) + len(g.CIDRs)*cidr
	}
	return left / maxGrantBytes
}

// inheritGrants sets the grants to those that are on record at the beginning of a term.
func (ng *nodeGrants) inheritGrants(inFlight []fence.Grant, now time.Time) {
	clear(ng.byNode)
	for _, g := range inFlight {
		n := ng.nodes.byUID[g.NodeUID]
		inherited := &nodeGrant{committed: true, inherited: true, lastWriteEnd: now, settled: n == nil || len(n.CIDRs) > 0}
		inherited.Grant = podcidr.Grant{Node: &podcidr.Node{Name: g.NodeName, UID: g.NodeUID}, RangeRef: podcidr.Ref{Name: g.ClusterCIDRName}, CIDRs: g.CIDRs}
		if n != nil {
			inherited.Node = n.Node
		}
		ng.byNode[g.NodeUID] = inherited
	}
}
