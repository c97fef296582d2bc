package allocator

import (
	"cmp"
	"fmt"
	"time"

	"go4.org/netipx"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"
	"sigs.k8s.io/cluster-api/util/annotations"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/ledger"
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

// block is what the allocator remembers of an IPAllocation beyond what it shares with a claim.
type block struct {
	use v1alpha1.AllocationType
	// count is 0 where the pool decides.
	count            int64
	generation       int64
	clusterNamespace string
	// pinned is the range it must have, invalid if any will do; badPin says why what it must have is no range.
	pinned netipx.IPRange
	badPin string
	// statusRange is what its status says it has, invalid if nothing.
	statusRange netipx.IPRange
	// allocatedAt is when the status says that was granted.
	allocatedAt time.Time
	phase       v1alpha1.AllocationPhase
	// overlap is what its Overlap condition says, if True.
	overlap string
	// orphanSince is when a live read first showed that its Cluster does not exist.
	orphanSince time.Time
	// told is what its status says of its Cluster, found what was found last.
	told, found sighting
}

func claimOfAllocation(a *v1alpha1.IPAllocation) *claim {
	out := &claim{
		owner:      ledger.Owner{Namespace: intern(a.Namespace), Name: a.Name, UID: a.UID, Block: true},
		created:    a.CreationTimestamp.Time,
		rv:         a.ResourceVersion,
		recordText: annotation(a, v1alpha1.AddressAnnotation),
		cluster:    intern(a.Spec.TenantClusterRef.Name),
		watchLabel: intern(a.Labels[clusterv1.WatchLabel]),
		paused:     annotations.HasPaused(a),
		deleting:   a.DeletionTimestamp != nil,
		pauseTold:  pauseIn(a.Status.Conditions),
		block: &block{
			use:              a.Spec.Type,
			count:            int64(ptr.Deref(a.Spec.Count, 0)),
			generation:       a.Generation,
			clusterNamespace: intern(a.Spec.TenantClusterRef.Namespace),
			phase:            a.Status.Phase,
			told:             sightingIn(a.Status.Conditions),
		},
	}
	b := out.block
	out.hasFinalizer, out.others = split(a.Finalizers, v1alpha1.IPAllocationFinalizer)
	out.moved = moved(a)
	out.record, _ = poolutil.ParseRange(out.recordText)
	if pin := a.Spec.PinnedRange; pin != nil {
		var err error
		if b.pinned, err = poolutil.ParseRange(pin.StartAddress + "-" + pin.EndAddress); err != nil {
			b.badPin = err.Error()
		}
	}
	ready := ptr.Deref(meta.FindStatusCondition(a.Status.Conditions, v1alpha1.ReadyCondition), metav1.Condition{})
	if a.Status.Phase == v1alpha1.AllocationAllocated || a.Status.Phase == v1alpha1.AllocationReleased {
		b.statusRange, _ = poolutil.ParseRange(a.Status.StartAddress + "-" + a.Status.EndAddress)
	}
	if a.Status.AllocatedAt != nil {
		b.allocatedAt = a.Status.AllocatedAt.Time
	}
	if o := meta.FindStatusCondition(a.Status.Conditions, v1alpha1.OverlapCondition); o != nil && o.Status == metav1.ConditionTrue {
		b.overlap = o.Message
	}
	out.hadAddress = b.statusRange.IsValid()
	out.statusDone = out.hadAddress && b.phase == v1alpha1.AllocationAllocated && ready.Status == metav1.ConditionTrue && wholeStatus(a, b.statusRange)
	if len(a.Status.Conditions) > 0 {
		out.status = &shownStatus{conditions: a.Status.Conditions}
		if ready.Status == metav1.ConditionFalse {
			out.status.refusal = refusal{ready.Reason, ready.Message}
		}
	}
	return out
}

// wholeStatus tells whether the status of an allocation says everything that is to be said of its block.
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
func (b *block) size(spec *v1alpha1.NetworkPoolSpec) int64 {
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

// blockRange is the block of an allocation: what it remembers, else what its status says, as Butler left it.
func (c *claim) blockRange() netipx.IPRange {
	if c.hasRecord() {
		return c.record
	}
	return c.block.statusRange
}

// BlockOf returns what an IPAllocation has, if anything.
func BlockOf(a *v1alpha1.IPAllocation) (netipx.IPRange, bool) {
	r := claimOfAllocation(a).blockRange()
	return r, r.IsValid()
}

// stateBlock states what an allocation has. What it remembers, or shows, counts as it is, whether or not
// the pool hands it out: two that overlap are both kept.
func (p *pool) stateBlock(c *claim) {
	record := ledger.Key{Source: ledger.Record, UID: c.owner.UID}
	shown := ledger.Key{Source: ledger.Object, UID: c.owner.UID}
	if c.hasRecord() {
		p.ledger.Add(ledger.Hold{Key: record, Owner: c.owner, Range: c.record})
	} else {
		p.ledger.Remove(record)
	}
	if !c.hasRecord() && c.block.statusRange.IsValid() {
		p.ledger.Add(ledger.Hold{Key: shown, Owner: c.owner, Range: c.block.statusRange})
	} else {
		p.ledger.Remove(shown)
	}
}

// sortOverlapping has another look at the allocations that have some of a range: whether they share it
// is part of their status.
func (p *pool) sortOverlapping(r netipx.IPRange, but *claim) {
	if !r.IsValid() {
		return
	}
	for _, h := range p.ledger.Overlapping(r) {
		if other := p.claims[h.Owner.UID]; other != nil && other != but && other.block != nil {
			p.sort(other)
		}
	}
}

// overlapOf says who else has some of the block of an allocation, empty if nobody. It cannot be undone by
// us: which of two holders is to go is for a person to decide.
func (p *pool) overlapOf(c *claim) string {
	for _, h := range p.ledger.Overlapping(c.blockRange()) {
		if h.Source.Uses() && h.Owner.UID != c.owner.UID {
			return fmt.Sprintf("%s has %s too; delete one of the two", describeHold(h), poolutil.FormatRange(h.Range))
		}
	}
	return ""
}

// sortBlock puts an allocation that lives where it belongs.
func (p *pool) sortBlock(c *claim) bool {
	shows := c.hasRecord() && c.block.statusRange == c.record
	switch {
	case shows && c.statusDone && c.pauseShown() && c.recordText == poolutil.FormatRange(c.record) && c.block.overlap == p.overlapOf(c) && !c.block.owesSighting():
		return false
	case shows, p.adopts(c), p.grants[c.owner.UID] != nil:
		p.todo[c.owner.UID] = c
	default:
		p.pending.Set(c)
	}
	return true
}

// adopts tells whether what the status of an allocation says is taken on trust, as another allocator's
// doing: no record of ours is older (R10).
func (p *pool) adopts(c *claim) bool {
	return p.adopting && !c.hasRecord() && c.block.statusRange.IsValid()
}

// designatedForBlock finds what is meant for an allocation: what it remembers, what its status says it has, the
// range it is pinned to, or the one that rests for its name.
func (p *pool) designatedForBlock(c *claim) (netipx.IPRange, *refusal) {
	if p.handsOutPrefixes() {
		return netipx.IPRange{}, failed("%s hands out prefixes of /%d, not blocks of addresses; name another pool", p.key, p.layout.UnitBits())
	}
	if c.hasRecord() {
		return p.recorded(c)
	}
	if shown := c.block.statusRange; shown.IsValid() {
		if h := p.blocker(shown, c.owner); h != nil {
			return netipx.IPRange{}, failed("the status says %s, of which %s is held by %s", poolutil.FormatRange(shown),
				poolutil.FormatRange(h.Range), describeHold(h))
		}
		return shown, nil
	}
	if c.block.badPin != "" {
		return netipx.IPRange{}, failed("pinnedRange is not a range: %s", c.block.badPin)
	}
	if pinned := c.block.pinned; pinned.IsValid() {
		if !p.ledger.InSpace(pinned) {
			return netipx.IPRange{}, failed("pinnedRange %s is not wholly among the addresses that %s hands out%s", poolutil.FormatRange(pinned), p.key, p.firstWithheld(pinned))
		}
		if h := p.blocker(pinned, c.owner); h != nil {
			return netipx.IPRange{}, failed("pinnedRange %s overlaps %s, which is held by %s",
				poolutil.FormatRange(pinned), poolutil.FormatRange(h.Range), describeHold(h))
		}
		return pinned, nil
	}
	n := c.block.size(p.base.PoolSpec())
	return p.coolingFor(c.owner, func(r netipx.IPRange) bool { return poolutil.Size(r) == n }), nil
}

// noBlock says that a pool has no n free addresses in a row.
func noBlock(pool PoolKey, n int64) *refusal {
	return &refusal{ipamv1.IPAddressClaimReadyPoolExhaustedReason, fmt.Sprintf(
		"no contiguous block available: %s has no %d free addresses in a row; add addresses to the pool, ask for fewer, or delete allocations", pool, n)}
}
