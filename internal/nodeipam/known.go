package nodeipam

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/fence"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/podcidr"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/term"
)

// freshFor is how long a block is taken to be there that a live read, or the answer to a request, has shown, and the watch
// has not. A name that something else has is asked for again after takenFor.
const (
	freshFor = 30 * time.Second
	takenFor = time.Hour
)

// known is what is known of the blocks of a site.
type known struct {
	// leavesBlocks: the site has none, so those on record are of another site of the cluster.
	leavesBlocks bool
	blocks       map[string]Block
	// fresh are those that the watch has not shown yet, and until when that is waited for; taken are names that something
	// else has, and until when.
	fresh map[types.UID]time.Time
	taken map[string]time.Time
	// looked are those that a live read has shown in this term, missing are names of open ones that it has not; ended are
	// those that were being deleted when this manager has committed in its term that they are not open.
	looked, ended map[types.UID]bool
	missing       map[string]bool
	// idle is since when no Node uses a block.
	idle map[types.UID]time.Time
	// listed is what the next commit says of blocks, relisted that the last one says something new.
	listed   []fence.Open
	relisted bool
	// openBlocks are the blocks that are open on record, by name.
	openBlocks map[string]fence.Open
	// grace is how long an idle block stays.
	grace time.Duration
	// vain are the blocks for which the last request failed, and askErr is why nothing could be asked for.
	vain   map[string]blocked
	askErr error
}

// setBlocks takes the blocks that a watch shows. What a live read has shown since counts for more.
func (m *memory) setBlocks(all []Block, now time.Time) {
	next := make(map[string]Block, len(all))
	for name, b := range m.blocks {
		if m.fresh[b.UID].After(now) {
			next[name] = b
		}
	}
	for _, b := range all {
		was, is := m.blocks[b.Name]
		switch newer := is && term.Newer(was.Version, b.Version); {
		case newer && was.UID == b.UID:
			b = was // a live read has shown more
		case newer && m.fresh[was.UID].After(now):
			continue // that is over
		}
		delete(m.fresh, b.UID)
		next[b.Name] = b.after(was)
	}
	m.blocks = next
	there := map[types.UID]bool{}
	for _, b := range next {
		there[b.UID] = true
	}
	for _, times := range []map[types.UID]time.Time{m.idle, m.fresh} {
		maps.DeleteFunc(times, func(uid types.UID, _ time.Time) bool { return !there[uid] })
	}
	for _, known := range []map[types.UID]bool{m.looked, m.ended} {
		maps.DeleteFunc(known, func(uid types.UID, _ bool) bool { return !there[uid] })
	}
	maps.DeleteFunc(m.taken, func(_ string, until time.Time) bool { return !until.After(now) })
	m.sortBlocks()
}

// sawBlock takes what a live read, or the answer to a request, has shown.
func (m *memory) sawBlock(b Block, now time.Time) {
	was := m.blocks[b.Name]
	if was.UID != b.UID {
		m.fresh[b.UID] = now.Add(freshFor)
	}
	m.blocks[b.Name] = b.after(was)
	m.looked[b.UID] = true
	delete(m.missing, b.Name)
	m.sortBlocks()
}

// setOpen takes what the state on record says.
func (m *memory) setOpen(open []fence.Open) {
	m.open, m.listed = open, nil
	m.openBlocks = map[string]fence.Open{}
	for _, o := range open {
		if o.For != "" {
			m.listed = append(m.listed, o)
			m.openBlocks[o.Name] = o
		}
	}
	m.sortBlocks()
}

// opened is what the state on record says of a block; false: it is not open.
func (m *memory) opened(name string) (fence.Open, bool) {
	on, is := m.openBlocks[name]
	return on, is
}

// sortBlocks says to ranges which blocks they have, and from which of them is given: those that are open. Who is not the
// holder does not know that, and takes each for open that can be.
func (m *memory) sortBlocks() {
	less, blocks := false, m.blocksByObject()
	for _, o := range m.objects {
		for f, source := range o.Sources {
			if source == nil || o.Range == nil {
				continue
			}
			all, gives := m.blocksOf(o, podcidr.Family(f), blocks[o.Name])
			was := o.Range.Gives(podcidr.Family(f))
			if slices.Equal(gives, was) && slices.Equal(all, o.Range.All(podcidr.Family(f))) {
				continue
			}
			less = less || slices.ContainsFunc(was, func(p netip.Prefix) bool { return !slices.Contains(gives, p) })
			o.Range.SetBlocks(podcidr.Family(f), all, gives)
			delete(m.useless, o.Range)
			m.touch()
			m.reconsider()
		}
	}
	if less {
		m.rebuild() // the books look after what is given from
	}
}

// blocksByObject are the blocks by the name of the object that they are for.
func (m *memory) blocksByObject() map[string][]Block {
	out := map[string][]Block{}
	for _, b := range m.blocks {
		on, _ := m.opened(b.Name)
		of := cmp.Or(on.For, b.For)
		out[of] = append(out[of], b)
	}
	return out
}

func (m *memory) blocksOf(o Object, f podcidr.Family, blocks []Block) (all, gives []netip.Prefix) {
	for _, on := range m.openBlocks {
		if on.For == o.Name && podcidr.FamilyOf(on.CIDRs[0]) == f {
			all = append(all, on.CIDRs[0])
		}
	}
	for _, b := range blocks {
		if !b.Prefix.IsValid() || podcidr.FamilyOf(b.Prefix) != f {
			continue
		}
		on, open := m.opened(b.Name)
		if !slices.Contains(all, b.Prefix) {
			all = append(all, b.Prefix)
		}
		holds := open && !on.Draining && slices.Equal(on.CIDRs, []netip.Prefix{b.Prefix}) && on.UID == b.UID
		if !b.Deleting && o.Sources[f].fits(b) && (holds || !m.holder) {
			gives = append(gives, b.Prefix)
		}
	}
	for _, list := range [][]netip.Prefix{all, gives} {
		slices.SortFunc(list, func(a, b netip.Prefix) int { return a.Addr().Compare(b.Addr()) })
	}
	return all, gives
}

// hasBlocks reports whether there are blocks of an object, or may be some.
func (m *memory) hasBlocks(o Object) bool {
	if m.leavesBlocks {
		return false // another site's object may have the same name
	}
	for _, b := range m.blocks {
		if on, _ := m.opened(b.Name); cmp.Or(on.For, b.For) == o.Name {
			return true
		}
	}
	for _, on := range m.openBlocks {
		if on.For == o.Name {
			return true
		}
	}
	return false
}

// used is how many Nodes have, or are granted, some of what a block has or may have: what is on record counts, and what
// its own record says, also where its status does not say that any more; and what it asks for, unless it is being deleted.
func (m *memory) used(b Block) int64 {
	has := b.Had
	if on, _ := m.opened(b.Name); on.UID == b.UID {
		has = slices.Concat(on.CIDRs, b.Had)
	}
	if !b.Deleting {
		has = slices.Concat(has, []netip.Prefix{b.Pinned})
	}
	return m.usedOf(b, has)
}

// usedOf is how many Nodes have, or are granted, some of a block's addresses. What another block has taken over counts for that one.
func (m *memory) usedOf(b Block, has []netip.Prefix) (most int64) {
	for _, p := range has {
		if p.IsValid() && (b.Prefix == p || !m.isTakenOver(b, p)) {
			most = max(most, m.books.InUse(p))
		}
	}
	return most
}

// endingBlocks are the UIDs of blocks that are being deleted, by the next commit: it does not list them.
func (m *memory) endingBlocks() map[types.UID]bool {
	out := map[types.UID]bool{}
	for _, b := range m.blocks {
		if b.Deleting && !slices.ContainsFunc(m.listed, func(o fence.Open) bool { return o.UID == b.UID }) {
			out[b.UID] = true
		}
	}
	return out
}

// blocksEnd reports whether a block is to be let go of, and no commit of this term says yet that it is not open: another
// manager may have opened it.
func (m *memory) blocksEnd() bool {
	for _, b := range m.blocks {
		if b.Deleting && b.Protected && !m.isOpenBlock(b) && !m.ended[b.UID] && m.used(b) == 0 {
			return true
		}
	}
	return false
}

// lacksBlock reports whether a block is open on record of which nothing else is known, when this manager has not looked
// after the site yet: the management cluster may have been restored to before it was given.
func (m *memory) lacksBlock(s fence.State) bool {
	return !m.leavesBlocks && !m.triedOnce && slices.ContainsFunc(s.Open, func(o fence.Open) bool {
		b, there := m.blocks[o.Name]
		return o.For != "" && (!there || (b.Prefix != o.CIDRs[0] && b.Pinned != o.CIDRs[0]))
	})
}
