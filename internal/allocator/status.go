package allocator

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

// compile makes the layout of the base's spec. A spec that cannot be served leaves what is allocated
// as it is, and the last layout that could be for what is already promised.
func (p *memory) compile() {
	layout, errs := poolspec.Of(p.base)
	p.specErr = ""
	if len(errs) > 0 {
		p.specErr = text.Message(errs.ToAggregate().Error())
		if p.layout != nil {
			return
		}
	}
	if layout != nil {
		p.removePins()
		p.layout = layout
	}
	space, unit := p.space()
	p.ledger.Relayout(space, unit)
	p.addPins()
}

func (p *memory) space() (*netipx.IPSet, int) {
	if p.layout == nil {
		return nil, 128
	}
	var b netipx.IPSetBuilder
	b.AddSet(p.layout.Allocatable())
	for _, pin := range p.layout.Pins() {
		if unit, err := pin.Prefix(min(p.layout.UnitBits(), pin.BitLen())); err == nil {
			b.AddPrefix(unit)
		}
	}
	set, err := b.IPSet()
	if err != nil {
		return p.layout.Allocatable(), p.layout.UnitBits()
	}
	return set, p.layout.UnitBits()
}

// addPins states the preAllocations: their addresses are nobody else's.
func (p *memory) addPins() {
	if p.layout == nil {
		return
	}
	for name, ip := range p.layout.Pins() {
		p.ledger.Add(ledger.Hold{
			Key:   ledger.Key{Source: ledger.Pin, UID: types.UID(name)},
			Owner: ledger.Owner{Name: name},
			Range: p.ledger.Unit(ip),
		})
	}
}

func (p *memory) removePins() {
	if p.layout == nil {
		return
	}
	for name := range p.layout.Pins() {
		p.ledger.Remove(ledger.Key{Source: ledger.Pin, UID: types.UID(name)})
	}
}

// describe writes what the pool is into a status.
func (p *memory) describe(obj v1alpha1.Pool, now time.Time) {
	s, n := obj.PoolStatus(), p.ledger.Counts()
	s.TotalIPs, s.AllocatedIPs, s.AvailableIPs, s.OutOfRangeIPs = n.Total, n.Allocated, n.Available, n.OutOfRange
	s.AllocationCount, s.LargestFreeBlock, s.FragmentationPercent = n.Owners, n.LargestFree, n.FragmentationPercent
	s.ObservedGeneration = obj.GetGeneration()
	s.Allocator.InFlight = p.inFlight()
	s.Cooling, s.Held, s.Yields = p.cooling.Groups(), nil, p.yields
	for _, h := range p.held {
		s.Held = append(s.Held, h)
	}
	slices.SortFunc(s.Held, func(a, b v1alpha1.HeldRange) int { return compareText(a.First, b.First) })
	for _, c := range p.conditions(n, now) {
		c.ObservedGeneration = obj.GetGeneration()
		c.LastTransitionTime = metav1.NewTime(now)
		meta.SetStatusCondition(&s.Conditions, c)
	}
	setPaused(s, obj, now)
	s.CapacityEvents = capacityEvents(s, now)
}

// conditions says what the pool is worth to a person. All are always present.
func (p *memory) conditions(n ledger.Counts, now time.Time) []metav1.Condition {
	ready := metav1.Condition{
		Type: v1alpha1.ReadyCondition, Status: metav1.ConditionTrue, Reason: v1alpha1.ReadyReason,
		Message: fmt.Sprintf("%d/%d IPs available (%d allocations)", n.Available, n.Total, n.Owners),
	}
	if reason, message := p.closed(now); reason != "" {
		ready.Status, ready.Reason, ready.Message = metav1.ConditionFalse, reason, message
	} else if len(p.crowded) > 0 {
		ready.Message += "; as many addresses rest as the status can say: deleted claims wait with theirs until some of these are free"
	} else if n.OutOfRange > 0 {
		ready.Message += fmt.Sprintf("; %d in use are outside the spec and stay until they are released", n.OutOfRange)
	}
	overlap := metav1.Condition{
		Type: v1alpha1.OverlapCondition, Status: metav1.ConditionFalse, Reason: v1alpha1.NoOverlapReason,
		Message: "No other pool of this network has these addresses",
	}
	if p.overlap != "" {
		overlap.Status, overlap.Reason, overlap.Message = metav1.ConditionTrue, v1alpha1.OverlapReason, p.overlap+p.waitsFor
	}
	out := append([]metav1.Condition{ready, overlap}, capacity(n)...)
	exhaustedByItsSpec(out, p.nothingLeft())
	return out
}

// closed tells why the pool grants nothing new, if so. Adopting comes before all else: the condition carries the wait
// over a restart (R10).
func (p *memory) closed(now time.Time) (reason, message string) {
	reason, message = p.closedForGood()
	if !p.quarantineUntil.After(now) {
		return reason, message
	}
	adopting := "somebody else may have given addresses of this pool; new ones are granted from " +
		p.quarantineUntil.UTC().Format(time.RFC3339) + " on, when what is on its way has landed"
	switch reason {
	case v1alpha1.DeletingReason: // claims are told this, and whom the pool waits for changes with every release
		adopting += "; it grants nothing then either: it is being deleted"
	case v1alpha1.ValidationFailedReason, v1alpha1.MovedReason:
		adopting += "; it grants nothing then either: " + message
	}
	return v1alpha1.AdoptingReason, adopting
}

// closedForGood is closed for what no time ends.
func (p *memory) closedForGood() (reason, message string) {
	switch {
	case p.base.GetDeletionTimestamp() != nil:
		return v1alpha1.DeletingReason, p.usersMessage()
	case p.specErr != "":
		return v1alpha1.ValidationFailedReason, p.specErr
	case p.mirrorProblem() != "":
		return v1alpha1.ValidationFailedReason, p.mirrorProblem()
	case p.isMoved():
		return v1alpha1.MovedReason, p.movedMessage()
	case annotations.HasPaused(p.base):
		return clusterv1.PausedReason, PausedPool
	case p.nothingLeft() != "":
		return v1alpha1.PoolExhaustedReason, p.nothingLeft()
	case p.overlap != "" && !p.base.PoolSpec().AllowOverlap && p.younger:
		return v1alpha1.OverlapReason, p.overlap
	case p.outstanding != "":
		return v1alpha1.OverlapReason, p.outstanding
	}
	return "", ""
}

// movedMessage says how the pool is opened again: objects that are being moved still would close it at once.
func (p *memory) movedMessage() string {
	const text = "addresses of this pool were moved to another management cluster and may be given away there; " +
		"remove the entries from status.held to use the pool here again"
	var first string
	for _, c := range p.claimants {
		if name := c.owner.Namespace + "/" + c.owner.Name; c.moved && (first == "" || name < first) {
			first = name
		}
	}
	if first == "" {
		return text
	}
	return fmt.Sprintf("%s; first, end the move of %s, or remove its annotation %s if it is not being moved", text, first, v1alpha1.DeleteForMoveAnnotation)
}

func (p *memory) isMoved() bool {
	for _, h := range p.held {
		if h.Reason == v1alpha1.MovedReason {
			return true
		}
	}
	return false
}

// usersMessage names who keeps a pool from being deleted.
func (p *memory) usersMessage() string {
	const named = 3
	n := p.ledger.Counts().Owners
	if n == 0 {
		return "the pool is being deleted"
	}
	var names []string
	seen := map[types.UID]bool{}
	p.ledger.Uses(func(_ netipx.IPRange, holds []*ledger.Hold) bool {
		for _, h := range holds {
			if !seen[h.Owner.UID] && len(names) < named {
				seen[h.Owner.UID] = true
				names = append(names, h.Owner.Namespace+"/"+h.Owner.Name)
			}
		}
		return len(names) < named
	})
	text := fmt.Sprintf("the pool is being deleted and waits for what is in use to be released: %s", strings.Join(names, ", "))
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
