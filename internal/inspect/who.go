package inspect

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/allocator"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/cooling"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/ledger"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/poolspec"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/poolutil"
)

// The states of an address in a pool.
const (
	StateUsed         = "used"
	StateGranted      = "granted"
	StateCarved       = "carved"
	StateReserved     = "reserved"
	StatePreallocated = "kept"
	StateCooling      = "resting"
	StateShared       = "shared"
	StateHeld         = "held"
	StateFree         = "free"
	// StateNotGranted: no object has the address, and its pool grants nothing now.
	StateNotGranted = "not granted"
)

// AddressStatus is the state of an address or a prefix in a pool or a ClusterCIDR.
type AddressStatus struct {
	// Pool is the pool or the ClusterCIDR; empty where none has the address.
	Pool   string `json:"pool"`
	State  string `json:"state"`
	Detail string `json:"detail,omitempty"`
	// Holders are the objects that have it. More than one holder of an address is a violation of the invariants.
	Holders []Holder `json:"holders,omitempty"`
	// Clusters are the Clusters that each have the whole range for themselves; Advice is the command to query one.
	Clusters []ClusterUsage `json:"clusters,omitempty"`
	Advice   string         `json:"do,omitempty"`
}

// DescribeAddress returns the state of an address or a prefix in each pool that declares it or in which an object has
// some of it, and in the pools of other providers.
func DescribeAddress(o pools.Objects, a netip.Prefix) []AddressStatus {
	var out []AddressStatus
	here := map[pools.Key]bool{}
	all := allocator.NewSnapshots(&o)
	for _, obj := range o.Pools {
		here[pools.KeyForPool(obj)] = true
		v := all.ForPool(pools.KeyForPool(obj))
		if s, ok := describeInPool(o, v, obj, a); ok {
			out = append(out, s)
		}
	}
	out = append(out, describeWithoutPool(o, here, a)...)
	// Pools in which an object has the address come first, those in which it is free last.
	slices.SortStableFunc(out, func(x, y AddressStatus) int { return cmp.Compare(sortRank(x), sortRank(y)) })
	return out
}

func sortRank(s AddressStatus) int {
	switch {
	case len(s.Holders) > 0 && s.State != StateCarved:
		return 0
	case s.State != StateFree && s.State != StateNotGranted:
		return 1
	}
	return 2
}

// describeInPool returns the state of an address or a prefix in one pool; false where the pool does not have it.
func describeInPool(o pools.Objects, v *allocator.Snapshot, obj v1alpha1.Pool, a netip.Prefix) (AddressStatus, bool) {
	facts := v.FactsFor(a)
	s := AddressStatus{Pool: pools.KeyForPool(obj).String()}
	seen := map[string]bool{}
	used, refused := splitHolders(facts)
	for _, h := range used {
		if s.State == "" {
			s.State = StateUsed
			if h.Source == ledger.SourceGrant {
				s.State, s.Detail = StateGranted, "its IPAddress is about to be written"
			}
		}
		if owner := h.Owner.Kind + " " + h.Owner.Namespace + "/" + h.Owner.Name; !seen[owner] {
			seen[owner] = true
			holder := newHolder(o, h.Owner)
			switch {
			case h.Range.From() != h.Range.To():
				holder.Range = poolutil.FormatRange(h.Range)
			case !a.IsSingleIP():
				holder.Range = h.Range.From().String()
			}
			s.Holders = append(s.Holders, holder)
		}
	}
	slices.SortFunc(s.Holders, func(x, y Holder) int {
		return cmp.Or(cmp.Compare(x.Namespace, y.Namespace), cmp.Compare(x.Name, y.Name))
	})
	if s.State != "" {
		if !a.IsSingleIP() {
			s.Detail = "" // the details below are about one address
		} else if len(refused) > 0 {
			s.Detail = describeRefusedHolders(refused)
		} else if len(s.Holders) > 1 {
			s.Detail = "more than one object has it, which must never happen: run kubectl butler-ipam audit"
		} else if child := s.Holders[0].ChildPool; child != "" {
			s.State, s.Detail = StateCarved, "it is in a block of "+child
		} else if text := describeDeletedAddress(o, s.Holders[0]); text != "" {
			s.Detail = text
		} else if detail, do, ok := describePodBlock(s.Holders[0], a); ok {
			s.Detail, s.Advice = detail, do
		}
		return s, true
	}
	layout := v.Layout()
	if !a.IsSingleIP() {
		s.State, s.Detail = StateFree, "no object has any of it; `kubectl butler-ipam free` shows what of it can be granted"
		if closed := ClosedReason(obj); closed != "" {
			s.State, s.Detail = StateNotGranted, "no object has any of it, and the pool "+closed
		}
		return s, layout != nil && layout.Declared().OverlapsPrefix(a)
	}
	slices.SortFunc(facts, func(x, y *ledger.Fact) int { return -cmp.Compare(x.Source, y.Source) })
	for _, h := range facts {
		s.State, s.Detail = describeUnusedAddress(obj, h, a.Addr())
		return s, true
	}
	if layout == nil {
		return s, false
	}
	if !layout.Declared().Contains(a.Addr()) {
		s.State, s.Detail = StateReserved, poolspec.GatewayDescription(layout, a.Addr())
		return s, s.Detail != ""
	}
	if v.IsAllocatable(a.Addr()) {
		s.State = StateFree
		if closed := ClosedReason(obj); closed != "" {
			s.State, s.Detail = StateNotGranted, "no object has it, and the pool "+closed
		}
	} else {
		s.State, s.Detail = StateReserved, poolspec.WithheldReason(obj.PoolSpec(), layout, a.Addr())
	}
	return s, true
}

// splitHolders returns the facts by which addresses are in use. Where an address has an object, another claim may have
// the address on record, for example after a move that left the claim behind: that claim is refused, and holds nothing.
// A claim with the name of the object is not another claim, even if a restore or a user has removed it from the
// object's owners.
func splitHolders(facts []*ledger.Fact) (used, refused []*ledger.Fact) {
	for _, h := range facts {
		ofAnother := slices.ContainsFunc(facts, func(o *ledger.Fact) bool {
			return o.Source == ledger.SourceObject && o.Owner.UID != h.Owner.UID && !hasSameName(o.Owner, h.Owner) && o.Range.Overlaps(h.Range)
		})
		switch {
		case !h.Source.IsInUse():
		case h.Source == ledger.SourceRecord && ofAnother:
			refused = append(refused, h)
		default:
			used = append(used, h)
		}
	}
	return used, refused
}

func hasSameName(a, b ledger.Owner) bool {
	return a.Kind == b.Kind && a.Namespace == b.Namespace && a.Name == b.Name
}

// describeDeletedAddress describes an IPAddress that was deleted while its claim was not; "" where that is not the
// case.
func describeDeletedAddress(o pools.Objects, h Holder) string {
	claim, ok := h.Object.(*ipamv1.IPAddressClaim)
	if !ok || claim.DeletionTimestamp != nil {
		return ""
	}
	for i := range o.Addresses {
		if a := &o.Addresses[i]; a.Namespace == claim.Namespace && a.Name == claim.Name {
			return describeKeptAddress(a)
		}
	}
	return ""
}

// describeRefusedHolders describes the claimants that have an address on record which another object holds.
func describeRefusedHolders(refused []*ledger.Fact) string {
	var owners []string
	for _, h := range refused {
		owners = append(owners, fmt.Sprintf("%s %s/%s", h.Owner.Kind, h.Owner.Namespace, h.Owner.Name))
	}
	return strings.Join(owners, ", ") + " remembers it too, and is refused it; find out which of them uses it, and delete the other"
}

// describeUnusedAddress returns the state of an address that no object has and that is not free.
func describeUnusedAddress(obj v1alpha1.Pool, h *ledger.Fact, a netip.Addr) (state, detail string) {
	owner := h.Owner.Name
	if h.Owner.Namespace != "" {
		owner = h.Owner.Namespace + "/" + owner
	}
	switch h.Source {
	case ledger.SourcePin:
		return StatePreallocated, "preAllocations keeps it for claims named " + owner
	case ledger.SourceCooling:
		released := ""
		if h.Owner.Name != "" {
			released = "; " + owner + " released it"
		}
		rests, _ := cooling.ParseGroups(obj.PoolStatus().Cooling) // the manager ignores what cannot be parsed, too
		for _, r := range rests {
			if r.Range.Contains(a) {
				return StateCooling, "until " + r.Until.UTC().Format(time.RFC3339) + released
			}
		}
		return StateCooling, "for a while" + released
	case ledger.SourceExcluded:
		return StateShared, owner + " has it too, or may give it: this pool does not give it meanwhile"
	default:
		for _, e := range obj.PoolStatus().Held {
			if r, err := poolutil.ParseRange(e.First + "-" + e.Last); err == nil && r.Contains(a) {
				return StateHeld, fmt.Sprintf("status.held keeps it back (%s)", e.Reason)
			}
		}
		return StateHeld, "status.held keeps it back"
	}
}
