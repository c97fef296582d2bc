package nodeipam

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/fence"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/podcidr"
)

// reportBuilder composes what is known of the ranges, for their statuses and for metrics. It has no state of its own.
type reportBuilder struct {
	cluster  *servedCluster
	nodes    *knownNodes
	ranges   *knownRanges
	term     *termState
	adoption *adoptionState
	record   *recordState
	events   *nodeEvents
	waiting  *waitingNodes
	grants   *nodeGrants
	usage    *rangeUsers
	cidrs    *nodeCIDRs
	writes   *nodeWrites
	requests *blockRequests
	blocks   *knownBlocks
}

// Report is what is known of the ranges of a cluster.
type Report struct {
	UsageByRange map[podcidr.Ref]Usage
	// WaitingNodes is how many Nodes have no CIDRs and no grant, InFlightGrants is how many grants are not settled,
	// ForeignNodes is how many Nodes have CIDRs that are in no range, and ConflictingNodes is how many have CIDRs that
	// overlap those of another Node.
	WaitingNodes, InFlightGrants, ForeignNodes, ConflictingNodes int
	// NodeCount is how many Nodes there are. RefusedCount is how many of them get nothing, because no range selects
	// them or all that do are full; RefusedNames are the first few of their names.
	NodeCount, RefusedCount int
	RefusedNames            []string
	// FullRanges are the names of the full ranges that Nodes wait for.
	FullRanges []string
	// ConflictingBlocks are the blocks whose addresses Nodes use and that their pool refuses, each with the reason.
	ConflictingBlocks []string
	// StoppedCondition is the condition with the reason why nothing is granted to any Node; nil means that grants are
	// made.
	StoppedCondition *metav1.Condition
}

// Usage is how a range is used.
type Usage struct {
	// CIDRText are the CIDRs of the range, as text.
	CIDRText                  string
	Capacity, Allocated, Free int64
	Conditions                []metav1.Condition
	// NodesUnread reports whether Nodes were never read, so that the numbers mean nothing.
	NodesUnread bool
	// Elastic reports whether the range has blocks; only the holder knows which of them are open. WaitingNodes is how
	// many Nodes wait for room in it.
	Elastic      bool
	WaitingNodes int
}

// conditionInput is what the conditions of an object are computed from.
type conditionInput struct {
	RangeObject
	Usage
	userNames         []string
	overlappingRanges []string
	serviceCIDR       string
	// isUseless reports whether all of the range is for Services.
	isUseless bool
	// shortage is why no other block comes; canGrow reports whether one comes when it is needed.
	shortage *shortage
	canGrow  bool
}

// shortage is why a ClusterCIDR gets no more blocks from a pool.
type shortage struct{ reason, message string }

// BuildReport returns what is known, and reports whether this manager is the one that publishes it: it is the holder,
// or the leader, or no manager can be the holder.
func (ca *ClusterAllocator) BuildReport() (Report, bool) {
	m := ca.state.lock()
	defer m.Unlock()
	var damaged *fence.DamagedError
	found := m.reports.buildReport()
	if !m.nodes.unread {
		ca.metrics.export(found)
	}
	return found, m.term.isHolder || ca.Elected || m.nodes.readErr != nil || errors.As(m.record.commitErr, &damaged)
}

// buildReport returns what is known, and adds the events on Nodes whose CIDRs are in no range. It costs O(Nodes + free
// blocks).
func (rb *reportBuilder) buildReport() Report {
	ranges := rb.ranges.validRanges()
	rb.cidrs.allocations.TrackRanges(ranges...)
	out := Report{UsageByRange: map[podcidr.Ref]Usage{}, WaitingNodes: len(rb.waiting.pending) + len(rb.waiting.refused), ConflictingNodes: len(rb.cidrs.conflicts)}
	use, waiting := rb.usage.currentUsage(), map[podcidr.Ref]int{}
	for _, n := range rb.nodes.byUID {
		if len(n.CIDRs) > 0 && rb.cidrs.addForeignEvents(n.Node, use.rangeIndex) {
			out.ForeignNodes++
		}
	}
	for _, g := range rb.grants.byNode {
		if !g.settled {
			out.InFlightGrants++
		}
	}
	out.NodeCount, out.StoppedCondition = len(rb.nodes.byUID), rb.stoppedCondition()
	rb.addRefusedNodes(&out, waiting)
	out.ConflictingBlocks = rb.blocks.conflictingBlocks()
	free, shares := map[string]int64{}, map[string][]*podcidr.Range{} // hundreds of ClusterCIDRs may have one range
	for ref, o := range rb.ranges.objects {
		f := conditionInput{RangeObject: o, Usage: Usage{Allocated: use.allocatedByRange[ref], NodesUnread: rb.nodes.unread, Elastic: o.BlockSources != [2]*BlockSource{}, WaitingNodes: waiting[ref]}}
		if o.Range != nil {
			f.Capacity, f.CIDRText = o.Range.CurrentCapacity(), formatRangeCIDRs(o.Range)
			cidrs := fmt.Sprint(o.Range.CIDRs())
			room := fmt.Sprint(cidrs, o.Range.NodePrefixLengths())
			if _, known := free[room]; !known {
				free[room] = rb.cidrs.allocations.CountFree(o.Range)
			}
			if _, known := shares[cidrs]; !known {
				others := use.rangeIndex.OverlappingRanges(o.Range.CIDRs())
				shares[cidrs] = others[:min(len(others), maxNamesShown+2)] // the range itself may be among them
			}
			f.Free = free[room]
			f.overlappingRanges, f.serviceCIDR = rb.ranges.findOverlaps(o.Range, shares[cidrs])
			f.isUseless = f.Free == 0 && rb.ranges.isUselessRange(o.Range)
			f.canGrow, f.shortage = o.Range.CanGrow, rb.findShortage(o)
		}
		if o.Closing {
			f.userNames = rb.usage.nodesUsing(o)
		}
		f.Conditions = []metav1.Condition{readyCondition(f, out.StoppedCondition), exhaustedCondition(f), overlapCondition(f)}
		out.UsageByRange[ref] = f.Usage
	}
	return out
}

// findShortage returns why an object gets no other block; nil means that nothing is known that prevents it.
func (rb *reportBuilder) findShortage(o RangeObject) *shortage {
	for f, source := range o.BlockSources {
		if source == nil {
			continue
		}
		have := 0
		for _, b := range rb.blocks.byName {
			on, open := rb.blocks.openBlockByName(b.Name)
			if rb.ranges.groupForBlock(b, on, open) != (blockGroup{o.Name, podcidr.Family(f)}) {
				continue
			}
			if b.IsRefused() {
				continue // others may replace it
			}
			have++
			if !b.GrantedPrefix().IsValid() && b.RefusalMessage != "" {
				return &shortage{v1alpha1.PoolExhaustedReason, fmt.Sprintf("IPAllocation %s gets nothing: %s", b.Name, b.RefusalMessage)}
			}
		}
		if have >= source.MaxBlocks {
			return &shortage{v1alpha1.QuotaReachedReason, fmt.Sprintf("the Cluster has as many blocks of %s %s as its ClusterCIDR allows: %d; add a ClusterCIDR for more", source.PoolRef.Kind, source.PoolRef.Name, source.MaxBlocks)}
		}
	}
	if rb.requests.createErr != nil {
		return &shortage{v1alpha1.PoolExhaustedReason, rb.requests.createErr.Error()}
	}
	return nil
}

// readyCondition returns the condition Ready of an object; stopped is why nothing is granted to any Node.
func readyCondition(f conditionInput, stopped *metav1.Condition) metav1.Condition {
	switch {
	case len(f.ValidationErrors) > 0:
		return newCondition(v1alpha1.ReadyCondition, metav1.ConditionFalse, v1alpha1.ValidationFailedReason, "%v", f.ValidationErrors.ToAggregate())
	case f.Closing && len(f.userNames) > 0:
		return newCondition(v1alpha1.ReadyCondition, metav1.ConditionFalse, v1alpha1.DeletingReason, "is being deleted; %s: %s", formatNodeCount(int64(len(f.userNames)), "uses it", "use it"), joinNames(f.userNames))
	case f.Closing:
		return newCondition(v1alpha1.ReadyCondition, metav1.ConditionFalse, v1alpha1.DeletingReason, "is being deleted; no Node uses it")
	case stopped != nil:
		return *stopped
	case f.Range == nil:
		return newCondition(v1alpha1.ReadyCondition, metav1.ConditionFalse, v1alpha1.ValidationFailedReason, "it has no range")
	case f.isUseless:
		return newCondition(v1alpha1.ReadyCondition, metav1.ConditionFalse, v1alpha1.ServiceCIDRReason,
			"all of it is for Services (%s), and is not given to Nodes: add a ClusterCIDR with another range, and delete this one", f.serviceCIDR)
	}
	return newCondition(v1alpha1.ReadyCondition, metav1.ConditionTrue, v1alpha1.ReadyReason, "%d of %d node CIDRs are free", f.Free, f.Capacity)
}

// stoppedCondition returns why nothing is granted to any Node. Only the holder knows whose writes are refused, and
// whether it adopts.
func (rb *reportBuilder) stoppedCondition() *metav1.Condition {
	var damaged *fence.DamagedError
	switch {
	case rb.nodes.readErr != nil:
		return new(newCondition(v1alpha1.ReadyCondition, metav1.ConditionFalse, v1alpha1.NodesRefusedReason, "%v", rb.nodes.readErr))
	case errors.As(rb.record.commitErr, &damaged):
		return new(newCondition(v1alpha1.ReadyCondition, metav1.ConditionFalse, v1alpha1.FenceDamagedReason, "%v", rb.record.commitErr))
	case rb.record.commitErr != nil:
		return new(newCondition(v1alpha1.ReadyCondition, metav1.ConditionFalse, v1alpha1.FenceRefusedReason, "%v", rb.record.commitErr))
	case rb.term.isHolder && len(rb.waiting.pending) > 0 && rb.grants.remainingGrants() <= 0:
		return new(newCondition(v1alpha1.ReadyCondition, metav1.ConditionFalse, v1alpha1.FenceRefusedReason,
			"the ConfigMap %s/%s has no room for another grant: it lists %d open ClusterCIDRs and blocks, and %d grants in flight; delete ClusterCIDRs that no Node uses",
			fence.ConfigMapNamespace, fence.ConfigMapName, len(rb.record.openRanges), len(rb.grants.byNode)))
	case rb.term.isHolder && rb.writes.isRetryingSerially():
		return new(newCondition(v1alpha1.ReadyCondition, metav1.ConditionFalse, v1alpha1.NodesRefusedReason, "%v; the manager tries one Node after another", rb.writes.refused.lastErr))
	case rb.term.isHolder && rb.adoption.adopting && !rb.adoption.until.IsZero():
		return new(newCondition(v1alpha1.ReadyCondition, metav1.ConditionUnknown, v1alpha1.AdoptingReason,
			"no grants before %s: another allocator set the CIDRs of Nodes, and its last writes may still be in flight", rb.adoption.until.UTC().Format(time.TimeOnly)))
	}
	return nil
}

// addRefusedNodes adds the Nodes that get nothing to the report, and counts for how many of them each range has no
// room.
func (rb *reportBuilder) addRefusedNodes(out *Report, waiting map[podcidr.Ref]int) {
	full := map[string]bool{}
	for uid, why := range rb.waiting.refused {
		if n := rb.nodes.byUID[uid]; n != nil {
			out.RefusedNames = append(out.RefusedNames, n.Name)
		}
		for _, ref := range why.FullRanges {
			waiting[ref]++
			full[ref.Name] = true
		}
	}
	out.RefusedCount, out.FullRanges = len(out.RefusedNames), slices.Sorted(maps.Keys(full))
	slices.Sort(out.RefusedNames)
	out.RefusedNames = out.RefusedNames[:min(len(out.RefusedNames), maxNamesShown)]
}

func exhaustedCondition(f conditionInput) metav1.Condition {
	switch {
	case f.Range == nil || f.Free > 0:
		return newCondition(v1alpha1.ExhaustedCondition, metav1.ConditionFalse, v1alpha1.RoomLeftReason, "")
	case f.isUseless:
		return newCondition(v1alpha1.ExhaustedCondition, metav1.ConditionTrue, v1alpha1.ServiceCIDRReason, "all of it is for Services")
	case f.shortage != nil && f.WaitingNodes > 0:
		return newCondition(v1alpha1.ExhaustedCondition, metav1.ConditionTrue, f.shortage.reason, "all %d node CIDRs are taken and %s: %s",
			f.Capacity, formatNodeCount(int64(f.WaitingNodes), "waits", "wait"), f.shortage.message)
	case f.canGrow:
		return newCondition(v1alpha1.ExhaustedCondition, metav1.ConditionFalse, v1alpha1.RoomLeftReason, "the manager requests a block when a Node needs one")
	case f.WaitingNodes > 0:
		return newCondition(v1alpha1.ExhaustedCondition, metav1.ConditionTrue, v1alpha1.ExhaustedReason,
			"all %d node CIDRs are taken and %s: add a ClusterCIDR for more", f.Capacity, formatNodeCount(int64(f.WaitingNodes), "waits", "wait"))
	}
	return newCondition(v1alpha1.ExhaustedCondition, metav1.ConditionTrue, v1alpha1.ExhaustedReason, "all %d node CIDRs are taken", f.Capacity)
}

func overlapCondition(f conditionInput) metav1.Condition {
	switch {
	case f.serviceCIDR != "":
		return newCondition(v1alpha1.OverlapCondition, metav1.ConditionTrue, v1alpha1.ServiceCIDRReason, "%s is for Services, and is not given to Nodes", f.serviceCIDR)
	case len(f.overlappingRanges) > 0:
		return newCondition(v1alpha1.OverlapCondition, metav1.ConditionTrue, v1alpha1.SharedRangeReason,
			"%s share some of the addresses; an address that one grants is not granted by the others", joinNames(f.overlappingRanges))
	}
	return newCondition(v1alpha1.OverlapCondition, metav1.ConditionFalse, v1alpha1.NoOverlapReason, "")
}

func newCondition(kind string, status metav1.ConditionStatus, reason, format string, args ...any) metav1.Condition {
	return metav1.Condition{Type: kind, Status: status, Reason: reason, Message: fmt.Sprintf(format, args...)}
}

// ApplyStatus sets the status of a ClusterCIDR. It reports whether that has changed, and whether the change should be
// written without delay.
func (u Usage) ApplyStatus(c *v1alpha1.ClusterCIDR, now time.Time) (changed, urgent bool) {
	s := &c.Status
	changed = s.ObservedGeneration != c.Generation || s.Capacity != u.Capacity || s.Allocated != u.Allocated || s.Free != u.Free
	s.ObservedGeneration, s.Capacity, s.Allocated, s.Free = c.Generation, u.Capacity, u.Allocated, u.Free
	for _, next := range u.Conditions {
		next.ObservedGeneration, next.LastTransitionTime = c.Generation, metav1.NewTime(now)
		old := meta.FindStatusCondition(s.Conditions, next.Type)
		urgent = urgent || old == nil || old.Status != next.Status || old.Reason != next.Reason
		changed = meta.SetStatusCondition(&s.Conditions, next) || changed
	}
	return changed, urgent
}

// dropPublishedRefusals marks refusals as recorded that current statuses count: their holder has recorded the events.
func (rb *reportBuilder) dropPublishedRefusals() {
	counts := rb.publishedRefusalFilter()
	for uid, n := range rb.events.deferred.refusalEvents {
		if counts(rb.waiting.refused[uid]) {
			rb.events.emitted[uid] = append(rb.events.emitted[uid], n)
			delete(rb.events.deferred.refusalEvents, uid)
		}
	}
}

// publishedRefusalFilter returns a function that reports whether a status counts a refused Node. In a fleet, the
// condition of the Cluster does, unless it shows something worse; otherwise the condition Exhausted of a full
// ClusterCIDR does.
func (rb *reportBuilder) publishedRefusalFilter() func(podcidr.Refusal) bool {
	if rb.cluster.inFleet {
		shows := len(rb.ranges.objects) > 0 && len(rb.cidrs.conflicts) == 0 && rb.stoppedCondition() == nil && len(rb.blocks.conflictingBlocks()) == 0
		return func(podcidr.Refusal) bool { return shows }
	}
	return func(why podcidr.Refusal) bool {
		return slices.ContainsFunc(why.FullRanges, func(ref podcidr.Ref) bool {
			o := rb.ranges.objects[ref]
			return ref.Kind == v1alpha1.ClusterCIDRKind && o.Range != nil && !rb.ranges.isUselessRange(o.Range)
		})
	}
}
