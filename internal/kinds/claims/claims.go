// Package claims is the kind of IPAddressClaims, those of the in-cluster provider's pools among them: what a claim is
// granted, and the next request that brings it, and its IPAddress, forward. It reads and writes nothing.
package claims

import (
	"cmp"
	"net/netip"
	"slices"
	"time"

	"go4.org/netipx"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/ending"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/grants"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/incluster"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/poolspec"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/poolutil"
)

// Name is the kind of IPAddressClaims.
const Name = "IPAddressClaim"

// Kind is the kind of IPAddressClaims.
var Kind grants.Kind = kind{}

// kind: each claim asks for one address, or one prefix, and gets an IPAddress of its name.
type kind struct{}

var claimTraits = &grants.Traits{
	Name: Name, Finalizer: v1alpha1.ClaimFinalizer, Attaches: addresses{}, Counted: true, Pinned: true, NeedsCluster: true,
}

// Facts are what is remembered of an IPAddressClaim alone.
type Facts struct {
	Requested string
	// cluster is the UID of the Cluster that alone owns it; empty: none does.
	cluster types.UID
	// legacy are the conditions of the older generation, where the status says anything but Ready; nil: there are none.
	legacy *clusterv1.Conditions
	// alone: nobody owns it, so clusterctl would move its pool and leave it behind.
	alone bool
}

// OwnerCluster is the UID of the Cluster that alone owns a claim; empty: none does.
func (f *Facts) OwnerCluster() types.UID { return f.cluster }

func (kind) Traits() *grants.Traits { return claimTraits }

func (kind) Object() grants.Object { return &ipamv1.IPAddressClaim{} }

func (kind) PoolOf(o grants.Object) (pools.Key, bool) {
	c, is := o.(*ipamv1.IPAddressClaim)
	if !is {
		return pools.Key{}, false
	}
	ref := c.Spec.PoolRef
	key, ours := pools.KeyOfRef(c.Namespace, ref)
	if !ours && ref.APIGroup == v1alpha1.GroupVersion.Group { // of a kind that our group does not have: nobody else tells it
		key = pools.Key{Kind: ref.Kind, Namespace: c.Namespace, Name: ref.Name}
	}
	return key, true
}

func (kind) SetPool(o grants.Object, pool pools.Key) {
	o.(*ipamv1.IPAddressClaim).Spec.PoolRef = pool.Ref()
}

func (kind) Mirrors(o grants.Object) bool {
	return incluster.Is(o.(*ipamv1.IPAddressClaim).Spec.PoolRef)
}

func (kind) Of(o grants.Object) *grants.Claimant { return Of(o.(*ipamv1.IPAddressClaim)) }

// ClusterOf is the name of the Cluster that a claim is for, empty if it names none: an empty label counts as none:
// CAPV copies a label that may be missing.
func ClusterOf(c *ipamv1.IPAddressClaim) string {
	return cmp.Or(c.Spec.ClusterName, c.Labels[clusterv1.ClusterNameLabel])
}

// Of is what is remembered of an IPAddressClaim.
func Of(c *ipamv1.IPAddressClaim) *grants.Claimant {
	own := &Facts{Requested: grants.Annotation(c, v1alpha1.RequestedAddressAnnotation), alone: len(c.OwnerReferences) == 0}
	out := grants.ClaimantOf(kind{}, c, own)
	out.Cluster.Name = grants.Intern(ClusterOf(c))
	if out.Cluster.Name != "" {
		out.Cluster.Namespace = out.Owner.Namespace
	}
	own.cluster = ownerCluster(c, out.Cluster.Name)
	out.Mirrored = kind{}.Mirrors(c)
	out.PauseTold = grants.PauseIn(c.Status.Conditions)
	_, out.Paused = c.Annotations[clusterv1.PausedAnnotation]
	// Those of the garbage collector wait for the IPAddress, and say nothing of its use.
	out.InUse = slices.ContainsFunc(out.Others, func(f string) bool { return !ending.IsCollectors(f) })
	if out.Record, _ = grants.ParseRecord(out.RecordText); !out.Record.IsValid() {
		out.Machine = grants.LookFor(c.OwnerReferences)
	}
	out.HadAddress = c.Status.AddressRef.Name != ""
	ready := ptr.Deref(meta.FindStatusCondition(c.Status.Conditions, ipamv1.IPAddressClaimReadyCondition), metav1.Condition{})
	out.StatusDone = c.Status.AddressRef.Name == c.Name && ready.Status == metav1.ConditionTrue && legacyReady(c)
	legacy := c.GetV1Beta1Conditions()
	if n := len(c.Status.Conditions) + len(legacy); n > 2 || (n > 0 && !out.StatusDone) {
		out.Status = &grants.ShownStatus{Conditions: c.Status.Conditions}
		if len(legacy) > 0 {
			own.legacy = &legacy
		}
	}
	if ready.Status == metav1.ConditionFalse {
		out.Status.Refusal = grants.Refusal{Reason: ready.Reason, Message: ready.Message}
	}
	return out
}

// ownerCluster is the UID of the Cluster of a name where a claim has no other owner.
func ownerCluster(c *ipamv1.IPAddressClaim, name string) types.UID {
	if refs := c.OwnerReferences; len(refs) == 1 && grants.IsCluster(refs[0]) && refs[0].Name == name {
		return refs[0].UID
	}
	return ""
}

func legacyReady(c *ipamv1.IPAddressClaim) bool {
	for _, cond := range c.GetV1Beta1Conditions() {
		if cond.Type == clusterv1.ReadyV1Beta1Condition {
			return cond.Status == "True"
		}
	}
	return false
}

// FactsOf is what only this kind remembers of a claimant.
func FactsOf(c *grants.Claimant) *Facts { return c.Own.(*Facts) }

func (kind) Keep(*grants.Claimant, *grants.Claimant) {}

// Holds returns one unit, whatever a user wrote there.
func (kind) Holds(m *grants.Memory, c *grants.Claimant) (record, shown netipx.IPRange) {
	if c.Record.IsValid() {
		record = m.Ledger.Unit(c.Record.From())
	}
	return record, netipx.IPRange{}
}

// write is one of those that serve a claim.
type write int

const (
	nothing write = iota
	record
	address
	owners
	status
)

// lacks is the next write for a claim that is to have r, and has the IPAddress a, if any: the order is that of R1.
// Repaired: the owners of a were written already.
func lacks(m *grants.Memory, c *grants.Claimant, a *grants.Attached, r netipx.IPRange, repaired bool) write {
	recorded := !r.IsValid() || c.RecordText == m.RecordOf(r) || (m.Layout == nil && c.Record.IsValid())
	switch {
	case !recorded || !c.HasFinalizer:
		return record
	case a == nil:
		return address
	case !repaired && needsRepair(m, c, a):
		return owners
	case !c.StatusDone || c.PauseTold != "":
		return status
	}
	return nothing
}

func (k kind) Need(m *grants.Memory, c *grants.Claimant) grants.Need {
	a := m.AttachedTo(c)
	switch {
	case k.Confirmed(m, c):
		if lacks(m, c, a, m.UnitOf(a), false) == nothing && !c.Paused { // one that is paused is to say so
			return grants.NeedNothing
		}
		return grants.NeedWrite
	case m.Grants[c.Owner.UID] != nil, a != nil && m.Adoptable(c, a):
		return grants.NeedWrite
	}
	return grants.NeedGrant
}

func (kind) Confirmed(m *grants.Memory, c *grants.Claimant) bool {
	a := m.AttachedTo(c)
	return a != nil && a.ClaimantUID == c.Owner.UID
}

func (kind) Releasable(m *grants.Memory, c *grants.Claimant) netipx.IPRange {
	switch a := m.AttachedTo(c); {
	case a != nil && a.ClaimantUID == c.Owner.UID:
		return m.UnitOf(a)
	case c.Record.IsValid() && (c.HadAddress || c.Lost != nil):
		return m.Ledger.Unit(c.Record.From())
	}
	return netipx.IPRange{}
}

// Designated finds what is meant for a claim: what it remembers, the address pinned to its name, the one it asks for,
// or the one that rests for its name.
func (kind) Designated(m *grants.Memory, c *grants.Claimant) (netipx.IPRange, *grants.Refusal) {
	if other := m.AttachedTo(c); other != nil && other.ClaimantUID != c.Owner.UID {
		return netipx.IPRange{}, nameTaken(m, c, other)
	}
	if c.Record.IsValid() {
		return m.Recorded(c, m.Ledger.Unit(c.Record.From()))
	}
	if r, no, is := m.PreAllocated(c); is {
		return r, no
	}
	if requested := FactsOf(c).Requested; requested != "" {
		ip, err := netip.ParseAddr(requested)
		if err != nil || ip.Zone() != "" {
			return netipx.IPRange{}, grants.Failed("the requested address %q is not an IP address; correct the annotation %s",
				requested, v1alpha1.RequestedAddressAnnotation)
		}
		if !m.Ledger.InSpace(m.Ledger.Unit(ip.Unmap())) {
			return netipx.IPRange{}, grants.Failed("%s does not hand out the requested address %s: it is %s; ask for another, or remove the annotation %s",
				m.Key, ip, poolspec.Withheld(m.Base.PoolSpec(), m.Layout, ip.Unmap()), v1alpha1.RequestedAddressAnnotation)
		}
		return m.ThisAddress(c, ip.Unmap(), "requested", "or ask for another")
	}
	return m.RestingUnit(c), nil
}

func (kind) Shape(*grants.Memory, *grants.Claimant) grants.Shape { return grants.Shape{} }

func (kind) NoRoom(m *grants.Memory, _ *grants.Claimant) *grants.Refusal { return m.NoAddress() }

func (kind) Use(c *grants.Claimant) (grants.Use, time.Time) { return grants.UseClaim, c.Created }

// nameTaken says which IPAddress keeps a claim from having one of its name.
func nameTaken(m *grants.Memory, c *grants.Claimant, a *grants.Attached) *grants.Refusal {
	switch {
	case m.IsStranded(a) && a.ByHand:
		return grants.Failed("IPAddress %s has %s, which is in no block that %s has; waiting until the block is there; or delete the IPAddress and create the claim again, for another address", a.Key(), a.IP, m.Key)
	case m.IsStranded(a):
		return grants.Failed("IPAddress %s has %s, which is in no block that %s has; waiting until the block is there, or the IPAddress is gone", a.Key(), a.IP, m.Key)
	case !a.ByHand:
		return grants.Failed("IPAddress %s still belongs to an earlier claim of this name; waiting until it is gone%s", a.Key(), a.KeptBy())
	case a.Deleting:
		return grants.Failed("IPAddress %s has the name of this claim, and is being deleted; waiting until it is gone%s", a.Key(), a.KeptBy())
	}
	why := "it was created by hand"
	switch {
	case c.Mirrored && !a.Mirrored:
		why += ", for another pool"
	case !a.IP.IsValid():
		why += ", and its spec.address is not an IP address"
	case c.Mirrored && !m.Ledger.InSpace(m.Ledger.Unit(a.IP)):
		why += ", with an address that " + m.Key.String() + " does not hand out"
	default:
		if h := m.KeepsFrom(c, a); h != nil {
			why += ", with " + poolutil.ShowRange(h.Range) + ", which " + m.DescribeFact(h) + " has"
		} else if !c.Record.IsValid() && addressFactsOf(a).isOfItsName {
			return grants.Failed("IPAddress %s has the name of this claim, and no owner: it was created by hand, or a restore stripped it; "+
				"set the annotation %s of the claim to %s if its machine uses that; else delete the IPAddress if nothing uses it, or create the claim under another name",
				a.Key(), v1alpha1.AddressAnnotation, a.IP)
		}
	}
	return grants.Failed("IPAddress %s has the name of this claim: %s; delete it if nobody uses it, or create the claim under another name", a.Key(), why)
}
