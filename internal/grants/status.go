package grants

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"go4.org/netipx"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/annotations"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/ledger"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/poolspec"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/text"
)

// Compile makes the layout of the base's spec. A spec that cannot be served leaves what is allocated
// as it is, and the last layout that could be for what is already promised.
func (m *Memory) Compile() {
	layout, errs := poolspec.Of(m.Base)
	m.SpecErr = ""
	if len(errs) > 0 {
		m.SpecErr = text.Message(errs.ToAggregate().Error())
		switch {
		case m.Layout == nil:
		case m.isCarved():
			layout = m.Layout.Within(m.OpenRanges()) // what was closed is handed out no more
		default:
			return
		}
	}
	if layout != nil {
		m.removePins()
		m.Layout, m.laidOut = layout, SpecVersionOf(m.Base)
	}
	m.relayout()
	m.Ledger.SetParts(m.OpenRanges())
	m.addPins()
}

// relayout gives the ledger the space of the layout, and the order of the spec.
func (m *Memory) relayout() {
	space, unit := m.space()
	m.Ledger.Relayout(space, unit, m.order())
}

// space is what the pool may grant, and in what units.
func (m *Memory) space() (*netipx.IPSet, int) {
	if m.Layout == nil {
		return nil, 128
	}
	return m.Layout.Grantable(), m.Layout.UnitBits()
}

// addPins states the preAllocations: their addresses are nobody else's.
func (m *Memory) addPins() {
	if m.Layout == nil {
		return
	}
	for name, ip := range m.Layout.Pins() {
		m.Ledger.Add(ledger.Fact{
			Key:   ledger.Key{Source: ledger.Pin, UID: types.UID(name)},
			Owner: ledger.Owner{Name: name},
			Range: m.Ledger.Unit(ip),
		})
	}
}

func (m *Memory) removePins() {
	if m.Layout == nil {
		return
	}
	for name := range m.Layout.Pins() {
		m.Ledger.Remove(ledger.Key{Source: ledger.Pin, UID: types.UID(name)})
	}
}

// Describe writes what the pool is into a status.
func (m *Memory) Describe(obj v1alpha1.Pool, now time.Time) {
	s, n := obj.PoolStatus(), m.Ledger.Counts()
	s.TotalIPs, s.AllocatedIPs, s.AvailableIPs, s.OutOfRangeIPs = n.Total, n.Allocated, n.Available, n.OutOfRange
	s.AllocationCount, s.LargestFreeBlock, s.FragmentationPercent = n.Owners, n.LargestFree, n.FragmentationPercent
	s.ObservedGeneration = obj.GetGeneration()
	s.Allocator.InFlight = m.inFlight()
	s.Cooling, s.Held, s.Yields = m.Cooling.Groups(), nil, m.Yields
	s.Released = m.released()
	s.Blocks = m.Carved.next
	for _, h := range m.held {
		s.Held = append(s.Held, h)
	}
	slices.SortFunc(s.Held, func(a, b v1alpha1.HeldRange) int { return compareText(a.First, b.First) })
	for _, c := range m.Conditions(n, now) {
		c.ObservedGeneration = obj.GetGeneration()
		c.LastTransitionTime = metav1.NewTime(m.atAPI(now))
		SetCondition(&s.Conditions, c)
	}
	m.keepQuiet(meta.FindStatusCondition(s.Conditions, v1alpha1.ReadyCondition))
	setPaused(s, obj, m.atAPI(now))
	s.CapacityEvents = CapacityEvents(s, m.atAPI(now))
}

// Conditions says what the pool is worth to a person. All are always present.
func (m *Memory) Conditions(n ledger.Counts, now time.Time) []metav1.Condition {
	ready := metav1.Condition{
		Type: v1alpha1.ReadyCondition, Status: metav1.ConditionTrue, Reason: v1alpha1.ReadyReason,
		Message: fmt.Sprintf("%d/%d IPs available (%s)", n.Available, n.Total, text.Count(n.Owners, "allocation", "allocations")),
	}
	reason, message := m.Closed(now)
	short, why := m.shortOfBlocks()
	if reason == "" && n.Available == 0 {
		reason, message = short, why
	}
	switch {
	case reason != "":
		ready.Status, ready.Reason, ready.Message = metav1.ConditionFalse, reason, message
	case short != "":
		ready.Message += "; " + why
	case len(m.Crowded) > 0:
		ready.Message += "; status.cooling has no room for more released addresses: deleted claims keep theirs until some of the others are free; " +
			"shorten addressReuseGracePeriodSeconds of " + m.ThePool() + " if this happens often"
	default:
		ready.Message += m.outsideMessage(n.OutOfRange) + m.pinsMessage()
	}
	if ending := m.Ending(); ending != "" {
		ready.Message = text.Message(ready.Message + "; " + ending)
	}
	overlap := metav1.Condition{
		Type: v1alpha1.OverlapCondition, Status: metav1.ConditionFalse, Reason: v1alpha1.NoOverlapReason,
		Message: "no other pool of this network has these addresses",
	}
	if m.Overlap != "" {
		overlap.Status, overlap.Reason, overlap.Message = metav1.ConditionTrue, v1alpha1.OverlapReason, m.Overlap+m.WaitsFor
	}
	out := append([]metav1.Condition{ready, overlap}, Capacity(n, m.MayGrowBy())...)
	exhaustedByItsSpec(out, m.nothingLeft())
	return out
}

// Closed tells why the pool grants nothing new, if so. Adopting comes before all else: the condition carries the wait
// over a restart (R10).
func (m *Memory) Closed(now time.Time) (reason, message string) {
	reason, message = m.closedForGood()
	if !m.InQuarantine(now) {
		return reason, message
	}
	adopting := m.Arriving.Lacks
	if adopting == "" {
		adopting = "another manager or provider may have given out addresses of this pool; new grants start at " +
			m.opensAt.UTC().Format(time.RFC3339) + ", when its last writes have settled"
	}
	switch reason {
	case v1alpha1.DeletingReason: // claims are told this, and whom the pool waits for changes with every release
		adopting += "; after that it still grants nothing, because it is being deleted"
	case v1alpha1.ValidationFailedReason, v1alpha1.CopiedReason, v1alpha1.MovedReason:
		adopting += "; after that it still grants nothing: " + message
	}
	return v1alpha1.AdoptingReason, adopting
}

// closedForGood is closed for what no time ends.
func (m *Memory) closedForGood() (reason, message string) {
	switch {
	case m.Base.GetDeletionTimestamp() != nil:
		return v1alpha1.DeletingReason, m.UsersMessage()
	case m.SpecErr != "":
		return v1alpha1.ValidationFailedReason, m.SpecErr
	case m.mirrorProblem() != "":
		return v1alpha1.ValidationFailedReason, m.mirrorProblem()
	case m.isCopied():
		return v1alpha1.CopiedReason, copiedMessage
	case m.isMoved():
		return v1alpha1.MovedReason, m.movedMessage()
	case m.wasTakenAway():
		return v1alpha1.MovedReason, takenAwayMessage
	case annotations.HasPaused(m.Base):
		return clusterv1.PausedReason, pausedMessage(m.Base)
	case m.nothingLeft() != "":
		return v1alpha1.PoolExhaustedReason, m.nothingLeft()
	case m.Overlap != "" && !m.Base.PoolSpec().AllowOverlap && m.Younger:
		return v1alpha1.OverlapReason, m.Overlap + "; that pool is older, so this one grants nothing, unless its spec.allowOverlap is set, after which both may give the same address"
	case m.Outstanding != "":
		return v1alpha1.OverlapReason, m.Outstanding
	}
	return "", ""
}

// movedMessage says how the pool is opened again: objects that are being moved still would close it at once.
func (m *Memory) movedMessage() string {
	text := "addresses of this pool were moved to another management cluster, which may use them; " +
		"when you are sure that it does not, release those in status.held with kubectl butler-ipam release-held to use the pool here again"
	if bad := m.badRelease(); bad != "" {
		text += "; " + bad
	}
	var first string
	for _, c := range m.moving {
		if name := c.Owner.Namespace + "/" + c.Owner.Name; first == "" || name < first {
			first = name
		}
	}
	if first == "" {
		return text
	}
	return fmt.Sprintf("%s; first, end the move of %s, or remove its annotation %s if it is not being moved", text, first, v1alpha1.DeleteForMoveAnnotation)
}

func (m *Memory) isMoved() bool {
	for _, h := range m.held {
		if h.Reason == v1alpha1.MovedReason {
			return true
		}
	}
	return false
}

// UsersMessage names who keeps a pool from being deleted.
func (m *Memory) UsersMessage() string {
	const named = 3
	n := m.Ledger.Counts().Owners
	if n == 0 && m.HasBlocks() {
		return "the pool is being deleted and gives its blocks back"
	}
	if n == 0 {
		return "the pool is being deleted"
	}
	var names []string
	seen := map[types.UID]bool{}
	m.Ledger.Uses(func(_ netipx.IPRange, facts []*ledger.Fact) bool {
		for _, h := range facts {
			if !seen[h.Owner.UID] && len(names) < named {
				seen[h.Owner.UID] = true
				name := h.Owner.Namespace + "/" + h.Owner.Name
				if child := m.ChildOf(h.Owner.UID); child != nil {
					name += " of " + child.String()
				}
				names = append(names, name)
			}
		}
		return len(names) < named
	})
	text := fmt.Sprintf("the pool is being deleted and waits until all of its addresses are released; delete the machines, claims and allocations that have some: %s", strings.Join(names, ", "))
	if int(n) > len(names) {
		text += fmt.Sprintf(" and %d more", int(n)-len(names))
	}
	return text
}

func compareText(a, b string) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}

// nothingLeft says that the spec of the pool leaves nothing to hand out, empty where it leaves something.
func (m *Memory) nothingLeft() string {
	if m.Layout == nil || m.Ledger.Counts().Total > 0 || m.isCarved() { // the next block may leave something
		return ""
	}
	return poolspec.NothingLeft(m.Layout, m.addOrReserve())
}
