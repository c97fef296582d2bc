package poolutil

// tree is an ordered set of pairs, a B+ tree. All operations cost O(log n).
//
// It replaces github.com/tidwall/btree and github.com/google/btree, which drop the root of a tree that becomes empty: a
// pool that alternates between one free block and none would allocate each time. This one keeps its root, and its
// emptied leaves for the next split.
type tree struct {
	root        *node
	len         int
	spareLeaves []*node

	// uniqueA reports that no two entries have the same a, so that the b of an entry may be changed in place.
	uniqueA bool
}

func newTree(uniqueA bool) tree { return tree{root: new(node), uniqueA: uniqueA} }

// cursor points at an entry of a tree, or past the last one. The next change of the tree invalidates it.
type cursor struct {
	leaf *node
	i    int
}

func (c cursor) ok() bool { return c.leaf != nil }

func (c cursor) entry() *pair { return &c.leaf.keys[c.i] }

func (c cursor) next() cursor { return cursorAt(c.leaf, c.i+1) }

func cursorAt(leaf *node, i int) cursor {
	if i < leaf.count {
		return cursor{leaf, i}
	}
	// Only the root can be empty, and it has no next leaf.
	return cursor{leaf.next, 0}
}

// seek returns a cursor at the first entry that is not less than p.
func (t *tree) seek(p pair) cursor {
	n := t.root
	for !n.isLeaf() {
		n = n.children[n.childIndex(p)]
	}
	return cursorAt(n, n.search(p, n.count))
}

// first returns a cursor at the lowest entry.
func (t *tree) first() cursor { return t.seek(pair{}) }

// max returns the highest entry; the tree must not be empty.
func (t *tree) max() pair {
	n := t.root
	for !n.isLeaf() {
		n = n.children[n.count-1]
	}
	return n.keys[n.count-1]
}

// insert adds p, which must not be in the tree.
func (t *tree) insert(p pair) {
	t.insertBelow(t.root, p)
	t.len++
	if t.root.count == fanout {
		left := t.root
		t.root = newInner()
		t.root.insertAt(0, pair{}, left)
		t.split(t.root, 0)
	}
}

func (t *tree) insertBelow(n *node, p pair) {
	if n.isLeaf() {
		n.insertAt(n.search(p, n.count), p, nil)
		return
	}
	i := n.childIndex(p)
	t.insertBelow(n.children[i], p)
	if n.children[i].count == fanout {
		t.split(n, i)
	}
}

func (t *tree) split(n *node, i int) {
	left := n.children[i]
	var right *node
	if left.isLeaf() {
		right = t.newLeaf()
		left.next, right.next = right, left.next
	} else {
		right = newInner()
	}
	left.moveEntries(right, -fanout/2)
	n.insertAt(i, t.upperBound(left), left)
	n.children[i+1] = right
}

// remove removes p, which must be in the tree.
func (t *tree) remove(p pair) {
	t.removeBelow(t.root, p)
	t.len--
	if t.root.count == 1 && !t.root.isLeaf() {
		old := t.root
		t.root = old.children[0]
		t.recycleLeaf(old)
	}
}

func (t *tree) removeBelow(n *node, p pair) {
	if n.isLeaf() {
		i := n.search(p, n.count)
		if i == n.count || n.keys[i] != p {
			panic("poolutil: the orders of the free space disagree")
		}
		n.removeAt(i)
		return
	}
	i := n.childIndex(p)
	t.removeBelow(n.children[i], p)
	if n.children[i].count < minEntries {
		t.rebalance(n, min(i, n.count-2))
	}
}

// rebalance fixes the children i and i+1 of n, after one of them has become too small.
func (t *tree) rebalance(n *node, i int) {
	left, right := n.children[i], n.children[i+1]
	if !left.isLeaf() {
		// Its last child gets a sibling after it, so the key of that child is used from now on.
		left.keys[left.count-1] = n.keys[i]
	}
	if left.count+right.count <= mergeMax {
		left.moveEntries(right, right.count)
		left.next = right.next
		n.keys[i] = n.keys[i+1]
		n.children[i+1] = left
		n.removeAt(i)
		t.recycleLeaf(right)
		return
	}
	left.moveEntries(right, (right.count-left.count)/2)
	n.keys[i] = t.upperBound(left)
}

// upperBound returns a key that separates n from the node after it.
func (t *tree) upperBound(n *node) pair {
	p := n.keys[n.count-1]
	if t.uniqueA {
		p.b = maxUint128 // b may change
	}
	return p
}

func (t *tree) newLeaf() *node {
	k := len(t.spareLeaves) - 1
	if k < 0 {
		return new(node)
	}
	n := t.spareLeaves[k]
	t.spareLeaves = t.spareLeaves[:k]
	return n
}

func newInner() *node { return &node{children: new([fanout]*node)} }

// recycleLeaf keeps an empty leaf for the next split. Inner nodes are created too seldom to matter.
func (t *tree) recycleLeaf(n *node) {
	if n.isLeaf() {
		n.next = nil
		t.spareLeaves = append(t.spareLeaves, n)
	}
}
