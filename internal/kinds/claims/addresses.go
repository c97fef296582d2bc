package claims

import (
	"net/netip"

	"go4.org/netipx"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/grants"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/incluster"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"
)

// addressKind implements grants.AddressKind for IPAddresses, which publish the grants of IPAddressClaims.
type addressKind struct{}

// AddressData is the state that only this kind keeps of an IPAddress.
type AddressData struct {
	gateway string
	prefix  int32
	// namesOwnClaim reports whether the IPAddress names the claim of its own name.
	namesOwnClaim bool
	// otherOwners are the owners that are neither claims nor pools; PoolUID is the UID of the pool among the owners.
	otherOwners []metav1.OwnerReference
	PoolUID     types.UID
}

func addressDataFor(a *grants.Address) *AddressData { return a.KindData.(*AddressData) }

func (addressKind) KindName() string { return "IPAddress" }

func (addressKind) Finalizer() string { return v1alpha1.AddressFinalizer }

func (addressKind) NewObject() grants.Object { return &ipamv1.IPAddress{} }

func (addressKind) PoolKeyFor(o grants.Object) (pools.Key, bool) {
	a, ok := o.(*ipamv1.IPAddress)
	if !ok {
		return pools.Key{}, false
	}
	key, _ := pools.KeyFromIPPoolReference(a.Namespace, a.Spec.PoolRef)
	return key, true
}

func (addressKind) SetPoolRef(o grants.Object, pool pools.Key) {
	o.(*ipamv1.IPAddress).Spec.PoolRef = pool.PoolReference()
}

func (addressKind) UsesMirroredPool(o grants.Object) bool {
	return incluster.IsInClusterRef(o.(*ipamv1.IPAddress).Spec.PoolRef)
}

func (addressKind) NewAddress(o grants.Object) *grants.Address {
	return NewAddress(o.(*ipamv1.IPAddress))
}

// NewAddress returns the state of an IPAddress.
func NewAddress(a *ipamv1.IPAddress) *grants.Address {
	own := &AddressData{prefix: ptr.Deref(a.Spec.Prefix, 0), gateway: grants.InternString(a.Spec.Gateway), namesOwnClaim: a.Spec.ClaimRef.Name == a.Name}
	out := grants.NewAddress(claimKind{}, a, own)
	out.UsesMirroredPool = addressKind{}.UsesMirroredPool(a)
	for _, ref := range a.OwnerReferences {
		switch {
		case ref.Kind == IPAddressClaimKind:
			if ref.Name == a.Spec.ClaimRef.Name {
				out.ClaimantUID = ref.UID
			}
		case pools.IsPoolOwner(ref):
			own.PoolUID = types.UID(grants.InternString(string(ref.UID)))
		default:
			own.otherOwners = append(own.otherOwners, ref)
		}
	}
	// An IPAddress whose claim is gone still has an owner: the garbage collector removes only the reference to the
	// claim, and keeps the IPAddress because its pool owns it as well.
	out.CreatedManually = out.ClaimantUID == "" && own.PoolUID == ""
	if ip, err := netip.ParseAddr(a.Spec.Address); err == nil && ip.Zone() == "" {
		out.IP = ip.Unmap()
	}
	return out
}

// CanAdoptManual reports whether a claim may adopt an IPAddress of its name that a user created, as the in-cluster
// provider does. The manager does so in the place of that provider: both objects have to name a pool of that
// provider, and the pool has to allocate the address. A claim keeps an address that it already has.
func (addressKind) CanAdoptManual(m *grants.Inventory, c *grants.Claimant, a *grants.Address) bool {
	return c.UsesMirroredPool && a.UsesMirroredPool && a.CreatedManually && !a.Deleting && (!c.HasRecord() || c.MayChangeAddress()) &&
		a.IP.IsValid() && m.Space.Ledger.IsInSpace(m.Space.Ledger.UnitRange(a.IP))
}

func (addressKind) NameTakenRefusal(o grants.Object) *grants.Refusal {
	a, ok := o.(*ipamv1.IPAddress)
	if !ok {
		return nil
	}
	return grants.AllocationFailed("IPAddress %s of %s %s has the name of this claim; delete it if nothing uses it, or create the claim under another name", a.Namespace+"/"+a.Name, a.Spec.PoolRef.Kind, a.Spec.PoolRef.Name)
}

// newIPAddress returns the IPAddress of a claim. It has the name of the claim, and the UID of the claim among its
// owners shows which claim it belongs to. It is created only once.
func newIPAddress(m *grants.Inventory, c *grants.Claimant, r netipx.IPRange) *ipamv1.IPAddress {
	poolRef := m.Base.Key.PoolReference()
	if c.UsesMirroredPool {
		poolRef, _ = incluster.RefForMirror(m.Base.Key.Kind, m.Base.Key.Name)
	}
	prefix, gateway := networkForAddress(m, c, r)
	obj := &ipamv1.IPAddress{
		ObjectMeta: metav1.ObjectMeta{
			Namespace:       c.Owner.Namespace,
			Name:            c.Owner.Name,
			Labels:          map[string]string{},
			Finalizers:      []string{v1alpha1.AddressFinalizer},
			OwnerReferences: ownersForAddress(c, m.Base.Pool),
		},
		Spec: ipamv1.IPAddressSpec{
			ClaimRef: ipamv1.IPAddressClaimReference{Name: c.Owner.Name},
			PoolRef:  poolRef,
			Address:  r.From().String(),
			Prefix:   ptr.To(prefix),
			Gateway:  gateway,
		},
	}
	if c.Cluster.Name != "" {
		obj.Labels[clusterv1.ClusterNameLabel] = c.Cluster.Name
	}
	if c.WatchLabel != "" {
		obj.Labels[clusterv1.WatchLabel] = c.WatchLabel
	}
	return obj
}

// networkForAddress returns the prefix length and the gateway of an address: those of the lost IPAddress, if that had
// the same address, otherwise those of the spec.
func networkForAddress(m *grants.Inventory, c *grants.Claimant, r netipx.IPRange) (prefix int32, gateway string) {
	if c.LostAddress != nil && c.LostAddress.IP == r.From() {
		lost := addressDataFor(c.LostAddress)
		return lost.prefix, lost.gateway
	}
	if m.Space.Layout == nil {
		return 0, ""
	}
	prefix, gateway = m.Space.Layout.NetworkForAddress(r.From())
	if gateway == "" {
		gateway = m.Base.MirrorGateway(m.Base.Pool)
	}
	return prefix, gateway
}

func ownersForAddress(c *grants.Claimant, poolObj v1alpha1.Pool) []metav1.OwnerReference {
	out := []metav1.OwnerReference{{
		APIVersion: ipamv1.GroupVersion.String(), Kind: IPAddressClaimKind, Name: c.Owner.Name, UID: c.Owner.UID,
		Controller: ptr.To(true), BlockOwnerDeletion: ptr.To(true),
	}}
	if isPoolDeleting(c, poolObj) {
		return out
	}
	return append(out, poolOwnerReference(c, poolObj))
}

// isPoolDeleting reports whether the pool that a claim names is being deleted. If it names the mirrored pool, that
// may be the mirror or the mirrored pool. In a foreground deletion the garbage collector removes such an owner from
// an IPAddress that has another owner, as often as it is added again.
func isPoolDeleting(c *grants.Claimant, poolObj v1alpha1.Pool) bool {
	return poolObj.GetDeletionTimestamp() != nil || (c.UsesMirroredPool && incluster.IsEnding(poolObj))
}

// poolOwnerReference returns the owner reference of an IPAddress to the pool that its claim names. For a claim that
// names the mirrored pool, that is the mirrored pool, which owns the mirror.
func poolOwnerReference(c *grants.Claimant, poolObj v1alpha1.Pool) metav1.OwnerReference {
	out := metav1.OwnerReference{
		APIVersion: v1alpha1.GroupVersion.String(), Kind: pools.KeyForPool(poolObj).Kind, Name: poolObj.GetName(), UID: poolObj.GetUID(),
	}
	if mirrored := incluster.SourceOwnerRef(poolObj); c.UsesMirroredPool && mirrored != nil {
		out = *mirrored
	}
	out.Controller, out.BlockOwnerDeletion = ptr.To(false), ptr.To(true)
	return out
}

// needsAddressRepair reports whether the owners or the finalizer of an existing IPAddress are missing or wrong:
// clusterctl move and restores leave references to objects of another cluster. An IPAddress that is being deleted
// accepts neither. A pool that is being deleted need not be among the owners.
func needsAddressRepair(m *grants.Inventory, c *grants.Claimant, a *grants.Address) bool {
	if a.Deleting {
		return false
	}
	foreign := m.Base.Pool != nil && m.Base.Pool.GetUID() != "" && !isPoolDeleting(c, m.Base.Pool) && addressDataFor(a).PoolUID != poolOwnerReference(c, m.Base.Pool).UID
	return foreign || !a.HasFinalizer || a.ClaimantUID != c.Owner.UID
}
