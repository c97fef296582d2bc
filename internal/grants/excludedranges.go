package grants

import (
	"go4.org/netipx"
	"k8s.io/apimachinery/pkg/types"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/ledger"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"
)

// ExcludedRanges are the ranges of the pool that another pool of its network has or may grant (R11). Each is a fact
// in the ledger. There is none after RebuildLedger until the pools were compared again.
type ExcludedRanges struct {
	// byRange are the ranges, with the pool that has or may grant each.
	byRange map[netipx.IPRange]pools.Key
	// Count counts the calls of ExcludeRange. A comparison of the pool with all others detects by it that a
	// range was excluded meanwhile.
	Count int

	space *Space
}

// sharedPoolNote returns a note that names another pool of the network that has some of the addresses: the first one
// by name if there are several. It is empty if there is none.
func (e *ExcludedRanges) sharedPoolNote() string {
	first := ""
	for _, key := range e.byRange {
		if text := key.String(); first == "" || text < first {
			first = text
		}
	}
	if first == "" {
		return ""
	}
	return ", or " + first + " has them too"
}

// SetExcluded replaces the excluded ranges, and the facts about them in the ledger, with the given ones.
func (e *ExcludedRanges) SetExcluded(excluded map[netipx.IPRange]pools.Key) {
	for r, key := range e.byRange {
		if excluded[r] != key {
			e.space.Ledger.RemoveFact(ledger.Key{Source: ledger.SourceExcluded, UID: types.UID(r.String())})
		}
	}
	for r, key := range excluded {
		e.space.Ledger.AddFact(ledger.Fact{Key: ledger.Key{Source: ledger.SourceExcluded, UID: types.UID(r.String())}, Owner: ledger.Owner{Name: key.String()}, Range: r})
	}
	e.byRange = excluded
}

// ExcludeRange adds one range that another pool has to the excluded ranges at once. A comparison with all other pools
// that is in progress starts over, because Count changes.
func (e *ExcludedRanges) ExcludeRange(r netipx.IPRange, key pools.Key) {
	e.Count++
	if e.byRange == nil {
		e.byRange = map[netipx.IPRange]pools.Key{}
	}
	e.byRange[r] = key
	e.space.Ledger.AddFact(ledger.Fact{Key: ledger.Key{Source: ledger.SourceExcluded, UID: types.UID(r.String())}, Owner: ledger.Owner{Name: key.String()}, Range: r})
}
