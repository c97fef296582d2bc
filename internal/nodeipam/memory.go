// Package nodeipam gives the Nodes of a cluster their pod CIDRs: it remembers what they have, plans with podcidr, commits
// by fence, and writes. docs/design.md has the rules, and the proof that no two Nodes get overlapping CIDRs from it.
package nodeipam

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/fence"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/podcidr"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/term"
)

// node is what is remembered of a Node.
type node struct {
	*podcidr.Node
	version string
	// seenIn is the takeover since which it was seen.
	seenIn int
	// labels is the mark of those that it had last; 0: not known. Of a Node that has CIDRs, they are not remembered.
	labels uint64
	// waits is nil when it has CIDRs.
	waits *waiting
}

// waiting is what matters of a Node only while it has no CIDRs.
type waiting struct {
	// since is when it was first seen.
	since time.Time
	// failures counts writes in a row that were refused for good; nothing is granted before retryAt.
	failures int
	retryAt  time.Time
}

// seen is what is remembered of a Node that is seen for the first time.
func seen(n *podcidr.Node, version string, now time.Time) *node {
	out := &node{Node: n, version: version}
	if len(n.CIDRs) == 0 {
		out.waits = &waiting{since: now}
	}
	return out
}

// grant is a grant that is not yet off the record.
type grant struct {
	podcidr.Grant
	// committed: it is on record. inherited: another manager has committed it, or this one in an earlier term.
	committed, inherited bool
	// busy: a write of it is under way. doubtful: the answer to one is not known.
	busy, doubtful bool
	// sent: a write of it was begun.
	sent bool
	// settled: it is proven that its Node has CIDRs, or is gone. refused: nothing of it was written, nor will be. Either
	// leaves the record with the next commit.
	settled, refused bool
	failures         int
	retryAt          time.Time
	// writtenAt is when the last write of it was over, as far as is known: of an inherited one, when it was taken over.
	writtenAt time.Time
	// since is when its Node was first seen without CIDRs.
	since time.Time
}

// memory is what is known of a site, and what is decided on that. It is locked to be used.
type memory struct {
	mu sync.Mutex

	// fleet: the Nodes are those of a Cluster of a name, and objects are chosen by its labels.
	fleet   bool
	cluster string

	// Ends and Contest are about UIDs of Nodes, and about the ConfigMap.
	term.Ends
	term.Contest

	known

	nodes map[types.UID]*node
	// todo are Nodes without CIDRs and grant that are to be planned; refused are those for which there is no room, or no
	// range, and nothing has changed since.
	todo    map[types.UID]*node
	refused map[types.UID]podcidr.Refusal
	objects map[podcidr.Ref]Object
	// services are the CIDRs of Services.
	services []netip.Prefix
	// first is the family of the first CIDR of a Node.
	first  podcidr.Family
	books  *podcidr.Books
	grants map[types.UID]*grant
	// clashes are Nodes with CIDRs that overlap, until one of them is gone.
	clashes map[types.UID][]podcidr.Clash
	// jobs are the writes under way, firsts those of grants of which none has failed yet.
	jobs, firsts int
	// nextLook is when the site is reconciled again if nothing happens before; zero: that is not known. Writes that fail wake the
	// site for what is due before that alone: hundreds that fail for hours take one reconcile for all that are tried together.
	nextLook time.Time
	// blocked are objects that could not be protected.
	blocked map[podcidr.Ref]blocked
	// checkHeld: it is to be seen whether our finalizer is on what Nodes use.
	checkHeld bool
	// inOrder are the ranges of the objects, byName the same by name.
	inOrder []*podcidr.Range
	byName  map[string][]*podcidr.Range
	// use is who has what, nil after a change; passes counts how often it was looked at.
	use    *usedBy
	passes int
	// useless are the ranges that no Node can get anything of, as Services have all of it, and those that are not.
	useless map[*podcidr.Range]bool

	holder, triedOnce bool
	// neighbour: another site of the cluster has held its ConfigMap: that of its Cluster, or of the manager in it.
	neighbour bool
	// unread: it was not looked yet what the last holder has left; left: grants in flight.
	unread, left bool
	// claimed: it is to be taken over, though no Node waits.
	claimed  bool
	outdated outdated
	// takeovers counts those that were begun.
	takeovers int
	// suspect: a Node that had CIDRs is shown without: what is known was of another past.
	suspect bool
	// open is what CIDRs may be given of, as the last commit says; shut, of which a live read showed that they must not.
	open []fence.Open
	shut map[podcidr.Ref]bool
	// closed are objects without which this manager has committed in its term, since they were seen closing, and the mark
	// that each had before.
	closed map[podcidr.Ref]string
	// recordedAt is when the state on record was last seen to be this manager's.
	recordedAt time.Time
	// adoptUntil is when the first grant may be made; zero: at once. adopting is on record.
	adoptUntil time.Time
	adopting   bool
	// adoptBegan is the beginning of an adoption as it is on record, adoptSeen is when this manager first saw that.
	adoptBegan, adoptSeen time.Time
	workSince             time.Time
	// settleAt is when what is settled is committed, if nothing else is before.
	settleAt time.Time
	// commitErr is why the last commit was refused for good, and commitAfter when the next one is tried.
	commitErr   error
	commitPause time.Duration
	commitAfter time.Time
	trouble     trouble
	// refusal is why Nodes, or what they depend on, may not be read; blind: they never were.
	refusal error
	blind   bool
	// notes are what is to be said, said what was.
	notes []note
	said  map[types.UID][]note
	// untold is what there is to say by the holder alone.
	untold untold
}

// blocked is an object that could not be protected so many times, and until when it is not tried.
type blocked struct {
	failures int
	until    time.Time
}

func newMemory(of Key, grace time.Duration) *memory {
	m := &memory{
		fleet: of != Key{}, cluster: of.Name,
		known: known{blocks: map[string]Block{}, fresh: map[types.UID]time.Time{}, taken: map[string]time.Time{}, missing: map[string]bool{}, vain: map[string]blocked{}, looked: map[types.UID]bool{}, ended: map[types.UID]bool{}, idle: map[types.UID]time.Time{}, grace: grace},
		nodes: map[types.UID]*node{}, todo: map[types.UID]*node{}, refused: map[types.UID]podcidr.Refusal{},
		objects: map[podcidr.Ref]Object{}, grants: map[types.UID]*grant{}, clashes: map[types.UID][]podcidr.Clash{}, shut: map[podcidr.Ref]bool{}, said: map[types.UID][]note{}, blocked: map[podcidr.Ref]blocked{},
		untold: untold{refusals: map[types.UID]note{}, others: map[types.UID][]note{}},
	}
	m.unread = true
	m.rebuild()
	return m
}

// observe takes a Node as it was seen, and reports whether there is something to do. Evidence only grows: CIDRs that are
// set stay, and a Node that is being deleted is for ever.
func (m *memory) observe(n *podcidr.Node, version string, now time.Time) (wake bool) {
	if m.IsGone(n.UID) {
		return false
	}
	known := m.nodes[n.UID]
	if known == nil {
		known = seen(n, version, now)
		known.seenIn = m.takeovers
		m.nodes[n.UID] = known
		if len(n.CIDRs) > 0 {
			m.touch()
		}
		return m.noted(known, true)
	}
	if !term.Newer(version, known.version) {
		known.seenIn = m.takeovers
		return false
	}
	was := known.Node
	if len(was.CIDRs) > 0 && len(n.CIDRs) == 0 {
		m.suspect = true
		return true
	}
	if was.From != n.From || !slices.Equal(was.CIDRs, n.CIDRs) {
		m.touch()
	}
	known.Node, known.version, known.seenIn = n, version, m.takeovers
	return m.noted(known, was.Deleting != n.Deleting || was.LabelsDue != n.LabelsDue || !maps.Equal(was.Labels, n.Labels))
}

// noteLabels says of a Node that its labels come too late: they select another ClusterCIDR than the one that it has CIDRs of,
// for its life.
func (m *memory) noteLabels(uid types.UID, version string, labels map[string]string) {
	n := m.nodes[uid]
	if n == nil || n.version != version {
		return // it was seen later, or is gone
	}
	was := n.labels
	if n.labels = markOf(labels); was == 0 || was == n.labels || len(n.CIDRs) == 0 {
		return
	}
	has := m.rangeOf(n.Node)
	if has == nil {
		return
	}
	open := slices.DeleteFunc(slices.Clone(m.ranges()), func(r *podcidr.Range) bool { return r.Closing && r != has })
	order := podcidr.Order(open, &podcidr.Node{Name: n.Name, Labels: labels})
	if len(order) == 0 || order[0] == has || !order[0].Chooses() {
		return
	}
	m.notef(n.Node, PodCIDRLabelsLate, "its labels select ClusterCIDR %s now, and it keeps its pod CIDRs %v of %s: have its labels there when it registers, and drain and delete it, so that it registers anew",
		order[0].Name, n.CIDRs, has.Name)
}

// noted sorts a Node by what is known of it; news says whether that has changed what it may be given.
func (m *memory) noted(n *node, news bool) (wake bool) {
	if len(n.CIDRs) > 0 {
		n.waits = nil
		m.set(n)
		m.forgetWaiting(n.UID)
		if g := m.grants[n.UID]; g != nil && !g.settled && !slices.Equal(g.CIDRs, n.CIDRs) {
			m.reconsider() // what was granted is free
		}
		return m.settle(n.UID)
	}
	if n.Deleting {
		m.forgetWaiting(n.UID)
		return false
	}
	if m.grants[n.UID] != nil || !news {
		return false
	}
	m.forgetWaiting(n.UID)
	m.todo[n.UID] = n
	return true
}

// set enters in the books what a Node has.
func (m *memory) set(n *node) {
	clashes := m.books.Set(n.Node)
	if len(clashes) == 0 {
		return
	}
	m.clashes[n.UID] = clashes
	for _, c := range clashes {
		m.noteClash(n.Node, c)
	}
}

func (m *memory) forgetWaiting(uid types.UID) {
	delete(m.todo, uid)
	delete(m.refused, uid)
	delete(m.untold.refusals, uid)
}

// settle notes the proof that a grant of a Node can end.
func (m *memory) settle(uid types.UID) (wake bool) {
	g := m.grants[uid]
	if g == nil || g.settled {
		return false
	}
	g.settled = true
	m.touch()
	return true
}

// forget takes the proof that the UID of a Node is gone. What it had is free (never before: a Node that is being deleted
// has its CIDRs, and its Pods run, as long as somebody's finalizer keeps it).
func (m *memory) forget(uid types.UID, now time.Time) (wake bool) {
	m.NoteGone(uid)
	n := m.nodes[uid]
	m.forgetWaiting(uid)
	if n != nil && len(n.CIDRs) > 0 {
		m.touch()
	}
	delete(m.nodes, uid)
	delete(m.clashes, uid)
	delete(m.said, uid)
	delete(m.untold.others, uid)
	for other, clashes := range m.clashes {
		left := slices.DeleteFunc(clashes, func(c podcidr.Clash) bool { return c.OtherUID == uid })
		if m.clashes[other] = left; len(left) == 0 {
			delete(m.clashes, other)
		}
	}
	m.books.Drop(uid, now)
	wake = m.settle(uid) || (n != nil && len(n.CIDRs) > 0)
	if wake {
		m.reconsider()
	}
	return wake
}

// reconsider has Nodes planned again that were refused: something has changed.
func (m *memory) reconsider() {
	for uid := range m.refused {
		if n := m.nodes[uid]; n != nil {
			m.todo[uid] = n
		}
	}
	clear(m.refused)
	clear(m.untold.refusals)
}

// setObjects takes what CIDRs are given from.
func (m *memory) setObjects(objects []Object) {
	next := make(map[podcidr.Ref]Object, len(objects))
	news, gone := false, false
	for _, o := range objects {
		was, known := m.objects[o.Ref]
		if known && was.Range != nil {
			o.Range = was.Range // a spec never changes
		}
		if o.Range != nil {
			closing := o.Closing || m.shut[o.Ref]
			news = news || closing != o.Range.Closing
			o.Range.Closing = closing
		}
		news = news || !known
		m.checkHeld = m.checkHeld || !known || was.Held != o.Held
		next[o.Ref] = o
	}
	for ref := range m.objects {
		if _, is := next[ref]; !is {
			gone = true
			delete(m.shut, ref)
		}
	}
	m.objects = next
	if news || gone {
		m.inOrder, m.byName = nil, nil
		m.touch()
	}
	m.sortBlocks()
	if gone {
		m.rebuild() // the books look after the ranges that there are
	}
	if news || gone {
		m.reconsider()
	}
}

// setServices takes the CIDRs of Services: they are not for Nodes. The family of the first is that of the first CIDR of a
// Node.
func (m *memory) setServices(services []netip.Prefix) {
	if slices.Equal(m.services, services) {
		return
	}
	m.services, m.first = services, podcidr.IPv4
	if len(services) > 0 && !services[0].Addr().Is4() {
		m.first = podcidr.IPv6
	}
	m.rebuild()
	m.reconsider()
}

// rebuild makes the books of what is known.
func (m *memory) rebuild() {
	m.books, m.useless = podcidr.NewBooks(m.services), map[*podcidr.Range]bool{}
	clear(m.clashes)
	for _, n := range m.sorted() {
		m.set(n)
	}
	for _, g := range m.grants {
		if !g.settled {
			m.books.Grant(g.Node, g.CIDRs)
		}
	}
}

// sorted are the Nodes in the order of their age.
func (m *memory) sorted() []*node {
	return slices.SortedFunc(maps.Values(m.nodes), func(a, b *node) int {
		return cmp.Or(a.Created.Compare(b.Created), cmp.Compare(a.Name, b.Name), cmp.Compare(a.UID, b.UID))
	})
}

// ranges are those of the objects that are valid.
func (m *memory) ranges() []*podcidr.Range {
	if m.inOrder != nil {
		return m.inOrder
	}
	var out []*podcidr.Range
	for _, o := range m.objects {
		if o.Range != nil {
			out = append(out, o.Range)
		}
	}
	m.inOrder, m.byName = podcidr.Sorted(out), map[string][]*podcidr.Range{}
	for _, r := range m.inOrder {
		m.byName[r.Name] = append(m.byName[r.Name], r)
	}
	return m.inOrder
}

// tookOver takes what a takeover found: the state that is held from now on, and all Nodes, of a list that began after
// the write. What was seen since the takeover began counts as well.
func (m *memory) tookOver(s fence.State, listed map[types.UID]*node, now time.Time) {
	for uid, n := range m.nodes {
		if listed[uid] == nil && n.seenIn < m.takeovers {
			m.NoteGone(uid) // it was there before the list began
			delete(m.nodes, uid)
			delete(m.said, uid)
			delete(m.untold.others, uid)
		}
	}
	for uid, n := range listed {
		known := m.nodes[uid]
		if m.IsGone(uid) || (known != nil && known.seenIn == m.takeovers && !term.Newer(n.version, known.version)) {
			continue
		}
		if known != nil && n.waits != nil && known.waits != nil {
			n.waits = known.waits
		}
		if known != nil {
			n.labels = known.labels
		}
		n.seenIn = m.takeovers
		m.nodes[uid] = n
	}
	clear(m.todo)
	clear(m.refused)
	clear(m.grants)
	for uid, n := range m.nodes {
		if len(n.CIDRs) == 0 && !n.Deleting {
			m.todo[uid] = n
		}
	}
	for _, g := range s.InFlight {
		n := m.nodes[g.UID]
		inherited := &grant{committed: true, inherited: true, writtenAt: now, settled: n == nil || len(n.CIDRs) > 0}
		inherited.Grant = podcidr.Grant{Node: &podcidr.Node{Name: g.Node, UID: g.UID}, From: podcidr.Ref{Name: g.From}, CIDRs: g.CIDRs}
		if n != nil {
			inherited.Node = n.Node
		}
		m.grants[g.UID] = inherited
		delete(m.todo, g.UID)
	}
	m.touch()
	m.tellOthers()
	m.rebuild()
	m.unread, m.left, m.claimed = false, false, false
	m.holder, m.triedOnce, m.suspect, m.workSince, m.settleAt = true, true, false, time.Time{}, time.Time{}
	m.closed, m.recordedAt = map[podcidr.Ref]string{}, now
	m.looked, m.ended, m.missing = map[types.UID]bool{}, map[types.UID]bool{}, map[string]bool{}
	m.setOpen(s.Open)
	m.adopting, m.adoptUntil = s.Adopting != nil, time.Time{}
	if m.adopting {
		// By this clock alone, that of the manager that began may be ahead, or behind; and since this one first saw it, or two
		// that take over from each other would begin anew each time.
		if !m.adoptBegan.Equal(*s.Adopting) {
			m.adoptBegan, m.adoptSeen = *s.Adopting, now
		}
		m.adoptUntil = m.adoptSeen.Add(adoption)
	}
	m.commitErr, m.commitPause, m.commitAfter, m.checkHeld = nil, 0, time.Time{}, true
}

// anyCIDRs reports whether a Node has CIDRs.
func (m *memory) anyCIDRs() bool {
	for _, n := range m.nodes {
		if len(n.CIDRs) > 0 {
			return true
		}
	}
	return false
}
