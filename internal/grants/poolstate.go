// Package grants decides what is granted from a pool. It has the state of a pool, the plan of new grants, the content
// and the outcome of a commit, the result of a takeover, and the writes that are due for each claimant. It knows
// neither the kinds of claimants nor the API server: the kinds implement ClaimantKind, and package allocator reads
// and writes. The rules that the comments name, R1 to R12, are in docs/design.md.
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

// Pool is one pool of a manager: a handle whose state has to be locked before use.
type Pool struct {
	Key   pools.Key
	state *PoolState
}

// NewPool returns the pool that has a state.
func NewPool(m *PoolState) *Pool { return &Pool{m.Key, m} }

// Lock locks the state of the pool and returns it. The caller has exclusive use of it until Unlock.
func (p *Pool) Lock() *PoolState {
	p.state.mu.Lock()
	return p.state
}

// Unlock releases the lock of the state.
func (m *PoolState) Unlock() { m.mu.Unlock() }

// PoolState is all that is known of one pool. Watch handlers and jobs update it at any time; all decisions are made
// in the one goroutine that reconciles the pool.
type PoolState struct {
	Key pools.Key
	// kinds are the kinds of claimants.
	kinds []ClaimantKind

	mu sync.Mutex
	// Dropped reports whether the allocator has dropped this state. The key has another state then, or none.
	Dropped bool

	Claimants map[types.UID]*Claimant
	// claimantCounts is the number of claimants of each kind. namespaceUsage is how much the claimants of a kind in a
	// namespace have of what counts towards the quota of a namespace.
	claimantCounts map[ClaimantKind]int
	namespaceUsage map[namespaceQuotaKey]int64
	// movingClaimants are the claimants that clusterctl is moving to another cluster now.
	movingClaimants map[types.UID]*Claimant
	// movingAddresses are the IPAddresses that clusterctl is moving. unfinishedMoves has the retry state of the end
	// of each move, for both.
	movingAddresses map[types.UID]*Address
	unfinishedMoves map[types.UID]*unfinishedMove
	ClaimantsByName map[types.NamespacedName]*Claimant
	// claimantsByOwner are the claimants that end with their owner, by owner: a Cluster, or the namespace of a carved
	// pool.
	claimantsByOwner map[types.NamespacedName]map[types.UID]*Claimant
	Addresses        map[types.NamespacedName]*Address
	// PendingClaimants are the claimants that wait for a grant, oldest first; ClaimantsToWrite are those that need
	// any other write.
	PendingClaimants *btree.BTreeG[*Claimant]
	ClaimantsToWrite map[types.UID]*Claimant
	// activeMachineLookups is the number of Machine lookups in progress.
	activeMachineLookups int
	// RetryingClaimants are the claimants whose last attempt failed, and that have a RetryAt.
	RetryingClaimants map[types.UID]struct{}
	// Orphans are the IPAddresses without a known claim.
	Orphans map[types.NamespacedName]*Orphan
	Grants  map[types.UID]*Grant
	term.Tombstones

	Ledger *ledger.Ledger
	// cachedExhaustedRefusal is the refusal that a plan returns for all claimants that find nothing free. It is built
	// once per plan, because thousands of claimants may wait.
	cachedExhaustedRefusal *Refusal
	Layout                 *poolspec.Layout
	// layoutVersion is the version of the spec that Layout was compiled from.
	layoutVersion SpecVersion
	SpecErr       string
	Cooling       *cooling.Set
	heldRanges    map[netipx.IPRange]v1alpha1.HeldRange
	// Quota is shared by all pools. QuotaLimit returns the quota of a Cluster; it is nil if there are no quotas.
	Quota      *Quota
	QuotaLimit func(types.NamespacedName) (int64, bool)
	// ManagementCluster is the id of the management cluster that this manager serves, empty if it is not known.
	ManagementCluster string
	// failing are the namespaces with claimants that cannot be served, and statusFailing are those with claimants
	// whose status cannot be written. nextTrialAt is when the next claimant that waits for others of its namespace is
	// tried.
	failing, statusFailing failingNamespaces
	nextTrialAt            time.Time
	// healthyNamespaces are the namespaces in which a claimant was served since the last failure.
	healthyNamespaces map[string]struct{}
	// NextReconcileAt is when the pool is reconciled again if nothing happens before, zero if that is not known.
	NextReconcileAt time.Time
	// WriteRefusal is the refusal for all claimants while the API server refuses the status of the pool, nil if it
	// does not. Nothing is committed before CommitAfter.
	WriteRefusal  *Refusal
	CommitAfter   time.Time
	commitBackoff time.Duration
	// writeRefusalCause is the cause of WriteRefusal. After an attempt whose result was not kept, the manager does
	// not add our finalizer to the pool again before AddFinalizerAfter.
	writeRefusalCause string
	AddFinalizerAfter time.Time
	// WaitingClusters are the Clusters that claimants wait for.
	WaitingClusters map[types.NamespacedName]struct{}

	// BasePool is the pool as the last write of this manager, or a newer read, returned it.
	BasePool       v1alpha1.Pool
	baseGeneration int64
	// observed is the newest version of the pool that was observed. unresolvedGrants are grants that have left its
	// status and whose outcome was not observed; VanishedCount counts how often that happened.
	observed         observedPool
	unresolvedGrants []inFlightGrant
	VanishedCount    int
	// everObserved reports whether the pool existed at any time while this manager ran.
	everObserved bool
	// layoutBlocks are the blocks that Layout was compiled from.
	layoutBlocks []v1alpha1.CarvedBlock
	Holder       bool
	Term         int64
	// NeedsRevalidation reports whether a job found that the state of the pool is outdated. The next reconcile ends
	// the term.
	NeedsRevalidation bool
	// FencedTerm is the term in which this manager is the holder on record since before its watches began
	// (allocator.FencePools), which is the first half of a takeover. It is 0 if there is no such term.
	FencedTerm    int64
	PendingCommit *PendingCommit
	// ChangedAt is when another writer last changed the pool; WorkPendingSince is since when work has waited.
	ChangedAt, WorkPendingSince time.Time
	term.TakeoverBackoff
	jitter func(time.Duration) time.Duration
	// ToAPIServerTime converts a time of this manager to the clock of the API server. It is nil if both have the same
	// clock.
	ToAPIServerTime func(time.Time) time.Time
	ListDuration    time.Duration
	TakeoverChecked bool
	QuarantineUntil time.Time
	// quarantineStartedAt is what the quarantine counts from, if that is an arrival or a move that was observed
	// (BeginQuarantine), and quarantineEndsAt is its end. Both are by the clock of the API server, in whole seconds.
	quarantineStartedAt, quarantineEndsAt time.Time
	// Arrival is the state of the arrival of the objects that belong to the pool.
	Arrival ArrivalState
	// SoleWriterSince is when no write can be stored any more that another manager or provider sent before this term.
	SoleWriterSince time.Time
	// Adopting reports whether the pool adopts the objects of another allocator (R10); AdoptionEventPending reports
	// whether the event for that is still to be recorded: the write of the takeover has set the condition Ready, so
	// no commit changes it.
	Adopting, AdoptionEventPending bool
	LastCommitAt                   time.Time
	// NextOrphanSweep is when the next check for claimants without their owner is due.
	NextOrphanSweep time.Time
	// PendingConditions are the claimants whose status does not show yet what blocks them, with the condition to
	// write.
	PendingConditions map[*Claimant]metav1.Condition
	// AwaitedClusters are the Clusters of IPAllocations that were never seen.
	AwaitedClusters map[types.NamespacedName]struct{}
	// OverlapMessage names a pool of the same network that has some of the same addresses, empty if there is none.
	// OverlapsOlderPool reports whether that pool is older than this one.
	OverlapMessage    string
	OverlapsOlderPool bool
	// YieldPending reports whether the status does not record yet that this pool yields to an older one.
	YieldPending bool
	// excluded are the ranges that another pool of the network has or may grant. OverlapWaitMessage names the younger
	// pool that has to yield its addresses to this one.
	excluded           map[netipx.IPRange]pools.Key
	OverlapWaitMessage string
	// Yields are the older pools that this pool yields to, as the next commit writes them. OutstandingYieldMessage
	// describes why the pool still yields to one of them that it does not overlap any more.
	Yields                  []v1alpha1.YieldedPool
	OutstandingYieldMessage string
	// ListedFor has the reasons for which everything of this pool was listed (allocator.surveyPool).
	ListedFor map[v1alpha1.YieldedPool]bool
	// fullyListed reports whether everything of this pool was listed since this manager started (NeedsListing).
	fullyListed bool
	// UnwatchedUsage has the last read of each older pool that this pool yields to and that no watch of this manager
	// shows.
	UnwatchedUsage map[v1alpha1.YieldedPool]UnwatchedUsage
	// ExclusionCount counts the calls of ExcludeRange. A comparison of the pool with all others detects by it that a
	// range was excluded meanwhile.
	ExclusionCount int
	// LastOverlapUpdate is the state of this pool for which the older pools were last enqueued.
	LastOverlapUpdate OverlapUpdate
	// Carved is the state that the pool has because it is carved from another pool.
	Carved CarvedPool
	// CoolingOverflow are the claimants whose release waits until the status has room for their cooling periods.
	// CoolingBacklog reports whether other releases wait because as many as the jobs can take are recorded.
	CoolingOverflow  map[types.UID]*Claimant
	CoolingBacklog   bool
	deferredReleases deferredReleases
	// ActiveJobs is the number of jobs that wait or run.
	ActiveJobs int
}

// NewPoolState returns the state of a pool before anything was observed. kinds are the kinds of claimants; all pools
// of a manager share the quota.
func NewPoolState(key pools.Key, kinds []ClaimantKind, q *Quota) *PoolState {
	m := &PoolState{Key: key, kinds: kinds, jitter: rand.N[time.Duration], Quota: q}
	m.Claimants, m.claimantCounts = map[types.UID]*Claimant{}, map[ClaimantKind]int{}
	m.namespaceUsage, m.movingClaimants = map[namespaceQuotaKey]int64{}, map[types.UID]*Claimant{}
	m.ClaimantsByName, m.claimantsByOwner = map[types.NamespacedName]*Claimant{}, map[types.NamespacedName]map[types.UID]*Claimant{}
	m.Addresses = map[types.NamespacedName]*Address{}
	m.movingAddresses, m.unfinishedMoves = map[types.UID]*Address{}, map[types.UID]*unfinishedMove{}
	m.ClaimantsToWrite = map[types.UID]*Claimant{}
	m.RetryingClaimants = map[types.UID]struct{}{}
	m.Orphans = map[types.NamespacedName]*Orphan{}
	m.Grants = map[types.UID]*Grant{}
	m.Cooling, m.CoolingOverflow = cooling.NewSet(m.onCoolingStarted, m.onCoolingEnded), map[types.UID]*Claimant{}
	m.heldRanges = map[netipx.IPRange]v1alpha1.HeldRange{}
	m.failing, m.statusFailing, m.healthyNamespaces = failingNamespaces{}, failingNamespaces{}, map[string]struct{}{}
	m.WaitingClusters = map[types.NamespacedName]struct{}{}
	m.excluded = map[netipx.IPRange]pools.Key{}
	m.ListedFor, m.UnwatchedUsage = map[v1alpha1.YieldedPool]bool{}, map[v1alpha1.YieldedPool]UnwatchedUsage{}
	m.PendingClaimants = btree.NewBTreeGOptions(isOlderClaimant, btree.Options{NoLocks: true})
	m.Ledger = ledger.New(nil, 128)
	return m
}
