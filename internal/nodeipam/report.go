package nodeipam

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/fence"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/podcidr"
)

// Report is what is known of the ranges of a site.
type Report struct {
	Ranges map[podcidr.Ref]Usage
	// Waiting is how many Nodes have no CIDRs and nothing under way, InFlight how many grants are not settled, Foreign how
	// many Nodes have CIDRs of no range, and Conflicts how many have some that another one has.
	Waiting, InFlight, Foreign, Conflicts int
	// Nodes is how many there are, and Refused those that get nothing, because no range selects them, or all that do are
	// full: the first few names, and how many there are.
	Nodes, RefusedNodes int
	Refused             []string
	// Full are the ranges that are, for which Nodes wait.
	Full []string
	// Contested are the blocks whose addresses Nodes use, and which their pool does not give back: each with what it says.
	Contested []string
	// Stopped says why nothing is given to any Node; nil: something is.
	Stopped *metav1.Condition
}

// Usage is how a range is used.
type Usage struct {
	// CIDRs are the range, as text.
	CIDRs                     string
	Capacity, Allocated, Free int64
	Conditions                []metav1.Condition
	// Blind: Nodes were never read, so that the numbers say nothing.
	Blind bool
	// Elastic: it has blocks, of which the holder alone knows which are open. Waiting is how many Nodes wait for room in it.
	Elastic bool
	Waiting int
}

// facts are what the conditions of an object are made of.
type facts struct {
	Object
	Usage
	users   []string
	shares  []string
	service string
	// useless: all of it is for Services.
	useless bool
	// short says why no other block comes; growing: one does, if it is wanted.
	short   *shortage
	growing bool
}

// shortage is why a ClusterCIDR has no more blocks of a pool.
type shortage struct{ reason, why string }

// Report returns what is known, and whether this manager is the one to say so: it is the holder, or the leader, or nobody
// can be the holder.
func (s *Site) Report() (Report, bool) {
	m := s.lock()
	defer m.Unlock()
	var damaged *fence.DamagedError
	found := m.report()
	if !m.blind {
		s.measure(found)
	}
	return found, m.holder || s.Elected || m.refusal != nil || errors.As(m.commitErr, &damaged)
}

// report costs O(Nodes + free blocks).
func (m *memory) report() Report {
	ranges := m.ranges()
	m.books.Watch(ranges...)
	out := Report{Ranges: map[podcidr.Ref]Usage{}, Waiting: len(m.todo) + len(m.refused), Conflicts: len(m.clashes)}
	use, waiting := m.inUse(), map[podcidr.Ref]int{}
	for _, n := range m.nodes {
		if len(n.CIDRs) > 0 && m.noteForeign(n.Node, use.index) {
			out.Foreign++
		}
	}
	for _, g := range m.grants {
		if !g.settled {
			out.InFlight++
		}
	}
	out.Nodes, out.Stopped = len(m.nodes), m.stopped()
	m.reportRefused(&out, waiting)
	out.Contested = m.contested()
	free, shares := map[string]int64{}, map[string][]*podcidr.Range{} // hundreds of ClusterCIDRs may have one range
	for ref, o := range m.objects {
		f := facts{Object: o, Usage: Usage{Allocated: use.allocated[ref], Blind: m.blind, Elastic: o.Sources != [2]*Source{}, Waiting: waiting[ref]}}
		if o.Range != nil {
			f.Capacity, f.CIDRs = o.Range.Serves(), cidrsText(o.Range)
			cidrs := fmt.Sprint(o.Range.CIDRs())
			room := fmt.Sprint(cidrs, o.Range.Lengths())
			if _, known := free[room]; !known {
				free[room] = m.books.Room(o.Range)
			}
			if _, known := shares[cidrs]; !known {
				others := use.index.Covering(o.Range.CIDRs())
				shares[cidrs] = others[:min(len(others), namesShown+2)] // with itself, or without
			}
			f.Free = free[room]
			f.shares, f.service = m.shares(o.Range, shares[cidrs])
			f.useless = f.Free == 0 && m.isUselessRange(o.Range)
			f.growing, f.short = o.Range.Grows, m.shortage(o)
		}
		if o.Closing {
			f.users = m.users(o)
		}
		f.Conditions = []metav1.Condition{m.ready(f, out.Stopped), exhausted(f), overlap(f)}
		out.Ranges[ref] = f.Usage
	}
	return out
}

// shortage says why an object gets no other block; nil: nothing is known that would keep it from that.
func (m *memory) shortage(o Object) *shortage {
	for f, source := range o.Sources {
		if source == nil {
			continue
		}
		have := 0
		for _, b := range m.blocks {
			on, open := m.opened(b.Name)
			if m.groupOf(b, on, open) != (group{o.Name, podcidr.Family(f)}) {
				continue
			}
			if b.isDenied() {
				continue // others may come in its place
			}
			have++
			if !b.Prefix.IsValid() && b.Refused != "" {
				return &shortage{v1alpha1.PoolExhaustedReason, fmt.Sprintf("IPAllocation %s gets nothing: %s", b.Name, b.Refused)}
			}
		}
		if have >= source.Max {
			return &shortage{v1alpha1.QuotaReachedReason, fmt.Sprintf("the Cluster has as many blocks of %s %s as its ClusterCIDR allows: %d; add a ClusterCIDR for more", source.Pool.Kind, source.Pool.Name, source.Max)}
		}
	}
	if m.askErr != nil {
		return &shortage{v1alpha1.PoolExhaustedReason, m.askErr.Error()}
	}
	return nil
}

// shares are the first few of the other ranges with some of the addresses, and what of them is for Services.
func (m *memory) shares(r *podcidr.Range, all []*podcidr.Range) (names []string, service string) {
	for _, other := range all {
		if len(names) <= namesShown && other.Ref != r.Ref {
			names = append(names, other.Name)
		}
	}
	for _, p := range m.services {
		if r.Covers([]netip.Prefix{p}) {
			service = p.String()
		}
	}
	return names, service
}

// isUselessRange reports whether no Node can ever get anything of a range, as Services have all of it.
func (m *memory) isUselessRange(r *podcidr.Range) bool {
	if is, known := m.useless[r]; known {
		return is
	}
	empty := podcidr.NewBooks(m.services)
	empty.Watch(r)
	closed := slices.ContainsFunc(r.Families(), func(f podcidr.Family) bool { return len(r.Gives(f)) == 0 })
	m.useless[r] = len(m.services) > 0 && !closed && empty.Room(r) == 0
	return m.useless[r]
}

func (m *memory) ready(f facts, stopped *metav1.Condition) metav1.Condition {
	switch {
	case len(f.Invalid) > 0:
		return condition(v1alpha1.ReadyCondition, metav1.ConditionFalse, v1alpha1.ValidationFailedReason, "%v", f.Invalid.ToAggregate())
	case f.Closing && len(f.users) > 0:
		return condition(v1alpha1.ReadyCondition, metav1.ConditionFalse, v1alpha1.DeletingReason, "is being deleted; %s: %s", nodes(int64(len(f.users)), "uses it", "use it"), shown(f.users))
	case f.Closing:
		return condition(v1alpha1.ReadyCondition, metav1.ConditionFalse, v1alpha1.DeletingReason, "is being deleted; no Node uses it")
	case stopped != nil:
		return *stopped
	case f.Range == nil:
		return condition(v1alpha1.ReadyCondition, metav1.ConditionFalse, v1alpha1.ValidationFailedReason, "it has no range")
	case f.useless:
		return condition(v1alpha1.ReadyCondition, metav1.ConditionFalse, v1alpha1.ServiceCIDRReason,
			"all of it is for Services (%s), and is not given to Nodes: add a ClusterCIDR with another range, and delete this one", f.service)
	}
	return condition(v1alpha1.ReadyCondition, metav1.ConditionTrue, v1alpha1.ReadyReason, "%d of %d node CIDRs are free", f.Free, f.Capacity)
}

// stopped says why nothing is given to any Node. Whose writes are refused, and what is adopted, the holder knows.
func (m *memory) stopped() *metav1.Condition {
	var damaged *fence.DamagedError
	switch {
	case m.refusal != nil:
		return new(condition(v1alpha1.ReadyCondition, metav1.ConditionFalse, v1alpha1.NodesRefusedReason, "%v", m.refusal))
	case errors.As(m.commitErr, &damaged):
		return new(condition(v1alpha1.ReadyCondition, metav1.ConditionFalse, v1alpha1.FenceDamagedReason, "%v", m.commitErr))
	case m.commitErr != nil:
		return new(condition(v1alpha1.ReadyCondition, metav1.ConditionFalse, v1alpha1.FenceRefusedReason, "%v", m.commitErr))
	case m.holder && len(m.todo) > 0 && m.room() <= 0:
		return new(condition(v1alpha1.ReadyCondition, metav1.ConditionFalse, v1alpha1.FenceRefusedReason,
			"the ConfigMap %s/%s has no room for another grant: it names %d ClusterCIDRs and blocks that are given from, and %d grants whose writes are not answered; delete ClusterCIDRs that no Node uses",
			fence.Namespace, fence.Name, len(m.open), len(m.grants)))
	case m.holder && m.inTrouble():
		return new(condition(v1alpha1.ReadyCondition, metav1.ConditionFalse, v1alpha1.NodesRefusedReason, "%v; one Node after the other is tried", m.trouble.why))
	case m.holder && m.adopting && !m.adoptUntil.IsZero():
		return new(condition(v1alpha1.ReadyCondition, metav1.ConditionUnknown, v1alpha1.AdoptingReason,
			"nothing is given before %s: what Nodes have was given by another allocator, whose last writes may still be on their way", m.adoptUntil.UTC().Format(time.TimeOnly)))
	}
	return nil
}

// reportRefused says which Nodes get nothing, and for how many of them each range lacks room.
func (m *memory) reportRefused(out *Report, waiting map[podcidr.Ref]int) {
	full := map[string]bool{}
	for uid, why := range m.refused {
		if n := m.nodes[uid]; n != nil {
			out.Refused = append(out.Refused, n.Name)
		}
		for _, ref := range why.Full {
			waiting[ref]++
			full[ref.Name] = true
		}
	}
	out.RefusedNodes, out.Full = len(out.Refused), slices.Sorted(maps.Keys(full))
	slices.Sort(out.Refused)
	out.Refused = out.Refused[:min(len(out.Refused), namesShown)]
}

// contested are the blocks that were asked for again or restored, of which Nodes use the addresses, and that are refused: others
// may have them by now.
func (m *memory) contested() []string {
	var out []string
	for name, b := range m.blocks {
		if b.isDenied() && m.usedOf(b, slices.Concat(b.Had, []netip.Prefix{b.Pinned})) > 0 {
			out = append(out, fmt.Sprintf("IPAllocation %s: %s", name, b.Refused))
		}
	}
	slices.Sort(out)
	return out[:min(len(out), namesShown)]
}

func exhausted(f facts) metav1.Condition {
	switch {
	case f.Range == nil || f.Free > 0:
		return condition(v1alpha1.ExhaustedCondition, metav1.ConditionFalse, v1alpha1.RoomLeftReason, "")
	case f.useless:
		return condition(v1alpha1.ExhaustedCondition, metav1.ConditionTrue, v1alpha1.ServiceCIDRReason, "all of it is for Services")
	case f.short != nil && f.Waiting > 0:
		return condition(v1alpha1.ExhaustedCondition, metav1.ConditionTrue, f.short.reason, "all %d node CIDRs are taken and %s: %s",
			f.Capacity, nodes(int64(f.Waiting), "waits", "wait"), f.short.why)
	case f.growing:
		return condition(v1alpha1.ExhaustedCondition, metav1.ConditionFalse, v1alpha1.RoomLeftReason, "a block is asked for when a Node needs it")
	case f.Waiting > 0:
		return condition(v1alpha1.ExhaustedCondition, metav1.ConditionTrue, v1alpha1.ExhaustedReason,
			"all %d node CIDRs are taken and %s: add a ClusterCIDR for more", f.Capacity, nodes(int64(f.Waiting), "waits", "wait"))
	}
	return condition(v1alpha1.ExhaustedCondition, metav1.ConditionTrue, v1alpha1.ExhaustedReason, "all %d node CIDRs are taken", f.Capacity)
}

func overlap(f facts) metav1.Condition {
	switch {
	case f.service != "":
		return condition(v1alpha1.OverlapCondition, metav1.ConditionTrue, v1alpha1.ServiceCIDRReason, "%s is for Services, and is not given to Nodes", f.service)
	case len(f.shares) > 0:
		return condition(v1alpha1.OverlapCondition, metav1.ConditionTrue, v1alpha1.SharedRangeReason,
			"%s have some of the addresses too; what one gives, the others do not", shown(f.shares))
	}
	return condition(v1alpha1.OverlapCondition, metav1.ConditionFalse, v1alpha1.NoOverlapReason, "")
}

func condition(kind string, status metav1.ConditionStatus, reason, format string, args ...any) metav1.Condition {
	return metav1.Condition{Type: kind, Status: status, Reason: reason, Message: fmt.Sprintf(format, args...)}
}

// Describe puts what is known of a ClusterCIDR into its status. It reports whether that has changed, and whether it
// should be shown without delay.
func (u Usage) Describe(c *v1alpha1.ClusterCIDR, now time.Time) (changed, urgent bool) {
	s := &c.Status
	changed = s.ObservedGeneration != c.Generation || s.Capacity != u.Capacity || s.Allocated != u.Allocated || s.Free != u.Free
	s.ObservedGeneration, s.Capacity, s.Allocated, s.Free = c.Generation, u.Capacity, u.Allocated, u.Free
	for _, next := range u.Conditions {
		next.ObservedGeneration, next.LastTransitionTime = c.Generation, metav1.NewTime(now)
		was := meta.FindStatusCondition(s.Conditions, next.Type)
		urgent = urgent || was == nil || was.Status != next.Status || was.Reason != next.Reason
		changed = meta.SetStatusCondition(&s.Conditions, next) || changed
	}
	return changed, urgent
}
