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

// CompileLayout compiles the layout of the base pool's spec. If the spec is not valid, addresses that are allocated
// stay as they are, and the last valid layout stays in force for what is already promised.
func (m *PoolState) CompileLayout() {
	layout, errs := poolspec.CompilePool(m.BasePool)
	m.SpecErr = ""
	if len(errs) > 0 {
		m.SpecErr = text.SanitizeMessage(errs.ToAggregate().Error())
		switch {
		case m.Layout == nil:
		case m.isCarved():
			layout = m.Layout.RestrictTo(m.OpenBlockRanges()) // closed blocks are not allocated from any more
		default:
			return
		}
	}
	if layout != nil {
		m.removePreAllocations()
		m.Layout, m.layoutVersion = layout, SpecVersionForPool(m.BasePool)
	}
	m.updateLedgerLayout()
	m.Ledger.SetCountedRanges(m.OpenBlockRanges())
	m.addPreAllocations()
}

// updateLedgerLayout gives the ledger the addresses of the layout and the order of allocation.
func (m *PoolState) updateLedgerLayout() {
	space, unit := m.grantableSpace()
	m.Ledger.ApplyLayout(space, unit, m.allocationOrder())
}

// grantableSpace returns the addresses that the pool may grant, and the prefix length of a unit.
func (m *PoolState) grantableSpace() (*netipx.IPSet, int) {
	if m.Layout == nil {
		return nil, 128
	}
	return m.Layout.Grantable(), m.Layout.UnitBits()
}

// addPreAllocations adds the facts about spec.preAllocations, which keep these addresses from claims of other names.
func (m *PoolState) addPreAllocations() {
	if m.Layout == nil {
		return
	}
	for name, ip := range m.Layout.Pins() {
		m.Ledger.AddFact(ledger.Fact{
			Key:   ledger.Key{Source: ledger.SourcePin, UID: types.UID(name)},
			Owner: ledger.Owner{Name: name},
			Range: m.Ledger.UnitRange(ip),
		})
	}
}

func (m *PoolState) removePreAllocations() {
	if m.Layout == nil {
		return
	}
	for name := range m.Layout.Pins() {
		m.Ledger.RemoveFact(ledger.Key{Source: ledger.SourcePin, UID: types.UID(name)})
	}
}

// FillStatus writes the state of the pool to a status.
func (m *PoolState) FillStatus(obj v1alpha1.Pool, now time.Time) {
	s, n := obj.PoolStatus(), m.Ledger.Counts()
	s.TotalIPs, s.AllocatedIPs, s.AvailableIPs, s.OutOfRangeIPs = n.Total, n.Allocated, n.Available, n.OutOfRange
	s.AllocationCount, s.LargestFreeBlock, s.FragmentationPercent = n.Owners, n.LargestFree, n.FragmentationPercent
	s.ObservedGeneration = obj.GetGeneration()
	s.Allocator.InFlight = m.inFlightGrants()
	s.Cooling, s.Held, s.Yields = m.Cooling.Groups(), nil, m.Yields
	s.Released = m.releasedText()
	s.Blocks = m.Carved.plannedBlocks
	for _, h := range m.heldRanges {
		s.Held = append(s.Held, h)
	}
	slices.SortFunc(s.Held, func(a, b v1alpha1.HeldRange) int { return compareStrings(a.First, b.First) })
	for _, c := range m.PoolConditions(n, now) {
		c.ObservedGeneration = obj.GetGeneration()
		c.LastTransitionTime = metav1.NewTime(m.apiServerTime(now))
		SetPoolCondition(&s.Conditions, c)
	}
	m.keepQuarantineStart(meta.FindStatusCondition(s.Conditions, v1alpha1.ReadyCondition))
	setPausedCondition(s, obj, m.apiServerTime(now))
	s.CapacityEvents = DueCapacityEvents(s, m.apiServerTime(now))
}

// PoolConditions returns the conditions of the pool. All of them are always present.
func (m *PoolState) PoolConditions(n ledger.Counts, now time.Time) []metav1.Condition {
	ready := metav1.Condition{
		Type: v1alpha1.ReadyCondition, Status: metav1.ConditionTrue, Reason: v1alpha1.ReadyReason,
		Message: fmt.Sprintf("%d/%d IPs available (%s)", n.Available, n.Total, text.FormatCount(n.Owners, "allocation", "allocations")),
	}
	reason, message := m.ClosedReason(now)
	short, why := m.blockShortfallReason()
	if reason == "" && n.Available == 0 {
		reason, message = short, why
	}
	switch {
	case reason != "":
		ready.Status, ready.Reason, ready.Message = metav1.ConditionFalse, reason, message
	case short != "":
		ready.Message += "; " + why
	case len(m.CoolingOverflow) > 0:
		ready.Message += "; status.cooling has no room for more released addresses: deleted claims keep theirs until some of the others are free; " +
			"shorten addressReuseGracePeriodSeconds of " + m.EditablePoolName() + " if this happens often"
	default:
		ready.Message += m.outOfRangeMessage(n.OutOfRange) + m.blockedPinsMessage()
	}
	if ending := m.MirrorDeletionMessage(); ending != "" {
		ready.Message = text.SanitizeMessage(ready.Message + "; " + ending)
	}
	overlap := metav1.Condition{
		Type: v1alpha1.OverlapCondition, Status: metav1.ConditionFalse, Reason: v1alpha1.NoOverlapReason,
		Message: "no other pool of this network has these addresses",
	}
	if m.OverlapMessage != "" {
		overlap.Status, overlap.Reason, overlap.Message = metav1.ConditionTrue, v1alpha1.OverlapReason, m.OverlapMessage+m.OverlapWaitMessage
	}
	out := append([]metav1.Condition{ready, overlap}, CapacityConditions(n, m.GrowthCapacity())...)
	setExhaustedBySpec(out, m.emptySpecMessage())
	return out
}

// ClosedReason returns the reason and the message why the pool grants nothing new. Both are empty if it grants.
// Adopting has precedence over all other reasons, because the condition carries the quarantine over a restart (R10).
func (m *PoolState) ClosedReason(now time.Time) (reason, message string) {
	reason, message = m.permanentClosedReason()
	if !m.IsQuarantined(now) {
		return reason, message
	}
	adopting := m.Arrival.MissingProof
	if adopting == "" {
		adopting = "another manager or provider may have given out addresses of this pool; new grants start at " +
			m.quarantineEndsAt.UTC().Format(time.RFC3339) + ", when its last writes have settled"
	}
	switch reason {
	case v1alpha1.DeletingReason: // claims get this text too; DeletionMessage changes with every release
		adopting += "; after that it still grants nothing, because it is being deleted"
	case v1alpha1.ValidationFailedReason, v1alpha1.CopiedReason, v1alpha1.MovedReason:
		adopting += "; after that it still grants nothing: " + message
	}
	return v1alpha1.AdoptingReason, adopting
}

// permanentClosedReason returns the reason and the message why the pool is closed, for reasons that do not end with
// time.
func (m *PoolState) permanentClosedReason() (reason, message string) {
	switch {
	case m.BasePool.GetDeletionTimestamp() != nil:
		return v1alpha1.DeletingReason, m.DeletionMessage()
	case m.SpecErr != "":
		return v1alpha1.ValidationFailedReason, m.SpecErr
	case m.mirrorProblem() != "":
		return v1alpha1.ValidationFailedReason, m.mirrorProblem()
	case m.isCopiedPool():
		return v1alpha1.CopiedReason, copiedPoolMessage
	case m.hasMovedRanges():
		return v1alpha1.MovedReason, m.movedPoolMessage()
	case m.wasMirrorRemoved():
		return v1alpha1.MovedReason, mirrorRemovedMessage
	case annotations.HasPaused(m.BasePool):
		return clusterv1.PausedReason, pausedPoolMessage(m.BasePool)
	case m.emptySpecMessage() != "":
		return v1alpha1.PoolExhaustedReason, m.emptySpecMessage()
	case m.OverlapMessage != "" && !m.BasePool.PoolSpec().AllowOverlap && m.OverlapsOlderPool:
		return v1alpha1.OverlapReason, m.OverlapMessage + "; that pool is older, so this one grants nothing, unless its spec.allowOverlap is set, after which both may give the same address"
	case m.OutstandingYieldMessage != "":
		return v1alpha1.OverlapReason, m.OutstandingYieldMessage
	}
	return "", ""
}

// movedPoolMessage returns the message that describes how to open a pool with moved addresses again. It names an
// object that is still being moved, because such an object would close the pool again at once.
func (m *PoolState) movedPoolMessage() string {
	text := "addresses of this pool were moved to another management cluster, which may use them; " +
		"when you are sure that it does not, release those in status.held with kubectl butler-ipam release-held to use the pool here again"
	if bad := m.invalidReleaseMessage(); bad != "" {
		text += "; " + bad
	}
	var first string
	for _, c := range m.movingClaimants {
		if name := c.Owner.Namespace + "/" + c.Owner.Name; first == "" || name < first {
			first = name
		}
	}
	if first == "" {
		return text
	}
	return fmt.Sprintf("%s; first, end the move of %s, or remove its annotation %s if it is not being moved", text, first, v1alpha1.DeleteForMoveAnnotation)
}

func (m *PoolState) hasMovedRanges() bool {
	for _, h := range m.heldRanges {
		if h.Reason == v1alpha1.MovedReason {
			return true
		}
	}
	return false
}

// DeletionMessage returns the message of a pool that is being deleted. It names the owners of addresses that keep the
// pool.
func (m *PoolState) DeletionMessage() string {
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
	m.Ledger.VisitUsedRanges(func(_ netipx.IPRange, facts []*ledger.Fact) bool {
		for _, h := range facts {
			if !seen[h.Owner.UID] && len(names) < named {
				seen[h.Owner.UID] = true
				name := h.Owner.Namespace + "/" + h.Owner.Name
				if child := m.ChildPoolFor(h.Owner.UID); child != nil {
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

func compareStrings(a, b string) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}

// emptySpecMessage returns a message that the spec of the pool leaves no address, or "" if it leaves some.
func (m *PoolState) emptySpecMessage() string {
	if m.Layout == nil || m.Ledger.Counts().Total > 0 || m.isCarved() { // the next block may add addresses
		return ""
	}
	return poolspec.NothingAllocatableMessage(m.Layout, m.addAddressesAdvice())
}
