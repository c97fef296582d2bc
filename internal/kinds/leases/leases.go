// Package leases is the kind of IPLeases: what one is granted, and the next request that brings it forward. It reads and
// writes nothing.
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

// Kind is the kind of IPLeases.
var Kind grants.Kind = kind{}

// kind: each IPLease asks for one address, which its own status shows.
type kind struct{}

var traits = &grants.Traits{Name: v1alpha1.IPLeaseKind, Finalizer: v1alpha1.IPLeaseFinalizer, PerNamespace: true, Pinned: true}

// facts are what is remembered of an IPLease alone.
type facts struct {
	// asked is the address that it must have, empty if any will do.
	asked      string
	network    string
	generation int64
	// ports are those that Services have, each with the Service: "TCP/80 web".
	ports []string
}

func factsOf(c *grants.Claimant) *facts { return c.Own.(*facts) }

func (kind) Traits() *grants.Traits { return traits }

func (kind) Object() grants.Object { return &v1alpha1.IPLease{} }

func (kind) PoolOf(o grants.Object) (pools.Key, bool) {
	l, is := o.(*v1alpha1.IPLease)
	if !is {
		return pools.Key{}, false
	}
	return pools.KeyOfPool(l.Namespace, l.Spec.PoolRef), true
}

func (kind) SetPool(o grants.Object, pool pools.Key) {
	o.(*v1alpha1.IPLease).Spec.PoolRef = v1alpha1.PoolReference{Kind: pool.Kind, Name: pool.Name}
}

func (kind) Mirrors(grants.Object) bool { return false }

func (kind) Of(o grants.Object) *grants.Claimant { return of(o.(*v1alpha1.IPLease)) }

// of is what is remembered of an IPLease.
func of(l *v1alpha1.IPLease) *grants.Claimant {
	own := &facts{asked: grants.Intern(l.Spec.Address), network: grants.Intern(l.Status.Network), generation: l.Generation}
	for _, p := range l.Status.Ports {
		own.ports = append(own.ports, grants.Intern(fmt.Sprintf("%s/%d %s", p.Protocol, p.Port, p.Of())))
	}
	out := grants.ClaimantOf(kind{}, l, own)
	out.Paused = annotations.HasPaused(l)
	out.PauseTold = grants.PauseIn(l.Status.Conditions)
	out.InUse = slices.Contains(out.Others, v1alpha1.LeaseShownFinalizer)
	out.Record, _ = grants.ParseRecord(out.RecordText)
	out.Shown, _ = grants.ParseRecord(l.Status.Address)
	out.HadAddress = out.Shown.IsValid()
	out.UsedByOthers = l.AddressInUse()
	ready := ptr.Deref(meta.FindStatusCondition(l.Status.Conditions, v1alpha1.ReadyCondition), metav1.Condition{})
	out.StatusDone = out.HadAddress && ready.Status == metav1.ConditionTrue && l.Status.ObservedGeneration == l.Generation
	if n := len(l.Status.Conditions); n > 1 || (n > 0 && !out.StatusDone) {
		out.Status = &grants.ShownStatus{Conditions: l.Status.Conditions}
		if ready.Status == metav1.ConditionFalse {
			out.Status.Refusal = grants.Refusal{Reason: ready.Reason, Message: ready.Message}
		}
	}
	return out
}

// AddressOf returns what an IPLease has, if anything.
func AddressOf(l *v1alpha1.IPLease) (netipx.IPRange, bool) {
	r := of(l).OwnRange()
	return r, r.IsValid()
}

func (kind) Keep(*grants.Claimant, *grants.Claimant) {}

func (kind) Holds(_ *grants.Memory, c *grants.Claimant) (record, shown netipx.IPRange) {
	return c.OwnRanges()
}

func (kind) Need(m *grants.Memory, c *grants.Claimant) grants.Need {
	return m.NeedOf(c, func() bool { return lacks(m, c, c.Record) == nothing })
}

func (kind) Confirmed(_ *grants.Memory, c *grants.Claimant) bool { return c.HasRecord() }

func (kind) Releasable(_ *grants.Memory, c *grants.Claimant) netipx.IPRange { return c.OwnRange() }

// Designated finds what is meant for a lease: what it remembers, what its status says it has, the address it asks for,
// the one pinned to its name, the one that a record without our finalizer names, or the one that rests for its name.
func (kind) Designated(m *grants.Memory, c *grants.Claimant) (netipx.IPRange, *grants.Refusal) {
	if no := mayHave(m, c); no != nil {
		return netipx.IPRange{}, no
	}
	if c.HasRecord() {
		return m.Recorded(c, c.Record)
	}
	if shown := c.Shown; shown.IsValid() {
		if h := m.Blocker(shown, c.Owner); h != nil {
			return netipx.IPRange{}, grants.Failed("the status shows %s, which is held by %s; find out which of the two uses it, and delete the other", shown.From(), m.DescribeFact(h))
		}
		return shown, nil
	}
	if asked := factsOf(c).asked; asked != "" {
		return thisOne(m, c, asked)
	}
	if r, no, is := m.PreAllocated(c); is {
		return r, no
	}
	if asked := m.AskedByRecord(c, func(r netipx.IPRange) bool { return r.From() == r.To() }); asked.IsValid() {
		return asked, nil
	}
	return m.RestingUnit(c), nil
}

// mayHave tells why a pool gives no such lease; nil: it may. What has its address, or a record of it, is not asked what
// the spec of the pool says by now.
func mayHave(m *grants.Memory, c *grants.Claimant) *grants.Refusal {
	spec := m.Base.PoolSpec().Leases
	switch {
	case c.HadAddress:
		return nil
	case m.HandsOutPrefixes():
		return grants.Failed("%s hands out prefixes of /%d, not single addresses; name another pool", m.Key, m.Layout.UnitBits())
	case c.HasRecord():
		return nil
	case spec == nil:
		return grants.NotReady("%s gives no leases: its spec.leases is not set", m.Key)
	case spec.QuotaPerNamespace != nil && m.OthersOf(c) >= int64(*spec.QuotaPerNamespace):
		return &grants.Refusal{Reason: v1alpha1.QuotaExceededReason, Message: fmt.Sprintf(
			"the leases of namespace %s have as many addresses of %s as its spec.leases.quotaPerNamespace allows: %d; delete leases, or raise the quota",
			c.Owner.Namespace, m.Key, *spec.QuotaPerNamespace)}
	}
	return nil
}

// thisOne gives a lease the address that it asks for, and no other.
func thisOne(m *grants.Memory, c *grants.Claimant, asked string) (netipx.IPRange, *grants.Refusal) {
	const again = "spec.address is immutable, so create the lease again with another one"
	ip, err := netip.ParseAddr(asked)
	switch {
	case err != nil || ip.Zone() != "":
		return netipx.IPRange{}, grants.Failed("spec.address %q is not an IP address; %s", asked, again)
	case !m.Ledger.InSpace(m.Ledger.Unit(ip)):
		return netipx.IPRange{}, grants.Failed("%s does not hand out spec.address %s: it is %s; %s",
			m.Key, ip, poolspec.Withheld(m.Base.PoolSpec(), m.Layout, ip), again)
	}
	return m.ThisAddress(c, ip, "requested", "or create the lease again with another spec.address")
}

func (kind) Shape(*grants.Memory, *grants.Claimant) grants.Shape { return grants.Shape{} }

func (kind) NoRoom(m *grants.Memory, _ *grants.Claimant) *grants.Refusal { return m.NoAddress() }

// Ports are those of the address that Services have.
func (kind) Ports(c *grants.Claimant) []string { return factsOf(c).ports }

func (kind) Use(c *grants.Claimant) (grants.Use, time.Time) { return grants.UseLease, c.Created }
