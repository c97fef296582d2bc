package poolutil

import "math/bits"

// Nodes have up to fanout pairs during a change and fewer between changes, so that there is always room for one more. A
// node with less than a quarter is filled up from its neighbour, or merged with it if both together leave a quarter
// empty: with that room the next few changes do not split it again.
const (
	fanout     = 64
	minEntries = fanout / 4
	mergeMax   = fanout * 3 / 4
)

// pair is an entry of a tree, ordered by a, then b.
type pair struct{ a, b uint128 }

// less compares without branches: in a search, a processor mispredicts half of them.
func (x *pair) less(y *pair) bool {
	_, borrow := bits.Sub64(x.b.lo, y.b.lo, 0)
	_, borrow = bits.Sub64(x.b.hi, y.b.hi, borrow)
	_, borrow = bits.Sub64(x.a.lo, y.a.lo, borrow)
	_, borrow = bits.Sub64(x.a.hi, y.a.hi, borrow)
	return borrow != 0
}

// node is a leaf, whose keys are entries, or an inner node, which has as many children as keys: keys[i] is at least
// every entry below children[i] and less than every entry below children[i+1]. The key of the last child is not used: a
// node higher up bounds that child, if anything does.
type node struct {
	count    int
	keys     [fanout]pair
	children *[fanout]*node // of an inner node
	next     *node          // of a leaf: the next leaf
}

func (n *node) isLeaf() bool { return n.children == nil }

// search returns the first index whose key is not less than p, or else limit.
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

// childIndex returns the index of the child for p.
func (n *node) childIndex(p pair) int { return n.search(p, n.count-1) }

func (n *node) insertAt(i int, p pair, kid *node) {
	copy(n.keys[i+1:n.count+1], n.keys[i:n.count])
	n.keys[i] = p
	if !n.isLeaf() {
		copy(n.children[i+1:n.count+1], n.children[i:n.count])
		n.children[i] = kid
	}
	n.count++
}

func (n *node) removeAt(i int) {
	copy(n.keys[i:n.count-1], n.keys[i+1:n.count])
	if !n.isLeaf() {
		copy(n.children[i:n.count-1], n.children[i+1:n.count])
		n.children[n.count-1] = nil
	}
	n.count--
}

// moveEntries moves k pairs from the start of right to the end of n; if k is negative, -k pairs from the end of n to
// the start of right.
func (n *node) moveEntries(right *node, k int) {
	switch {
	case k > 0:
		copy(n.keys[n.count:], right.keys[:k])
		copy(right.keys[:], right.keys[k:right.count])
		if !n.isLeaf() {
			copy(n.children[n.count:], right.children[:k])
			copy(right.children[:], right.children[k:right.count])
			clear(right.children[right.count-k : right.count])
		}
	case k < 0:
		copy(right.keys[-k:], right.keys[:right.count])
		copy(right.keys[:-k], n.keys[n.count+k:n.count])
		if !n.isLeaf() {
			copy(right.children[-k:], right.children[:right.count])
			copy(right.children[:-k], n.children[n.count+k:n.count])
			clear(n.children[n.count+k : n.count])
		}
	}
	n.count += k
	right.count -= k
}
