// Package blocks is the kind of IPAllocations: what one is granted, and the next request that brings it forward. It reads
// and writes nothing.
package blocks

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"go4.org/netipx"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"
	"sigs.k8s.io/cluster-api/util/annotations"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/grants"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/poolutil"
)

const (
	// defaultNodes and defaultLoadBalancers are the counts of allocations that say none, in pools that
	// say none (Butler's).
	defaultNodes         = 5
	defaultLoadBalancers = 8
	// MaxListedText bounds the text of status.addresses: etcd takes objects of 1.5 MiB.
	MaxListedText = 1_450_000
)

// Kind is the kind of IPAllocations.
var Kind grants.Kind = kind{}

// kind: each IPAllocation asks for addresses in a row.
type kind struct{}

var blockTraits = &grants.Traits{
	Name: v1alpha1.IPAllocationKind, Finalizer: v1alpha1.IPAllocationFinalizer, EndsWithOwner: true, TellsOverlap: true,
}

// blockFacts are what is remembered of an IPAllocation alone.
type blockFacts struct {
	use v1alpha1.AllocationType
	// count is 0 where the pool decides.
	count int64
	// prefixLength is that of a block that is a prefix: one for a pool, or for the pod CIDRs of Nodes; 0: it is none.
	prefixLength int
	generation   int64
	// pinned is the range it must have, invalid if any will do; badPin says why what it must have is no range.
	pinned netipx.IPRange
	badPin string
	// allocatedAt is when the status says that its addresses were granted.
	allocatedAt time.Time
	phase       v1alpha1.AllocationPhase
	// overlap is what its Overlap condition says, if True.
	overlap string
}

func (b *blockFacts) isPrefix() bool { return b.prefixLength > 0 }

func blockFactsOf(c *grants.Claimant) *blockFacts { return c.Own.(*blockFacts) }

func (kind) Traits() *grants.Traits { return blockTraits }

func (kind) Object() grants.Object { return &v1alpha1.IPAllocation{} }

func (kind) PoolOf(o grants.Object) (pools.Key, bool) {
	a, is := o.(*v1alpha1.IPAllocation)
	if !is {
		return pools.Key{}, false
	}
	return pools.KeyOfAllocation(a), true
}

func (kind) SetPool(o grants.Object, pool pools.Key) {
	o.(*v1alpha1.IPAllocation).Spec.PoolRef = v1alpha1.PoolReference{Kind: pool.Kind, Name: pool.Name}
}

func (kind) Mirrors(grants.Object) bool { return false }

func (kind) Of(o grants.Object) *grants.Claimant { return Of(o.(*v1alpha1.IPAllocation)) }

// Of is what is remembered of an IPAllocation.
func Of(a *v1alpha1.IPAllocation) *grants.Claimant {
	b := &blockFacts{use: a.Spec.Type, count: int64(ptr.Deref(a.Spec.Count, 0)), prefixLength: int(ptr.Deref(a.Spec.PrefixLength, 0)), generation: a.Generation, phase: a.Status.Phase}
	out := grants.ClaimantOf(kind{}, a, b)
	out.Cluster = types.NamespacedName{Namespace: grants.Intern(a.Spec.TenantClusterRef.Namespace), Name: grants.Intern(a.Spec.TenantClusterRef.Name)}
	if child, is := pools.ChildOf(a); is {
		out.Child = &child
		out.InUse = slices.Contains(out.Others, v1alpha1.CarvedPoolFinalizer)
	} else if b.use == v1alpha1.PodsAllocation {
		out.InUse = slices.Contains(out.Others, v1alpha1.PodsFinalizer)
	}
	out.Paused = annotations.HasPaused(a)
	out.PauseTold = grants.PauseIn(a.Status.Conditions)
	out.Told = sightingIn(seenCondition(out), a.Status.Conditions)
	out.Record, _ = poolutil.ParseRange(out.RecordText)
	if pin := a.Spec.PinnedRange; pin != nil {
		var err error
		if b.pinned, err = poolutil.ParseRange(pin.StartAddress + "-" + pin.EndAddress); err != nil {
			b.badPin = err.Error()
		}
	}
	ready := ptr.Deref(meta.FindStatusCondition(a.Status.Conditions, v1alpha1.ReadyCondition), metav1.Condition{})
	if a.Status.Phase == v1alpha1.AllocationAllocated || a.Status.Phase == v1alpha1.AllocationReleased {
		out.Shown, _ = poolutil.ParseRange(a.Status.StartAddress + "-" + a.Status.EndAddress)
	}
	if a.Status.AllocatedAt != nil {
		b.allocatedAt = a.Status.AllocatedAt.Time
	}
	if o := meta.FindStatusCondition(a.Status.Conditions, v1alpha1.OverlapCondition); o != nil && o.Status == metav1.ConditionTrue {
		b.overlap = o.Message
	}
	out.HadAddress = out.Shown.IsValid()
	out.StatusDone = out.HadAddress && b.phase == v1alpha1.AllocationAllocated && ready.Status == metav1.ConditionTrue && wholeStatus(a, out, out.Shown)
	if len(a.Status.Conditions) > 0 {
		out.Status = &grants.ShownStatus{Conditions: a.Status.Conditions}
		if ready.Status == metav1.ConditionFalse {
			out.Status.Refusal = grants.Refusal{Reason: ready.Reason, Message: ready.Message}
		}
	}
	return out
}

// wholeStatus reports whether the status of an allocation says everything that is to be said of its block.
func wholeStatus(a *v1alpha1.IPAllocation, c *grants.Claimant, r netipx.IPRange) bool {
	s := &a.Status
	listed := s.Addresses
	return s.CIDR == poolutil.FormatRange(r) && s.AllocatedCount == poolutil.Size(r) && s.ObservedGeneration == a.Generation &&
		s.AllocatedAt != nil && s.AllocatedBy != "" && s.ReleasedAt == nil && len(listed) == listedOf(c, r) &&
		(len(listed) == 0 || (listed[0] == r.From().String() && (len(listed) < int(poolutil.Size(r)) || listed[len(listed)-1] == r.To().String())))
}

// ListedOf is the number of addresses of a range that status.addresses lists. It costs O(1) unless the text
// may be too long.
func ListedOf(r netipx.IPRange) int {
	const quotesAndComma, longest = 3, len("ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff")
	n := int(min(poolutil.Size(r), poolutil.MaxEnumerated))
	if n*(longest+quotesAndComma) <= MaxListedText || r.From().Is4() {
		return n
	}
	text := 0
	for i, a := range poolutil.Enumerate(r) {
		if text += len(a) + quotesAndComma; text > MaxListedText {
			return i
		}
	}
	return n
}

// listedOf is the number of addresses of its range that the status of an allocation lists: a pool knows what is in its
// blocks.
func listedOf(c *grants.Claimant, r netipx.IPRange) int {
	if blockFactsOf(c).isPrefix() {
		return 0
	}
	return ListedOf(r)
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

// RangeOf returns what an IPAllocation has, if anything.
func RangeOf(a *v1alpha1.IPAllocation) (netipx.IPRange, bool) {
	r := Of(a).OwnRange()
	return r, r.IsValid()
}

func (kind) Keep(c, old *grants.Claimant) {
	c.OrphanSince = old.OrphanSince
	c.KeepSighting(old)
}

// Holds returns what an allocation remembers, or shows, as it is, whether or not the pool hands it out: two that
// overlap are both kept.
func (kind) Holds(_ *grants.Memory, c *grants.Claimant) (record, shown netipx.IPRange) {
	return c.OwnRanges()
}

// write is one of those that serve an IPAllocation.
type write int

const (
	nothing write = iota
	record
	status
)

// lacks is the next write for an allocation that is to have r: the record, then the status (R8).
func lacks(m *grants.Memory, c *grants.Claimant, r netipx.IPRange) write {
	switch {
	case !c.HasFinalizer || c.RecordText != poolutil.FormatRange(r):
		return record
	case !c.StatusDone || c.PauseTold != "" || c.Shown != r || blockFactsOf(c).overlap != m.OverlapOf(c) || c.OwesSighting():
		return status
	}
	return nothing
}

func (kind) Need(m *grants.Memory, c *grants.Claimant) grants.Need {
	return m.NeedOf(c, func() bool { return lacks(m, c, c.Record) == nothing })
}

func (kind) Confirmed(_ *grants.Memory, c *grants.Claimant) bool { return c.HasRecord() }

func (kind) Releasable(_ *grants.Memory, c *grants.Claimant) netipx.IPRange { return c.OwnRange() }

// Designated finds what is meant for an allocation: what it remembers, what its status says it has, the range it is
// pinned to, the one that a record without our finalizer names, or the one that rests for its name.
func (k kind) Designated(m *grants.Memory, c *grants.Claimant) (netipx.IPRange, *grants.Refusal) {
	if blockFactsOf(c).isPrefix() {
		if no := mayHave(m, c); no != nil {
			return netipx.IPRange{}, no
		}
	} else if m.HandsOutPrefixes() {
		return netipx.IPRange{}, grants.Failed("%s hands out prefixes of /%d, not blocks of addresses; name another pool", m.Key, m.Layout.UnitBits())
	}
	if c.HasRecord() {
		return m.Recorded(c, c.Record)
	}
	if shown := c.Shown; shown.IsValid() {
		if h := m.Blocker(shown, c.Owner); h != nil {
			return netipx.IPRange{}, grants.Failed("the status shows %s, but %s of it is held by %s; find out which of the two uses it, and delete the other", poolutil.ShowRange(shown),
				poolutil.ShowRange(h.Range), m.DescribeFact(h))
		}
		return shown, nil
	}
	b := blockFactsOf(c)
	if b.badPin != "" {
		return netipx.IPRange{}, grants.Failed("pinnedRange is not a range: %s; the spec is immutable, so create the allocation again with correct addresses", b.badPin)
	}
	if pinned := b.pinned; pinned.IsValid() {
		if no := pinnedIsPrefix(b); no != nil {
			return netipx.IPRange{}, no
		}
		if !m.Ledger.InSpace(pinned) {
			return netipx.IPRange{}, grants.Failed("pinnedRange %s contains addresses that %s does not hand out%s; create the allocation again with another range", poolutil.ShowRange(pinned), m.Key, m.FirstWithheld(pinned))
		}
		if h := m.Blocker(pinned, c.Owner); h != nil {
			return netipx.IPRange{}, grants.Failed("pinnedRange %s overlaps %s, which is held by %s; release that, or create the allocation again with another range",
				poolutil.ShowRange(pinned), poolutil.ShowRange(h.Range), m.DescribeFact(h))
		}
		return pinned, nil
	}
	s := k.Shape(m, c)
	fits := func(r netipx.IPRange) bool { return hasShape(r, s) }
	if asked := m.AskedByRecord(c, fits); asked.IsValid() {
		return asked, nil
	}
	return m.CoolingFor(c.Owner, fits), nil
}

// hasShape reports whether a range is what was asked for.
func hasShape(r netipx.IPRange, s grants.Shape) bool {
	if s.PrefixLength > 0 {
		p, is := r.Prefix()
		return is && p.Bits() == s.PrefixLength
	}
	return poolutil.Size(r) == s.Count
}

func (kind) Shape(m *grants.Memory, c *grants.Claimant) grants.Shape {
	b := blockFactsOf(c)
	if b.isPrefix() {
		return grants.Shape{PrefixLength: b.prefixLength}
	}
	return grants.Shape{Count: b.size(m.Base.PoolSpec())}
}

func (k kind) NoRoom(m *grants.Memory, c *grants.Claimant) *grants.Refusal {
	if blockFactsOf(c).isPrefix() {
		return noPrefix(m, c)
	}
	return &grants.Refusal{Reason: ipamv1.IPAddressClaimReadyPoolExhaustedReason, Message: fmt.Sprintf(
		"no contiguous block available: %s has no %d free addresses in a row; add addresses to %s, ask for fewer, or delete allocations",
		m.Key, k.Shape(m, c).Count, m.ThePool())}
}

func (kind) Use(c *grants.Claimant) (grants.Use, time.Time) {
	b, use, since := blockFactsOf(c), grants.UseLoadBalancer, c.Created
	switch b.use {
	case v1alpha1.NodesAllocation:
		use = grants.UseNodes
	case v1alpha1.PoolAllocation:
		use = grants.UseCarved
	case v1alpha1.PodsAllocation:
		use = grants.UsePods
	case v1alpha1.LoadBalancerAllocation:
	}
	if !b.allocatedAt.IsZero() {
		since = b.allocatedAt
	}
	return use, since
}
