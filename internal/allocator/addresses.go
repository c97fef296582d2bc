package allocator

import (
	"net/netip"

	"go4.org/netipx"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/incluster"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"
)

// addresses is the kind of IPAddresses, which show what IPAddressClaims were granted.
type addresses struct{}

// addressFacts are what is remembered of an IPAddress alone.
type addressFacts struct {
	gateway string
	prefix  int32
	// owners are those that are neither claims nor pools; poolUID is the UID of the pool among them.
	owners  []metav1.OwnerReference
	poolUID types.UID
}

func addressFactsOf(a *attached) *addressFacts { return a.own.(*addressFacts) }

func (addresses) kind() string { return "IPAddress" }

func (addresses) finalizer() string { return v1alpha1.AddressFinalizer }

func (addresses) object() Object { return &ipamv1.IPAddress{} }

func (addresses) poolOf(o Object) (pools.Key, bool) {
	a, is := o.(*ipamv1.IPAddress)
	if !is {
		return pools.Key{}, false
	}
	key, _ := pools.KeyOfRef(a.Namespace, a.Spec.PoolRef)
	return key, true
}

func (addresses) of(o Object) *attached { return addressOf(o.(*ipamv1.IPAddress)) }

func addressOf(a *ipamv1.IPAddress) *attached {
	own := &addressFacts{prefix: ptr.Deref(a.Spec.Prefix, 0), gateway: intern(a.Spec.Gateway)}
	out := attachedOf(claims{}, a, own)
	out.mirrored = incluster.Is(a.Spec.PoolRef)
	for _, ref := range a.OwnerReferences {
		switch {
		case ref.Kind == claimKind:
			if ref.Name == a.Spec.ClaimRef.Name {
				out.claimantUID = ref.UID
			}
		case pools.IsOwner(ref):
			own.poolUID = types.UID(intern(string(ref.UID)))
		default:
			own.owners = append(own.owners, ref)
		}
	}
	// The garbage collector takes the reference to a claim that is gone off an IPAddress, and leaves the IPAddress
	// because its pool owns it too.
	out.byHand = out.claimantUID == "" && own.poolUID == ""
	if ip, err := netip.ParseAddr(a.Spec.Address); err == nil && ip.Zone() == "" {
		out.ip = ip.Unmap()
	}
	return out
}

// takesUp reports whether a claim takes up an IPAddress of its name that somebody made by hand, as the in-cluster
// provider does: in the place of that, where both name its pool and the pool hands the address out. What a claim has
// already, it keeps.
func (addresses) takesUp(p *memory, c *claimant, a *attached) bool {
	return c.mirrored && a.mirrored && a.byHand && !a.deleting && (!c.hasRecord() || c.mayGetAnother()) &&
		a.ip.IsValid() && p.ledger.InSpace(p.ledger.Unit(a.ip))
}

func (addresses) taken(o Object) *refusal {
	a, is := o.(*ipamv1.IPAddress)
	if !is {
		return nil
	}
	return failed("IPAddress %s of %s %s has the name of this claim; waiting until it is gone", a.Namespace+"/"+a.Name, a.Spec.PoolRef.Kind, a.Spec.PoolRef.Name)
}

// newAddress is the IPAddress of a claim. The name is the claim's, and the claim's UID among the owners tells whose it
// is: it is made once.
func newAddress(p *memory, c *claimant, r netipx.IPRange) *ipamv1.IPAddress {
	poolRef := p.key.Ref()
	if c.mirrored {
		poolRef, _ = incluster.MirroredBy(p.key.Kind, p.key.Name)
	}
	prefix, gateway := networkOf(p, c, r)
	obj := &ipamv1.IPAddress{
		ObjectMeta: metav1.ObjectMeta{
			Namespace:       c.owner.Namespace,
			Name:            c.owner.Name,
			Labels:          map[string]string{},
			Finalizers:      []string{v1alpha1.AddressFinalizer},
			OwnerReferences: ownersOf(c, p.base),
		},
		Spec: ipamv1.IPAddressSpec{
			ClaimRef: ipamv1.IPAddressClaimReference{Name: c.owner.Name},
			PoolRef:  poolRef,
			Address:  r.From().String(),
			Prefix:   ptr.To(prefix),
			Gateway:  gateway,
		},
	}
	if c.cluster.Name != "" {
		obj.Labels[clusterv1.ClusterNameLabel] = c.cluster.Name
	}
	if c.watchLabel != "" {
		obj.Labels[clusterv1.WatchLabel] = c.watchLabel
	}
	return obj
}

// networkOf is the prefix length and the gateway of an address: those of the IPAddress that was forced away, else those
// that the spec says.
func networkOf(p *memory, c *claimant, r netipx.IPRange) (prefix int32, gateway string) {
	if c.lost != nil && c.lost.ip == r.From() {
		lost := addressFactsOf(c.lost)
		return lost.prefix, lost.gateway
	}
	if p.layout == nil {
		return 0, ""
	}
	prefix, gateway = p.layout.Network(r.From())
	if gateway == "" {
		gateway = p.farGateway(p.base)
	}
	return prefix, gateway
}

func ownersOf(c *claimant, poolObj v1alpha1.Pool) []metav1.OwnerReference {
	return []metav1.OwnerReference{{
		APIVersion: ipamv1.GroupVersion.String(), Kind: claimKind, Name: c.owner.Name, UID: c.owner.UID,
		Controller: ptr.To(true), BlockOwnerDeletion: ptr.To(true),
	}, poolOwner(c, poolObj)}
}

// poolOwner is the pool that a claim names, as an owner of its IPAddress: what a mirror mirrors owns the mirror.
func poolOwner(c *claimant, poolObj v1alpha1.Pool) metav1.OwnerReference {
	out := metav1.OwnerReference{
		APIVersion: v1alpha1.GroupVersion.String(), Kind: pools.KeyOf(poolObj).Kind, Name: poolObj.GetName(), UID: poolObj.GetUID(),
	}
	if mirrored := metav1.GetControllerOf(poolObj); c.mirrored && mirrored != nil {
		out = *mirrored
	}
	out.Controller, out.BlockOwnerDeletion = ptr.To(false), ptr.To(true)
	return out
}

// needsRepair reports whether an IPAddress that exists lacks its owners or its finalizer: clusterctl move and restores
// leave references to objects of another cluster.
func needsRepair(p *memory, c *claimant, a *attached) bool {
	return !a.deleting && (!a.protected || addressFactsOf(a).poolUID != poolOwner(c, p.base).UID || a.claimantUID != c.owner.UID)
}
