package allocator

import (
	"cmp"
	"fmt"
	"time"

	"go4.org/netipx"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"
	"sigs.k8s.io/cluster-api/util/annotations"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/poolutil"
)

const (
	// defaultNodes and defaultLoadBalancers are the counts of allocations that say none, in pools that
	// say none (Butler's).
	defaultNodes         = 5
	defaultLoadBalancers = 8
	// maxListedText bounds the text of status.addresses: etcd takes objects of 1.5 MiB.
	maxListedText = 1_450_000
)

// blocks is the kind of IPAllocations: each asks for addresses in a row.
type blocks struct{}

var blockTraits = &traits{
	name: v1alpha1.IPAllocationKind, finalizer: v1alpha1.IPAllocationFinalizer, endsWithCluster: true, tellsOverlap: true,
}

// blockFacts are what is remembered of an IPAllocation alone.
type blockFacts struct {
	use v1alpha1.AllocationType
	// count is 0 where the pool decides.
	count      int64
	generation int64
	// pinned is the range it must have, invalid if any will do; badPin says why what it must have is no range.
	pinned netipx.IPRange
	badPin string
	// allocatedAt is when the status says that its addresses were granted.
	allocatedAt time.Time
	phase       v1alpha1.AllocationPhase
	// overlap is what its Overlap condition says, if True.
	overlap string
}

func blockFactsOf(c *claimant) *blockFacts { return c.own.(*blockFacts) }

func (blocks) traits() *traits { return blockTraits }

func (blocks) object() Object { return &v1alpha1.IPAllocation{} }

func (blocks) poolOf(o Object) (pools.Key, bool) {
	a, is := o.(*v1alpha1.IPAllocation)
	if !is {
		return pools.Key{}, false
	}
	return pools.KeyOfAllocation(a), true
}

func (blocks) of(o Object) *claimant { return claimOfAllocation(o.(*v1alpha1.IPAllocation)) }

func claimOfAllocation(a *v1alpha1.IPAllocation) *claimant {
	b := &blockFacts{use: a.Spec.Type, count: int64(ptr.Deref(a.Spec.Count, 0)), generation: a.Generation, phase: a.Status.Phase}
	out := claimantOf(blocks{}, a, b)
	out.cluster = types.NamespacedName{Namespace: intern(a.Spec.TenantClusterRef.Namespace), Name: intern(a.Spec.TenantClusterRef.Name)}
	out.paused = annotations.HasPaused(a)
	out.pauseTold = pauseIn(a.Status.Conditions)
	out.told = sightingIn(a.Status.Conditions)
	out.record, _ = poolutil.ParseRange(out.recordText)
	if pin := a.Spec.PinnedRange; pin != nil {
		var err error
		if b.pinned, err = poolutil.ParseRange(pin.StartAddress + "-" + pin.EndAddress); err != nil {
			b.badPin = err.Error()
		}
	}
	ready := ptr.Deref(meta.FindStatusCondition(a.Status.Conditions, v1alpha1.ReadyCondition), metav1.Condition{})
	if a.Status.Phase == v1alpha1.AllocationAllocated || a.Status.Phase == v1alpha1.AllocationReleased {
		out.shown, _ = poolutil.ParseRange(a.Status.StartAddress + "-" + a.Status.EndAddress)
	}
	if a.Status.AllocatedAt != nil {
		b.allocatedAt = a.Status.AllocatedAt.Time
	}
	if o := meta.FindStatusCondition(a.Status.Conditions, v1alpha1.OverlapCondition); o != nil && o.Status == metav1.ConditionTrue {
		b.overlap = o.Message
	}
	out.hadAddress = out.shown.IsValid()
	out.statusDone = out.hadAddress && b.phase == v1alpha1.AllocationAllocated && ready.Status == metav1.ConditionTrue && wholeStatus(a, out.shown)
	if len(a.Status.Conditions) > 0 {
		out.status = &shownStatus{conditions: a.Status.Conditions}
		if ready.Status == metav1.ConditionFalse {
			out.status.refusal = refusal{reason: ready.Reason, message: ready.Message}
		}
	}
	return out
}

// wholeStatus reports whether the status of an allocation says everything that is to be said of its block.
func wholeStatus(a *v1alpha1.IPAllocation, r netipx.IPRange) bool {
	s := &a.Status
	listed := s.Addresses
	return s.CIDR == poolutil.FormatRange(r) && s.AllocatedCount == poolutil.Size(r) && s.ObservedGeneration == a.Generation &&
		s.AllocatedAt != nil && s.AllocatedBy != "" && s.ReleasedAt == nil && len(listed) == listedOf(r) &&
		(len(listed) == 0 || (listed[0] == r.From().String() && (len(listed) < int(poolutil.Size(r)) || listed[len(listed)-1] == r.To().String())))
}

// listedOf is the number of addresses of a range that status.addresses lists. It costs O(1) unless the text
// may be too long.
func listedOf(r netipx.IPRange) int {
	const quotesAndComma, longest = 3, len("ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff")
	n := int(min(poolutil.Size(r), poolutil.MaxEnumerated))
	if n*(longest+quotesAndComma) <= maxListedText || r.From().Is4() {
		return n
	}
	text := 0
	for i, a := range poolutil.Enumerate(r) {
		if text += len(a) + quotesAndComma; text > maxListedText {
			return i
		}
	}
	return n
}

// size is the number of addresses of the block that an allocation asks a pool for.
func (b *blockFacts) size(spec *v1alpha1.NetworkPoolSpec) int64 {
	if b.count > 0 {
		return b.count
	}
	nodes, loadBalancers := int64(defaultNodes), int64(defaultLoadBalancers)
	if t := spec.TenantAllocation; t != nil && t.Defaults != nil {
		nodes, loadBalancers = cmp.Or(int64(t.Defaults.NodesPerTenant), nodes), cmp.Or(int64(t.Defaults.LBPoolPerTenant), loadBalancers)
	}
	if b.use == v1alpha1.NodesAllocation {
		return nodes
	}
	return loadBalancers
}

// blockRange is what an allocation has: what it remembers, else what its status says, as Butler left it.
func blockRange(c *claimant) netipx.IPRange {
	if c.hasRecord() {
		return c.record
	}
	return c.shown
}

// BlockOf returns what an IPAllocation has, if anything.
func BlockOf(a *v1alpha1.IPAllocation) (netipx.IPRange, bool) {
	r := blockRange(claimOfAllocation(a))
	return r, r.IsValid()
}

func (blocks) keep(c, old *claimant) { c.orphanSince, c.found = old.orphanSince, old.found }

// holds returns what an allocation remembers, or shows, as it is, whether or not the pool hands it out: two that
// overlap are both kept.
func (blocks) holds(_ *memory, c *claimant) (record, shown netipx.IPRange) {
	if c.hasRecord() {
		return c.record, netipx.IPRange{}
	}
	return netipx.IPRange{}, c.shown
}

func (blocks) need(p *memory, c *claimant) need {
	b := blockFactsOf(c)
	shows := c.hasRecord() && c.shown == c.record
	switch {
	case shows && c.statusDone && c.pauseShown() && c.recordText == poolutil.FormatRange(c.record) && b.overlap == p.overlapOf(c) && !c.owesSighting():
		return needNothing
	case shows, adopts(p, c), p.grants[c.owner.UID] != nil:
		return needWrite
	}
	return needGrant
}

func (blocks) confirmed(_ *memory, c *claimant) bool { return c.hasRecord() }

func (blocks) releasable(_ *memory, c *claimant) netipx.IPRange { return blockRange(c) }

// designated finds what is meant for an allocation: what it remembers, what its status says it has, the range it is
// pinned to, or the one that rests for its name.
func (k blocks) designated(p *memory, c *claimant) (netipx.IPRange, *refusal) {
	if p.handsOutPrefixes() {
		return netipx.IPRange{}, failed("%s hands out prefixes of /%d, not blocks of addresses; name another pool", p.key, p.layout.UnitBits())
	}
	if c.hasRecord() {
		return p.recorded(c, c.record)
	}
	if shown := c.shown; shown.IsValid() {
		if h := p.blocker(shown, c.owner); h != nil {
			return netipx.IPRange{}, failed("the status says %s, of which %s is held by %s", poolutil.FormatRange(shown),
				poolutil.FormatRange(h.Range), p.describeHold(h))
		}
		return shown, nil
	}
	b := blockFactsOf(c)
	if b.badPin != "" {
		return netipx.IPRange{}, failed("pinnedRange is not a range: %s", b.badPin)
	}
	if pinned := b.pinned; pinned.IsValid() {
		if !p.ledger.InSpace(pinned) {
			return netipx.IPRange{}, failed("pinnedRange %s is not wholly among the addresses that %s hands out%s", poolutil.FormatRange(pinned), p.key, p.firstWithheld(pinned))
		}
		if h := p.blocker(pinned, c.owner); h != nil {
			return netipx.IPRange{}, failed("pinnedRange %s overlaps %s, which is held by %s",
				poolutil.FormatRange(pinned), poolutil.FormatRange(h.Range), p.describeHold(h))
		}
		return pinned, nil
	}
	n := k.size(p, c)
	return p.coolingFor(c.owner, func(r netipx.IPRange) bool { return poolutil.Size(r) == n }), nil
}

func (blocks) size(p *memory, c *claimant) int64 { return blockFactsOf(c).size(p.base.PoolSpec()) }

func (k blocks) noRoom(p *memory, c *claimant) *refusal {
	return &refusal{reason: ipamv1.IPAddressClaimReadyPoolExhaustedReason, message: fmt.Sprintf(
		"no contiguous block available: %s has no %d free addresses in a row; add addresses to the pool, ask for fewer, or delete allocations",
		p.key, k.size(p, c))}
}

func (blocks) use(c *claimant) (Use, time.Time) {
	b, use, since := blockFactsOf(c), UseLoadBalancer, c.created
	if b.use == v1alpha1.NodesAllocation {
		use = UseNodes
	}
	if !b.allocatedAt.IsZero() {
		since = b.allocatedAt
	}
	return use, since
}

// adopts reports whether what the status of a claimant says is taken on trust, as another allocator's doing: no record
// of ours is older (R10).
func adopts(p *memory, c *claimant) bool { return p.adopting && !c.hasRecord() && c.shown.IsValid() }
