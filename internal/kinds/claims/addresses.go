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

// addresses is the kind of IPAddresses, which show what IPAddressClaims were granted.
type addresses struct{}

// AddressFacts are what is remembered of an IPAddress alone.
type AddressFacts struct {
	gateway string
	prefix  int32
	// isOfItsName reports whether it names the claim of its own name.
	isOfItsName bool
	// owners are those that are neither claims nor pools; PoolUID is the UID of the pool among them.
	owners  []metav1.OwnerReference
	PoolUID types.UID
}

func addressFactsOf(a *grants.Attached) *AddressFacts { return a.Own.(*AddressFacts) }

func (addresses) Kind() string { return "IPAddress" }

func (addresses) Finalizer() string { return v1alpha1.AddressFinalizer }

func (addresses) Object() grants.Object { return &ipamv1.IPAddress{} }

func (addresses) PoolOf(o grants.Object) (pools.Key, bool) {
	a, is := o.(*ipamv1.IPAddress)
	if !is {
		return pools.Key{}, false
	}
	key, _ := pools.KeyOfRef(a.Namespace, a.Spec.PoolRef)
	return key, true
}

func (addresses) SetPool(o grants.Object, pool pools.Key) {
	o.(*ipamv1.IPAddress).Spec.PoolRef = pool.Ref()
}

func (addresses) Mirrors(o grants.Object) bool {
	return incluster.Is(o.(*ipamv1.IPAddress).Spec.PoolRef)
}

func (addresses) Of(o grants.Object) *grants.Attached { return AddressOf(o.(*ipamv1.IPAddress)) }

// AddressOf is what is remembered of an IPAddress.
func AddressOf(a *ipamv1.IPAddress) *grants.Attached {
	own := &AddressFacts{prefix: ptr.Deref(a.Spec.Prefix, 0), gateway: grants.Intern(a.Spec.Gateway), isOfItsName: a.Spec.ClaimRef.Name == a.Name}
	out := grants.AttachedOf(kind{}, a, own)
	out.Mirrored = addresses{}.Mirrors(a)
	for _, ref := range a.OwnerReferences {
		switch {
		case ref.Kind == Name:
			if ref.Name == a.Spec.ClaimRef.Name {
				out.ClaimantUID = ref.UID
			}
		case pools.IsOwner(ref):
			own.PoolUID = types.UID(grants.Intern(string(ref.UID)))
		default:
			own.owners = append(own.owners, ref)
		}
	}
	// The garbage collector takes the reference to a claim that is gone off an IPAddress, and leaves the IPAddress
	// because its pool owns it too.
	out.ByHand = out.ClaimantUID == "" && own.PoolUID == ""
	if ip, err := netip.ParseAddr(a.Spec.Address); err == nil && ip.Zone() == "" {
		out.IP = ip.Unmap()
	}
	return out
}

// TakesUp reports whether a claim takes up an IPAddress of its name that somebody made by hand, as the in-cluster
// provider does: in the place of that, where both name its pool and the pool hands the address out. What a claim has
// already, it keeps.
func (addresses) TakesUp(m *grants.Memory, c *grants.Claimant, a *grants.Attached) bool {
	return c.Mirrored && a.Mirrored && a.ByHand && !a.Deleting && (!c.HasRecord() || c.MayGetAnother()) &&
		a.IP.IsValid() && m.Ledger.InSpace(m.Ledger.Unit(a.IP))
}

func (addresses) Taken(o grants.Object) *grants.Refusal {
	a, is := o.(*ipamv1.IPAddress)
	if !is {
		return nil
	}
	return grants.Failed("IPAddress %s of %s %s has the name of this claim; delete it if nothing uses it, or create the claim under another name", a.Namespace+"/"+a.Name, a.Spec.PoolRef.Kind, a.Spec.PoolRef.Name)
}

// newAddress is the IPAddress of a claim. The name is the claim's, and the claim's UID among the owners tells whose it
// is: it is made once.
func newAddress(m *grants.Memory, c *grants.Claimant, r netipx.IPRange) *ipamv1.IPAddress {
	poolRef := m.Key.Ref()
	if c.Mirrored {
		poolRef, _ = incluster.MirroredBy(m.Key.Kind, m.Key.Name)
	}
	prefix, gateway := networkOf(m, c, r)
	obj := &ipamv1.IPAddress{
		ObjectMeta: metav1.ObjectMeta{
			Namespace:       c.Owner.Namespace,
			Name:            c.Owner.Name,
			Labels:          map[string]string{},
			Finalizers:      []string{v1alpha1.AddressFinalizer},
			OwnerReferences: ownersOf(c, m.Base),
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

// networkOf is the prefix length and the gateway of an address: those of the IPAddress that was forced away, else those
// that the spec says.
func networkOf(m *grants.Memory, c *grants.Claimant, r netipx.IPRange) (prefix int32, gateway string) {
	if c.Lost != nil && c.Lost.IP == r.From() {
		lost := addressFactsOf(c.Lost)
		return lost.prefix, lost.gateway
	}
	if m.Layout == nil {
		return 0, ""
	}
	prefix, gateway = m.Layout.Network(r.From())
	if gateway == "" {
		gateway = m.FarGateway(m.Base)
	}
	return prefix, gateway
}

func ownersOf(c *grants.Claimant, poolObj v1alpha1.Pool) []metav1.OwnerReference {
	out := []metav1.OwnerReference{{
		APIVersion: ipamv1.GroupVersion.String(), Kind: Name, Name: c.Owner.Name, UID: c.Owner.UID,
		Controller: ptr.To(true), BlockOwnerDeletion: ptr.To(true),
	}}
	if poolEnds(c, poolObj) {
		return out
	}
	return append(out, poolOwner(c, poolObj))
}

// poolEnds reports whether the pool that a claim names is being deleted, or with the mirror the pool that it mirrors. In the
// foreground the garbage collector takes such an owner off an IPAddress that another one keeps, as often as it is put back.
func poolEnds(c *grants.Claimant, poolObj v1alpha1.Pool) bool {
	return poolObj.GetDeletionTimestamp() != nil || (c.Mirrored && incluster.Ending(poolObj))
}

// poolOwner is the pool that a claim names, as an owner of its IPAddress: what a mirror mirrors owns the mirror.
func poolOwner(c *grants.Claimant, poolObj v1alpha1.Pool) metav1.OwnerReference {
	out := metav1.OwnerReference{
		APIVersion: v1alpha1.GroupVersion.String(), Kind: pools.KeyOf(poolObj).Kind, Name: poolObj.GetName(), UID: poolObj.GetUID(),
	}
	if mirrored := incluster.SourceOf(poolObj); c.Mirrored && mirrored != nil {
		out = *mirrored
	}
	out.Controller, out.BlockOwnerDeletion = ptr.To(false), ptr.To(true)
	return out
}

// needsRepair reports whether an IPAddress that exists lacks its owners or its finalizer: clusterctl move and restores
// leave references to objects of another cluster. One that is being deleted takes neither. A pool that is being deleted
// need not be among the owners.
func needsRepair(m *grants.Memory, c *grants.Claimant, a *grants.Attached) bool {
	if a.Deleting {
		return false
	}
	foreign := m.Base != nil && m.Base.GetUID() != "" && !poolEnds(c, m.Base) && addressFactsOf(a).PoolUID != poolOwner(c, m.Base).UID
	return foreign || !a.Protected || a.ClaimantUID != c.Owner.UID
}
