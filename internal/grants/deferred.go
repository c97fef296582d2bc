package grants

import (
	"net/netip"
	"slices"

	"k8s.io/apimachinery/pkg/types"
)

// deferred are releases whose rest is still to be noted. Each batch notes no more than can be handed out, and leaves the others
// to the batches after it: their claims are not in Todo meanwhile, or each turn would look at all of them. The zero value is none.
type deferred struct {
	// order has them by address, since neighbours that begin to rest together share an entry of status.cooling (ADR 53).
	order []release
	// claims are those of them that still wait: one that was sorted anew meanwhile does not.
	claims map[types.UID]*Claimant
}

// release is a claim that gives up a range, and where that begins.
type release struct {
	of   *Claimant
	from netip.Addr
}

// deferReleases puts releases of Todo among those that are deferred. It costs O(n log n) of both, and nothing where there are
// none.
func (m *Memory) deferReleases(due []release) {
	if len(due) == 0 {
		return
	}
	d := &m.deferred
	if d.claims == nil {
		d.claims = make(map[types.UID]*Claimant, len(due))
	}
	d.order = slices.DeleteFunc(d.order, func(r release) bool { return d.claims[r.of.Owner.UID] != r.of })
	for _, r := range due {
		delete(m.Todo, r.of.Owner.UID)
		d.claims[r.of.Owner.UID] = r.of
	}
	d.order = append(d.order, due...)
	slices.SortFunc(d.order, func(a, b release) int { return a.from.Compare(b.from) })
}

// nextDeferred has the claim with the lowest address of those that are deferred be in Todo again, and returns it; nil if there is
// none.
func (m *Memory) nextDeferred() *Claimant {
	d := &m.deferred
	for len(d.order) > 0 {
		c := d.order[0].of
		d.order[0] = release{} // the array stays as long as one of the others
		d.order = d.order[1:]
		if d.claims[c.Owner.UID] == c {
			delete(d.claims, c.Owner.UID)
			m.Todo[c.Owner.UID] = c
			return c
		}
	}
	*d = deferred{} // neither has memory of those that were
	return nil
}

// resumeReleases has all that are deferred be in Todo again: this manager notes no rest any more, or none is needed.
func (m *Memory) resumeReleases() {
	for uid, c := range m.deferred.claims {
		m.Todo[uid] = c
	}
	m.deferred = deferred{}
}
