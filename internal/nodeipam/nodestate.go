// Package nodeipam grants the Nodes of a cluster their pod CIDRs: it records what they have, plans with podcidr,
// commits by fence, and writes. docs/design.md has the rules, and the proof that it never grants overlapping CIDRs to
// two Nodes.
//
// A grant is on record once the ConfigMap of the fence has it. An object is open while that lists it as one that CIDRs
// may be granted from.
package nodeipam

import (
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/fence"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/podcidr"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/term"
)

// nodeState is everything that is known of a cluster, in parts. A part uses those before it, in the order of the
// fields. The state is locked for each use: feeds and writes update it at any time, and all decisions are made in the
// one goroutine that reconciles the cluster. The methods of nodeState itself are those that many parts take part in: to
// observe what feeds show, and to begin and end a term.
type nodeState struct {
	mu sync.Mutex

	cluster    *servedCluster
	nodes      *knownNodes
	ranges     *knownRanges
	term       *termState
	adoption   *adoptionState
	record     *recordState
	events     *nodeEvents
	waiting    *waitingNodes
	grants     *nodeGrants
	usage      *rangeUsers
	cidrs      *nodeCIDRs
	writes     *nodeWrites
	requests   *blockRequests
	blocks     *knownBlocks
	protection *objectProtection
	growth     *blockPlanner
	planner    *grantPlanner
	commits    *commitPlanner
	takeovers  *takeoverPlanner
	reports    *reportBuilder
}

// lock locks the state and returns it.
func (ns *nodeState) lock() *nodeState {
	ns.mu.Lock()
	return ns
}

// Unlock releases the lock of a state.
func (ns *nodeState) Unlock() { ns.mu.Unlock() }

// newNodeState returns the state of a cluster before anything was observed; grace is how long an idle block stays.
func newNodeState(of ClusterKey, grace time.Duration) *nodeState {
	m := &nodeState{}
	m.cluster = &servedCluster{inFleet: of != ClusterKey{}, name: of.Name}
	m.nodes = &knownNodes{byUID: map[types.UID]*nodeEntry{}}
	m.ranges = &knownRanges{objects: map[podcidr.Ref]RangeObject{}, closedByLiveRead: map[podcidr.Ref]bool{}}
	m.term = &termState{needsRecordRead: true}
	m.adoption = &adoptionState{}
	m.record = &recordState{}
	m.events = &nodeEvents{emitted: map[types.UID][]pendingEvent{}, deferred: deferredEvents{refusalEvents: map[types.UID]pendingEvent{}, otherEvents: map[types.UID][]pendingEvent{}}, nodes: m.nodes}
	m.waiting = &waitingNodes{pending: map[types.UID]*nodeEntry{}, refused: map[types.UID]podcidr.Refusal{}, nodes: m.nodes, events: m.events}
	m.grants = &nodeGrants{byNode: map[types.UID]*nodeGrant{}, nodes: m.nodes, record: m.record}
	m.usage = &rangeUsers{nodes: m.nodes, ranges: m.ranges, grants: m.grants}
	m.cidrs = &nodeCIDRs{conflicts: map[types.UID][]podcidr.Conflict{}, cluster: m.cluster, nodes: m.nodes, ranges: m.ranges, events: m.events, waiting: m.waiting, grants: m.grants, usage: m.usage}
	m.writes = &nodeWrites{nodes: m.nodes, adoption: m.adoption, record: m.record, events: m.events, waiting: m.waiting, grants: m.grants, cidrs: m.cidrs}
	m.requests = &blockRequests{}
	m.blocks = &knownBlocks{byName: map[string]Block{}, notYetInCache: map[types.UID]time.Time{}, verifiedLive: map[types.UID]bool{}, closedInTerm: map[types.UID]bool{}, missingNames: map[string]bool{}, idleSince: map[types.UID]time.Time{}, idleGracePeriod: grace, cluster: m.cluster, ranges: m.ranges, term: m.term, record: m.record, waiting: m.waiting, usage: m.usage, cidrs: m.cidrs, requests: m.requests}
	m.protection = &objectProtection{blocked: map[podcidr.Ref]term.Retry{}, nodes: m.nodes, ranges: m.ranges, term: m.term, adoption: m.adoption, record: m.record, events: m.events, grants: m.grants, usage: m.usage, cidrs: m.cidrs, blocks: m.blocks}
	m.growth = &blockPlanner{ranges: m.ranges, term: m.term, adoption: m.adoption, waiting: m.waiting, cidrs: m.cidrs, requests: m.requests, blocks: m.blocks, protection: m.protection}
	m.planner = &grantPlanner{cluster: m.cluster, ranges: m.ranges, record: m.record, events: m.events, waiting: m.waiting, grants: m.grants, usage: m.usage, cidrs: m.cidrs, writes: m.writes, protection: m.protection}
	m.commits = &commitPlanner{ranges: m.ranges, term: m.term, adoption: m.adoption, record: m.record, grants: m.grants, cidrs: m.cidrs, writes: m.writes, blocks: m.blocks, protection: m.protection}
	m.takeovers = &takeoverPlanner{term: m.term, events: m.events, grants: m.grants, cidrs: m.cidrs, writes: m.writes, protection: m.protection, growth: m.growth, planner: m.planner}
	m.reports = &reportBuilder{cluster: m.cluster, nodes: m.nodes, ranges: m.ranges, term: m.term, adoption: m.adoption, record: m.record, events: m.events, waiting: m.waiting, grants: m.grants, usage: m.usage, cidrs: m.cidrs, writes: m.writes, requests: m.requests, blocks: m.blocks}
	m.cidrs.rebuildAllocations()
	return m
}

// observeNode records a Node as it was seen, and reports whether there is something to do. Evidence only grows: CIDRs
// that are set stay, and a Node that is being deleted never stops being deleted.
func (ns *nodeState) observeNode(n *podcidr.Node, version string, now time.Time) (wake bool) {
	if ns.nodes.Has(n.UID) {
		return false
	}
	known := ns.nodes.byUID[n.UID]
	if known == nil {
		known = newNodeEntry(n, version, now)
		known.lastSeenTakeover = ns.term.takeoverCount
		ns.nodes.byUID[n.UID] = known
		if len(n.CIDRs) > 0 {
			ns.usage.invalidateUsage()
		}
		return ns.cidrs.classifyNode(known, true)
	}
	if !term.IsNewerVersion(version, known.resourceVersion) {
		known.lastSeenTakeover = ns.term.takeoverCount
		return false
	}
	old := known.Node
	if len(old.CIDRs) > 0 && len(n.CIDRs) == 0 {
		ns.term.needsRevalidation = true
		return true
	}
	if old.ClusterCIDRName != n.ClusterCIDRName || !slices.Equal(old.CIDRs, n.CIDRs) {
		ns.usage.invalidateUsage()
	}
	known.Node, known.resourceVersion, known.lastSeenTakeover = n, version, ns.term.takeoverCount
	return ns.cidrs.classifyNode(known, old.Deleting != n.Deleting || old.LabelsTimeout != n.LabelsTimeout || !maps.Equal(old.Labels, n.Labels))
}

// forgetNode records the proof that the UID of a Node is gone. Its CIDRs are free from now on, and never earlier: a
// Node that is being deleted keeps its CIDRs, and its Pods run, as long as any finalizer keeps it (R17).
func (ns *nodeState) forgetNode(uid types.UID, now time.Time) (wake bool) {
	n := ns.nodes.byUID[uid]
	hadCIDRs := n != nil && len(n.CIDRs) > 0
	ns.nodes.forgetNode(uid)
	ns.events.forgetNode(uid)
	ns.waiting.removeWaiting(uid)
	if hadCIDRs {
		ns.usage.invalidateUsage()
	}
	wake = ns.cidrs.releaseNode(uid, now) || hadCIDRs
	if wake {
		ns.waiting.requeueRefused()
	}
	return wake
}

// setRangeObjects sets the objects that CIDRs are granted from.
func (ns *nodeState) setRangeObjects(objects []RangeObject) {
	changed, gone, needsCheck := ns.ranges.setObjects(objects)
	ns.protection.needsCheck = ns.protection.needsCheck || needsCheck
	if changed || gone {
		ns.usage.invalidateUsage()
	}
	ns.blocks.updateRangeBlocks()
	if gone {
		ns.cidrs.rebuildAllocations() // the allocations track the ranges that exist
	}
	if changed || gone {
		ns.waiting.requeueRefused()
	}
}

// setServiceCIDRs sets the CIDRs of Services, which are not granted to Nodes. The family of the first of them is that
// of the first CIDR of a Node.
func (ns *nodeState) setServiceCIDRs(services []netip.Prefix) {
	if !ns.ranges.setServiceCIDRs(services) {
		return
	}
	ns.cidrs.rebuildAllocations()
	ns.waiting.requeueRefused()
}

// applyTakeover applies the result of a takeover: the state that is held from now on, and all Nodes, from a list that
// began after the write. Nodes that were seen since the takeover began count as well.
func (ns *nodeState) applyTakeover(s fence.State, listed map[types.UID]*nodeEntry, now time.Time) {
	for _, uid := range ns.nodes.applyList(listed, ns.term.takeoverCount) {
		ns.events.forgetNode(uid)
	}
	ns.waiting.requeueAll()
	ns.grants.inheritGrants(s.InFlight, now)
	for uid := range ns.grants.byNode {
		delete(ns.waiting.pending, uid)
	}
	ns.usage.invalidateUsage()
	ns.events.addDeferredEvents()
	ns.cidrs.rebuildAllocations()
	ns.term.beginTerm()
	ns.adoption.beginTerm(s.AdoptingSince, now)
	ns.record.beginTerm(now)
	ns.blocks.beginTerm()
	ns.blocks.setOpenRanges(s.OpenRanges)
	ns.protection.needsCheck = true
	ns.commits.settleAt, ns.takeovers.workSince = time.Time{}, time.Time{}
}

// recordTermLost records that another manager holds the cluster: what was planned is void, and what is on record is for
// the other manager to finish, unless it leaves it unfinished.
func (ns *nodeState) recordTermLost(now time.Time, jitter func(time.Duration) time.Duration) {
	ns.term.endTerm()
	ns.takeovers.workSince = time.Time{}
	ns.blocks.setOpenRanges(nil)
	for uid := range ns.grants.byNode {
		ns.cidrs.dropGrant(uid)
	}
	ns.term.Next(now, 0, jitter)
}
