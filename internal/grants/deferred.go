package grants

import (
	"net/netip"
	"slices"

	"k8s.io/apimachinery/pkg/types"
)

// deferredReleases are the releases whose cooling period still has to be recorded. Each batch records no more than
// can be handed to jobs, and leaves the others to the next batches. Their claimants are not in ToWrite
// meanwhile, or each reconcile would visit all of them. The zero value is empty.
type deferredReleases struct {
	// byAddress has the releases in the order of their addresses, because adjacent ranges that start to cool down
	// together share an entry of status.cooling (ADR 53).
	byAddress []deferredRelease
	// claimants has the claimants that still wait. One that was queued again meanwhile is in byAddress only.
	claimants map[types.UID]*Claimant
}

// deferredRelease is a claimant that releases a range, and the first address of that range.
type deferredRelease struct {
	claimant     *Claimant
	firstAddress netip.Addr
}

// deferReleases moves releases from ToWrite to the deferred ones. It costs O(n log n) in the number of both,
// and nothing if due is empty.
func (q *Queues) deferReleases(due []deferredRelease) {
	if len(due) == 0 {
		return
	}
	d := &q.deferred
	if d.claimants == nil {
		d.claimants = make(map[types.UID]*Claimant, len(due))
	}
	d.byAddress = slices.DeleteFunc(d.byAddress, func(r deferredRelease) bool { return d.claimants[r.claimant.Owner.UID] != r.claimant })
	for _, r := range due {
		delete(q.ToWrite, r.claimant.Owner.UID)
		d.claimants[r.claimant.Owner.UID] = r.claimant
	}
	d.byAddress = append(d.byAddress, due...)
	slices.SortFunc(d.byAddress, func(a, b deferredRelease) int { return a.firstAddress.Compare(b.firstAddress) })
}

// nextDeferredRelease moves the deferred claimant with the lowest address back to ToWrite and returns it. It
// returns nil if there is none.
func (q *Queues) nextDeferredRelease() *Claimant {
	d := &q.deferred
	for len(d.byAddress) > 0 {
		c := d.byAddress[0].claimant
		d.byAddress[0] = deferredRelease{} // the array lives as long as any of the others
		d.byAddress = d.byAddress[1:]
		if d.claimants[c.Owner.UID] == c {
			delete(d.claimants, c.Owner.UID)
			q.ToWrite[c.Owner.UID] = c
			return c
		}
	}
	*d = deferredReleases{} // free the memory of both
	return nil
}

// requeueDeferredReleases moves all deferred claimants back to ToWrite: this manager does not record cooling
// periods any more, or none are needed.
func (q *Queues) requeueDeferredReleases() {
	for uid, c := range q.deferred.claimants {
		q.ToWrite[uid] = c
	}
	q.deferred = deferredReleases{}
}
