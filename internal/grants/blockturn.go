package grants

import (
	"net/netip"
	"slices"
	"time"

	"go4.org/netipx"
	"sigs.k8s.io/cluster-api/util/annotations"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/carve"
)

// TurnBlocks decides on the blocks of a carved pool: what the next commit says of them, and what is to be requested on
// what is on record. It is called once a turn, after the plan, which finds out what is lacking.
func (m *Memory) TurnBlocks(now time.Time, grace time.Duration) {
	c := &m.Carved
	c.Todo, c.next = m.decideBlocks(now, grace), nil
	if !m.isCarved() {
		return
	}
	c.next = m.nextBlocks(m.Base.PoolSpec().Carve, c.Todo, now)
	m.stateDrained(c.Todo)
}

// StateLost keeps from being granted what blocks had of which it is known by now that they are the pool's no more. It is
// called before the plan; the next commit says so.
func (m *Memory) StateLost(now time.Time, grace time.Duration) {
	if m.isCarved() {
		m.stateDrained(carve.Decision{Drain: carve.Lost(m.wants(now, grace), m.blockFacts())})
		m.sortStranded()
	}
}

// ForgetLack begins a turn: who lacks something is found out by its plan, if there is one.
func (m *Memory) ForgetLack() { m.Carved.lack = carve.Lack{} }

// blocksWait reports whether anything is to be done for the blocks of a carved pool. soon: a live holder would have
// committed it by now; else it is a request, which may have been tried in vain.
func (m *Memory) blocksWait(now time.Time, grace time.Duration) (wait, soon bool) {
	d := m.decideBlocks(now, grace)
	return d.Something(), d.Commits()
}

func (m *Memory) decideBlocks(now time.Time, grace time.Duration) carve.Decision {
	if !m.isCarved() && len(m.Carved.Blocks) == 0 {
		return carve.Decision{}
	}
	return carve.Decide(m.wants(now, grace), m.blockFacts(), now)
}

// wants is what a pool wants of its blocks. One that is not carved wants nothing of those that a pool of its name had
// before.
func (m *Memory) wants(now time.Time, grace time.Duration) carve.Pool {
	out := carve.Pool{Deleting: m.Base.GetDeletionTimestamp() != nil, Adopting: m.InQuarantine(now) || (!m.Holder && m.WasAdopting() != nil)}
	spec := m.Base.PoolSpec().Carve
	if spec == nil {
		out.Paused = true
		return out
	}
	out.Min, out.Max, out.Limit, out.MinAvailable = int(spec.Blocks.Min), int(spec.Blocks.Max), v1alpha1.MaxCarvedBlocks, int64(spec.MinAvailable)
	out.Moved = m.isMoved()
	out.Paused = annotations.HasPaused(m.Base) || (!out.Deleting && (out.Moved || m.Carved.Parent.Problem != ""))
	out.NoNetwork = spec.Network != v1alpha1.RoutedNetwork && m.Carved.Parent.Network == nil
	out.PerBlock, out.Grace, out.Lack, out.Waiting = m.perBlock(), grace, m.Carved.lack.Blocks, m.Pending.Len() > 0
	return out
}

// blockFacts are the blocks of the pool, as they are now.
func (m *Memory) blockFacts() []carve.Block {
	open := map[string]v1alpha1.CarvedBlock{}
	var out []carve.Block
	for _, on := range m.Base.PoolStatus().Blocks {
		open[on.Allocation] = on
		b := m.Carved.Blocks[on.Allocation]
		if other := b != nil && b.Prefix.IsValid() && b.Prefix.String() != on.Range; b == nil || other {
			fact := m.blockFact(on.Allocation, nil, &on)
			fact.Taken = other
			out = append(out, fact)
		}
	}
	for name := range m.Carved.asking {
		if m.Carved.Blocks[name] == nil && !m.IsOpen(name) {
			out = append(out, carve.Block{Name: name, Exists: true})
		}
	}
	for name, b := range m.Carved.Blocks {
		switch on, is := open[name]; {
		case !is:
			out = append(out, m.blockFact(name, b, nil))
		case !b.Prefix.IsValid() || b.Prefix.String() == on.Range: // else it comes when the other one is closed
			out = append(out, m.blockFact(name, b, &on))
		}
	}
	return out
}

func (m *Memory) blockFact(name string, b *Block, on *v1alpha1.CarvedBlock) carve.Block {
	out := carve.Block{Name: name}
	var has netip.Prefix
	var had []netipx.IPRange
	if on != nil {
		out.Open, out.Draining = true, on.Draining
		if has, _ = netip.ParsePrefix(on.Range); has.IsValid() {
			had = []netipx.IPRange{netipx.RangeOfPrefix(has)}
			out.Replaced = m.replaced(name, has)
			out.Asked = m.askedFor(has)
		}
		if on.IdleSince != nil {
			out.IdleSince = on.IdleSince.Time
		}
	}
	if b != nil {
		out.Exists, out.Deleting, out.Protected, out.ByHand, out.Foreign = true, b.Deleting, b.Protected, b.ByHand, b.Parent != m.carvedFrom()
		out.Verified = b.verifiedIn == m.InTerm() && m.Holder
		out.Granted = b.Prefix.IsValid() && !b.Shared && !out.Foreign
		out.Waits = b.waits()
		if on == nil {
			out.IdleSince, has, had = b.Created, b.Prefix, b.Had
			out.Outdated = !b.ByHand && !out.Foreign && !b.Prefix.IsValid() && len(b.Had) == 0 && m.isOutdated(b)
			out.Refused = b.isRefused()
			out.Granted = out.Granted && !m.overlapsOpen(b.Prefix)
			out.Waits = out.Waits || (b.Prefix.IsValid() && !out.Granted)
			out.Replaces = m.isLost(b.Pinned)
		}
	}
	if has.IsValid() {
		_, out.Free = m.Ledger.InPart(netipx.RangeOfPrefix(has))
	}
	out.Used = m.used(had)
	out.Rests = out.Used == 0 && slices.ContainsFunc(had, m.Ledger.Keeps)
	return out
}

// UsedOf is how many addresses are in use, or granted, of all that a block may have.
func (m *Memory) UsedOf(b *Block) int64 { return m.used(b.Had) }

func (m *Memory) used(ranges []netipx.IPRange) (most int64) {
	for _, r := range ranges {
		n, _ := m.Ledger.InPart(r)
		most = max(most, n)
	}
	return most
}

// overlapsOpen reports whether some of a prefix is in a block that is open, but for one that this block replaces.
func (m *Memory) overlapsOpen(p netip.Prefix) bool {
	return slices.ContainsFunc(m.Base.PoolStatus().Blocks, func(on v1alpha1.CarvedBlock) bool {
		open, err := netip.ParsePrefix(on.Range)
		return err == nil && open.Overlaps(p) && (open != p || m.has(on.Allocation, p))
	})
}

// isOutdated reports whether nobody wants by now what a block asks for: another size, or the addresses of a block that was
// lost and is closed since.
func (m *Memory) isOutdated(b *Block) bool {
	if b.Pinned.IsValid() {
		return !m.isLost(b.Pinned)
	}
	return b.Asked != m.Base.PoolSpec().Carve.PrefixLength
}

// isLost reports whether a prefix is open on record, and its IPAllocation is gone.
func (m *Memory) isLost(p netip.Prefix) bool {
	return p.IsValid() && slices.ContainsFunc(m.Base.PoolStatus().Blocks, func(on v1alpha1.CarvedBlock) bool {
		return on.Range == p.String() && !m.has(on.Allocation, p)
	})
}

// has reports whether a block of a name has a prefix.
func (m *Memory) has(name string, p netip.Prefix) bool {
	b := m.Carved.Blocks[name]
	return b != nil && b.Prefix == p
}

// replaced reports whether a block has the addresses of an open one, of which the IPAllocation has them no more.
func (m *Memory) replaced(name string, p netip.Prefix) bool {
	if m.has(name, p) {
		return false
	}
	for other := range m.Carved.Blocks {
		if m.has(other, p) {
			return true
		}
	}
	return false
}

// unitBits is the prefix length of what each claim gets, as far as it is known: 0, if it is not.
func (m *Memory) unitBits() int {
	if n := m.Base.PoolSpec().AllocationPrefixLength; n != nil {
		return int(*n)
	}
	return m.Carved.Parent.Bits
}
