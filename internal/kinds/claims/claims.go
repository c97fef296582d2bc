// Package claims implements the kind of claimants of IPAddressClaims, including those for pools of the in-cluster
// provider: which address a claim gets, and the next step for the claim and its IPAddress. It neither reads nor
// writes the API server.
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

// IPAddressClaimKind is the kind of IPAddressClaims.
const IPAddressClaimKind = "IPAddressClaim"

// ClaimantKind is the kind of IPAddressClaims.
var ClaimantKind grants.ClaimantKind = claimKind{}

// claimKind implements grants.ClaimantKind: each claim requests one address or one prefix, and gets an IPAddress of
// its name.
type claimKind struct{}

var claimTraits = &grants.KindTraits{
	Name: IPAddressClaimKind, Finalizer: v1alpha1.ClaimFinalizer, AddressKind: addressKind{}, CountsTowardsQuota: true, AllowsPreAllocation: true, NeedsCluster: true,
}

// ClaimData is the state that only this kind keeps of an IPAddressClaim.
type ClaimData struct {
	RequestedAddress string
	// ownerClusterUID is the UID of the Cluster that is the only owner of the claim, empty if there is none.
	ownerClusterUID types.UID
	// legacyConditions are the v1beta1 conditions, if the status has anything besides Ready=True; nil if there are
	// none.
	legacyConditions *clusterv1.Conditions
	// hasNoOwner reports whether the claim has no owner, so that clusterctl would move its pool and leave the claim
	// behind.
	hasNoOwner bool
}

// OwnerCluster returns the UID of the Cluster that is the only owner of a claim, empty if there is none.
func (f *ClaimData) OwnerCluster() types.UID { return f.ownerClusterUID }

func (claimKind) Traits() *grants.KindTraits { return claimTraits }

func (claimKind) NewObject() grants.Object { return &ipamv1.IPAddressClaim{} }

func (claimKind) PoolKeyFor(o grants.Object) (pools.Key, bool) {
	c, ok := o.(*ipamv1.IPAddressClaim)
	if !ok {
		return pools.Key{}, false
	}
	ref := c.Spec.PoolRef
	key, isOwn := pools.KeyFromIPPoolReference(c.Namespace, ref)
	if !isOwn && ref.APIGroup == v1alpha1.GroupVersion.Group { // no other controller reports a kind that our group does not have
		key = pools.Key{Kind: ref.Kind, Namespace: c.Namespace, Name: ref.Name}
	}
	return key, true
}

func (claimKind) SetPoolRef(o grants.Object, pool pools.Key) {
	o.(*ipamv1.IPAddressClaim).Spec.PoolRef = pool.PoolReference()
}

func (claimKind) UsesMirroredPool(o grants.Object) bool {
	return incluster.IsInClusterRef(o.(*ipamv1.IPAddressClaim).Spec.PoolRef)
}

func (claimKind) NewClaimant(o grants.Object) *grants.Claimant {
	return NewClaimant(o.(*ipamv1.IPAddressClaim))
}

// ClusterNameForClaim returns the name of the Cluster of a claim, empty if it names none. An empty label counts as
// none: CAPV copies a label that may be missing.
func ClusterNameForClaim(c *ipamv1.IPAddressClaim) string {
	return cmp.Or(c.Spec.ClusterName, c.Labels[clusterv1.ClusterNameLabel])
}

// NewClaimant returns the state of an IPAddressClaim.
func NewClaimant(c *ipamv1.IPAddressClaim) *grants.Claimant {
	own := &ClaimData{RequestedAddress: grants.TruncatedAnnotation(c, v1alpha1.RequestedAddressAnnotation), hasNoOwner: len(c.OwnerReferences) == 0}
	out := grants.NewClaimant(claimKind{}, c, own)
	out.Cluster.Name = grants.InternString(ClusterNameForClaim(c))
	if out.Cluster.Name != "" {
		out.Cluster.Namespace = out.Owner.Namespace
	}
	own.ownerClusterUID = ownerClusterUID(c, out.Cluster.Name)
	out.UsesMirroredPool = claimKind{}.UsesMirroredPool(c)
	out.PublishedPauseMessage = grants.PauseMessageFromConditions(c.Status.Conditions)
	_, out.Paused = c.Annotations[clusterv1.PausedAnnotation]
	// The finalizers of the garbage collector wait for the IPAddress, and do not mean that it is in use.
	out.InUse = slices.ContainsFunc(out.OtherFinalizers, func(f string) bool { return !ending.IsGarbageCollectorFinalizer(f) })
	if out.RecordedRange, _ = grants.ParseRecord(out.RecordAnnotation); !out.RecordedRange.IsValid() {
		out.MachineLookup = grants.NewMachineLookup(c.OwnerReferences)
	}
	out.StatusHasAddress = c.Status.AddressRef.Name != ""
	ready := ptr.Deref(meta.FindStatusCondition(c.Status.Conditions, ipamv1.IPAddressClaimReadyCondition), metav1.Condition{})
	out.StatusComplete = c.Status.AddressRef.Name == c.Name && ready.Status == metav1.ConditionTrue && isLegacyReady(c)
	legacy := c.GetV1Beta1Conditions()
	if n := len(c.Status.Conditions) + len(legacy); n > 2 || (n > 0 && !out.StatusComplete) {
		out.Status = &grants.PublishedStatus{Conditions: c.Status.Conditions}
		if len(legacy) > 0 {
			own.legacyConditions = &legacy
		}
	}
	if ready.Status == metav1.ConditionFalse {
		out.Status.Refusal = grants.Refusal{Reason: ready.Reason, Message: ready.Message}
	}
	return out
}

// ownerClusterUID returns the UID of the Cluster of a name if that is the only owner of a claim.
func ownerClusterUID(c *ipamv1.IPAddressClaim, name string) types.UID {
	if refs := c.OwnerReferences; len(refs) == 1 && grants.IsCluster(refs[0]) && refs[0].Name == name {
		return refs[0].UID
	}
	return ""
}

func isLegacyReady(c *ipamv1.IPAddressClaim) bool {
	for _, cond := range c.GetV1Beta1Conditions() {
		if cond.Type == clusterv1.ReadyV1Beta1Condition {
			return cond.Status == "True"
		}
	}
	return false
}

// ClaimDataFor returns the state that only this kind keeps of a claimant.
func ClaimDataFor(c *grants.Claimant) *ClaimData { return c.KindData.(*ClaimData) }

func (claimKind) CarryOverState(*grants.Claimant, *grants.Claimant) {}

// TakenRanges returns one unit, whatever a user wrote into the record.
func (claimKind) TakenRanges(m *grants.Inventory, c *grants.Claimant) (record, shown netipx.IPRange) {
	if c.RecordedRange.IsValid() {
		record = m.Space.Ledger.UnitRange(c.RecordedRange.From())
	}
	return record, netipx.IPRange{}
}

// writeKind is a write that serves a claim.
type writeKind int

const (
	writeNothing writeKind = iota
	writeRecord
	writeAddress
	writeOwners
	writeStatus
)

// nextWrite returns the next write for a claim that should have r, and that has the IPAddress a if it is not nil. The
// order of the writes is that of R1. repaired reports whether the owners of a were written already.
func nextWrite(m *grants.Inventory, c *grants.Claimant, a *grants.Address, r netipx.IPRange, repaired bool) writeKind {
	recorded := !r.IsValid() || c.RecordAnnotation == m.Space.FormatRecord(r) || (m.Space.Layout == nil && c.RecordedRange.IsValid())
	switch {
	case !recorded || !c.HasFinalizer:
		return writeRecord
	case a == nil:
		return writeAddress
	case !repaired && needsAddressRepair(m, c, a):
		return writeOwners
	case !c.StatusComplete || c.PublishedPauseMessage != "":
		return writeStatus
	}
	return writeNothing
}

func (k claimKind) NeedFor(m *grants.Inventory, c *grants.Claimant) grants.Need {
	a := m.Addresses.AddressFor(c)
	switch {
	case k.IsConfirmed(m, c):
		if nextWrite(m, c, a, m.Space.UnitForAddress(a), false) == writeNothing && !c.Paused { // a paused one has to show the pause
			return grants.NeedNothing
		}
		return grants.NeedWrite
	case m.Grants.ByClaimant[c.Owner.UID] != nil, a != nil && m.IsAdoptable(c, a):
		return grants.NeedWrite
	}
	return grants.NeedGrant
}

func (claimKind) IsConfirmed(m *grants.Inventory, c *grants.Claimant) bool {
	a := m.Addresses.AddressFor(c)
	return a != nil && a.ClaimantUID == c.Owner.UID
}

func (claimKind) ReleasableRange(m *grants.Inventory, c *grants.Claimant) netipx.IPRange {
	switch a := m.Addresses.AddressFor(c); {
	case a != nil && a.ClaimantUID == c.Owner.UID:
		return m.Space.UnitForAddress(a)
	case c.RecordedRange.IsValid() && (c.StatusHasAddress || c.LostAddress != nil):
		return m.Space.Ledger.UnitRange(c.RecordedRange.From())
	}
	return netipx.IPRange{}
}

// DesignatedRange returns the range that is meant for a claim: the one on record, the address that is pre-allocated
// to its name, the one that it requests, or one that cools down for its name, in this order.
func (claimKind) DesignatedRange(m *grants.Inventory, c *grants.Claimant) (netipx.IPRange, *grants.Refusal) {
	if other := m.Addresses.AddressFor(c); other != nil && other.ClaimantUID != c.Owner.UID {
		return netipx.IPRange{}, nameTakenRefusal(m, c, other)
	}
	if c.RecordedRange.IsValid() {
		return m.RecordedRangeFor(c, m.Space.Ledger.UnitRange(c.RecordedRange.From()))
	}
	if r, refusal, ok := m.PreAllocatedRange(c); ok {
		return r, refusal
	}
	if requested := ClaimDataFor(c).RequestedAddress; requested != "" {
		ip, err := netip.ParseAddr(requested)
		if err != nil || ip.Zone() != "" {
			return netipx.IPRange{}, grants.AllocationFailed("the requested address %q is not an IP address; correct the annotation %s",
				requested, v1alpha1.RequestedAddressAnnotation)
		}
		if !m.Space.Ledger.IsInSpace(m.Space.Ledger.UnitRange(ip.Unmap())) {
			return netipx.IPRange{}, grants.AllocationFailed("%s does not hand out the requested address %s: it is %s; ask for another, or remove the annotation %s",
				m.Base.Key, ip, poolspec.WithheldReason(m.Base.Pool.PoolSpec(), m.Space.Layout, ip.Unmap()), v1alpha1.RequestedAddressAnnotation)
		}
		return m.ExactAddressFor(c, ip.Unmap(), "requested", "or ask for another")
	}
	return m.CoolingUnitFor(c), nil
}

func (claimKind) RequestedShape(*grants.Inventory, *grants.Claimant) grants.RangeShape {
	return grants.RangeShape{}
}

func (claimKind) ExhaustedRefusal(m *grants.Inventory, _ *grants.Claimant) *grants.Refusal {
	return m.NoFreeAddressRefusal()
}

func (claimKind) RangeUse(c *grants.Claimant) (grants.RangeUse, time.Time) {
	return grants.UseClaim, c.Created
}

// nameTakenRefusal returns the refusal that names the IPAddress that has the name of a claim.
func nameTakenRefusal(m *grants.Inventory, c *grants.Claimant, a *grants.Address) *grants.Refusal {
	switch {
	case m.Carved.IsOutsideBlocks(a) && a.CreatedManually:
		return grants.AllocationFailed("IPAddress %s has %s, which is in no block of %s; waiting until the block is there; or delete the IPAddress and create the claim again, for another address", a.Key(), a.IP, m.Base.Key)
	case m.Carved.IsOutsideBlocks(a):
		return grants.AllocationFailed("IPAddress %s has %s, which is in no block of %s; waiting until the block is there, or the IPAddress is gone", a.Key(), a.IP, m.Base.Key)
	case !a.CreatedManually:
		return grants.AllocationFailed("IPAddress %s still belongs to an earlier claim of this name; waiting until it is gone%s", a.Key(), a.FinalizerMessage())
	case a.Deleting:
		return grants.AllocationFailed("IPAddress %s has the name of this claim, and is being deleted; waiting until it is gone%s", a.Key(), a.FinalizerMessage())
	}
	why := "it was created by hand"
	switch {
	case c.UsesMirroredPool && !a.UsesMirroredPool:
		why += ", for another pool"
	case !a.IP.IsValid():
		why += ", and its spec.address is not an IP address"
	case c.UsesMirroredPool && !m.Space.Ledger.IsInSpace(m.Space.Ledger.UnitRange(a.IP)):
		why += ", with an address that " + m.Base.Key.String() + " does not hand out"
	default:
		if h := m.FindAdoptionBlocker(c, a); h != nil {
			why += ", with " + poolutil.ShowRange(h.Range) + ", which " + m.DescribeFact(h) + " has"
		} else if !c.RecordedRange.IsValid() && addressDataFor(a).namesOwnClaim {
			return grants.AllocationFailed("IPAddress %s has the name of this claim, and no owner: it was created by hand, or a restore stripped it; "+
				"set the annotation %s of the claim to %s if its machine uses that; else delete the IPAddress if nothing uses it, or create the claim under another name",
				a.Key(), v1alpha1.AddressAnnotation, a.IP)
		}
	}
	return grants.AllocationFailed("IPAddress %s has the name of this claim: %s; delete it if it is not in use, or create the claim under another name", a.Key(), why)
}
