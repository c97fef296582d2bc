// Package leases implements the kind of claimants of IPLeases: which address an IPLease gets, and the next step for
// it. It neither reads nor writes the API server.
package leases

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	"go4.org/netipx"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/cluster-api/util/annotations"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/grants"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/poolspec"
)

// +kubebuilder:rbac:groups=butler.butlerlabs.dev,resources=ipleases,verbs=get;list;watch;update;patch
// +kubebuilder:rbac:groups=butler.butlerlabs.dev,resources=ipleases/status;ipleases/finalizers,verbs=update;patch

// ClaimantKind is the kind of IPLeases.
var ClaimantKind grants.ClaimantKind = leaseKind{}

// leaseKind implements grants.ClaimantKind: each IPLease requests one address, which is published in its own status.
type leaseKind struct{}

var leaseTraits = &grants.KindTraits{Name: v1alpha1.IPLeaseKind, Finalizer: v1alpha1.IPLeaseFinalizer, HasNamespaceQuota: true, AllowsPreAllocation: true}

// leaseData is the state that only this kind keeps of an IPLease.
type leaseData struct {
	// requestedAddress is the address that the lease must have, empty if any will do.
	requestedAddress string
	network          string
	generation       int64
	// ports are the ports that Services have, each with its Service, for example "TCP/80 web".
	ports []string
}

func leaseDataFor(c *grants.Claimant) *leaseData { return c.KindData.(*leaseData) }

func (leaseKind) Traits() *grants.KindTraits { return leaseTraits }

func (leaseKind) NewObject() grants.Object { return &v1alpha1.IPLease{} }

func (leaseKind) PoolKeyFor(o grants.Object) (pools.Key, bool) {
	l, ok := o.(*v1alpha1.IPLease)
	if !ok {
		return pools.Key{}, false
	}
	return pools.KeyFromPoolReference(l.Namespace, l.Spec.PoolRef), true
}

func (leaseKind) SetPoolRef(o grants.Object, pool pools.Key) {
	o.(*v1alpha1.IPLease).Spec.PoolRef = v1alpha1.PoolReference{Kind: pool.Kind, Name: pool.Name}
}

func (leaseKind) UsesMirroredPool(grants.Object) bool { return false }

func (leaseKind) NewClaimant(o grants.Object) *grants.Claimant {
	return newClaimant(o.(*v1alpha1.IPLease))
}

// newClaimant returns the state of an IPLease.
func newClaimant(l *v1alpha1.IPLease) *grants.Claimant {
	own := &leaseData{requestedAddress: grants.InternString(l.Spec.Address), network: grants.InternString(l.Status.Network), generation: l.Generation}
	for _, p := range l.Status.Ports {
		own.ports = append(own.ports, grants.InternString(fmt.Sprintf("%s/%d %s", p.Protocol, p.Port, p.Of())))
	}
	out := grants.NewClaimant(leaseKind{}, l, own)
	out.Paused = annotations.HasPaused(l)
	out.PublishedPauseMessage = grants.PauseMessageFromConditions(l.Status.Conditions)
	out.InUse = slices.Contains(out.OtherFinalizers, v1alpha1.LeaseShownFinalizer)
	out.RecordedRange, _ = grants.ParseRecord(out.RecordAnnotation)
	out.PublishedRange, _ = grants.ParseRecord(l.Status.Address)
	out.StatusHasAddress = out.PublishedRange.IsValid()
	out.UsedByOthers = l.AddressInUse()
	ready := ptr.Deref(meta.FindStatusCondition(l.Status.Conditions, v1alpha1.ReadyCondition), metav1.Condition{})
	out.StatusComplete = out.StatusHasAddress && ready.Status == metav1.ConditionTrue && l.Status.ObservedGeneration == l.Generation
	if n := len(l.Status.Conditions); n > 1 || (n > 0 && !out.StatusComplete) {
		out.Status = &grants.PublishedStatus{Conditions: l.Status.Conditions}
		if ready.Status == metav1.ConditionFalse {
			out.Status.Refusal = grants.Refusal{Reason: ready.Reason, Message: ready.Message}
		}
	}
	return out
}

// AddressForLease returns the address that an IPLease has. It reports false if it has none.
func AddressForLease(l *v1alpha1.IPLease) (netipx.IPRange, bool) {
	r := newClaimant(l).CurrentRange()
	return r, r.IsValid()
}

func (leaseKind) CarryOverState(*grants.Claimant, *grants.Claimant) {}

func (leaseKind) TakenRanges(_ *grants.Inventory, c *grants.Claimant) (record, shown netipx.IPRange) {
	return c.TakenRanges()
}

func (leaseKind) NeedFor(m *grants.Inventory, c *grants.Claimant) grants.Need {
	return m.StatusNeedFor(c, func() bool { return nextWrite(m, c, c.RecordedRange) == writeNothing })
}

func (leaseKind) IsConfirmed(_ *grants.Inventory, c *grants.Claimant) bool { return c.HasRecord() }

func (leaseKind) ReleasableRange(_ *grants.Inventory, c *grants.Claimant) netipx.IPRange {
	return c.CurrentRange()
}

// DesignatedRange returns the range that is meant for a lease: the one on record, the one in its status, the address
// that it requests, the one that is pre-allocated to its name, the one of a record without our finalizer, or one that
// cools down for its name, in this order.
func (leaseKind) DesignatedRange(m *grants.Inventory, c *grants.Claimant) (netipx.IPRange, *grants.Refusal) {
	if refusal := leaseRefusal(m, c); refusal != nil {
		return netipx.IPRange{}, refusal
	}
	if c.HasRecord() {
		return m.RecordedRangeFor(c, c.RecordedRange)
	}
	if shown := c.PublishedRange; shown.IsValid() {
		if h := m.FindBlockingFact(shown, c.Owner); h != nil {
			return netipx.IPRange{}, grants.AllocationFailed("the status shows %s, which is held by %s; find out which of the two uses it, and delete the other", shown.From(), m.DescribeFact(h))
		}
		return shown, nil
	}
	if asked := leaseDataFor(c).requestedAddress; asked != "" {
		return exactAddress(m, c, asked)
	}
	if r, refusal, ok := m.PreAllocatedRange(c); ok {
		return r, refusal
	}
	if asked := m.RequestedByRecord(c, func(r netipx.IPRange) bool { return r.From() == r.To() }); asked.IsValid() {
		return asked, nil
	}
	return m.CoolingUnitFor(c), nil
}

// leaseRefusal returns why a pool cannot give an address to a lease, or nil if it can. A lease with an address in its
// status is not checked. A lease with a record is not checked against spec.leases of the pool, which may have changed
// since.
func leaseRefusal(m *grants.Inventory, c *grants.Claimant) *grants.Refusal {
	spec := m.Base.Pool.PoolSpec().Leases
	switch {
	case c.StatusHasAddress:
		return nil
	case m.Space.AllocatesPrefixes():
		return grants.AllocationFailed("%s hands out prefixes of /%d, not single addresses; name another pool", m.Base.Key, m.Space.Layout.UnitBits())
	case c.HasRecord():
		return nil
	case spec == nil:
		return grants.PoolNotReady("%s gives no leases: its spec.leases is not set", m.Base.Key)
	case spec.QuotaPerNamespace != nil && m.Quotas.UsageByOthers(c) >= int64(*spec.QuotaPerNamespace):
		return &grants.Refusal{Reason: v1alpha1.QuotaExceededReason, Message: fmt.Sprintf(
			"the leases of namespace %s have as many addresses of %s as its spec.leases.quotaPerNamespace allows: %d; delete leases, or raise the quota",
			c.Owner.Namespace, m.Base.Key, *spec.QuotaPerNamespace)}
	}
	return nil
}

// exactAddress returns the range of the address that a lease requests, or the refusal if it cannot have that. It
// never falls back to another address.
func exactAddress(m *grants.Inventory, c *grants.Claimant, asked string) (netipx.IPRange, *grants.Refusal) {
	const again = "spec.address is immutable, so create the lease again with another one"
	ip, err := netip.ParseAddr(asked)
	switch {
	case err != nil || ip.Zone() != "":
		return netipx.IPRange{}, grants.AllocationFailed("spec.address %q is not an IP address; %s", asked, again)
	case !m.Space.Ledger.IsInSpace(m.Space.Ledger.UnitRange(ip)):
		return netipx.IPRange{}, grants.AllocationFailed("%s does not hand out spec.address %s: it is %s; %s",
			m.Base.Key, ip, poolspec.WithheldReason(m.Base.Pool.PoolSpec(), m.Space.Layout, ip), again)
	}
	return m.ExactAddressFor(c, ip, "requested", "or create the lease again with another spec.address")
}

func (leaseKind) RequestedShape(*grants.Inventory, *grants.Claimant) grants.RangeShape {
	return grants.RangeShape{}
}

func (leaseKind) ExhaustedRefusal(m *grants.Inventory, _ *grants.Claimant) *grants.Refusal {
	return m.NoFreeAddressRefusal()
}

// Ports returns the ports of the address that Services have.
func (leaseKind) Ports(c *grants.Claimant) []string { return leaseDataFor(c).ports }

func (leaseKind) RangeUse(c *grants.Claimant) (grants.RangeUse, time.Time) {
	return grants.UseLease, c.Created
}
