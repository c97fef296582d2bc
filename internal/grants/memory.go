// Package grants decides what is granted from a pool: the memory of a pool, the plan, what a commit says and what became
// of it, what a takeover finds, and what is due for each claimant. It knows neither a kind of claimants nor an API
// server: kinds say what is theirs (Kind), package allocator reads and writes. The rules that it names, R1 to R12, are in
// docs/design.md.
package grants

import (
	"math/rand/v2"
	"sync"
	"time"

	"github.com/tidwall/btree"
	"go4.org/netipx"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/cooling"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/ledger"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/poolspec"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/term"
)

// Pool is one pool of a manager: its memory, which is locked to be used.
type Pool struct {
	Key    pools.Key
	memory *Memory
}

// PoolOf returns the pool that a memory is of.
func PoolOf(m *Memory) *Pool { return &Pool{m.Key, m} }

// Lock returns the memory of the pool, for this caller alone until it unlocks it.
func (p *Pool) Lock() *Memory {
	p.memory.mu.Lock()
	return p.memory
}

// Unlock lets others have the memory.
func (m *Memory) Unlock() { m.mu.Unlock() }

// Memory is what is known of one pool. Watch handlers and jobs feed it at any time; everything that decides runs in the
// one goroutine that reconciles the pool.
type Memory struct {
	Key pools.Key
	// kinds are those of claimants.
	kinds []Kind

	mu sync.Mutex
	// Dropped: the allocator has forgotten this memory; there is another one for the key, or none.
	Dropped bool

	Claimants map[types.UID]*Claimant
	// kindCount is how many of the claimants are of each kind; shares, what those of a namespace have of what is counted
	// for each namespace.
	kindCount map[Kind]int
	shares    map[share]int64
	// moving are the claimants that clusterctl takes to another cluster now.
	moving map[types.UID]*Claimant
	// movingAttached are the IPAddresses that it takes, leftToUs is what is known of the end of either.
	movingAttached map[types.UID]*Attached
	leftToUs       map[types.UID]*leftover
	ByName         map[types.NamespacedName]*Claimant
	// endingWith are the claimants that end with what they are for, by that: a Cluster, or the namespace of a pool.
	endingWith map[types.NamespacedName]map[types.UID]*Claimant
	Attached   map[types.NamespacedName]*Attached
	// Pending are the claims that want a grant, oldest first; Todo those that want anything else.
	Pending *btree.BTreeG[*Claimant]
	Todo    map[types.UID]*Claimant
	// looking is for how many claims Machines are being looked for.
	looking int
	// Retrying are claims of which the last try failed: those with a RetryAt.
	Retrying map[types.UID]struct{}
	// Orphans are IPAddresses without a claim that we know.
	Orphans map[types.NamespacedName]*Orphan
	Grants  map[types.UID]*Grant
	term.Ends

	Ledger *ledger.Ledger
	// full is what a plan tells the claims that find nothing free, made once: thousands may wait.
	full   *Refusal
	Layout *poolspec.Layout
	// laidOut is the spec that Layout was made of.
	laidOut SpecVersion
	SpecErr string
	Cooling *cooling.Set
	held    map[netipx.IPRange]v1alpha1.HeldRange
	// Quota is shared by all pools; Limits says what a Cluster may have, nil: anything.
	Quota  *Quota
	Limits func(types.NamespacedName) (int64, bool)
	// ManagementCluster is the one that this manager serves; empty: nobody knows.
	ManagementCluster string
	// troubled are the namespaces of which claims cannot be served, unheard those of which claims cannot be told why they
	// wait; trialAt is when the next of those that wait for others is tried.
	troubled, unheard troubles
	trialAt           time.Time
	// well are the namespaces of which a claim was served since one last failed.
	well map[string]struct{}
	// NextLook is when the pool is reconciled again if nothing happens before; zero: that is not known.
	NextLook time.Time
	// Refusal is why the API server refuses the status of the pool, nil if it does not; nothing is committed before
	// CommitAfter.
	Refusal     *Refusal
	CommitAfter time.Time
	commitPause time.Duration
	// refusedFor is the cause of the refusal. Before MarkAfter the pool does not get our finalizer again, which is not kept.
	refusedFor string
	MarkAfter  time.Time
	// WaitingClusters are the Clusters (namespace/name) that claims wait for.
	WaitingClusters map[types.NamespacedName]struct{}

	// Base is the pool as our last write, or the newest read, returned it.
	Base       v1alpha1.Pool
	generation int64
	// last is what the newest version of the pool says that was seen; unseen are grants that went from it, and of which
	// nothing was seen since. Vanished counts how often that happened.
	last     lastSeen
	unseen   []flight
	Vanished int
	// seen: there was a pool once, while this manager ran.
	seen bool
	// compiled are the blocks of which the layout was made.
	compiled []v1alpha1.CarvedBlock
	Holder   bool
	Term     int64
	// TermSuspect: a job found that what we believe of the pool is old. The term ends with the next reconcile.
	TermSuspect bool
	// FencedTerm is the term in which we are the holder on record, since before the watches began (Fence): the
	// first half of a takeover. 0: none.
	FencedTerm int64
	Unanswered *PendingCommit
	// Changed is when the pool last moved on by another hand; WorkSince since when work has waited.
	Changed, WorkSince time.Time
	term.Contest
	jitter func(time.Duration) time.Duration
	// APITime is a moment by the clock of the API server; nil: all have one clock.
	APITime         func(time.Time) time.Time
	ListTook        time.Duration
	TriedOnce       bool
	QuarantineUntil time.Time
	// quietSince is what the quarantine counts from, where that was an arrival, and opensAt is when it ends: by the clock of
	// the API server, in whole seconds.
	quietSince, opensAt time.Time
	// Arriving is what is known of the objects that come along with the pool.
	Arriving Arriving
	// AloneSince is when nothing can land any more that somebody else has sent before this term.
	AloneSince time.Time
	// Adopting: what exists is taken over from another allocator (R10). UntoldAdopting: the write of the takeover has put
	// that into the condition Ready, so no commit turns it, and no event has said it.
	Adopting, UntoldAdopting bool
	LastCommit               time.Time
	// NextSweep is when orphans are looked for next.
	NextSweep time.Time
	// ToTell are claims that were not told what holds them up, with what they are to be told.
	ToTell map[*Claimant]metav1.Condition
	// Awaited are the Clusters of IPAllocations that nobody has seen.
	Awaited map[types.NamespacedName]struct{}
	// Overlap names a pool of the same network with some of the addresses; Younger: it came first.
	Overlap string
	Younger bool
	// Owes: it is not on record that the pool yields to an older one.
	Owes bool
	// apart are the ranges that another pool of the network has or may give; WaitsFor says which pool is to leave them
	// to this one.
	apart    map[netipx.IPRange]pools.Key
	WaitsFor string
	// Yields are the older pools that this one leaves addresses to, as the next commit says; Outstanding says why it
	// does so still, where it does not overlap with one of them any more.
	Yields      []v1alpha1.YieldedPool
	Outstanding string
	// Surveyed are the reasons for which all that this one has was listed (see survey).
	Surveyed map[v1alpha1.YieldedPool]bool
	// listed: all that this one has was listed since this manager began (see IsUnlisted).
	listed bool
	// OutOfView is what was read of those of them that no watch of this manager shows.
	OutOfView map[v1alpha1.YieldedPool]OutOfView
	// KeptApart counts what was kept apart since the pool was looked at with all others.
	KeptApart int
	// ToldElders is what the older pools were last woken for.
	ToldElders News
	// Carved is what is remembered of the pool if it is carved from another.
	Carved CarvedPool
	// Crowded are the claims whose release waits because no more rests fit on record; RestsLate: others wait because as
	// many as can be handed out are noted.
	Crowded   map[types.UID]*Claimant
	RestsLate bool
	deferred  deferred
	// Jobs is the number of writes handed out.
	Jobs int
}

// New returns the memory of a pool of which nothing is known. Kinds are those of claimants; the quota is shared by all
// pools of a manager.
func New(key pools.Key, kinds []Kind, q *Quota) *Memory {
	m := &Memory{Key: key, kinds: kinds, jitter: rand.N[time.Duration], Quota: q}
	m.Claimants, m.kindCount = map[types.UID]*Claimant{}, map[Kind]int{}
	m.shares, m.moving = map[share]int64{}, map[types.UID]*Claimant{}
	m.ByName, m.endingWith = map[types.NamespacedName]*Claimant{}, map[types.NamespacedName]map[types.UID]*Claimant{}
	m.Attached = map[types.NamespacedName]*Attached{}
	m.movingAttached, m.leftToUs = map[types.UID]*Attached{}, map[types.UID]*leftover{}
	m.Todo = map[types.UID]*Claimant{}
	m.Retrying = map[types.UID]struct{}{}
	m.Orphans = map[types.NamespacedName]*Orphan{}
	m.Grants = map[types.UID]*Grant{}
	m.Cooling, m.Crowded = cooling.NewSet(m.coolingBegan, m.coolingEnded), map[types.UID]*Claimant{}
	m.held = map[netipx.IPRange]v1alpha1.HeldRange{}
	m.troubled, m.unheard, m.well = troubles{}, troubles{}, map[string]struct{}{}
	m.WaitingClusters = map[types.NamespacedName]struct{}{}
	m.apart = map[netipx.IPRange]pools.Key{}
	m.Surveyed, m.OutOfView = map[v1alpha1.YieldedPool]bool{}, map[v1alpha1.YieldedPool]OutOfView{}
	m.Pending = btree.NewBTreeGOptions(older, btree.Options{NoLocks: true})
	m.Ledger = ledger.New(nil, 128)
	return m
}
