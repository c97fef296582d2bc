package poolutil

// tree is an ordered set of pairs, a B+ tree. All operations are O(log n).
//
// It is our own because github.com/tidwall/btree and github.com/google/btree drop the root of a tree
// that falls empty: a pool that goes back and forth between one free block and none would allocate
// each time. This one keeps its root, and its emptied leaves for the next split.
type tree struct {
	root  *node
	len   int
	spare []*node

	// uniqueA says that no two entries have the same a, so that the b of an entry may be changed in place.
	uniqueA bool
}

func newTree(uniqueA bool) tree { return tree{root: new(node), uniqueA: uniqueA} }

// cursor stands at an entry of a tree, or past the last. The next change of the tree voids it.
type cursor struct {
	leaf *node
	i    int
}

func (c cursor) ok() bool { return c.leaf != nil }

func (c cursor) entry() *pair { return &c.leaf.keys[c.i] }

func (c cursor) next() cursor { return at(c.leaf, c.i+1) }

func at(leaf *node, i int) cursor {
	if i < leaf.n {
		return cursor{leaf, i}
	}
	// Only the root is ever empty, and it has no next.
	return cursor{leaf.next, 0}
}

// seek stands at the first entry that is not less than p.
func (t *tree) seek(p pair) cursor {
	n := t.root
	for !n.leaf() {
		n = n.kids[n.kidOf(p)]
	}
	return at(n, n.search(p, n.n))
}

// first stands at the lowest entry.
func (t *tree) first() cursor { return t.seek(pair{}) }

// max is the highest entry; the tree is not empty.
func (t *tree) max() pair {
	n := t.root
	for !n.leaf() {
		n = n.kids[n.n-1]
	}
	return n.keys[n.n-1]
}

// insert adds p, which is not in the tree.
func (t *tree) insert(p pair) {
	t.insertBelow(t.root, p)
	t.len++
	if t.root.n == fanout {
		left := t.root
		t.root = newInner()
		t.root.insertAt(0, pair{}, left)
		t.split(t.root, 0)
	}
}

func (t *tree) insertBelow(n *node, p pair) {
	if n.leaf() {
		n.insertAt(n.search(p, n.n), p, nil)
		return
	}
	i := n.kidOf(p)
	t.insertBelow(n.kids[i], p)
	if n.kids[i].n == fanout {
		t.split(n, i)
	}
}

func (t *tree) split(n *node, i int) {
	left := n.kids[i]
	var right *node
	if left.leaf() {
		right = t.newLeaf()
		left.next, right.next = right, left.next
	} else {
		right = newInner()
	}
	left.shift(right, -fanout/2)
	n.insertAt(i, t.bound(left), left)
	n.kids[i+1] = right
}

// remove takes p, which is in the tree, out of it.
func (t *tree) remove(p pair) {
	t.removeBelow(t.root, p)
	t.len--
	if t.root.n == 1 && !t.root.leaf() {
		old := t.root
		t.root = old.kids[0]
		t.retire(old)
	}
}

func (t *tree) removeBelow(n *node, p pair) {
	if n.leaf() {
		i := n.search(p, n.n)
		if i == n.n || n.keys[i] != p {
			panic("poolutil: the orders of the free space disagree")
		}
		n.removeAt(i)
		return
	}
	i := n.kidOf(p)
	t.removeBelow(n.kids[i], p)
	if n.kids[i].n < fewest {
		t.refill(n, min(i, n.n-2))
	}
}

// refill mends the kids i and i+1 of n, one of which has become too small.
func (t *tree) refill(n *node, i int) {
	left, right := n.kids[i], n.kids[i+1]
	if !left.leaf() {
		// The key of its last kid comes to mean something.
		left.keys[left.n-1] = n.keys[i]
	}
	if left.n+right.n <= mergeMax {
		left.shift(right, right.n)
		left.next = right.next
		n.keys[i] = n.keys[i+1]
		n.kids[i+1] = left
		n.removeAt(i)
		t.retire(right)
		return
	}
	left.shift(right, (right.n-left.n)/2)
	n.keys[i] = t.bound(left)
}

// bound is a key to part n from the node after it.
func (t *tree) bound(n *node) pair {
	p := n.keys[n.n-1]
	if t.uniqueA {
		p.b = maxUint128 // whatever becomes of b
	}
	return p
}

func (t *tree) newLeaf() *node {
	k := len(t.spare) - 1
	if k < 0 {
		return new(node)
	}
	n := t.spare[k]
	t.spare = t.spare[:k]
	return n
}

func newInner() *node { return &node{kids: new([fanout]*node)} }

// retire keeps an empty leaf for the next split. Inner nodes come and go too seldom to matter.
func (t *tree) retire(n *node) {
	if n.leaf() {
		n.next = nil
		t.spare = append(t.spare, n)
	}
}
