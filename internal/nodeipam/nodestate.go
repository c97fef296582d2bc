// Package nodeipam grants the Nodes of a cluster their pod CIDRs: it records what they have, plans with podcidr,
// commits by fence, and writes. docs/design.md has the rules, and the proof that it never grants overlapping CIDRs to
// two Nodes.
//
// A grant is on record once the ConfigMap of the fence has it. An object is open while that lists it as one that CIDRs
// may be granted from.
package nodeipam

import (
	"cmp"
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

// nodeEntry is what is known of a Node.
type nodeEntry struct {
	*podcidr.Node
	resourceVersion string
	// lastSeenTakeover is the takeoverCount at which the Node was last seen.
	lastSeenTakeover int
	// labelsHash is the hash of the labels that the Node had last; 0 means unknown. The labels of a Node that has CIDRs
	// are not kept.
	labelsHash uint64
	// waiting is nil when the Node has CIDRs.
	waiting *waitState
}

// waitState is what matters of a Node only while it has no CIDRs.
type waitState struct {
	// firstSeen is when the Node was first seen.
	firstSeen time.Time
	// failures counts the writes in a row that were refused permanently; nothing is granted before retryAt.
	failures int
	retryAt  time.Time
}

// newNodeEntry returns the entry of a Node that is seen for the first time.
func newNodeEntry(n *podcidr.Node, version string, now time.Time) *nodeEntry {
	out := &nodeEntry{Node: n, resourceVersion: version}
	if len(n.CIDRs) == 0 {
		out.waiting = &waitState{firstSeen: now}
	}
	return out
}

// nodeGrant is a grant that has not left the record yet.
type nodeGrant struct {
	podcidr.Grant
	// committed reports whether the grant is on record; inherited reports whether another manager has committed it, or
	// this one in an earlier term.
	committed, inherited bool
	// writing reports whether a write of it is under way; outcomeUnknown reports whether the answer to a write is
	// missing.
	writing, outcomeUnknown bool
	// writeStarted reports whether a write of it was begun.
	writeStarted bool
	// settled reports whether it is proven that the Node has CIDRs, or is gone; refused reports whether nothing of the
	// grant was written or ever will be. Either way the grant leaves the record with the next commit.
	settled, refused bool
	failures         int
	retryAt          time.Time
	// lastWriteEnd is when the last write of it ended, as far as is known; for an inherited grant, when it was taken
	// over.
	lastWriteEnd time.Time
	// waitingSince is when the Node was first seen without CIDRs.
	waitingSince time.Time
}

// nodeState is everything that is known of a cluster, and the decisions based on it. It is locked for each use.
type nodeState struct {
	mu sync.Mutex

	// inFleet reports whether the Nodes are those of a Cluster, named clusterName, by whose labels objects are
	// selected.
	inFleet     bool
	clusterName string

	// Tombstones are about the UIDs of Nodes, TakeoverBackoff is about the ConfigMap.
	term.Tombstones
	term.TakeoverBackoff

	// ignoresBlocks reports whether the allocator manages no blocks, so that those on record are of another allocator
	// of the cluster.
	ignoresBlocks bool
	blocks        map[string]Block
	// notYetInCache are the blocks that the watch has not shown yet, with the time until which that is awaited;
	// conflictingNames are the names that something else has, with the time until which they are avoided.
	notYetInCache    map[types.UID]time.Time
	conflictingNames map[string]time.Time
	// verifiedLive are the blocks that a live read has shown in this term; missingNames are the names of open blocks
	// that a live read has not found; closedInTerm are the blocks that were being deleted when this manager committed,
	// in its term, that they are not open.
	verifiedLive, closedInTerm map[types.UID]bool
	missingNames               map[string]bool
	// idleSince is the time since which no Node uses a block.
	idleSince map[types.UID]time.Time
	// nextOpenBlocks are the blocks that the next commit lists as open; openBlocksChanged reports whether the last
	// commit has changed the open ranges.
	nextOpenBlocks    []fence.OpenRange
	openBlocksChanged bool
	// openBlocks are the blocks that are open on record, by name.
	openBlocks map[string]fence.OpenRange
	// idleGracePeriod is how long an idle block stays.
	idleGracePeriod time.Duration
	// failedRequests are the blocks for which the last request failed; createErr is why no block could be created.
	failedRequests map[string]retryState
	createErr      error

	nodes map[types.UID]*nodeEntry
	// pendingNodes are the Nodes without CIDRs or a grant that are still to be planned for; refusedNodes are those for
	// which there is no room, or no range, and nothing has changed since.
	pendingNodes map[types.UID]*nodeEntry
	refusedNodes map[types.UID]podcidr.Refusal
	rangeObjects map[podcidr.Ref]RangeObject
	// serviceCIDRs are the CIDRs of Services.
	serviceCIDRs []netip.Prefix
	// primaryFamily is the family of the first CIDR of a Node.
	primaryFamily podcidr.Family
	allocations   *podcidr.Allocations
	grants        map[types.UID]*nodeGrant
	// conflicts are the Nodes with CIDRs that overlap, until one of them is gone.
	conflicts map[types.UID][]podcidr.Conflict
	// writesInFlight is how many writes are under way; firstWritesInFlight is how many of them are for grants without a
	// failed write so far.
	writesInFlight, firstWritesInFlight int
	// nextReconcile is when the next reconcile happens unless something enqueues the cluster before; zero means
	// unknown. A write that fails enqueues the cluster only for a retry that is due before that: hundreds that fail for
	// hours cost one reconcile for all that are retried together.
	nextReconcile time.Time
	// blockedObjects are the objects that could not be protected.
	blockedObjects map[podcidr.Ref]retryState
	// needsFinalizerCheck reports whether it has to be checked that our finalizer is on all objects that Nodes use.
	needsFinalizerCheck bool
	// sortedRanges are the valid ranges of the objects in the order of SortRanges; rangesByName are the same ranges by
	// name.
	sortedRanges []*podcidr.Range
	rangesByName map[string][]*podcidr.Range
	// usageCache records which Nodes use which object; it is nil after a change. usageScans counts how often it was
	// computed.
	usageCache *rangeUsage
	usageScans int
	// uselessRanges has, for each range that was checked, whether no Node can get anything of it, as Services have all
	// of it.
	uselessRanges map[*podcidr.Range]bool

	isHolder, wasHolder bool
	// hasPeerAllocator reports whether another allocator of the cluster has held its ConfigMap: that of its Cluster, or
	// of the manager in it.
	hasPeerAllocator bool
	// needsRecordRead reports whether the work that the last holder has left was not read yet; hasInheritedWork reports
	// whether there is some: grants in flight, or an open block that is unknown here.
	needsRecordRead, hasInheritedWork bool
	// takeoverRequested reports whether the cluster has to be taken over although no Node waits.
	takeoverRequested bool
	outdatedStatuses  outdatedStatuses
	// takeoverCount counts the takeovers that were begun.
	takeoverCount int
	// needsRevalidation reports whether a Node that had CIDRs was seen without any, so that the state may be from
	// before a restore.
	needsRevalidation bool
	// openRanges are the objects that CIDRs may be granted from, as of the last commit; closedByLiveRead are those that
	// a live read has shown to be closing.
	openRanges       []fence.OpenRange
	closedByLiveRead map[podcidr.Ref]bool
	// closedMarks are the objects that a commit of this manager in this term does not list as open, made since they
	// were seen closing, with the mark that each had before that commit.
	closedMarks map[podcidr.Ref]string
	// recordVerifiedAt is when the state on record was last seen to be this manager's.
	recordVerifiedAt time.Time
	// adoptUntil is when the first grant may be made; zero means at once. adopting reports whether the state on record
	// adopts.
	adoptUntil time.Time
	adopting   bool
	// adoptionStart is the beginning of an adoption as it is on record; adoptionSeenAt is when this manager first saw
	// that.
	adoptionStart, adoptionSeenAt time.Time
	workSince                     time.Time
	// settleAt is when settled grants are committed off the record, if no other commit comes before.
	settleAt time.Time
	// commitErr is why the last commit was refused permanently, and nextCommitTime is when the next one is tried.
	commitErr      error
	commitPause    time.Duration
	nextCommitTime time.Time
	refusedWrites  refusedWrites
	// readErr is why Nodes, or objects that they depend on, may not be read; nodesUnread reports whether they never
	// were.
	readErr     error
	nodesUnread bool
	// events are the events to record; emitted are those that were added before, by Node.
	events  []pendingEvent
	emitted map[types.UID][]pendingEvent
	// deferredEvents are the events that only the holder may record.
	deferredEvents deferredEvents
}

// retryState is how many times in a row an operation on an object failed, and when it is retried.
type retryState struct {
	failures int
	retryAt  time.Time
}

func newNodeState(of ClusterKey, grace time.Duration) *nodeState {
	m := &nodeState{
		inFleet: of != ClusterKey{}, clusterName: of.Name,
		blocks: map[string]Block{}, notYetInCache: map[types.UID]time.Time{}, conflictingNames: map[string]time.Time{}, missingNames: map[string]bool{}, failedRequests: map[string]retryState{}, verifiedLive: map[types.UID]bool{}, closedInTerm: map[types.UID]bool{}, idleSince: map[types.UID]time.Time{}, idleGracePeriod: grace,
		nodes: map[types.UID]*nodeEntry{}, pendingNodes: map[types.UID]*nodeEntry{}, refusedNodes: map[types.UID]podcidr.Refusal{},
		rangeObjects: map[podcidr.Ref]RangeObject{}, grants: map[types.UID]*nodeGrant{}, conflicts: map[types.UID][]podcidr.Conflict{}, closedByLiveRead: map[podcidr.Ref]bool{}, emitted: map[types.UID][]pendingEvent{}, blockedObjects: map[podcidr.Ref]retryState{},
		deferredEvents: deferredEvents{refusalEvents: map[types.UID]pendingEvent{}, otherEvents: map[types.UID][]pendingEvent{}},
	}
	m.needsRecordRead = true
	m.rebuildAllocations()
	return m
}

// observeNode records a Node as it was seen, and reports whether there is something to do. Evidence only grows: CIDRs
// that are set stay, and a Node that is being deleted never stops being deleted.
func (m *nodeState) observeNode(n *podcidr.Node, version string, now time.Time) (wake bool) {
	if m.Has(n.UID) {
		return false
	}
	known := m.nodes[n.UID]
	if known == nil {
		known = newNodeEntry(n, version, now)
		known.lastSeenTakeover = m.takeoverCount
		m.nodes[n.UID] = known
		if len(n.CIDRs) > 0 {
			m.invalidateUsage()
		}
		return m.classifyNode(known, true)
	}
	if !term.IsNewerVersion(version, known.resourceVersion) {
		known.lastSeenTakeover = m.takeoverCount
		return false
	}
	old := known.Node
	if len(old.CIDRs) > 0 && len(n.CIDRs) == 0 {
		m.needsRevalidation = true
		return true
	}
	if old.ClusterCIDRName != n.ClusterCIDRName || !slices.Equal(old.CIDRs, n.CIDRs) {
		m.invalidateUsage()
	}
	known.Node, known.resourceVersion, known.lastSeenTakeover = n, version, m.takeoverCount
	return m.classifyNode(known, old.Deleting != n.Deleting || old.LabelsTimeout != n.LabelsTimeout || !maps.Equal(old.Labels, n.Labels))
}

// checkLateLabels adds an event to a Node whose labels come too late: they select another ClusterCIDR than the one that
// it has CIDRs of, which it keeps for its life.
func (m *nodeState) checkLateLabels(uid types.UID, version string, labels map[string]string) {
	n := m.nodes[uid]
	if n == nil || n.resourceVersion != version {
		return // the Node was seen in another version since, or is gone
	}
	old := n.labelsHash
	if n.labelsHash = hashLabels(labels); old == 0 || old == n.labelsHash || len(n.CIDRs) == 0 {
		return
	}
	current := m.rangeForNode(n.Node)
	if current == nil {
		return
	}
	open := slices.DeleteFunc(slices.Clone(m.validRanges()), func(r *podcidr.Range) bool { return r.Closing && r != current })
	order := podcidr.RangesForNode(open, &podcidr.Node{Name: n.Name, Labels: labels})
	if len(order) == 0 || order[0] == current || !order[0].HasSelector() {
		return
	}
	m.addEventf(n.Node, PodCIDRLabelsLate, "its labels select ClusterCIDR %s now, and it keeps its pod CIDRs %v of %s: have its labels there when it registers, and drain and delete it, so that it registers anew",
		order[0].Name, n.CIDRs, current.Name)
}

// classifyNode sorts a Node by what is known of it; changed reports whether that changes what the Node may be granted.
func (m *nodeState) classifyNode(n *nodeEntry, changed bool) (wake bool) {
	if len(n.CIDRs) > 0 {
		n.waiting = nil
		m.recordNodeCIDRs(n)
		m.removeWaiting(n.UID)
		if g := m.grants[n.UID]; g != nil && !g.settled && !slices.Equal(g.CIDRs, n.CIDRs) {
			m.requeueRefused() // what was granted is free
		}
		return m.settleGrant(n.UID)
	}
	if n.Deleting {
		m.removeWaiting(n.UID)
		return false
	}
	if m.grants[n.UID] != nil || !changed {
		return false
	}
	m.removeWaiting(n.UID)
	m.pendingNodes[n.UID] = n
	return true
}

// recordNodeCIDRs records the CIDRs of a Node in the allocations.
func (m *nodeState) recordNodeCIDRs(n *nodeEntry) {
	clashes := m.allocations.RecordNode(n.Node)
	if len(clashes) == 0 {
		return
	}
	m.conflicts[n.UID] = clashes
	for _, c := range clashes {
		m.addConflictEvents(n.Node, c)
	}
}

func (m *nodeState) removeWaiting(uid types.UID) {
	delete(m.pendingNodes, uid)
	delete(m.refusedNodes, uid)
	delete(m.deferredEvents.refusalEvents, uid)
}

// settleGrant records the proof that the grant of a Node can end.
func (m *nodeState) settleGrant(uid types.UID) (wake bool) {
	g := m.grants[uid]
	if g == nil || g.settled {
		return false
	}
	g.settled = true
	m.invalidateUsage()
	return true
}

// forgetNode records the proof that the UID of a Node is gone. Its CIDRs are free from now on, and never earlier: a
// Node that is being deleted keeps its CIDRs, and its Pods run, as long as any finalizer keeps it (R17).
func (m *nodeState) forgetNode(uid types.UID, now time.Time) (wake bool) {
	m.Add(uid)
	n := m.nodes[uid]
	m.removeWaiting(uid)
	if n != nil && len(n.CIDRs) > 0 {
		m.invalidateUsage()
	}
	delete(m.nodes, uid)
	delete(m.conflicts, uid)
	delete(m.emitted, uid)
	delete(m.deferredEvents.otherEvents, uid)
	for other, clashes := range m.conflicts {
		left := slices.DeleteFunc(clashes, func(c podcidr.Conflict) bool { return c.OtherNodeUID == uid })
		if m.conflicts[other] = left; len(left) == 0 {
			delete(m.conflicts, other)
		}
	}
	m.allocations.ReleaseNode(uid, now)
	wake = m.settleGrant(uid) || (n != nil && len(n.CIDRs) > 0)
	if wake {
		m.requeueRefused()
	}
	return wake
}

// requeueRefused queues the refused Nodes for planning again, as something has changed.
func (m *nodeState) requeueRefused() {
	for uid := range m.refusedNodes {
		if n := m.nodes[uid]; n != nil {
			m.pendingNodes[uid] = n
		}
	}
	clear(m.refusedNodes)
	clear(m.deferredEvents.refusalEvents)
}

// setRangeObjects sets the objects that CIDRs are granted from.
func (m *nodeState) setRangeObjects(objects []RangeObject) {
	next := make(map[podcidr.Ref]RangeObject, len(objects))
	changed, gone := false, false
	for _, o := range objects {
		old, known := m.rangeObjects[o.Ref]
		if known && old.Range != nil {
			o.Range = old.Range // a spec never changes
		}
		if o.Range != nil {
			closing := o.Closing || m.closedByLiveRead[o.Ref]
			changed = changed || closing != o.Range.Closing
			o.Range.Closing = closing
		}
		changed = changed || !known
		m.needsFinalizerCheck = m.needsFinalizerCheck || !known || old.HasFinalizer != o.HasFinalizer
		next[o.Ref] = o
	}
	for ref := range m.rangeObjects {
		if _, ok := next[ref]; !ok {
			gone = true
			delete(m.closedByLiveRead, ref)
		}
	}
	m.rangeObjects = next
	if changed || gone {
		m.sortedRanges, m.rangesByName = nil, nil
		m.invalidateUsage()
	}
	m.updateRangeBlocks()
	if gone {
		m.rebuildAllocations() // the allocations track the ranges that exist
	}
	if changed || gone {
		m.requeueRefused()
	}
}

// setServiceCIDRs sets the CIDRs of Services, which are not granted to Nodes. The family of the first of them is that
// of the first CIDR of a Node.
func (m *nodeState) setServiceCIDRs(services []netip.Prefix) {
	if slices.Equal(m.serviceCIDRs, services) {
		return
	}
	m.serviceCIDRs, m.primaryFamily = services, podcidr.IPv4
	if len(services) > 0 && !services[0].Addr().Is4() {
		m.primaryFamily = podcidr.IPv6
	}
	m.rebuildAllocations()
	m.requeueRefused()
}

// rebuildAllocations builds the allocations from the known Nodes and grants.
func (m *nodeState) rebuildAllocations() {
	m.allocations, m.uselessRanges = podcidr.NewAllocations(m.serviceCIDRs), map[*podcidr.Range]bool{}
	clear(m.conflicts)
	for _, n := range m.nodesByAge() {
		m.recordNodeCIDRs(n)
	}
	for _, g := range m.grants {
		if !g.settled {
			m.allocations.RecordGrant(g.Node, g.CIDRs)
		}
	}
}

// nodesByAge returns the Nodes, oldest first.
func (m *nodeState) nodesByAge() []*nodeEntry {
	return slices.SortedFunc(maps.Values(m.nodes), func(a, b *nodeEntry) int {
		return cmp.Or(a.CreatedAt.Compare(b.CreatedAt), cmp.Compare(a.Name, b.Name), cmp.Compare(a.UID, b.UID))
	})
}

// validRanges returns the ranges of the valid objects, in the order of SortRanges.
func (m *nodeState) validRanges() []*podcidr.Range {
	if m.sortedRanges != nil {
		return m.sortedRanges
	}
	var out []*podcidr.Range
	for _, o := range m.rangeObjects {
		if o.Range != nil {
			out = append(out, o.Range)
		}
	}
	m.sortedRanges, m.rangesByName = podcidr.SortRanges(out), map[string][]*podcidr.Range{}
	for _, r := range m.sortedRanges {
		m.rangesByName[r.Name] = append(m.rangesByName[r.Name], r)
	}
	return m.sortedRanges
}

// applyTakeover applies the result of a takeover: the state that is held from now on, and all Nodes, from a list that
// began after the write. Nodes that were seen since the takeover began count as well.
func (m *nodeState) applyTakeover(s fence.State, listed map[types.UID]*nodeEntry, now time.Time) {
	for uid, n := range m.nodes {
		if listed[uid] == nil && n.lastSeenTakeover < m.takeoverCount {
			m.Add(uid) // it was there before the list began
			delete(m.nodes, uid)
			delete(m.emitted, uid)
			delete(m.deferredEvents.otherEvents, uid)
		}
	}
	for uid, n := range listed {
		known := m.nodes[uid]
		if m.Has(uid) || (known != nil && known.lastSeenTakeover == m.takeoverCount && !term.IsNewerVersion(n.resourceVersion, known.resourceVersion)) {
			continue
		}
		if known != nil && n.waiting != nil && known.waiting != nil {
			n.waiting = known.waiting
		}
		if known != nil {
			n.labelsHash = known.labelsHash
		}
		n.lastSeenTakeover = m.takeoverCount
		m.nodes[uid] = n
	}
	clear(m.pendingNodes)
	clear(m.refusedNodes)
	clear(m.grants)
	for uid, n := range m.nodes {
		if len(n.CIDRs) == 0 && !n.Deleting {
			m.pendingNodes[uid] = n
		}
	}
	for _, g := range s.InFlight {
		n := m.nodes[g.NodeUID]
		inherited := &nodeGrant{committed: true, inherited: true, lastWriteEnd: now, settled: n == nil || len(n.CIDRs) > 0}
		inherited.Grant = podcidr.Grant{Node: &podcidr.Node{Name: g.NodeName, UID: g.NodeUID}, RangeRef: podcidr.Ref{Name: g.ClusterCIDRName}, CIDRs: g.CIDRs}
		if n != nil {
			inherited.Node = n.Node
		}
		m.grants[g.NodeUID] = inherited
		delete(m.pendingNodes, g.NodeUID)
	}
	m.invalidateUsage()
	m.addDeferredEvents()
	m.rebuildAllocations()
	m.needsRecordRead, m.hasInheritedWork, m.takeoverRequested = false, false, false
	m.isHolder, m.wasHolder, m.needsRevalidation, m.workSince, m.settleAt = true, true, false, time.Time{}, time.Time{}
	m.closedMarks, m.recordVerifiedAt = map[podcidr.Ref]string{}, now
	m.verifiedLive, m.closedInTerm, m.missingNames = map[types.UID]bool{}, map[types.UID]bool{}, map[string]bool{}
	m.setOpenRanges(s.OpenRanges)
	m.adopting, m.adoptUntil = s.AdoptingSince != nil, time.Time{}
	if m.adopting {
		// The wait counts by this manager's clock alone, as the clock of the manager that began may be ahead or behind.
		// It counts since this manager first saw the adoption: otherwise two managers that take over from each other
		// would start it again each time.
		if !m.adoptionStart.Equal(*s.AdoptingSince) {
			m.adoptionStart, m.adoptionSeenAt = *s.AdoptingSince, now
		}
		m.adoptUntil = m.adoptionSeenAt.Add(adoptionPeriod)
	}
	m.commitErr, m.commitPause, m.nextCommitTime, m.needsFinalizerCheck = nil, 0, time.Time{}, true
}

// hasNodeCIDRs reports whether any Node has CIDRs.
func (m *nodeState) hasNodeCIDRs() bool {
	for _, n := range m.nodes {
		if len(n.CIDRs) > 0 {
			return true
		}
	}
	return false
}
