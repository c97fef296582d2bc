package allocator

import (
	"math/rand/v2"
	"sync"
	"time"

	"github.com/tidwall/btree"
	"go4.org/netipx"
	"k8s.io/apimachinery/pkg/types"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/ledger"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/poolspec"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/poolutil"
)

// grant gives a range to a claim. It counts only once it is committed.
type grant struct {
	owner     ledger.Owner
	rng       netipx.IPRange
	committed bool
	// at is when the commit that carries the grant was last confirmed.
	at time.Time
	// inherited: it was in flight when we took the pool over.
	inherited bool
	// settled: its IPAddress is confirmed, or its claim cannot use it any more (R6). It leaves
	// inFlight with the next commit.
	settled bool
}

// writable tells whether a grant may be written on. An old one, or an inherited one, is confirmed by a commit before
// (R6); what is settled is on record.
func (g *grant) writable(now time.Time) bool {
	return g.committed && (g.settled || elapsed(g.at, now) <= requestTimeout)
}

// pool is the memory of one pool. Watch handlers and jobs feed it under mu at any time; everything
// that decides runs in the one goroutine that reconciles the pool.
type pool struct {
	key PoolKey

	mu sync.Mutex
	// dropped: the allocator has forgotten this memory; there is another one for the key, or none.
	dropped bool

	claims map[types.UID]*claim
	byName map[types.NamespacedName]*claim
	addrs  map[types.NamespacedName]*address
	// pending are the claims that want a grant, oldest first; chores those that want anything else.
	pending *btree.BTreeG[*claim]
	chores  map[types.UID]*claim
	// retrying are claims of which the last try failed: those with a retryAt.
	retrying map[types.UID]struct{}
	// strays are IPAddresses without a claim that we know.
	strays map[types.NamespacedName]*stray
	grants map[types.UID]*grant
	// gone are UIDs whose end was seen, those of before since the last rotation: an answer to a write of
	// ours, or a list, that is older than the end must not revive them.
	gone, goneBefore map[types.UID]struct{}
	rotated          time.Time

	ledger *ledger.Ledger
	// full is what a plan tells the claims that find nothing free, made once: thousands may wait.
	full    *refusal
	layout  *poolspec.Layout
	specErr string
	cooling map[netipx.IPRange]v1alpha1.CoolingRange
	held    map[netipx.IPRange]v1alpha1.HeldRange
	// quota is shared by all pools; limits says what a Cluster may have, nil: anything.
	quota  *quota
	limits func(types.NamespacedName) (int64, bool)
	// gates are the clusters (namespace/name) that claims wait for.
	gates map[types.NamespacedName]struct{}

	// base is the pool as our last write, or the newest read, returned it.
	base       v1alpha1.Pool
	generation int64
	holder     bool
	term       int64
	// doubted: a job found that what we believe of the pool is old. The turn ends with the next reconcile.
	doubted bool
	// fenced is the term in which we are the holder on record, since before the watches began (Fence): the
	// first half of a takeover. 0: none.
	fenced  int64
	attempt *attempt
	// changed is when the pool last moved on by another hand; workSince since when work has waited.
	changed, workSince time.Time
	notBefore          time.Time
	backoff            time.Duration
	jitter             func(time.Duration) time.Duration
	listTook           time.Duration
	firstTurnTaken     bool
	quarantineUntil    time.Time
	// adopting: what exists is taken over from another allocator (R10).
	adopting   bool
	lastCommit time.Time
	// nextSweep is when orphans are looked for next.
	nextSweep time.Time
	// overlap names a pool of the same network with some of the addresses; younger: it came first.
	overlap string
	younger bool
	// jobs is the number of writes handed out.
	jobs int
}

func newPool(key PoolKey) *pool {
	p := &pool{key: key, jitter: rand.N[time.Duration], quota: newQuota(func(PoolKey) {})}
	p.claims = map[types.UID]*claim{}
	p.gone = map[types.UID]struct{}{}
	p.byName = map[types.NamespacedName]*claim{}
	p.addrs = map[types.NamespacedName]*address{}
	p.chores = map[types.UID]*claim{}
	p.retrying = map[types.UID]struct{}{}
	p.strays = map[types.NamespacedName]*stray{}
	p.grants = map[types.UID]*grant{}
	p.cooling = map[netipx.IPRange]v1alpha1.CoolingRange{}
	p.held = map[netipx.IPRange]v1alpha1.HeldRange{}
	p.gates = map[types.NamespacedName]struct{}{}
	p.pending = btree.NewBTreeGOptions(older, btree.Options{NoLocks: true})
	p.ledger = ledger.New(nil, 128)
	return p
}

// older is the order in which claims are served: creation time, then namespace and name.
func older(a, b *claim) bool {
	if !a.created.Equal(b.created) {
		return a.created.Before(b.created)
	}
	if a.owner.Namespace != b.owner.Namespace {
		return a.owner.Namespace < b.owner.Namespace
	}
	if a.owner.Name != b.owner.Name {
		return a.owner.Name < b.owner.Name
	}
	return a.owner.UID < b.owner.UID
}

func nameOf(o ledger.Owner) types.NamespacedName {
	return types.NamespacedName{Namespace: o.Namespace, Name: o.Name}
}

// observeClaim feeds a claim as an event, a list or our own write returned it. It tells whether the
// pool has something to do.
func (p *pool) observeClaim(c *claim) bool {
	if p.isGone(c.owner.UID) || !p.takesName(c) {
		return false
	}
	old := p.claims[c.owner.UID]
	if old != nil {
		if !Newer(c.rv, old.rv) {
			return false
		}
		c.busy, c.failures, c.retryAt, c.lost = old.busy, old.failures, old.retryAt, old.lost
		// A record never changes while the claim lives (R1): the first one stands, whatever is
		// written over it. clusterctl replaces all annotations on the source of a move. Ours comes with
		// our finalizer; what a user wrote before is no record yet.
		if old.remembers() {
			c.record = old.record
		}
		if c.block != nil {
			c.block.orphanSince = old.block.orphanSince
		}
		if c.counted = old.counted; c.counted && c.cluster != old.cluster {
			p.quota.add(old.clusterKey(), -1)
			c.counted = false
		}
		p.unsort(old)
	}
	p.claims[c.owner.UID] = c
	p.recall(c)
	p.noteRecord(c)
	if c.moved {
		p.holdMoved(c.owner, c.record)
	}
	if c.block != nil {
		p.settle(c.owner.UID)
		p.sortOverlapping(c.has(), c)
		return p.sort(c)
	}
	p.byName[nameOf(c.owner)] = c
	if a := p.addrs[nameOf(c.owner)]; a != nil {
		p.sortAddress(a)
	}
	return p.sort(c)
}

// takesName tells whether the name of a claim is its own. Of two claims of one name, the one that was
// written later proves the end of the other.
func (p *pool) takesName(c *claim) bool {
	known := p.byName[nameOf(c.owner)]
	if c.block != nil || known == nil || known.owner.UID == c.owner.UID {
		return true
	}
	if Newer(c.rv, known.rv) {
		p.forgetClaim(known.owner.UID)
		return true
	}
	p.forgetClaim(c.owner.UID)
	return false
}

// noteRecord states what a claim remembers it was given: one unit, whatever a user wrote there.
func (p *pool) noteRecord(c *claim) {
	if c.block != nil {
		p.noteBlock(c)
		return
	}
	key := ledger.Key{Source: ledger.Record, UID: c.owner.UID}
	if !c.record.IsValid() {
		p.ledger.Remove(key)
		return
	}
	p.ledger.Add(ledger.Hold{Key: key, Owner: c.owner, Range: p.ledger.Unit(c.record.From())})
}

// recall has a claim remember the IPAddress that was forced away from it: a manager that has just taken the pool
// over may see what the one before wrote in any order, and the record last.
func (p *pool) recall(c *claim) {
	if c.lost == nil || c.remembers() || !c.lost.ip.IsValid() {
		return
	}
	if r := p.ledger.Unit(c.lost.ip); c.everBound || p.ledger.InSpace(r) {
		c.record = r
	}
}

// handsOutPrefixes tells whether the pool hands out prefixes instead of addresses.
func (p *pool) handsOutPrefixes() bool {
	if p.layout.Is6() {
		return p.layout.UnitBits() < 128
	}
	return p.layout.UnitBits() < 32
}

// recordOf is the text of a record: an address, or a prefix where the pool hands out prefixes.
func (p *pool) recordOf(r netipx.IPRange) string {
	if p.layout != nil && p.layout.UnitBits() < r.From().BitLen() {
		return poolutil.FormatRange(r)
	}
	return r.From().String()
}

// forgetClaim feeds the proof that a claim UID is gone.
func (p *pool) forgetClaim(uid types.UID) {
	p.gone[uid] = struct{}{}
	c := p.claims[uid]
	if c == nil {
		return
	}
	p.unsort(c)
	delete(p.claims, uid)
	if p.byName[nameOf(c.owner)] == c {
		delete(p.byName, nameOf(c.owner))
	}
	p.ledger.Remove(ledger.Key{Source: ledger.Record, UID: uid})
	if c.counted {
		p.quota.add(c.clusterKey(), -1)
	}
	p.settle(uid)
	if c.block != nil {
		p.ledger.Remove(ledger.Key{Source: ledger.Object, UID: uid})
		p.sortOverlapping(c.has(), c)
	} else if a := p.addrs[nameOf(c.owner)]; a != nil {
		p.sortAddress(a)
	}
}

// observeAddress feeds an IPAddress.
func (p *pool) observeAddress(a *address) bool {
	if p.isGone(a.uid) {
		return false
	}
	if old := p.addrs[a.key()]; old != nil {
		if !Newer(a.rv, old.rv) {
			return false
		}
		if old.uid != a.uid {
			p.forgetAddress(old.uid, old.key())
		}
	}
	if c := p.claims[a.claimUID]; c != nil && c.owner.Name == a.name {
		a.name, a.claimUID = c.owner.Name, c.owner.UID // equal, and kept once
	}
	p.addrs[a.key()] = a
	if a.ip.IsValid() {
		p.ledger.Add(ledger.Hold{Key: ledger.Key{Source: ledger.Object, UID: a.uid}, Owner: a.owner(), Range: p.ledger.Unit(a.ip)})
	}
	if a.moved && a.ip.IsValid() {
		p.holdMoved(a.owner(), p.ledger.Unit(a.ip))
	}
	wake := p.sortAddress(a)
	if c := p.byName[a.key()]; c != nil {
		if a.claimUID == c.owner.UID {
			c.lost = nil
			p.settle(c.owner.UID)
		}
		return p.sort(c) || wake
	}
	return wake
}

func (p *pool) isGone(uid types.UID) bool {
	_, now := p.gone[uid]
	_, before := p.goneBefore[uid]
	return now || before
}

// rotateGone forgets ends that nothing can contradict any more: every request of ours has ended since.
func (p *pool) rotateGone(now time.Time) {
	if elapsed(p.rotated, now) > 2*requestTimeout {
		p.gone, p.goneBefore, p.rotated = map[types.UID]struct{}{}, p.gone, now
	}
}

// forgetAddress feeds the proof that an IPAddress UID is gone.
func (p *pool) forgetAddress(uid types.UID, name types.NamespacedName) {
	p.gone[uid] = struct{}{}
	p.ledger.Remove(ledger.Key{Source: ledger.Object, UID: uid})
	lost := p.addrs[name]
	if lost != nil && lost.uid == uid {
		delete(p.addrs, name)
		delete(p.strays, name)
	}
	if c := p.byName[name]; c != nil {
		if lost != nil && lost.uid == uid && lost.claimUID == c.owner.UID && !c.deleting {
			c.lost = lost
			p.recall(c)
			p.noteRecord(c)
		}
		c.failures, c.retryAt = 0, time.Time{} // it may have waited for this name
		p.sort(c)
	}
}

// nextRetry is how long until a claim is due whose last try failed, 0 if there is none.
func (p *pool) nextRetry(now time.Time) time.Duration {
	var wait time.Duration
	for uid := range p.retrying {
		if c := p.claims[uid]; c != nil && c.retryAt.After(now) {
			wait = sooner(wait, c.retryAt.Sub(now))
		} else {
			delete(p.retrying, uid)
		}
	}
	return wait
}

// sort puts a claim where it belongs and tells whether anything is to be done for it.
func (p *pool) sort(c *claim) bool {
	p.unsort(c)
	p.recount(c)
	a := p.addressOf(c)
	mine := a != nil && a.claimUID == c.owner.UID
	switch {
	case c.moved:
		return false
	case c.deleting:
		if !c.finalized && !mine && p.grants[c.owner.UID] == nil {
			return false
		}
		p.chores[c.owner.UID] = c
	case c.block != nil:
		return p.sortBlock(c)
	case mine:
		if p.complete(c, a) {
			return false
		}
		p.chores[c.owner.UID] = c
	case p.grants[c.owner.UID] != nil, a != nil && p.adoptable(c, a):
		p.chores[c.owner.UID] = c
	default:
		p.pending.Set(c)
	}
	return true
}

// addressOf returns the IPAddress that has the name of a claim, nil for an IPAllocation.
func (p *pool) addressOf(c *claim) *address {
	if c.block != nil {
		return nil
	}
	return p.addrs[nameOf(c.owner)]
}

func (p *pool) unsort(c *claim) {
	p.pending.Delete(c)
	delete(p.chores, c.owner.UID)
}

// complete tells whether nothing is left to write for a claim and its address.
func (p *pool) complete(c *claim, a *address) bool {
	poolKnown := p.base != nil && p.base.GetUID() != ""
	recorded := p.layout == nil || !a.ip.IsValid() || c.recordText == p.recordOf(p.ledger.Unit(a.ip))
	return c.bound && c.finalized && recorded &&
		(a.deleting || a.protected) && (!poolKnown || a.poolUID == p.base.GetUID())
}

// sortAddress notes whether an IPAddress has a claim.
func (p *pool) sortAddress(a *address) bool {
	if c := p.claims[a.claimUID]; c != nil || a.moved {
		delete(p.strays, a.key())
		return false
	}
	if s := p.strays[a.key()]; s != nil {
		s.address = a
	} else {
		p.strays[a.key()] = &stray{address: a}
	}
	return true
}

// holdMoved keeps what is being moved to another cluster from being given away here (R9).
func (p *pool) holdMoved(o ledger.Owner, r netipx.IPRange) {
	if !r.IsValid() {
		return
	}
	if _, ok := p.held[r]; ok {
		return
	}
	p.addHeld(r, v1alpha1.HeldRange{
		First: r.From().String(), Last: r.To().String(), Reason: v1alpha1.MovedReason, Namespace: o.Namespace, Name: o.Name,
	})
}

func (p *pool) addHeld(r netipx.IPRange, h v1alpha1.HeldRange) {
	p.held[r] = h
	p.ledger.Add(ledger.Hold{Key: restKey(ledger.Held, r), Owner: ledger.Owner{Namespace: h.Namespace, Name: h.Name}, Range: r})
}

func (p *pool) addCooling(r netipx.IPRange, c v1alpha1.CoolingRange) {
	p.cooling[r] = c
	p.ledger.Add(ledger.Hold{Key: restKey(ledger.Cooling, r), Owner: ledger.Owner{Namespace: c.Namespace, Name: c.Name}, Range: r})
}

// restKey keys a fact that no object states by its range.
func restKey(s ledger.Source, r netipx.IPRange) ledger.Key {
	return ledger.Key{Source: s, UID: types.UID(r.String())}
}
