package nodeipam

import (
	"math"
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/fence"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/podcidr"
)

// Snapshot is a cluster as its objects show it at one moment. FenceState should be read before the Nodes: a grant
// leaves it when its Node has the CIDRs.
type Snapshot struct {
	Nodes []corev1.Node
	// RangeObjects are the objects that CIDRs are granted from; ServiceCIDRs are the CIDRs of Services.
	RangeObjects []RangeObject
	ServiceCIDRs []netip.Prefix
	// Blocks are the blocks that the cluster has from pools.
	Blocks []Block
	// FenceState is the content of the ConfigMap; nil means that there is none, or that it cannot be parsed.
	FenceState *fence.State
	// FenceErr is why the ConfigMap cannot be parsed, nil where it can.
	FenceErr error
}

// SnapshotView is what a manager would know and decide given a snapshot: the state and the rules of an allocator
// without its writes, for tools that show the present state and what would happen next. It is not safe for concurrent
// use.
type SnapshotView struct {
	Report Report
	state  *nodeState
	// plannedGrants are the grants that waiting Nodes would get now.
	plannedGrants map[types.UID]podcidr.Grant
}

// NodeEvent is an event that a manager records on a Node.
type NodeEvent struct{ Reason, Message string }

// RangeChoice is an object, as it applies to one Node.
type RangeChoice struct {
	RangeObject
	Usage
	// SelectsNode reports whether the object applies to the Node.
	SelectsNode bool
}

// NewSnapshotView returns the view of a snapshot, with a plan for all Nodes that wait.
func NewSnapshotView(in Snapshot, now time.Time) *SnapshotView {
	m := newNodeState(ClusterKey{}, 0)
	m.setServiceCIDRs(in.ServiceCIDRs)
	m.setRangeObjects(in.RangeObjects)
	listed := map[types.UID]*nodeEntry{}
	for i := range in.Nodes {
		o := &in.Nodes[i]
		listed[o.UID] = newNodeEntry(nodeFromObject(o), o.ResourceVersion, now)
	}
	var state fence.State
	if in.FenceState != nil {
		state = *in.FenceState
	}
	m.applyTakeover(state, listed, now)
	if state.AdoptingSince != nil && state.AdoptingSince.Before(now) {
		m.adoption.until = state.AdoptingSince.Add(adoptionPeriod)
	}
	m.blocks.setBlocks(in.Blocks, now)
	m.record.commitErr = in.FenceErr
	if !now.Before(m.adoption.until) {
		m.adoption.adopting = false // that it is still on record only shows that no manager has continued
	}
	v := &SnapshotView{state: m, plannedGrants: map[types.UID]podcidr.Grant{}}
	v.planGrants(now)
	v.Report = m.reports.buildReport()
	return v
}

func (v *SnapshotView) planGrants(now time.Time) {
	m := v.state
	m.growth.updateCanGrow(now)
	var waiting []*podcidr.Node
	for _, n := range m.waiting.pending {
		waiting = append(waiting, n.Node)
	}
	d := podcidr.PlanGrants(m.cidrs.allocations, m.ranges.validRanges(), waiting, math.MaxInt, now)
	for _, g := range d.Grants {
		g.CIDRs = orderByFamily(g.CIDRs, m.ranges.primaryFamily)
		v.plannedGrants[g.Node.UID] = g
	}
	m.planner.recordRefusals(d.Refusals)
	for uid := range v.plannedGrants {
		m.cidrs.allocations.WithdrawGrant(uid) // no Node has it yet
	}
}

// Nodes returns the Nodes, oldest first.
func (v *SnapshotView) Nodes() []*podcidr.Node {
	var out []*podcidr.Node
	for _, n := range v.state.nodes.nodesByAge() {
		out = append(out, n.Node)
	}
	return out
}

// RangeForNode returns the range that a Node counts for; nil means that its CIDRs are in none.
func (v *SnapshotView) RangeForNode(n *podcidr.Node) *podcidr.Range {
	if len(n.CIDRs) == 0 {
		return nil
	}
	return v.state.ranges.rangeForNode(n)
}

// EventsForNode returns the events that a manager would record on a Node.
func (v *SnapshotView) EventsForNode(uid types.UID) (out []NodeEvent) {
	for _, n := range v.state.events.emitted[uid] {
		out = append(out, NodeEvent{n.reason, n.message})
	}
	return out
}

// PlannedGrant returns the grant that a waiting Node would get now; false means none.
func (v *SnapshotView) PlannedGrant(uid types.UID) (podcidr.Grant, bool) {
	g, ok := v.plannedGrants[uid]
	return g, ok
}

// RefusalForNode returns why a waiting Node would get nothing now; false means that it does not wait, or that it would
// get something.
func (v *SnapshotView) RefusalForNode(uid types.UID) (podcidr.Refusal, bool) {
	why, ok := v.state.waiting.refused[uid]
	return why, ok
}

// WaitsForLabels reports whether a Node that waits gets nothing yet, because its taint shows that it may still get labels,
// and labels decide what Nodes get. It returns when the wait ends at the latest, as the Node began it: a manager that was
// started later waits longer.
func (v *SnapshotView) WaitsForLabels(n *podcidr.Node, now time.Time) (until time.Time, waits bool) {
	until = n.CreatedAt.Add(n.LabelsTimeout)
	return until, v.state.ranges.hasSelectors() && n.LabelsTimeout > 0 && until.After(now)
}

// WaitingCount returns how many Nodes wait for a grant, including those that get none.
func (v *SnapshotView) WaitingCount() int { return len(v.plannedGrants) + len(v.state.waiting.refused) }

// OverlappingServiceCIDR reports whether some of a prefix is for Services, and returns the Service CIDR that overlaps
// it.
func (v *SnapshotView) OverlappingServiceCIDR(p netip.Prefix) (netip.Prefix, bool) {
	return v.state.cidrs.allocations.OverlappingExclusion(p)
}

// RangeObjects returns the objects that CIDRs are granted from, in the order in which those are tried that match a Node
// equally well. Invalid objects come last.
func (v *SnapshotView) RangeObjects() (out []RangeObject) {
	m := v.state
	for _, r := range m.ranges.validRanges() {
		out = append(out, m.ranges.objects[r.Ref])
	}
	for _, o := range m.ranges.objects {
		if o.Range == nil {
			out = append(out, o)
		}
	}
	return out
}

// ChoicesForNode returns all objects: first those that apply to a Node, in the order in which they are tried.
func (v *SnapshotView) ChoicesForNode(n *podcidr.Node) (out []RangeChoice) {
	m := v.state
	order := podcidr.RangesForNode(m.ranges.validRanges(), n)
	for _, r := range order {
		out = append(out, RangeChoice{RangeObject: m.ranges.objects[r.Ref], Usage: v.Report.UsageByRange[r.Ref], SelectsNode: true})
	}
	for _, o := range v.RangeObjects() {
		if o.Range == nil || !slices.Contains(order, o.Range) {
			out = append(out, RangeChoice{RangeObject: o, Usage: v.Report.UsageByRange[o.Ref]})
		}
	}
	return out
}

// NodesUsing returns the names of the Nodes that have CIDRs of an object, or may still get them.
func (v *SnapshotView) NodesUsing(ref podcidr.Ref) []string {
	return v.state.usage.nodesUsing(v.state.ranges.objects[ref])
}

// NodesWaitingFor returns the names of the Nodes that wait for room in an object, sorted.
func (v *SnapshotView) NodesWaitingFor(ref podcidr.Ref) (out []string) {
	for uid, why := range v.state.waiting.refused {
		if slices.Contains(why.FullRanges, ref) {
			out = append(out, v.state.nodes.byUID[uid].Name)
		}
	}
	slices.Sort(out)
	return out
}
