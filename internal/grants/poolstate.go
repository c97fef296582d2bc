// Package grants decides what is granted from a pool. It has the state of a pool, the plan of new grants, the content
// and the outcome of a commit, the result of a takeover, and the writes that are due for each claimant. What
// differs between the kinds of claimants is in their packages, which implement ClaimantKind, and package allocator
// reads and writes. The rules that the comments name, R1 to R17, are in docs/design.md.
package grants

import (
	"math/rand/v2"
	"sync"
	"time"

	"github.com/tidwall/btree"
	"go4.org/netipx"
	"k8s.io/apimachinery/pkg/types"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/cooling"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/ledger"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/term"
)

// Clock converts between the clock of this manager and that of the API server. All times on record are by the latter
// (ADR 49). A time in the future counts as now.
type Clock struct {
	// ToAPIServerTime converts a time of this manager to the clock of the API server. It is nil if both have the same
	// clock.
	ToAPIServerTime func(time.Time) time.Time
}

// Pool is one pool of a manager: a handle whose state has to be locked before use.
type Pool struct {
	Key   pools.Key
	state *PoolState
}

// NewPool returns the pool that has a state.
func NewPool(m *PoolState) *Pool { return &Pool{m.Base.Key, m} }

// Lock locks the state of the pool and returns it. The caller has exclusive use of it until Unlock.
func (p *Pool) Lock() *PoolState {
	p.state.mu.Lock()
	return p.state
}

// Unlock releases the lock of the state.
func (m *PoolState) Unlock() { m.mu.Unlock() }

// PoolState is all that is known of one pool, in parts. A part uses those before it, in the order of the fields; the
// only call to a later one is that Cooling reports the start and the end of each period to Releases. Watch handlers
// and jobs update the state at any time. New grants, commits and takeovers are decided in the one goroutine that
// reconciles the pool; a job decides the next write for its claimant. The
// methods of PoolState itself are those that several parts take part in: to observe an object, to commit, to take the
// pool over.
type PoolState struct {
	mu sync.Mutex
	// Dropped reports whether the allocator has dropped this state. The key has another state then, or none.
	Dropped bool

	Clock      *Clock
	Base       *BasePool
	Term       *TermState
	Claimants  *Claimants
	Space      *Space
	Excluded   *ExcludedRanges
	Addresses  *Addresses
	Cooling    *Cooling
	Grants     *Grants
	Carved     *CarvedPool
	Quarantine *Quarantine
	Quotas     *Quotas
	Inventory  *Inventory
	Queues     *Queues
	Owners     *Owners
	Lookups    *MachineLookups
	Releases   *Releases
	Conditions *Conditions
	Failures   *Failures
	Moves      *Moves
	Held       *HeldRanges
	Observed   *Observed
	Overlap    *Overlap
	Growth     *Growth
	Planner    *Planner
	Status     *StatusBuilder
}

// NewPoolState returns the state of a pool before anything was observed. kinds are the kinds of claimants; all pools
// of a manager share the quota.
func NewPoolState(key pools.Key, kinds []ClaimantKind, q *Quota) *PoolState {
	m := &PoolState{}
	m.Clock = &Clock{}
	m.Base = &BasePool{Key: key}
	m.Term = &TermState{jitter: rand.N[time.Duration], base: m.Base}
	m.Claimants = &Claimants{kinds: kinds, ByUID: map[types.UID]*Claimant{}, counts: map[ClaimantKind]int{}, ByName: map[types.NamespacedName]*Claimant{}, byOwner: map[types.NamespacedName]map[types.UID]*Claimant{}}
	m.Space = &Space{Ledger: ledger.New(nil, 128), base: m.Base}
	m.Excluded = &ExcludedRanges{byRange: map[netipx.IPRange]pools.Key{}, space: m.Space}
	m.Addresses = &Addresses{ByName: map[types.NamespacedName]*Address{}, Orphans: map[types.NamespacedName]*Orphan{}, claimants: m.Claimants, space: m.Space}
	m.Cooling = &Cooling{base: m.Base, space: m.Space, clock: m.Clock}
	m.Grants = &Grants{ByClaimant: map[types.UID]*Grant{}, claimants: m.Claimants}
	m.Carved = &CarvedPool{base: m.Base, space: m.Space, claimants: m.Claimants}
	m.Quarantine = &Quarantine{base: m.Base, clock: m.Clock, term: m.Term, claimants: m.Claimants, space: m.Space}
	m.Quotas = &Quotas{byNamespace: map[namespaceQuotaKey]int64{}, Shared: q, base: m.Base, grants: m.Grants}
	m.Inventory = &Inventory{Base: m.Base, Space: m.Space, Claimants: m.Claimants, Addresses: m.Addresses, Cooling: m.Cooling, Grants: m.Grants, Carved: m.Carved, Quarantine: m.Quarantine, Excluded: m.Excluded, Quotas: m.Quotas}
	m.Queues = &Queues{Waiting: btree.NewBTreeGOptions(isOlderClaimant, btree.Options{NoLocks: true}), ToWrite: map[types.UID]*Claimant{}, Retrying: map[types.UID]struct{}{}, Overflow: map[types.UID]*Claimant{}, inventory: m.Inventory, quotas: m.Quotas, claimants: m.Claimants, addresses: m.Addresses, grants: m.Grants, space: m.Space}
	m.Owners = &Owners{claimants: m.Claimants, queues: m.Queues, term: m.Term}
	m.Lookups = &MachineLookups{claimants: m.Claimants, space: m.Space, queues: m.Queues}
	m.Releases = &Releases{base: m.Base, space: m.Space, clock: m.Clock, cooling: m.Cooling, queues: m.Queues, term: m.Term, inventory: m.Inventory, addresses: m.Addresses}
	m.Cooling.Periods = cooling.NewSet(m.Releases.onCoolingStarted, m.Releases.onCoolingEnded)
	m.Conditions = &Conditions{BlockingClusters: map[types.NamespacedName]struct{}{}, base: m.Base, term: m.Term, addresses: m.Addresses}
	m.Failures = &Failures{failing: failingNamespaces{}, statusFailing: failingNamespaces{}, healthyNamespaces: map[string]struct{}{}, claimants: m.Claimants, grants: m.Grants}
	m.Moves = &Moves{movingClaimants: map[types.UID]*Claimant{}, movingAddresses: map[types.UID]*Address{}, unfinishedMoves: map[types.UID]*term.Retry{}, claimants: m.Claimants, base: m.Base, addresses: m.Addresses, space: m.Space}
	m.Held = &HeldRanges{byRange: map[netipx.IPRange]v1alpha1.HeldRange{}, base: m.Base, space: m.Space, addresses: m.Addresses, carved: m.Carved, moves: m.Moves}
	m.Observed = &Observed{ListedFor: map[v1alpha1.YieldedPool]bool{}, space: m.Space, claimants: m.Claimants, carved: m.Carved, term: m.Term}
	m.Overlap = &Overlap{UnwatchedUsage: map[v1alpha1.YieldedPool]UnwatchedUsage{}, space: m.Space, observed: m.Observed, claimants: m.Claimants}
	m.Growth = &Growth{base: m.Base, space: m.Space, term: m.Term, quarantine: m.Quarantine, held: m.Held, queues: m.Queues, carved: m.Carved, inventory: m.Inventory}
	m.Planner = &Planner{base: m.Base, space: m.Space, claimants: m.Claimants, term: m.Term, grants: m.Grants, queues: m.Queues, inventory: m.Inventory, growth: m.Growth, failures: m.Failures, quotas: m.Quotas, cooling: m.Cooling}
	m.Status = &StatusBuilder{base: m.Base, space: m.Space, claimants: m.Claimants, quarantine: m.Quarantine, grants: m.Grants, held: m.Held, queues: m.Queues, carved: m.Carved, inventory: m.Inventory, clock: m.Clock, growth: m.Growth, cooling: m.Cooling, overlap: m.Overlap, moves: m.Moves}
	return m
}

// apiServerTime converts a time to the clock of the API server. All times that the next manager counts from are
// recorded by that clock, because its own clock and that of its predecessor may differ by any amount (ADR 49).
func (c *Clock) apiServerTime(at time.Time) time.Time {
	if c.ToAPIServerTime == nil {
		return at
	}
	return c.ToAPIServerTime(at)
}

// fromAPIServerTime converts a time of the API server to the clock of this manager. It returns now for a future time,
// so that a clock that was ahead when the time was recorded does not close the pool for longer.
func (c *Clock) fromAPIServerTime(at, now time.Time) time.Time {
	return now.Add(-max(c.apiServerTime(now).Sub(at), 0))
}

// SetAPITime sets the function that converts a time of this manager to the clock of the API server.
func (c *Clock) SetAPITime(convert func(time.Time) time.Time) { c.ToAPIServerTime = convert }
