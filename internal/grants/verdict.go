package grants

import (
	"k8s.io/apimachinery/pkg/api/equality"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
)

// Verdict is what became of a write of a pool's status of which no answer says so (R4).
type Verdict int

const (
	// MayLand means that it is not there, and may be on its way still: it is sent again as it is, or not at all.
	MayLand Verdict = iota
	// HasLanded means that it is there.
	HasLanded
	// NeverLands means that the pool was changed by another hand, which left the grants as they were. The write was made on an
	// older one.
	NeverLands
	// TermLost means that another manager has written the pool, or it is another pool.
	TermLost
)

// VerdictOn compares the pool that a write was made on, what was sent, and what the API server has now.
func VerdictOn(base, sent, live v1alpha1.Pool) Verdict {
	was, wanted, is := base.PoolStatus(), sent.PoolStatus(), live.PoolStatus()
	there := equality.Semantic.DeepEqual(is.Allocator, wanted.Allocator)
	if equality.Semantic.DeepEqual(was.Allocator, wanted.Allocator) {
		// Where the write changes no grant, only the whole status reports whether it is there.
		there = equality.Semantic.DeepEqual(is, wanted)
	}
	switch {
	case live.GetUID() != base.GetUID():
		return TermLost
	case live.GetResourceVersion() == base.GetResourceVersion():
		return MayLand
	case there:
		return HasLanded
	case equality.Semantic.DeepEqual(is.Allocator, was.Allocator):
		return NeverLands
	}
	return TermLost
}
