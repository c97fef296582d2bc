package grants

import (
	"net/netip"
	"slices"
	"time"

	"go4.org/netipx"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/ledger"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"
)

// ViewChunk is how many ranges are looked at before the lock of a pool is let go of: whoever looks at a pool
// must not hold up whoever grants from it.
const ViewChunk = 128

// View is what a pool looks like at one moment.
type View struct {
	Key pools.Key
	// Declared are the addresses the spec names, Allocatable those of them that are handed out at all. Nil
	// where no spec could be served yet. Neither ever changes.
	Declared, Allocatable *netipx.IPSet
	// UnitBits is the prefix length of what each claim gets: 32 or 128 for single addresses.
	UnitBits int
	// Gateways are those the spec names.
	Gateways []netip.Addr
	// Counts are of what this manager knows now; the status of the pool may be some moments behind.
	Counts ledger.Counts
	// Parent is the pool that it is carved from, the zero one if it is not.
	Parent pools.Key
	// Waiting is the number of claims and allocations without an address and without a grant.
	Waiting int
	// Leases is the number of leases that name the pool, GivesLeases whether it gives any, and LeaseQuota how many addresses
	// those of a namespace may have; nil: any number.
	Leases      int
	GivesLeases bool
	LeaseQuota  *int32
	// Holder reports whether this manager grants from the pool; if not, another one does and knows better.
	Holder bool
	// Ready is the Ready condition of the pool as it was last read or written.
	Ready metav1.Condition
}

// View is what the pool looks like now; false: it does not exist.
func (m *Memory) View() (v View, exists bool) {
	if m.Base == nil || m.Dropped {
		return View{}, false
	}
	v = View{Key: m.Key, Counts: m.Ledger.Counts(), Waiting: m.Pending.Len(), Holder: m.Holder}
	if carved := m.Base.PoolSpec().Carve; carved != nil {
		v.Parent = pools.KeyOfPool(m.Base.GetNamespace(), carved.PoolRef)
	}
	if k := m.kindOf(v1alpha1.IPLeaseKind); k.Traits().Name == v1alpha1.IPLeaseKind {
		v.Leases = m.kindCount[k]
	}
	if spec := m.Base.PoolSpec().Leases; spec != nil {
		v.GivesLeases, v.LeaseQuota = true, spec.QuotaPerNamespace
	}
	v.Ready = ptr.Deref(meta.FindStatusCondition(m.Base.GetConditions(), v1alpha1.ReadyCondition), metav1.Condition{})
	if m.Layout != nil {
		v.Declared, v.Allocatable, v.UnitBits = m.Layout.Declared(), m.Layout.Allocatable(), m.Layout.UnitBits()
		v.Gateways = m.Layout.Gateways()
	}
	return v, true
}

// Use is why an address is not free.
type Use uint8

// The uses. Those up to UseConflict mean that somebody has the address.
const (
	// UseClaim is the address of an IPAddressClaim.
	UseClaim Use = iota
	// UseLoadBalancer is part of an IPAllocation for load balancers.
	UseLoadBalancer
	// UseNodes is part of an IPAllocation for machines.
	UseNodes
	// UseCarved is part of an IPAllocation for a carved pool.
	UseCarved
	// UsePods is part of an IPAllocation for the pod CIDRs of Nodes.
	UsePods
	// UseLease is the address of an IPLease.
	UseLease
	// UseNoClaim is the address of an IPAddress whose claim is not known.
	UseNoClaim
	// UseConflict is an address that more than one has.
	UseConflict
	// UsePreAllocated is kept for claims of a name.
	UsePreAllocated
	// UseResting was released, and nobody else gets it for a while.
	UseResting
	// UseHeld was moved to another cluster, and is kept until an operator says otherwise.
	UseHeld
	// UseDraining is free in a block that a carved pool is to give back.
	UseDraining
	// UseElsewhere is in use by a claim of another pool of the network, which the entry names.
	UseElsewhere
)

// Entry is a range that is not free, and why.
type Entry struct {
	Range netipx.IPRange
	Use   Use
	// Kind, Namespace and Name are the owner's. Kind is empty where the owner is a name alone.
	Kind, Namespace, Name string
	// Cluster is the name of the owner's Cluster, empty if it has none.
	Cluster string
	// Since is when the owner was created, or its block granted; zero where that is not known.
	Since time.Time
	// Until is when a rest ends.
	Until time.Time
	// Others names who else has the range, where the use is UseConflict.
	Others []string
	// Ports are those of the address, each with who has it, of an owner that shares them out.
	Ports []string
	// Announced is what the status of the owner says of who shows the address to the world; nil: nothing.
	Announced *metav1.Condition
	// Deleting: the owner is being deleted, and has the range until it is gone.
	Deleting bool
}

// sharer is a kind whose claimants share what they have by ports.
type sharer interface{ Ports(c *Claimant) []string }

// announced is the condition of that name that the status of a claimant shows.
func (c *Claimant) announced() *metav1.Condition {
	if c.Status == nil {
		return nil
	}
	found := meta.FindStatusCondition(c.Status.Conditions, v1alpha1.AnnouncedCondition)
	if found == nil {
		return nil
	}
	return ptr.To(*found)
}

// EntriesFrom appends the next ranges from an address on, at most ViewChunk.
func (m *Memory) EntriesFrom(from netip.Addr, to []Entry) []Entry {
	m.Ledger.Taken(from, func(r netipx.IPRange, facts []*ledger.Fact) bool {
		to = append(to, m.use(r, facts))
		return len(to) < ViewChunk
	})
	return to
}

// use says why a range is not free, by the strongest of the facts about it.
func (m *Memory) use(r netipx.IPRange, facts []*ledger.Fact) Entry {
	best := facts[0]
	for _, h := range facts[1:] {
		if h.Source < best.Source {
			best = h
		}
	}
	out := Entry{Range: r, Namespace: best.Owner.Namespace, Name: best.Owner.Name}
	if !best.Source.Uses() {
		out.Use = UseHeld
		switch best.Source {
		case ledger.Pin:
			out.Use = UsePreAllocated
			return out
		case ledger.Draining:
			out.Use = UseDraining
			return out
		case ledger.Shared:
			out.Use = UseElsewhere
			return out
		default:
		}
		if rest, is := m.Cooling.Get(best.Range); is {
			out.Use, out.Until = UseResting, rest.Until
		}
		return out
	}
	out.Kind, out.Use = best.Owner.Kind, UseClaim
	c := m.Claimants[best.Owner.UID]
	switch {
	case c != nil:
		out.Cluster, out.Deleting = c.Cluster.Name, c.Deleting
		out.Use, out.Since = c.Kind.Use(c)
		if k, shares := c.Kind.(sharer); shares {
			out.Ports, out.Announced = k.Ports(c), c.announced()
		}
	case best.Source == ledger.Object:
		out.Use, out.Kind = UseNoClaim, m.kindOf(best.Owner.Kind).Traits().Attaches.Kind()
	}
	for _, h := range facts {
		if h.Source.Uses() && (h.Owner.UID != best.Owner.UID || (h.Owner.UID == "" && h.UID != best.UID)) {
			out.Use = UseConflict
			if who := m.DescribeFact(h); !slices.Contains(out.Others, who) {
				out.Others = append(out.Others, who)
			}
		}
	}
	return out
}

// Waiter is a claim or an allocation that waits.
type Waiter struct {
	Kind, Namespace, Name string
	// Cluster is the name of its Cluster, empty if it has none.
	Cluster string
	// Since is when it was created.
	Since time.Time
	// Reason and Message are what it was told, empty if nothing yet.
	Reason, Message string
}

// WaitingAfter appends those that wait and are served after a claim, at most ViewChunk, and returns the last.
func (m *Memory) WaitingAfter(after *Claimant, to []Waiter) ([]Waiter, *Claimant) {
	add := func(c *Claimant) bool {
		if after != nil && !older(after, c) {
			return true
		}
		told := c.ShownRefusal()
		to = append(to, Waiter{
			Kind: c.Owner.Kind, Namespace: c.Owner.Namespace, Name: c.Owner.Name, Cluster: c.Cluster.Name, Since: c.Created,
			Reason: told.Reason, Message: told.Message,
		})
		after = c
		return len(to) < ViewChunk
	}
	if after == nil {
		m.Pending.Scan(add)
	} else {
		m.Pending.Ascend(after, add)
	}
	return to, after
}
