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

// maxNamed is how many holders of addresses a message names.
const maxNamed = 3

// outsideMessage names who has addresses that the spec does not hand out, to go on after a sentence; empty where nobody
// has.
func (m *Memory) outsideMessage(n int64) string {
	if n == 0 {
		return ""
	}
	var who []string
	m.Ledger.UsesOutside(func(r netipx.IPRange, facts []*ledger.Fact) bool {
		name := fmt.Sprintf("%s of %s", poolutil.ShowRange(r), m.DescribeFact(facts[0]))
		if !slices.Contains(who, name) {
			who = append(who, name)
		}
		return len(who) <= maxNamed
	})
	if len(who) > maxNamed {
		who[maxNamed] = "..."
	}
	return fmt.Sprintf("; %s outside the spec until released: %s", text.Count(n, "address in use stays", "addresses in use stay"), strings.Join(who, ", "))
}

// pinsMessage names the preAllocations whose address somebody else has, to go on after a sentence; empty where nobody has.
// They are no more than a spec may have.
func (m *Memory) pinsMessage() string {
	if m.Layout == nil {
		return ""
	}
	pins := maps.Collect(m.Layout.Pins())
	var held []string
	for _, name := range slices.Sorted(maps.Keys(pins)) {
		if h := m.usedByAnother(name, pins[name]); h != nil {
			held = append(held, fmt.Sprintf("spec.preAllocations[%s] %s is held by %s", name, pins[name], m.DescribeFact(h)))
		}
	}
	if len(held) == 0 {
		return ""
	}
	if len(held) > maxNamed {
		held = append(held[:maxNamed], "...")
	}
	return "; " + strings.Join(held, ", ") + ", and free for that name when it is released"
}

// usedByAnother returns who has the address of a preAllocation, and not its name; nil: nobody.
func (m *Memory) usedByAnother(name string, ip netip.Addr) *ledger.Fact {
	return m.Ledger.FindOverlapping(m.Ledger.Unit(ip), func(h *ledger.Fact) bool {
		return h.Source.Uses() && (h.Owner.Name != name || !m.kindOf(h.Owner.Kind).Traits().Pinned)
	})
}
