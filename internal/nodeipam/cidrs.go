package nodeipam

import (
	"net/netip"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/podcidr"
)

// nodeCIDRs is which CIDRs are taken, by the Nodes that have them and by the grants that are not settled. The CIDRs of
// a Node are free once its UID is proven to be gone, and never earlier (R17). rebuildAllocations replaces the
// allocations, so other parts keep a pointer to nodeCIDRs and none to them.
type nodeCIDRs struct {
	allocations *podcidr.Allocations
	// conflicts are the Nodes with CIDRs that overlap, until one of them is gone.
	conflicts map[types.UID][]podcidr.Conflict

	cluster *servedCluster
	nodes   *knownNodes
	ranges  *knownRanges
	events  *nodeEvents
	waiting *waitingNodes
	grants  *nodeGrants
	usage   *rangeUsers
}

// addForeignEvents adds events to a Node whose CIDRs are in no ClusterCIDR, or are of Services, and reports whether
// some are in no ClusterCIDR. Where another allocator of the cluster has held its ConfigMap, CIDRs of a Node that names
// an unknown ClusterCIDR were granted by that allocator.
func (nc *nodeCIDRs) addForeignEvents(n *podcidr.Node, of *podcidr.RangeIndex) (foreign bool) {
	others := nc.cluster.hasPeerAllocator && n.ClusterCIDRName != "" && len(nc.ranges.byName[n.ClusterCIDRName]) == 0
	for _, p := range n.CIDRs {
		if !others && len(of.OverlappingRanges([]netip.Prefix{p})) == 0 {
			foreign = true
			nc.events.addEventf(n, PodCIDRForeign, "its pod CIDR %s is in no ClusterCIDR; it stays", p)
		}
		if service, ok := nc.allocations.OverlappingExclusion(p); ok {
			nc.events.addEventf(n, PodCIDRInServiceRange, "its pod CIDR %s overlaps the Service CIDR %s: drain and delete the Node, so that it registers again", p, service)
		}
	}
	return foreign
}

// checkLateLabels adds an event to a Node whose labels come too late: they select another ClusterCIDR than the one that
// it has CIDRs of, which it keeps for its life.
func (nc *nodeCIDRs) checkLateLabels(uid types.UID, version string, labels map[string]string) {
	n := nc.nodes.byUID[uid]
	if n == nil || n.resourceVersion != version {
		return // the Node was seen in another version since, or is gone
	}
	old := n.labelsHash
	if n.labelsHash = hashLabels(labels); old == 0 || old == n.labelsHash || len(n.CIDRs) == 0 {
		return
	}
	current := nc.ranges.rangeForNode(n.Node)
	if current == nil {
		return
	}
	open := slices.DeleteFunc(slices.Clone(nc.ranges.validRanges()), func(r *podcidr.Range) bool { return r.Closing && r != current })
	order := podcidr.RangesForNode(open, &podcidr.Node{Name: n.Name, Labels: labels})
	if len(order) == 0 || order[0] == current || !order[0].HasSelector() {
		return
	}
	nc.events.addEventf(n.Node, PodCIDRLabelsLate, "its labels now select ClusterCIDR %s, but it keeps its pod CIDRs %v of %s: set the labels before it registers, then drain and delete it, so that it registers again",
		order[0].Name, n.CIDRs, current.Name)
}

// classifyNode sorts a Node by what is known of it; changed reports whether that changes what the Node may be granted.
func (nc *nodeCIDRs) classifyNode(n *nodeEntry, changed bool) (wake bool) {
	if len(n.CIDRs) > 0 {
		n.waiting = nil
		nc.recordNodeCIDRs(n)
		nc.waiting.removeWaiting(n.UID)
		if g := nc.grants.byNode[n.UID]; g != nil && !g.settled && !slices.Equal(g.CIDRs, n.CIDRs) {
			nc.waiting.requeueRefused() // what was granted is free
		}
		return nc.settleGrant(n.UID)
	}
	if n.Deleting {
		nc.waiting.removeWaiting(n.UID)
		return false
	}
	if nc.grants.byNode[n.UID] != nil || !changed {
		return false
	}
	nc.waiting.removeWaiting(n.UID)
	nc.waiting.pending[n.UID] = n
	return true
}

// recordNodeCIDRs records the CIDRs of a Node in the allocations.
func (nc *nodeCIDRs) recordNodeCIDRs(n *nodeEntry) {
	clashes := nc.allocations.RecordNode(n.Node)
	if len(clashes) == 0 {
		return
	}
	nc.conflicts[n.UID] = clashes
	for _, c := range clashes {
		nc.events.addConflictEvents(n.Node, c)
	}
}

// settleGrant records the proof that the grant of a Node can end.
func (nc *nodeCIDRs) settleGrant(uid types.UID) (wake bool) {
	g := nc.grants.byNode[uid]
	if g == nil || g.settled {
		return false
	}
	g.settled = true
	nc.usage.invalidateUsage()
	return true
}

// rebuildAllocations builds the allocations from the known Nodes and grants.
func (nc *nodeCIDRs) rebuildAllocations() {
	nc.allocations, nc.ranges.useless = podcidr.NewAllocations(nc.ranges.serviceCIDRs), map[*podcidr.Range]bool{}
	clear(nc.conflicts)
	for _, n := range nc.nodes.nodesByAge() {
		nc.recordNodeCIDRs(n)
	}
	for _, g := range nc.grants.byNode {
		if !g.settled {
			nc.allocations.RecordGrant(g.Node, g.CIDRs)
		}
	}
}

// withdrawGrants withdraws the grants that are not on record, all of them or those of one object: their Nodes are
// planned for again.
func (nc *nodeCIDRs) withdrawGrants(from *podcidr.Ref) {
	for uid, g := range nc.grants.byNode {
		if !g.committed && (from == nil || g.RangeRef == *from) {
			nc.dropGrant(uid)
		}
	}
}

// dropGrant drops a grant that is not on record, or not any more.
func (nc *nodeCIDRs) dropGrant(uid types.UID) {
	nc.usage.invalidateUsage()
	delete(nc.grants.byNode, uid)
	nc.allocations.WithdrawGrant(uid)
	nc.waiting.requeueRefused() // there is room again
	if n := nc.nodes.byUID[uid]; n != nil && len(n.CIDRs) == 0 && !n.Deleting {
		nc.waiting.pending[uid] = n
	}
}

// stillValid reports whether a grant that is not on record may still be committed: nothing that was seen since it was
// planned rules it out (R15).
func (nc *nodeCIDRs) stillValid(g *nodeGrant) bool {
	n, o := nc.nodes.byUID[g.Node.UID], nc.ranges.objects[g.RangeRef]
	return n != nil && len(n.CIDRs) == 0 && !n.Deleting && o.Range != nil && !o.Range.Closing && o.Range.ContainsAll(g.CIDRs) && nc.allocations.IsExclusive(g.Node.UID, g.CIDRs)
}

// releaseNode releases the CIDRs of a Node that is gone, and reports whether its grant can end.
func (nc *nodeCIDRs) releaseNode(uid types.UID, now time.Time) (settled bool) {
	delete(nc.conflicts, uid)
	for other, clashes := range nc.conflicts {
		left := slices.DeleteFunc(clashes, func(c podcidr.Conflict) bool { return c.OtherNodeUID == uid })
		if nc.conflicts[other] = left; len(left) == 0 {
			delete(nc.conflicts, other)
		}
	}
	nc.allocations.ReleaseNode(uid, now)
	return nc.settleGrant(uid)
}
