package ledger

import (
	"cmp"
	"net/netip"
	"slices"

	"go4.org/netipx"
)

// oracle is a ledger in the slow, obvious way: every address of a small world, and for each of them a scan of all
// facts. It shares no arithmetic with Ledger.
type oracle struct {
	world []netip.Addr
	// units are the prefixes that the world is cut into.
	units []netipx.IPRange
	space map[netip.Addr]bool
	facts map[Key]Fact
	// taken is what TakeUnit took and no fact has stated yet.
	taken map[netip.Addr]bool
}

func newOracle(world netipx.IPRange) *oracle {
	o := &oracle{facts: map[Key]Fact{}}
	for a := world.From(); a.IsValid() && a.Compare(world.To()) <= 0; a = a.Next() {
		o.world = append(o.world, a)
	}
	return o
}

func (o *oracle) cut(unit int) {
	o.units = nil
	for _, a := range o.world {
		if p, err := a.Prefix(unit); err == nil && p.Addr() == a {
			o.units = append(o.units, netipx.RangeOfPrefix(p))
		}
	}
}

// relayout widens the facts to units, and forgets only what was taken and never stated.
func (o *oracle) relayout(space *netipx.IPSet, unit int) {
	o.cut(unit)
	o.space, o.taken = map[netip.Addr]bool{}, map[netip.Addr]bool{}
	for _, a := range o.world {
		o.space[a] = space.Contains(a)
	}
	for k, h := range o.facts {
		h.Range = o.whole(h.Range)
		o.facts[k] = h
	}
}

func (o *oracle) whole(r netipx.IPRange) netipx.IPRange {
	var first, last netip.Addr
	for _, u := range o.units {
		if u.Contains(r.From()) {
			first = u.From()
		}
		if u.Contains(r.To()) {
			last = u.To()
		}
	}
	return netipx.IPRangeFrom(first, last)
}

func (o *oracle) inside(r netipx.IPRange) []netip.Addr {
	return slices.DeleteFunc(slices.Clone(o.world), func(a netip.Addr) bool { return !r.Contains(a) })
}

func (o *oracle) inSpace(r netipx.IPRange) bool {
	return !slices.ContainsFunc(o.inside(r), func(a netip.Addr) bool { return !o.space[a] })
}

func (o *oracle) add(h Fact) {
	h.Range = o.whole(h.Range)
	o.facts[h.Key] = h
	o.stated(h.Range)
}

func (o *oracle) stated(r netipx.IPRange) {
	for _, a := range o.inside(r) {
		delete(o.taken, a)
	}
}

// overlapping returns the facts that overlap a range, by source and UID.
func (o *oracle) overlapping(r netipx.IPRange) []Fact {
	var out []Fact
	for _, h := range o.facts {
		if h.Range.Overlaps(r) {
			out = append(out, h)
		}
	}
	slices.SortFunc(out, byKey)
	return out
}

// firstOverlapping returns the first fact in a range, by address, then by source and UID, among the sources from the
// given one on.
func (o *oracle) firstOverlapping(r netipx.IPRange, from Source) []Fact {
	facts := slices.DeleteFunc(o.overlapping(r), func(h Fact) bool { return h.Source < from })
	slices.SortStableFunc(facts, func(a, b Fact) int {
		return maxAddr(a.Range.From(), r.From()).Compare(maxAddr(b.Range.From(), r.From()))
	})
	return facts[:min(len(facts), 1)]
}

func byKey(a, b Fact) int {
	return cmp.Or(cmp.Compare(a.Source, b.Source), cmp.Compare(a.UID, b.UID))
}

// users returns the facts by which an address is in use: pins, cooling and held do not count.
func (o *oracle) users(a netip.Addr) []Fact {
	return slices.DeleteFunc(o.overlapping(netipx.IPRangeFrom(a, a)), func(h Fact) bool {
		return h.Source != SourceObject && h.Source != SourceRecord && h.Source != SourceGrant
	})
}

func (o *oracle) held(a netip.Addr) bool { return len(o.overlapping(netipx.IPRangeFrom(a, a))) > 0 }

// free returns the stretches of free addresses, from small to large, those of one size from low to high.
func (o *oracle) free() [][]netip.Addr {
	var out [][]netip.Addr
	joined := false
	for _, a := range o.world {
		free := o.space[a] && !o.taken[a] && !o.held(a)
		switch {
		case free && joined:
			out[len(out)-1] = append(out[len(out)-1], a)
		case free:
			out = append(out, []netip.Addr{a})
		}
		joined = free
	}
	slices.SortStableFunc(out, func(a, b []netip.Addr) int { return len(a) - len(b) })
	return out
}

func (o *oracle) takeOne() (netipx.IPRange, bool) {
	for _, stretch := range o.free() {
		for _, u := range o.units {
			if slices.Contains(stretch, u.From()) && slices.Contains(stretch, u.To()) {
				for _, a := range o.inside(u) {
					o.taken[a] = true
				}
				return u, true
			}
		}
	}
	return netipx.IPRange{}, false
}

func (o *oracle) counts() Counts {
	var c Counts
	for _, u := range o.units {
		inSpace, used := o.space[u.From()], len(o.users(u.From())) > 0
		switch {
		case inSpace:
			c.Total++
			if !o.held(u.From()) {
				c.Available++
			}
			if used {
				c.Allocated++
			}
		case used:
			c.OutOfRange++
		}
	}
	owners := map[Owner]bool{}
	for _, h := range o.facts {
		if h.Source == SourceObject || h.Source == SourceRecord || h.Source == SourceGrant {
			owners[h.Owner] = true
		}
	}
	c.Owners = int64(len(owners))
	free, all := o.free(), 0
	for _, stretch := range free {
		all += len(stretch)
	}
	if all > 0 {
		largest := len(free[len(free)-1])
		c.LargestFree = int64(largest / len(o.inside(o.units[0])))
		c.FragmentationPercent = int32(100 * (all - largest) / all)
	}
	return c
}
