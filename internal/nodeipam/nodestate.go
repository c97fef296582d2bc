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

// retryState is how many times in a row an operation on an object failed, and when it is retried.
type retryState struct {
	failures int
	retryAt  time.Time
}

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
	m.grants = &nodeGrants{byNode: map[types.UID]*nodeGrant{}, record: m.record}
	m.usage = &rangeUsers{nodes: m.nodes, ranges: m.ranges, grants: m.grants}
	m.cidrs = &nodeCIDRs{conflicts: map[types.UID][]podcidr.Conflict{}, cluster: m.cluster, nodes: m.nodes, ranges: m.ranges, events: m.events, waiting: m.waiting, grants: m.grants, usage: m.usage}
	m.writes = &nodeWrites{nodes: m.nodes, adoption: m.adoption, record: m.record, events: m.events, waiting: m.waiting, grants: m.grants, cidrs: m.cidrs}
	m.requests = &blockRequests{failed: map[string]retryState{}}
	m.blocks = &knownBlocks{byName: map[string]Block{}, notYetInCache: map[types.UID]time.Time{}, conflictingNames: map[string]time.Time{}, verifiedLive: map[types.UID]bool{}, closedInTerm: map[types.UID]bool{}, missingNames: map[string]bool{}, idleSince: map[types.UID]time.Time{}, idleGracePeriod: grace, cluster: m.cluster, ranges: m.ranges, term: m.term, record: m.record, waiting: m.waiting, usage: m.usage, cidrs: m.cidrs}
	m.protection = &objectProtection{blocked: map[podcidr.Ref]retryState{}, nodes: m.nodes, ranges: m.ranges, term: m.term, adoption: m.adoption, record: m.record, events: m.events, grants: m.grants, usage: m.usage, cidrs: m.cidrs, blocks: m.blocks}
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
func (m *nodeState) observeNode(n *podcidr.Node, version string, now time.Time) (wake bool) {
	if m.nodes.Has(n.UID) {
		return false
	}
	known := m.nodes.byUID[n.UID]
	if known == nil {
		known = newNodeEntry(n, version, now)
		known.lastSeenTakeover = m.term.takeoverCount
		m.nodes.byUID[n.UID] = known
		if len(n.CIDRs) > 0 {
			m.usage.invalidateUsage()
		}
		return m.cidrs.classifyNode(known, true)
	}
	if !term.IsNewerVersion(version, known.resourceVersion) {
		known.lastSeenTakeover = m.term.takeoverCount
		return false
	}
	old := known.Node
	if len(old.CIDRs) > 0 && len(n.CIDRs) == 0 {
		m.term.needsRevalidation = true
		return true
	}
	if old.ClusterCIDRName != n.ClusterCIDRName || !slices.Equal(old.CIDRs, n.CIDRs) {
		m.usage.invalidateUsage()
	}
	known.Node, known.resourceVersion, known.lastSeenTakeover = n, version, m.term.takeoverCount
	return m.cidrs.classifyNode(known, old.Deleting != n.Deleting || old.LabelsTimeout != n.LabelsTimeout || !maps.Equal(old.Labels, n.Labels))
}

// forgetNode records the proof that the UID of a Node is gone. Its CIDRs are free from now on, and never earlier: a
// Node that is being deleted keeps its CIDRs, and its Pods run, as long as any finalizer keeps it (R17).
func (m *nodeState) forgetNode(uid types.UID, now time.Time) (wake bool) {
	m.nodes.Add(uid)
	n := m.nodes.byUID[uid]
	m.waiting.removeWaiting(uid)
	if n != nil && len(n.CIDRs) > 0 {
		m.usage.invalidateUsage()
	}
	delete(m.nodes.byUID, uid)
	delete(m.cidrs.conflicts, uid)
	delete(m.events.emitted, uid)
	delete(m.events.deferred.otherEvents, uid)
	for other, clashes := range m.cidrs.conflicts {
		left := slices.DeleteFunc(clashes, func(c podcidr.Conflict) bool { return c.OtherNodeUID == uid })
		if m.cidrs.conflicts[other] = left; len(left) == 0 {
			delete(m.cidrs.conflicts, other)
		}
	}
	m.cidrs.allocations.ReleaseNode(uid, now)
	wake = m.cidrs.settleGrant(uid) || (n != nil && len(n.CIDRs) > 0)
	if wake {
		m.waiting.requeueRefused()
	}
	return wake
}

// setRangeObjects sets the objects that CIDRs are granted from.
func (m *nodeState) setRangeObjects(objects []RangeObject) {
	next := make(map[podcidr.Ref]RangeObject, len(objects))
	changed, gone := false, false
	for _, o := range objects {
		old, known := m.ranges.objects[o.Ref]
		if known && old.Range != nil {
			o.Range = old.Range // a spec never changes
		}
		if o.Range != nil {
			closing := o.Closing || m.ranges.closedByLiveRead[o.Ref]
			changed = changed || closing != o.Range.Closing
			o.Range.Closing = closing
		}
		changed = changed || !known
		m.protection.needsCheck = m.protection.needsCheck || !known || old.HasFinalizer != o.HasFinalizer
		next[o.Ref] = o
	}
	for ref := range m.ranges.objects {
		if _, ok := next[ref]; !ok {
			gone = true
			delete(m.ranges.closedByLiveRead, ref)
		}
	}
	m.ranges.objects = next
	if changed || gone {
		m.ranges.sorted, m.ranges.byName = nil, nil
		m.usage.invalidateUsage()
	}
	m.blocks.updateRangeBlocks()
	if gone {
		m.cidrs.rebuildAllocations() // the allocations track the ranges that exist
	}
	if changed || gone {
		m.waiting.requeueRefused()
	}
}

// setServiceCIDRs sets the CIDRs of Services, which are not granted to Nodes. The family of the first of them is that
// of the first CIDR of a Node.
func (m *nodeState) setServiceCIDRs(services []netip.Prefix) {
	if slices.Equal(m.ranges.serviceCIDRs, services) {
		return
	}
	m.ranges.serviceCIDRs, m.ranges.primaryFamily = services, podcidr.IPv4
	if len(services) > 0 && !services[0].Addr().Is4() {
		m.ranges.primaryFamily = podcidr.IPv6
	}
	m.cidrs.rebuildAllocations()
	m.waiting.requeueRefused()
}

// applyTakeover applies the result of a takeover: the state that is held from now on, and all Nodes, from a list that
// began after the write. Nodes that were seen since the takeover began count as well.
func (m *nodeState) applyTakeover(s fence.State, listed map[types.UID]*nodeEntry, now time.Time) {
	for uid, n := range m.nodes.byUID {
		if listed[uid] == nil && n.lastSeenTakeover < m.term.takeoverCount {
			m.nodes.Add(uid) // it was there before the list began
			delete(m.nodes.byUID, uid)
			delete(m.events.emitted, uid)
			delete(m.events.deferred.otherEvents, uid)
		}
	}
	for uid, n := range listed {
		known := m.nodes.byUID[uid]
		if m.nodes.Has(uid) || (known != nil && known.lastSeenTakeover == m.term.takeoverCount && !term.IsNewerVersion(n.resourceVersion, known.resourceVersion)) {
			continue
		}
		if known != nil && n.waiting != nil && known.waiting != nil {
			n.waiting = known.waiting
		}
		if known != nil {
			n.labelsHash = known.labelsHash
		}
		n.lastSeenTakeover = m.term.takeoverCount
		m.nodes.byUID[uid] = n
	}
	clear(m.waiting.pending)
	clear(m.waiting.refused)
	clear(m.grants.byNode)
	for uid, n := range m.nodes.byUID {
		if len(n.CIDRs) == 0 && !n.Deleting {
			m.waiting.pending[uid] = n
		}
	}
	for _, g := range s.InFlight {
		n := m.nodes.byUID[g.NodeUID]
		inherited := &nodeGrant{committed: true, inherited: true, lastWriteEnd: now, settled: n == nil || len(n.CIDRs) > 0}
		inherited.Grant = podcidr.Grant{Node: &podcidr.Node{Name: g.NodeName, UID: g.NodeUID}, RangeRef: podcidr.Ref{Name: g.ClusterCIDRName}, CIDRs: g.CIDRs}
		if n != nil {
			inherited.Node = n.Node
		}
		m.grants.byNode[g.NodeUID] = inherited
		delete(m.waiting.pending, g.NodeUID)
	}
	m.usage.invalidateUsage()
	m.events.addDeferredEvents()
	m.cidrs.rebuildAllocations()
	m.term.needsRecordRead, m.term.hasInheritedWork, m.term.takeoverRequested = false, false, false
	m.term.isHolder, m.term.wasHolder, m.term.needsRevalidation, m.takeovers.workSince, m.commits.settleAt = true, true, false, time.Time{}, time.Time{}
	m.record.closedMarks, m.record.verifiedAt = map[podcidr.Ref]string{}, now
	m.blocks.verifiedLive, m.blocks.closedInTerm, m.blocks.missingNames = map[types.UID]bool{}, map[types.UID]bool{}, map[string]bool{}
	m.blocks.setOpenRanges(s.OpenRanges)
	m.adoption.adopting, m.adoption.until = s.AdoptingSince != nil, time.Time{}
	if m.adoption.adopting {
		// The wait counts by this manager's clock alone, as the clock of the manager that began may be ahead or behind.
		// It counts since this manager first saw the adoption: otherwise two managers that take over from each other
		// would start it again each time.
		if !m.adoption.start.Equal(*s.AdoptingSince) {
			m.adoption.start, m.adoption.seenAt = *s.AdoptingSince, now
		}
		m.adoption.until = m.adoption.seenAt.Add(adoptionPeriod)
	}
	m.record.commitErr, m.record.commitPause, m.record.nextCommitTime, m.protection.needsCheck = nil, 0, time.Time{}, true
}

// recordTermLost records that another manager holds the cluster: what was planned is void, and what is on record is for
// the other manager to finish, unless it leaves it unfinished.
func (m *nodeState) recordTermLost(now time.Time, jitter func(time.Duration) time.Duration) {
	m.term.isHolder, m.term.needsRecordRead, m.term.needsRevalidation, m.takeovers.workSince = false, true, false, time.Time{}
	m.blocks.setOpenRanges(nil)
	for uid := range m.grants.byNode {
		m.cidrs.dropGrant(uid)
	}
	m.term.Next(now, 0, jitter)
}

// minWait returns the shorter of two waits; 0 means no wait at all, and is ignored.
func minWait(a, b time.Duration) time.Duration {
	if a == 0 || (b > 0 && b < a) {
		return b
	}
	return a
}
