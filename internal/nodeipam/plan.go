package nodeipam

import (
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/podcidr"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/term"
)

// grantPlanner chooses what each Node that waits is granted, or the reason why it gets nothing. Its grants are not on
// record until a commit adds them. It has no state of its own.
type grantPlanner struct {
	cluster    *servedCluster
	ranges     *knownRanges
	record     *recordState
	events     *nodeEvents
	waiting    *waitingNodes
	grants     *nodeGrants
	usage      *rangeUsers
	cidrs      *nodeCIDRs
	writes     *nodeWrites
	protection *objectProtection
}

// planGrants makes grants, not on record yet, for Nodes that wait, and returns the objects that must be protected
// first. It returns how long to wait for Nodes that cannot be planned for now.
func (gp *grantPlanner) planGrants(now time.Time) (protect []podcidr.Ref, wait time.Duration) {
	limit, wait := gp.writes.grantLimit(now)
	if limit == 0 {
		if len(gp.waiting.pending) == 0 {
			wait = 0
		}
		return nil, wait
	}
	var waiting []*podcidr.Node
	chooses := gp.ranges.hasSelectors()
	for _, n := range gp.waiting.pending {
		if until := n.plannableAt(chooses); until.After(now) {
			wait = term.MinWait(wait, until.Sub(now))
		} else {
			waiting = append(waiting, n.Node)
		}
	}
	if len(waiting) == 0 {
		return nil, wait
	}
	if !gp.writes.isRetryingSerially() {
		_, protect, later := gp.grantNodes(waiting, limit, now)
		return protect, term.MinWait(wait, later)
	}
	// One Node is a trial: the next in order to which something can be granted. The Nodes before it wait for something
	// else.
	slices.SortFunc(waiting, gp.waiting.compareRetryOrder)
	for i := range waiting {
		made, protect, later := gp.grantNodes(waiting[i:i+1:i+1], 1, now)
		wait = term.MinWait(wait, later)
		if made > 0 {
			gp.writes.refused.retryPause = term.NextRetryPause(gp.writes.refused.retryPause)
			gp.writes.refused.nextRetryAt = now.Add(gp.writes.refused.retryPause)
			return protect, wait
		}
	}
	return nil, wait
}

// grantNodes makes grants for some of the Nodes that wait, or records why they get nothing. It returns how many grants
// it made, which objects must be protected first, and how long to wait for the Nodes whose object could not be
// protected.
func (gp *grantPlanner) grantNodes(waiting []*podcidr.Node, limit int, now time.Time) (made int, protect []podcidr.Ref, wait time.Duration) {
	for again := true; again && made < limit; {
		d := podcidr.PlanGrants(gp.cidrs.allocations, gp.ranges.validRanges(), waiting, limit-made, now)
		again = false
		gp.recordRefusals(d.Refusals)
		for _, g := range d.Grants {
			if until := gp.protection.blocked[g.RangeRef].RetryAt; until.After(now) {
				// The Node waits for this object, as a CIDR of another range would be of the wrong size. Other Nodes
				// take its place.
				gp.cidrs.allocations.WithdrawGrant(g.Node.UID)
				gp.waiting.pending[g.Node.UID].waiting.RetryAt = until
				wait, again = term.MinWait(wait, until.Sub(now)), true
				continue
			}
			made++
			g.CIDRs = orderByFamily(g.CIDRs, gp.ranges.primaryFamily)
			gp.usage.invalidateUsage()
			gp.grants.byNode[g.Node.UID] = &nodeGrant{Grant: g, waitingSince: gp.waiting.pending[g.Node.UID].waiting.firstSeen}
			delete(gp.waiting.pending, g.Node.UID)
			if !gp.record.isRangeOpen(g.RangeRef) && !slices.Contains(protect, g.RangeRef) {
				protect = append(protect, g.RangeRef)
			}
		}
		if again { // otherwise all of them would be scanned for nothing
			waiting = slices.DeleteFunc(waiting, func(n *podcidr.Node) bool {
				return gp.waiting.pending[n.UID] == nil || gp.waiting.pending[n.UID].waiting.RetryAt.After(now)
			})
		}
	}
	return made, protect, wait
}

// recordRefusals records which Nodes get nothing for now. A Node that waits for a block gets no event.
func (gp *grantPlanner) recordRefusals(nodes map[types.UID]podcidr.Refusal) {
	for uid, why := range nodes {
		gp.waiting.refused[uid] = why
		if !why.AwaitsGrowth {
			gp.addRefusalEvent(gp.waiting.pending[uid], why)
		}
		delete(gp.waiting.pending, uid)
	}
}

// addRefusalEvent adds an event with the reason why a Node gets nothing. Where another allocator of the cluster serves
// Nodes too, it adds none if no range here is for the Node, as the Node may be served by the other one.
func (gp *grantPlanner) addRefusalEvent(n *nodeEntry, why podcidr.Refusal) {
	if full, useless := gp.ranges.describeRanges(why.FullRanges); len(why.FullRanges) > 0 {
		text := "all ClusterCIDRs that match are full: %s; add a ClusterCIDR, or delete Nodes"
		if useless == len(why.FullRanges) {
			text = "the ClusterCIDRs that match give nothing: %s; add a ClusterCIDR with another range"
		}
		gp.events.addEventf(n.Node, CIDRNotAvailable, text, full)
		return
	}
	if gp.cluster.hasPeerAllocator {
		return
	}
	var all []string
	for _, r := range gp.ranges.validRanges() {
		if !r.Closing {
			all = append(all, r.Name)
		}
	}
	if len(all) == 0 && gp.cluster.inFleet {
		gp.events.addEventf(n.Node, CIDRNotAvailable, "no ClusterCIDR of the management cluster is for this cluster; add one whose clusterSelector selects its Cluster")
		return
	}
	if len(all) == 0 {
		gp.events.addEventf(n.Node, CIDRNotAvailable, "there is no ClusterCIDR; add one")
		return
	}
	gp.events.addEventf(n.Node, CIDRNotAvailable, "no ClusterCIDR selects it; there are %s: add one that does, or change its labels", joinNames(all))
}
