package allocator

import (
	"cmp"
	"net/netip"
	"slices"
	"time"

	"go4.org/netipx"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/ledger"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"
)

// viewChunk is how many ranges are looked at before the lock of a pool is let go of: whoever looks at a pool
// must not hold up whoever grants from it.
const viewChunk = 128

// View is what a pool looks like at one moment.
type View struct {
	Key pools.Key
	// Declared are the addresses the spec names, Allocatable those of them that are handed out at all. Nil
	// where no spec could be served yet. Neither ever changes.
	Declared, Allocatable *netipx.IPSet
	// UnitBits is the prefix length of what each claim gets: 32 or 128 for single addresses.
	UnitBits int
	// Gateways are those the spec names.
	Gateways []netip.Addr
	// Counts are of what this manager knows now; the status of the pool may be some moments behind.
	Counts ledger.Counts
	// Waiting is the number of claims and allocations without an address and without a grant.
	Waiting int
	// Holder reports whether this manager grants from the pool; if not, another one does and knows better.
	Holder bool
	// Ready is the Ready condition of the pool as it was last read or written.
	Ready metav1.Condition
}

// Views returns all pools that exist, by namespace, name and kind.
func (a *Allocator) Views() []View {
	all := a.all()
	out := make([]View, 0, len(all))
	for _, p := range all {
		m := p.lock()
		if v, exists := m.view(); exists {
			out = append(out, v)
		}
		m.unlock()
	}
	slices.SortFunc(out, func(v, w View) int {
		return cmp.Or(cmp.Compare(v.Key.Namespace, w.Key.Namespace), cmp.Compare(v.Key.Name, w.Key.Name), cmp.Compare(v.Key.Kind, w.Key.Kind))
	})
	return out
}

func (p *memory) view() (v View, exists bool) {
	if p.base == nil || p.dropped {
		return View{}, false
	}
	v = View{Key: p.key, Counts: p.ledger.Counts(), Waiting: p.pending.Len(), Holder: p.holder}
	v.Ready = ptr.Deref(meta.FindStatusCondition(p.base.GetConditions(), v1alpha1.ReadyCondition), metav1.Condition{})
	if p.layout != nil {
		v.Declared, v.Allocatable, v.UnitBits = p.layout.Declared(), p.layout.Allocatable(), p.layout.UnitBits()
		v.Gateways = p.layout.Gateways()
	}
	return v, true
}

// Use is why an address is not free.
type Use uint8

// The uses. Those up to UseConflict mean that somebody has the address.
const (
	// UseClaim is the address of an IPAddressClaim.
	UseClaim Use = iota
	// UseLoadBalancer is part of an IPAllocation for load balancers.
	UseLoadBalancer
	// UseNodes is part of an IPAllocation for machines.
	UseNodes
	// UseNoClaim is the address of an IPAddress whose claim is not known.
	UseNoClaim
	// UseConflict is an address that more than one has.
	UseConflict
	// UsePreAllocated is kept for claims of a name.
	UsePreAllocated
	// UseResting was released, and nobody else gets it for a while.
	UseResting
	// UseHeld was moved to another cluster, and is kept until an operator says otherwise.
	UseHeld
)

// Held is a range that is not free, and why.
type Held struct {
	Range netipx.IPRange
	Use   Use
	// Kind, Namespace and Name are the owner's. Kind is empty where the owner is a name alone.
	Kind, Namespace, Name string
	// Cluster is the name of the owner's Cluster, empty if it has none.
	Cluster string
	// Since is when the owner was created, or its block granted; zero where that is not known.
	Since time.Time
	// Until is when a rest ends.
	Until time.Time
	// Others names who else has the range, where the use is UseConflict.
	Others []string
}

// Walk calls visit for every range of a pool that is not free, ascending, from an address on, until visit
// returns false. The lock of the pool is held for some ranges at a time, never while visit runs: what is
// seen is each range at a moment of its own.
func (a *Allocator) Walk(key pools.Key, from netip.Addr, visit func(Held) bool) {
	p := a.find(key)
	if p == nil {
		return
	}
	buffer := make([]Held, 0, viewChunk)
	for from.IsValid() {
		m := p.lock()
		buffer = m.heldFrom(from, buffer[:0])
		m.unlock()
		for _, h := range buffer {
			if !visit(h) {
				return
			}
		}
		if len(buffer) < viewChunk {
			return
		}
		from = buffer[len(buffer)-1].Range.To().Next() // invalid after the last address of a family
	}
}

// find returns a pool that is remembered; nil: there is none.
func (a *Allocator) find(key pools.Key) *pool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.pools[key]
}

// heldFrom appends the next ranges from an address on, at most viewChunk.
func (p *memory) heldFrom(from netip.Addr, to []Held) []Held {
	p.ledger.Taken(from, func(r netipx.IPRange, holds []*ledger.Hold) bool {
		to = append(to, p.use(r, holds))
		return len(to) < viewChunk
	})
	return to
}

// use says why a range is not free, by the strongest of the facts about it.
func (p *memory) use(r netipx.IPRange, holds []*ledger.Hold) Held {
	best := holds[0]
	for _, h := range holds[1:] {
		if h.Source < best.Source {
			best = h
		}
	}
	out := Held{Range: r, Namespace: best.Owner.Namespace, Name: best.Owner.Name}
	if !best.Source.Uses() {
		out.Use = UseHeld
		if best.Source == ledger.Pin {
			out.Use = UsePreAllocated
		} else if rest, is := p.cooling.Get(best.Range); is {
			out.Use, out.Until = UseResting, rest.Until
		}
		return out
	}
	out.Kind, out.Use = best.Owner.Kind, UseClaim
	c := p.claimants[best.Owner.UID]
	switch {
	case c != nil:
		out.Cluster = c.cluster.Name
		out.Use, out.Since = c.kind.use(c)
	case best.Source == ledger.Object:
		out.Use, out.Kind = UseNoClaim, p.kindOf(best.Owner.Kind).traits().attaches.kind()
	}
	for _, h := range holds {
		if h.Source.Uses() && (h.Owner.UID != best.Owner.UID || (h.Owner.UID == "" && h.UID != best.UID)) {
			out.Use = UseConflict
			if who := p.describeHold(h); !slices.Contains(out.Others, who) {
				out.Others = append(out.Others, who)
			}
		}
	}
	return out
}

// Waiter is a claim or an allocation that waits.
type Waiter struct {
	Kind, Namespace, Name string
	// Cluster is the name of its Cluster, empty if it has none.
	Cluster string
	// Since is when it was created.
	Since time.Time
	// Reason and Message are what it was told, empty if nothing yet.
	Reason, Message string
}

// Waiting calls visit for every claim and allocation of a pool that waits, oldest first, until visit returns
// false. The lock of the pool is held as by Walk.
func (a *Allocator) Waiting(key pools.Key, visit func(Waiter) bool) {
	p := a.find(key)
	if p == nil {
		return
	}
	var last *claimant
	buffer := make([]Waiter, 0, viewChunk)
	for {
		m := p.lock()
		buffer, last = m.waitingAfter(last, buffer[:0])
		m.unlock()
		for _, w := range buffer {
			if !visit(w) {
				return
			}
		}
		if len(buffer) < viewChunk {
			return
		}
	}
}

// waitingAfter appends those that wait and are served after a claim, at most viewChunk, and returns the last.
func (p *memory) waitingAfter(after *claimant, to []Waiter) ([]Waiter, *claimant) {
	add := func(c *claimant) bool {
		if after != nil && !older(after, c) {
			return true
		}
		told := c.shownRefusal()
		to = append(to, Waiter{
			Kind: c.owner.Kind, Namespace: c.owner.Namespace, Name: c.owner.Name, Cluster: c.cluster.Name, Since: c.created,
			Reason: told.reason, Message: told.message,
		})
		after = c
		return len(to) < viewChunk
	}
	if after == nil {
		p.pending.Scan(add)
	} else {
		p.pending.Ascend(after, add)
	}
	return to, after
}
