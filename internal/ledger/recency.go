package ledger

import (
	"net/netip"

	"github.com/tidwall/btree"
	"go4.org/netipx"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/poolutil"
)

// maxReleases is how many ranges are remembered that are free and were in use: all of a /16, for some 10 MB; of zones each has
// its share. The ones that
// were released longest ago are forgotten first, which leaves them where they were in the order: ahead of all that are
// remembered.
const maxReleases = 1 << 16

// recency is free space in the order of its last use: what nobody is known to have used, then what was released longest ago.
type recency struct {
	// fresh is what is free, and not remembered.
	fresh *poolutil.Free
	// released are the ranges that are remembered, by address: they do not overlap. ready are those of them that are free, by
	// the order of their release.
	released, ready *btree.BTreeG[*release]
	// most is how many are remembered.
	most int
}

// release is a range of which nobody uses anything any more. It is not free as long as something else keeps it.
type release struct {
	first, last netip.Addr
	order       uint64
	free        bool
}

func (r *release) rng() netipx.IPRange { return netipx.IPRangeFrom(r.first, r.last) }

func before(a, b *release) bool {
	if a.order != b.order {
		return a.order < b.order
	}
	return a.first.Less(b.first)
}

func newRecency(most int) *recency {
	return &recency{
		fresh:    poolutil.NewFree(nil),
		released: btree.NewBTreeGOptions(func(a, b *release) bool { return a.last.Less(b.last) }, btree.Options{NoLocks: true}),
		ready:    btree.NewBTreeGOptions(before, btree.Options{NoLocks: true}),
		most:     most,
	}
}

// take notes that a range is not free. Where somebody uses it, its last release says nothing any more.
func (c *recency) take(r netipx.IPRange, uses bool) {
	c.fresh.TakeAny(r)
	for _, e := range c.cut(r) {
		c.ready.Delete(e)
		e.free = false
		if uses {
			c.released.Delete(e)
		}
	}
}

// end notes that a range is used by nobody any more, and which release that was.
func (c *recency) end(r netipx.IPRange, order uint64) {
	c.released.Set(&release{first: r.From(), last: r.To(), order: order})
}

// put notes that a range is free.
func (c *recency) put(r netipx.IPRange) {
	next := r.From()
	for _, e := range c.cut(r) {
		if next.Less(e.first) {
			c.fresh.Put(netipx.IPRangeFrom(next, e.first.Prev()))
		}
		e.free = true
		c.ready.Set(e)
		next = e.last.Next()
	}
	// Next of the last address of a family is the zero Addr: nothing is left then.
	if next.IsValid() && next.Compare(r.To()) <= 0 {
		c.fresh.Put(netipx.IPRangeFrom(next, r.To()))
	}
	for c.ready.Len() > c.most {
		oldest, _ := c.ready.PopMin()
		c.released.Delete(oldest)
		c.fresh.Put(oldest.rng())
	}
}

// cut splits the releases that cross an end of r, and returns those that lie inside it.
func (c *recency) cut(r netipx.IPRange) (inside []*release) {
	c.released.Ascend(&release{last: r.From()}, func(e *release) bool {
		if r.To().Less(e.first) {
			return false
		}
		inside = append(inside, e)
		return true
	})
	for i, e := range inside {
		inside[i] = c.split(e, r)
	}
	return inside
}

// split returns the part of a release that lies in r, and makes others of what does not.
func (c *recency) split(e *release, r netipx.IPRange) *release {
	in := common(e.rng(), r)
	if in == e.rng() {
		return e
	}
	c.remove(e)
	part := func(first, last netip.Addr) *release {
		out := &release{first: first, last: last, order: e.order, free: e.free}
		c.released.Set(out)
		if out.free {
			c.ready.Set(out)
		}
		return out
	}
	if e.first.Less(in.From()) {
		part(e.first, in.From().Prev())
	}
	if in.To().Less(e.last) {
		part(in.To().Next(), e.last)
	}
	return part(in.From(), in.To())
}

func (c *recency) remove(e *release) {
	c.released.Delete(e)
	c.ready.Delete(e)
}
