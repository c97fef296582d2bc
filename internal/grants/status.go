package grants

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"go4.org/netipx"
	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/poolutil"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/annotations"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/ledger"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/poolspec"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/text"
)

// StatusBuilder writes the status of the pool, with its conditions, as the next commit sends it. It has no state, and
// writes nothing but the status that it is passed.
type StatusBuilder struct {
	base       *BasePool
	space      *Space
	claimants  *Claimants
	quarantine *Quarantine
	grants     *Grants
	held       *HeldRanges
	queues     *Queues
	carved     *CarvedPool
	inventory  *Inventory
	clock      *Clock
	growth     *Growth
	cooling    *Cooling
	overlap    *Overlap
	moves      *Moves
}

// FillStatus writes the state of the pool to a status.
func (st *StatusBuilder) FillStatus(obj v1alpha1.Pool, now time.Time) {
	s, n := obj.PoolStatus(), st.space.Ledger.Counts()
	s.TotalIPs, s.AllocatedIPs, s.AvailableIPs, s.OutOfRangeIPs = n.Total, n.Allocated, n.Available, n.OutOfRange
	s.AllocationCount, s.LargestFreeBlock, s.FragmentationPercent = n.Owners, n.LargestFree, n.FragmentationPercent
	s.ObservedGeneration = obj.GetGeneration()
	s.Allocator.InFlight = st.grants.inFlightGrants()
	s.Cooling, s.Held, s.Yields = st.cooling.Periods.Groups(), nil, st.overlap.Yields
	s.Released = st.space.releasedText()
	s.Blocks = st.carved.plannedBlocks
	for _, h := range st.held.byRange {
		s.Held = append(s.Held, h)
	}
	slices.SortFunc(s.Held, func(a, b v1alpha1.HeldRange) int { return compareStrings(a.First, b.First) })
	for _, c := range st.PoolConditions(n, now) {
		c.ObservedGeneration = obj.GetGeneration()
		c.LastTransitionTime = metav1.NewTime(st.clock.apiServerTime(now))
		SetPoolCondition(&s.Conditions, c)
	}
	st.quarantine.keepQuarantineStart(meta.FindStatusCondition(s.Conditions, v1alpha1.ReadyCondition))
	setPausedCondition(s, obj, st.clock.apiServerTime(now))
	s.CapacityEvents = DueCapacityEvents(s, st.clock.apiServerTime(now))
}

// PoolConditions returns the conditions of the pool. All of them are always present.
func (st *StatusBuilder) PoolConditions(n ledger.Counts, now time.Time) []metav1.Condition {
	ready := metav1.Condition{
		Type: v1alpha1.ReadyCondition, Status: metav1.ConditionTrue, Reason: v1alpha1.ReadyReason,
		Message: fmt.Sprintf("%d/%d IPs available (%s)", n.Available, n.Total, text.FormatCount(n.Owners, "allocation", "allocations")),
	}
	reason, message := st.ClosedReason(now)
	short, why := st.growth.blockShortfallReason()
	if reason == "" && n.Available == 0 {
		reason, message = short, why
	}
	switch {
	case reason != "":
		ready.Status, ready.Reason, ready.Message = metav1.ConditionFalse, reason, message
	case short != "":
		ready.Message += "; " + why
	case len(st.queues.Overflow) > 0:
		ready.Message += "; status.cooling has no room for more released addresses: deleted claims keep their addresses until some cooling ones are free; " +
			"shorten addressReuseGracePeriodSeconds of " + st.base.EditablePoolName() + " if this happens often"
	default:
		ready.Message += st.outOfRangeMessage(n.OutOfRange) + st.blockedPinsMessage()
	}
	if ending := st.base.MirrorDeletionMessage(); ending != "" {
		ready.Message = text.SanitizeMessage(ready.Message + "; " + ending)
	}
	overlap := metav1.Condition{
		Type: v1alpha1.OverlapCondition, Status: metav1.ConditionFalse, Reason: v1alpha1.NoOverlapReason,
		Message: "no other pool of this network has these addresses",
	}
	if st.overlap.Message != "" {
		overlap.Status, overlap.Reason, overlap.Message = metav1.ConditionTrue, v1alpha1.OverlapReason, st.overlap.Message+st.overlap.WaitMessage
	}
	out := append([]metav1.Condition{ready, overlap}, CapacityConditions(n, st.growth.GrowthCapacity())...)
	setExhaustedBySpec(out, st.emptySpecMessage())
	return out
}

// ClosedReason returns the reason and the message why the pool grants nothing new. Both are empty if it grants.
// Adopting has precedence over all other reasons, because the condition carries the quarantine over a restart (R10).
func (st *StatusBuilder) ClosedReason(now time.Time) (reason, message string) {
	reason, message = st.permanentClosedReason()
	if !st.quarantine.IsQuarantined(now) {
		return reason, message
	}
	adopting := st.quarantine.Arrival.MissingProof
	if adopting == "" {
		adopting = "another manager or provider may have given out addresses of this pool; new grants start at " +
			st.quarantine.endsAt.UTC().Format(time.RFC3339) + ", when its last writes have settled"
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
func (st *StatusBuilder) permanentClosedReason() (reason, message string) {
	switch {
	case st.base.Pool.GetDeletionTimestamp() != nil:
		return v1alpha1.DeletingReason, st.DeletionMessage()
	case st.space.SpecErr != "":
		return v1alpha1.ValidationFailedReason, st.space.SpecErr
	case st.base.mirrorProblem() != "":
		return v1alpha1.ValidationFailedReason, st.base.mirrorProblem()
	case st.quarantine.isCopiedPool():
		return v1alpha1.CopiedReason, copiedPoolMessage
	case st.held.hasMovedRanges():
		return v1alpha1.MovedReason, st.movedPoolMessage()
	case st.quarantine.wasMirrorRemoved():
		return v1alpha1.MovedReason, mirrorRemovedMessage
	case annotations.HasPaused(st.base.Pool):
		return clusterv1.PausedReason, pausedPoolMessage(st.base.Pool)
	case st.emptySpecMessage() != "":
		return v1alpha1.PoolExhaustedReason, st.emptySpecMessage()
	case st.overlap.Message != "" && !st.base.Pool.PoolSpec().AllowOverlap && st.overlap.WithOlderPool:
		return v1alpha1.OverlapReason, st.overlap.Message + "; that pool is older, so this one grants nothing, unless its spec.allowOverlap is set, after which both may give the same address"
	case st.overlap.OutstandingYieldMessage != "":
		return v1alpha1.OverlapReason, st.overlap.OutstandingYieldMessage
	}
	return "", ""
}

// movedPoolMessage returns the message that describes how to open a pool with moved addresses again. It names an
// object that is still being moved, because such an object would close the pool again at once.
func (st *StatusBuilder) movedPoolMessage() string {
	text := "addresses of this pool were moved to another management cluster, which may use them; " +
		"when you are sure that it does not, release those in status.held with kubectl butler-ipam release-held to use the pool here again"
	if bad := st.held.invalidReleaseMessage(); bad != "" {
		text += "; " + bad
	}
	var first string
	for _, c := range st.moves.movingClaimants {
		if name := c.Owner.Namespace + "/" + c.Owner.Name; first == "" || name < first {
			first = name
		}
	}
	if first == "" {
		return text
	}
	return fmt.Sprintf("%s; first, end the move of %s, or remove its annotation %s if it is not being moved", text, first, v1alpha1.DeleteForMoveAnnotation)
}

// DeletionMessage returns the message of a pool that is being deleted. It names the owners of addresses that keep the
// pool.
func (st *StatusBuilder) DeletionMessage() string {
	const named = 3
	n := st.space.Ledger.Counts().Owners
	if n == 0 && st.carved.HasBlocks() {
		return "the pool is being deleted and gives its blocks back"
	}
	if n == 0 {
		return "the pool is being deleted"
	}
	var names []string
	seen := map[types.UID]bool{}
	st.space.Ledger.VisitUsedRanges(func(_ netipx.IPRange, facts []*ledger.Fact) bool {
		for _, h := range facts {
			if !seen[h.Owner.UID] && len(names) < named {
				seen[h.Owner.UID] = true
				name := h.Owner.Namespace + "/" + h.Owner.Name
				if child := st.claimants.ChildPoolFor(h.Owner.UID); child != nil {
					name += " of " + child.String()
				}
				names = append(names, name)
			}
		}
		return len(names) < named
	})
	return "the pool is being deleted and waits until all of its addresses are released; delete the machines, claims and allocations that have some: " + text.JoinSomeNames(names, int(n))
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
func (st *StatusBuilder) emptySpecMessage() string {
	if st.space.Layout == nil || st.space.Ledger.Counts().Total > 0 || st.base.isCarved() { // the next block may add addresses
		return ""
	}
	return poolspec.NothingAllocatableMessage(st.space.Layout, st.base.addAddressesAdvice())
}

// maxNamedHolders is the maximum number of owners of addresses that a message names.
const maxNamedHolders = 3

// outOfRangeMessage returns a clause that names the owners of addresses outside the spec. It is empty if n, the
// number of such addresses, is 0.
func (st *StatusBuilder) outOfRangeMessage(n int64) string {
	if n == 0 {
		return ""
	}
	var owners []string
	st.space.Ledger.VisitUsedOutsideSpace(func(r netipx.IPRange, facts []*ledger.Fact) bool {
		name := fmt.Sprintf("%s of %s", poolutil.ShowRange(r), st.inventory.DescribeFact(facts[0]))
		if !slices.Contains(owners, name) {
			owners = append(owners, name)
		}
		return len(owners) <= maxNamedHolders
	})
	if len(owners) > maxNamedHolders {
		owners[maxNamedHolders] = "..."
	}
	return fmt.Sprintf("; %s outside the spec until released: %s", text.FormatCount(n, "address in use stays", "addresses in use stay"), strings.Join(owners, ", "))
}

// blockedPinsMessage returns a clause that names the preAllocations whose address another owner has. It is empty if
// there are none. It checks all preAllocations, whose number the spec bounds.
func (st *StatusBuilder) blockedPinsMessage() string {
	if st.space.Layout == nil {
		return ""
	}
	pins := maps.Collect(st.space.Layout.Pins())
	var held []string
	for _, name := range slices.Sorted(maps.Keys(pins)) {
		if h := st.findOtherUser(name, pins[name]); h != nil {
			held = append(held, fmt.Sprintf("spec.preAllocations[%s] %s is held by %s", name, pins[name], st.inventory.DescribeFact(h)))
		}
	}
	if len(held) == 0 {
		return ""
	}
	if len(held) > maxNamedHolders {
		held = append(held[:maxNamedHolders], "...")
	}
	return "; " + strings.Join(held, ", ") + ", and free for that name when it is released"
}

// findOtherUser returns a fact about another owner that uses the address of a preAllocation: one that does not have
// its name. It returns nil if there is none.
func (st *StatusBuilder) findOtherUser(name string, ip netip.Addr) *ledger.Fact {
	return st.space.Ledger.FindOverlappingFact(st.space.Ledger.UnitRange(ip), func(h *ledger.Fact) bool {
		return h.Source.IsInUse() && (h.Owner.Name != name || !st.claimants.kindByName(h.Owner.Kind).Traits().AllowsPreAllocation)
	})
}

// isCountOutdated reports whether the status counts other owners of addresses than there are. A holder that died after
// it released the last address of a claim, and before it counted that, leaves such a status, and no other work. While
// grants are in flight the count depends on the holder.
func (st *StatusBuilder) isCountOutdated() bool {
	s := st.base.Pool.PoolStatus()
	return len(s.Allocator.InFlight) == 0 && s.AllocationCount != st.space.Ledger.Counts().Owners
}

// isStatusOutdated reports whether the status is of an older spec than the pool has, or of other overlapping pools.
func (st *StatusBuilder) isStatusOutdated() bool {
	overlaps := meta.IsStatusConditionTrue(st.base.Pool.GetConditions(), v1alpha1.OverlapCondition)
	return st.base.Pool.PoolStatus().ObservedGeneration != st.base.Pool.GetGeneration() || overlaps != (st.overlap.Message != "") || st.overlap.YieldPending
}

// SetPoolCondition sets a condition of a pool. A quarantine counts from its own start, and not from an earlier reason
// with the same status, so the transition time changes with the reason Adopting.
func SetPoolCondition(all *[]metav1.Condition, c metav1.Condition) {
	if old := meta.FindStatusCondition(*all, c.Type); c.Reason == v1alpha1.AdoptingReason && old != nil && old.Reason != c.Reason {
		meta.RemoveStatusCondition(all, c.Type)
	}
	meta.SetStatusCondition(all, c)
}
