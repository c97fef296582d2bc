package poolutil

import "math/bits"

// Nodes hold up to fanout pairs while they are being changed and fewer at rest, so that there is
// always room for one more. Below a quarter a node is filled up from its neighbour, or merged with it
// if both together leave a quarter empty: room that keeps the next few changes from splitting it again.
const (
	fanout   = 64
	fewest   = fanout / 4
	mergeMax = fanout * 3 / 4
)

// pair is an entry of a tree, ordered by a, then b.
type pair struct{ a, b uint128 }

// less compares without branches, which a processor guesses wrong half of the time in a search.
func (x *pair) less(y *pair) bool {
	_, borrow := bits.Sub64(x.b.lo, y.b.lo, 0)
	_, borrow = bits.Sub64(x.b.hi, y.b.hi, borrow)
	_, borrow = bits.Sub64(x.a.lo, y.a.lo, borrow)
	_, borrow = bits.Sub64(x.a.hi, y.a.hi, borrow)
	return borrow != 0
}

// node is a leaf, whose keys are entries, or an inner node, which has as many kids as keys: keys[i]
// is at least every entry below kids[i] and less than every entry below kids[i+1]. The key of the
// last kid means nothing: what bounds it stands higher up, if anywhere.
type node struct {
	n    int
	keys [fanout]pair
	kids *[fanout]*node // of an inner node
	next *node          // of a leaf: the leaf after it
}

func (n *node) leaf() bool { return n.kids == nil }

// search is the first index whose key is not less than p, or else limit.
func (n *node) search(p pair, limit int) int {
	low, high := 0, limit
	for low < high {
		middle := (low + high) / 2
		if n.keys[middle].less(&p) {
			low = middle + 1
		} else {
			high = middle
		}
	}
	return low
}

// kidOf is the index of the kid that p belongs under.
func (n *node) kidOf(p pair) int { return n.search(p, n.n-1) }

func (n *node) insertAt(i int, p pair, kid *node) {
	copy(n.keys[i+1:n.n+1], n.keys[i:n.n])
	n.keys[i] = p
	if !n.leaf() {
		copy(n.kids[i+1:n.n+1], n.kids[i:n.n])
		n.kids[i] = kid
	}
	n.n++
}

func (n *node) removeAt(i int) {
	copy(n.keys[i:n.n-1], n.keys[i+1:n.n])
	if !n.leaf() {
		copy(n.kids[i:n.n-1], n.kids[i+1:n.n])
		n.kids[n.n-1] = nil
	}
	n.n--
}

// shift moves k pairs from the start of right to the end of n; -k of them the other way if k is negative.
func (n *node) shift(right *node, k int) {
	switch {
	case k > 0:
		copy(n.keys[n.n:], right.keys[:k])
		copy(right.keys[:], right.keys[k:right.n])
		if !n.leaf() {
			copy(n.kids[n.n:], right.kids[:k])
			copy(right.kids[:], right.kids[k:right.n])
			clear(right.kids[right.n-k : right.n])
		}
	case k < 0:
		copy(right.keys[-k:], right.keys[:right.n])
		copy(right.keys[:-k], n.keys[n.n+k:n.n])
		if !n.leaf() {
			copy(right.kids[-k:], right.kids[:right.n])
			copy(right.kids[:-k], n.kids[n.n+k:n.n])
			clear(n.kids[n.n+k : n.n])
		}
	}
	n.n += k
	right.n -= k
}
