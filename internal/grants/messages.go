package grants

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"go4.org/netipx"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/ledger"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/poolutil"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/text"
)

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
