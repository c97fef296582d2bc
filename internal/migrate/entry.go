package migrate

import (
	"maps"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
)

// Entry is a claim of the pool and its IPAddress, as they were found.
type Entry struct {
	Claim *ipamv1.IPAddressClaim `json:"claim"`
	// Address is nil for a claim that waits for one.
	Address *ipamv1.IPAddress `json:"address,omitempty"`
	// Metal3 is what both were made of where the pool is one of Metal3's.
	Metal3 *Metal3Entry `json:"metal3,omitempty"`
}

func (e Entry) key() client.ObjectKey { return client.ObjectKeyFromObject(e.Claim) }

// side is one of the two pools: what claims and IPAddresses of it look like.
type side struct {
	ref   ipamv1.IPPoolReference
	owner metav1.OwnerReference
	// ours: it is the pool that things are moved to.
	ours bool
}

// claim is the claim of an entry as it is on a side.
func (s side) claim(e Entry) *ipamv1.IPAddressClaim {
	out := &ipamv1.IPAddressClaim{ObjectMeta: bare(e.Claim.ObjectMeta), Spec: e.Claim.Spec}
	out.Spec.PoolRef = s.ref
	if s.ours && e.Address != nil {
		// The record, with the finalizer that makes it one (R1): the address is this claim's from now on.
		metav1.SetMetaDataAnnotation(&out.ObjectMeta, v1alpha1.AddressAnnotation, e.Address.Spec.Address)
		controllerutil.AddFinalizer(out, v1alpha1.ClaimFinalizer)
	}
	return out
}

// address is the IPAddress of an entry as it is on a side, for its claim there.
func (s side) address(e Entry, claim *ipamv1.IPAddressClaim) *ipamv1.IPAddress {
	out := &ipamv1.IPAddress{ObjectMeta: bare(e.Address.ObjectMeta), Spec: *e.Address.Spec.DeepCopy()}
	out.Spec.PoolRef = s.ref
	out.OwnerReferences = s.owners(e, claim)
	if s.ours {
		controllerutil.AddFinalizer(out, v1alpha1.AddressFinalizer)
	}
	return out
}

// owners are those of the IPAddress, with the claim and the pool that exist.
func (s side) owners(e Entry, claim *ipamv1.IPAddressClaim) (out []metav1.OwnerReference) {
	for _, ref := range e.Address.OwnerReferences {
		switch {
		case ref.Kind == "IPAddressClaim" && ref.Name == claim.Name:
			ref.UID = claim.UID
		case ref.Kind == e.Address.Spec.PoolRef.Kind:
			block, controller := ref.BlockOwnerDeletion, ref.Controller
			ref = s.owner
			ref.BlockOwnerDeletion, ref.Controller = block, controller
		}
		out = append(out, ref)
	}
	return out
}

// bare is what of an object's metadata can be created again.
func bare(m metav1.ObjectMeta) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Namespace: m.Namespace, Name: m.Name, GenerateName: m.GenerateName, Labels: maps.Clone(m.Labels), Annotations: maps.Clone(m.Annotations),
		OwnerReferences: slices.Clone(m.OwnerReferences), Finalizers: slices.Clone(m.Finalizers),
	}
}
