package nodeipam

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/carve"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/fence"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/podcidr"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/term"
)

// What is decided on blocks is carve's, as it is for carved pools: which of them a ClusterCIDR asks for, opens, drains,
// closes and gives back. Here is what it is told, and what follows.

// group are the blocks of a family of a ClusterCIDR. The zero value is that of blocks which no ClusterCIDR wants.
type group struct {
	of     string
	family podcidr.Family
}

// errand is what is to be asked of the API server for a block.
type errand struct {
	do   errandKind
	name string
	// block is what is known of it; of says of a new one whom it is for, and lost, in the place of which open one it comes, whose
	// addresses it must have.
	block  Block
	of     Object
	source *Source
	lost   fence.Open
}

type errandKind int

const (
	lookAt errandKind = iota
	guardIt
	giveBack
	letGo
	askFor
)

// growth is what is decided on all blocks.
type growth struct {
	next    []fence.Open
	errands []errand
	// of are the objects that blocks are asked for.
	of   []podcidr.Ref
	wait time.Duration
	now  time.Time
}

// something reports whether there is anything to do.
func (g growth) something() bool { return len(g.errands) > 0 }

// groupOf is whom a block is for: whoever it says that wants such blocks.
func (m *memory) groupOf(b Block, on fence.Open, open bool) group {
	name := cmp.Or(on.For, b.For)
	for _, o := range m.objects {
		for f, source := range o.Sources {
			fits := source != nil && o.Name == name && source.fits(b)
			if gone := open && b.UID == "" && source != nil && o.Name == name && podcidr.FamilyOf(on.CIDRs[0]) == podcidr.Family(f); fits || gone {
				return group{name, podcidr.Family(f)}
			}
		}
	}
	return group{}
}

// sources are the objects that have pools, by group.
func (m *memory) sources() map[group]Object {
	out := map[group]Object{}
	for _, o := range m.objects {
		for f, source := range o.Sources {
			if source != nil && o.Range != nil {
				out[group{o.Name, podcidr.Family(f)}] = o
			}
		}
	}
	return out
}

// decideBlocks decides on all blocks, on what is known now. Those of another site stay as they are on record: it alone knows
// their IPAllocations, and who uses them.
func (m *memory) decideBlocks(now time.Time) (out growth) {
	if m.leavesBlocks {
		return growth{next: m.listed}
	}
	sources := m.sources()
	if len(sources)+len(m.blocks)+len(m.openBlocks) == 0 {
		return growth{}
	}
	out.now = now
	facts := m.blockFacts(now)
	for g := range sources {
		if _, has := facts[g]; !has {
			facts[g] = nil // it may want some
		}
	}
	lack, moved := m.lack(sources), false
	for _, b := range m.blocks {
		moved = moved || b.Moved
	}
	for _, g := range slices.SortedFunc(maps.Keys(facts), func(a, b group) int {
		return cmp.Or(cmp.Compare(a.of, b.of), cmp.Compare(a.family, b.family))
	}) {
		o, wanted := sources[g]
		pool := carve.Pool{Deleting: !wanted || o.Closing || o.Range.Closing, Limit: mostBlocks, Moved: moved, Adopting: m.holder && m.adopting, Grace: m.grace}
		if wanted {
			source := o.Sources[g.family]
			pool.Max, pool.Limit, pool.PerBlock, pool.Lack = source.Max, source.Max, int64(source.PerBlock), lack[g]
		}
		pool.Waiting = len(m.todo) > 0 // of those that are refused, lack says what they want
		d := carve.Decide(pool, facts[g], now)
		if d.Ask > 0 && m.isUseless(g, o, facts) {
			d.Ask = 0
		}
		out.add(m, g, o, d, facts[g])
	}
	out.next = m.withoutReplaced(out.next)
	return out
}

// withoutReplaced leaves out what is lost, from the commit on in which another block is open with its addresses.
func (m *memory) withoutReplaced(open []fence.Open) []fence.Open {
	return slices.DeleteFunc(slices.Clone(open), func(on fence.Open) bool {
		by := m.replacementOf(on)
		return by != "" && slices.ContainsFunc(open, func(other fence.Open) bool { return other.Name == by && other.CIDRs[0] == on.CIDRs[0] })
	})
}

// blockFacts are the blocks as carve wants them.
func (m *memory) blockFacts(now time.Time) map[group][]carve.Block {
	out := map[group][]carve.Block{}
	for _, on := range m.openBlocks {
		b, there := m.blocks[on.Name]
		if there && isEntryOf(on, b) {
			continue
		}
		// The IPAllocation is gone, as a live read is to show, or another one has its name.
		g := m.groupOf(Block{}, on, true)
		out[g] = append(out[g], carve.Block{
			Name: on.Name, Exists: !there && !m.missing[on.Name], Protected: true, Granted: true, Verified: true,
			Open: true, Draining: on.Draining, Used: m.books.InUse(on.CIDRs[0]), Replaced: m.replacementOf(on) != "", Asked: m.isAskedFor(on),
		})
	}
	for name, b := range m.blocks {
		on, open := m.opened(name)
		g := m.groupOf(b, on, open)
		switch {
		case !open, isEntryOf(on, b):
			out[g] = append(out[g], m.blockFact(b, on, open, now))
		case b.Deleting && !m.isOpenBlock(b): // it has the name of what is lost, and goes by itself
			out[g] = append(out[g], m.blockFact(b, fence.Open{}, false, now))
		default: // it comes when that is closed
		}
	}
	return out
}

func (m *memory) blockFact(b Block, on fence.Open, open bool, now time.Time) carve.Block {
	granted := b.Prefix.IsValid()
	out := carve.Block{
		Name: b.Name, Exists: true, Deleting: b.Deleting, Protected: b.Protected, Granted: granted, Verified: m.looked[b.UID],
		Refused: b.isDenied(), Waits: b.mayNeverHaveAny(), Open: open, Draining: on.Draining, Used: m.used(b),
	}
	out.Replaces = !open && m.replaces(b)
	// Nothing needs what it was to replace.
	out.Outdated = !open && out.Refused && len(b.Had) == 0 && out.Used == 0 && !out.Replaces
	if !m.holder { // what is open is not known
		out.Open, out.Draining, out.Verified = granted && !b.Deleting, false, true
	}
	if out.Used > 0 {
		delete(m.idle, b.UID)
	} else if m.idle[b.UID].IsZero() {
		m.idle[b.UID] = now
	}
	out.IdleSince = m.idle[b.UID]
	return out
}

// canGrow reports whether a family of an object can have another block, as far as is known: none is refused, and there are
// fewer than there may be. One that goes counts until it is gone.
func (m *memory) canGrow(o Object, f podcidr.Family, facts []carve.Block) bool {
	source, have := o.Sources[f], 0
	if source == nil || o.Closing || o.Range.Closing {
		return false
	}
	for _, b := range facts {
		if m.isRefused(b) {
			return false
		}
		if !b.Refused && (!b.Deleting || b.Open) {
			have++
		}
	}
	return have < source.Max || slices.ContainsFunc(facts, func(b carve.Block) bool { return b.Exists && !b.Deleting && !b.Open && !b.Waits })
}

// isRefused reports whether a block is waited for that the pool does not give, whichever addresses it would have.
func (m *memory) isRefused(b carve.Block) bool {
	return b.Exists && !b.Granted && !b.Refused && m.blocks[b.Name].Refused != ""
}

// setGrows says to ranges whether more room can come, so that a Node waits for that and does not take the next choice.
func (m *memory) setGrows(now time.Time) {
	sources := m.sources()
	if len(sources) == 0 {
		return
	}
	facts := m.blockFacts(now)
	for _, o := range sources {
		m.books.Watch(o.Range)
		grows := !slices.ContainsFunc(o.Range.Families(), func(f podcidr.Family) bool {
			return m.books.RoomOf(o.Range, f) == 0 && (term.RefusedForGood(m.askErr) || !m.canGrow(o, f, facts[group{o.Name, f}]))
		})
		if grows != o.Range.Grows {
			o.Range.Grows = grows
			m.reconsider()
		}
	}
}

// isUseless reports whether more of a family helps nobody: another family of the object has no room, and cannot grow.
func (m *memory) isUseless(g group, o Object, facts map[group][]carve.Block) bool {
	return slices.ContainsFunc(o.Range.Families(), func(f podcidr.Family) bool {
		return f != g.family && m.books.RoomOf(o.Range, f) == 0 && !m.canGrow(o, f, facts[group{o.Name, f}])
	})
}

// lack is how many more blocks those Nodes want that a ClusterCIDR has no room for.
func (m *memory) lack(sources map[group]Object) map[group]int {
	waiting := map[podcidr.Ref]int64{}
	for _, why := range m.refused {
		for _, ref := range why.Full {
			waiting[ref]++
		}
	}
	out := map[group]int{}
	for g, o := range sources {
		if waiting[o.Ref] == 0 {
			continue
		}
		m.books.Watch(o.Range)
		if short := waiting[o.Ref] - m.books.RoomOf(o.Range, g.family); short > 0 {
			out[g] = int((short-1)/int64(o.Sources[g.family].PerBlock)) + 1
		}
	}
	return out
}

// add adds what follows from a decision on a group.
func (g *growth) add(m *memory, of group, o Object, d carve.Decision, facts []carve.Block) {
	if d.Next > 0 {
		g.wait = sooner(g.wait, d.Next)
	}
	for _, b := range facts {
		on, open := m.opened(b.Name)
		is := m.blocks[b.Name]
		if open && b.Open && m.holder && !slices.Contains(d.Close, b.Name) {
			on.Draining = (on.Draining || slices.Contains(d.Drain, b.Name)) && !slices.Contains(d.Keep, b.Name)
			if m.looked[is.UID] && is.Prefix == on.CIDRs[0] {
				on.UID = is.UID // a move has made it anew
			}
			g.next = append(g.next, on)
		}
		if slices.Contains(d.Open, b.Name) {
			g.next = append(g.next, fence.Open{Kind: is.Kind, Name: is.Name, UID: is.UID, For: is.For, CIDRs: []netip.Prefix{is.Prefix}})
		}
		if b.Exists && open && on.UID != is.UID && !m.looked[is.UID] {
			g.errands = append(g.errands, errand{do: lookAt, name: b.Name})
		}
	}
	for _, list := range []struct {
		do    errandKind
		names []string
	}{{lookAt, d.Look}, {guardIt, d.Protect}, {giveBack, d.Delete}, {letGo, d.Release}} {
		for _, name := range list.names {
			if m.blocks[name].UID == "" {
				continue // it is looked for first
			}
			g.errands = append(g.errands, errand{do: list.do, name: name, block: m.blocks[name]})
		}
	}
	if !m.holder && len(d.Drain)+len(d.Close) > 0 {
		g.errands = append(g.errands, errand{}) // a holder would commit that
	}
	if of.of == "" {
		return
	}
	source := o.Sources[of.family]
	g.askAgain(m, of, o, d.Again)
	if slices.ContainsFunc(facts, m.isRefused) {
		return // the pool would refuse the next one too
	}
	for range d.Ask {
		g.ask(m, errand{do: askFor, name: g.nextName(m, of.family), of: o, source: source})
	}
}

// askAgain asks for blocks that are lost, under the next name where something else has theirs. Who can write the ConfigMap of the
// workload cluster asks for no more than the Cluster may have.
func (g *growth) askAgain(m *memory, of group, o Object, lost []string) {
	if len(lost) == 0 {
		return
	}
	source, inUse := o.Sources[of.family], 0
	for _, on := range m.openBlocks {
		if m.groupOf(Block{}, on, true) == of && m.books.InUse(on.CIDRs[0]) > 0 {
			inUse++
		}
	}
	for _, name := range lost {
		on, _ := m.opened(name)
		other, exists := m.blocks[name]
		_, taken := m.taken[name]
		switch {
		case on.CIDRs[0].Bits() != source.Length || inUse > source.Max:
			continue
		case exists && !m.looked[other.UID]: // a watch may show what has been there before
			g.errands = append(g.errands, errand{do: lookAt, name: name})
			continue
		case exists || taken:
			name = g.nextName(m, of.family)
		}
		g.ask(m, errand{do: askFor, name: name, of: o, source: source, lost: on})
	}
}

// nextName is the first name of a block that nothing has and no request asks for.
func (g *growth) nextName(m *memory, f podcidr.Family) string {
	for n := 1; ; n++ {
		name := m.blockName(f, n)
		asked := slices.ContainsFunc(g.errands, func(e errand) bool { return e.do == askFor && e.name == name })
		if !asked && !m.isTaken(name) {
			return name
		}
	}
}

func (g *growth) ask(m *memory, e errand) {
	if until := m.blocked[e.of.Ref].until; until.After(g.now) || m.shut[e.of.Ref] {
		if until.After(g.now) {
			g.wait = sooner(g.wait, until.Sub(g.now))
		}
		return // nobody would hold its ClusterCIDR
	}
	g.errands = append(g.errands, e)
	if !e.of.Held && !slices.Contains(g.of, e.of.Ref) {
		g.of = append(g.of, e.of.Ref)
	}
}

func (m *memory) blockName(f podcidr.Family, n int) string {
	return carve.Name(m.cluster+"-pods-"+[2]string{"4", "6"}[f], n)
}

func (m *memory) isTaken(name string) bool {
	_, there := m.blocks[name]
	_, open := m.opened(name)
	_, taken := m.taken[name]
	return there || open || taken
}
