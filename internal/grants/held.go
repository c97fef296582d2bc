package grants

import (
	"go4.org/netipx"
	"k8s.io/apimachinery/pkg/types"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/ledger"
)

// MaxHeldRanges bounds the entries of status.held.
const MaxHeldRanges = 128

// heldIDLength is the length of the id of an entry, which makes it one of 10^11. An id has to differ only from the
// ids of earlier entries with the same range.
const heldIDLength = 8

// ledgerKeyForRange returns the key of a fact that is keyed by its range, because no object states it.
func ledgerKeyForRange(s ledger.Source, r netipx.IPRange) ledger.Key {
	return ledger.Key{Source: s, UID: types.UID(r.String())}
}
