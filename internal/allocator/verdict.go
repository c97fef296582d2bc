package allocator

import (
	"k8s.io/apimachinery/pkg/api/equality"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
)

// verdict is what became of a write of a pool's status of which no answer says so (R4).
type verdict int

const (
	// mayLand: it is not there. It may be on its way still, so it is sent again as it is, or not at all.
	mayLand verdict = iota
	// hasLanded: it is there.
	hasLanded
	// neverLands: the pool was changed by another hand, which left the grants as they were. The write was made on an
	// older one.
	neverLands
	// termLost: another manager has written the pool, or it is another pool.
	termLost
)

// verdictOn compares the pool that a write was made on, what was sent, and what the API server has now.
func verdictOn(base, sent, live v1alpha1.Pool) verdict {
	was, wanted, is := base.PoolStatus(), sent.PoolStatus(), live.PoolStatus()
	there := equality.Semantic.DeepEqual(is.Allocator, wanted.Allocator)
	if equality.Semantic.DeepEqual(was.Allocator, wanted.Allocator) {
		// Where the write changes no grant, only the whole status reports whether it is there.
		there = equality.Semantic.DeepEqual(is, wanted)
	}
	switch {
	case live.GetUID() != base.GetUID():
		return termLost
	case live.GetResourceVersion() == base.GetResourceVersion():
		return mayLand
	case there:
		return hasLanded
	case equality.Semantic.DeepEqual(is.Allocator, was.Allocator):
		return neverLands
	}
	return termLost
}
