package grants

import (
	"net/netip"
	"slices"
	"strings"
	"time"

	"go4.org/netipx"
	"k8s.io/apimachinery/pkg/types"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/ending"
)

// clusterctl deletes an object that it has moved, and removes all its finalizers in the next request. If clusterctl
// is killed between the two, our finalizers keep the object for ever, and no later move succeeds: an object that is
// being deleted cannot be overwritten by its copy. So this manager removes our finalizers once the addresses of the
// object are held on record.

// unfinishedMove is the retry state of the end of the move of one object: when the manager next tries to remove our
// finalizers, and how often that has failed.
type unfinishedMove struct {
	retryAt  time.Time
	failures int
}

// UnfinishedMoves are the objects from which the manager should remove our finalizers now. Wait is how long until the
// next ones are due.
type UnfinishedMoves struct {
	Claimants []types.UID
	Addresses []*Address
	Wait      time.Duration
}

func (c *Claimant) canFinishMove(held heldRangeSet) bool {
	return c.Moved && len(c.foreignFinalizers()) < len(c.OtherFinalizers)+boolToInt(c.HasFinalizer) && (!c.HasRecord() || held.containsRange(c.RecordedRange))
}

// FinishMoveStep returns the step that removes our finalizers from a claimant that clusterctl has moved.
func FinishMoveStep(c *Claimant) Step {
	return Step{Call: Call{Verb: PatchObject, Purpose: "moved"}, MetadataPatch: map[string]any{"finalizers": c.foreignFinalizers()}}
}

// foreignFinalizers returns the finalizers of other controllers.
func (c *Claimant) foreignFinalizers() []string {
	out := []string{}
	for _, f := range c.OtherFinalizers {
		if !strings.HasPrefix(f, ending.FinalizerPrefix) {
			out = append(out, f)
		}
	}
	return out
}

func boolToInt(value bool) int {
	if value {
		return 1
	}
	return 0
}

// heldRangeSet is the set of ranges that a pool holds: sorted, and no two of them adjacent. A nil set holds
// everything.
type heldRangeSet []netipx.IPRange

// containsRange reports whether the set holds all of a range.
func (k heldRangeSet) containsRange(r netipx.IPRange) bool {
	if k == nil {
		return true
	}
	after, found := slices.BinarySearchFunc(k, r.From(), func(h netipx.IPRange, ip netip.Addr) int { return h.From().Compare(ip) })
	if found {
		after++
	}
	return after > 0 && !k[after-1].To().Less(r.To())
}
