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

// Entry is a claim of the pool and its IPAddress, as they were before the import.
type Entry struct {
	Claim *ipamv1.IPAddressClaim `json:"claim"`
	// Address is nil for a claim that waits for one.
	Address *ipamv1.IPAddress `json:"address,omitempty"`
	// Metal3 has the objects of Metal3 from which both were made; nil for a pool of another provider.
	Metal3 *Metal3Entry `json:"metal3,omitempty"`
}

func (e Entry) key() client.ObjectKey { return client.ObjectKeyFromObject(e.Claim) }

// poolSide is one of the two pools: it defines the form of claims and IPAddresses of that pool.
type poolSide struct {
	poolRef  ipamv1.IPPoolReference
	ownerRef metav1.OwnerReference
	// isTarget reports whether the entries move to this pool.
	isTarget bool
}

// newClaim returns the claim of an entry in the form of this side.
func (ps poolSide) newClaim(e Entry) *ipamv1.IPAddressClaim {
	out := &ipamv1.IPAddressClaim{ObjectMeta: recreatableMeta(e.Claim.ObjectMeta), Spec: e.Claim.Spec}
	out.Spec.PoolRef = ps.poolRef
	if ps.isTarget && e.Address != nil {
		// The record, with the finalizer that makes it valid (R1: the record comes first): from now on the address is
		// this claim's.
		metav1.SetMetaDataAnnotation(&out.ObjectMeta, v1alpha1.AddressAnnotation, e.Address.Spec.Address)
		controllerutil.AddFinalizer(out, v1alpha1.ClaimFinalizer)
	}
	return out
}

// newAddress returns the IPAddress of an entry in the form of this side, for its claim there.
func (ps poolSide) newAddress(e Entry, claim *ipamv1.IPAddressClaim) *ipamv1.IPAddress {
	out := &ipamv1.IPAddress{ObjectMeta: recreatableMeta(e.Address.ObjectMeta), Spec: *e.Address.Spec.DeepCopy()}
	out.Spec.PoolRef = ps.poolRef
	out.OwnerReferences = ps.newOwnerRefs(e, claim)
	if ps.isTarget {
		controllerutil.AddFinalizer(out, v1alpha1.AddressFinalizer)
	}
	return out
}

// newOwnerRefs returns the owner references of the IPAddress, with the UIDs of the claim and the pool of this side.
func (ps poolSide) newOwnerRefs(e Entry, claim *ipamv1.IPAddressClaim) (out []metav1.OwnerReference) {
	for _, ref := range e.Address.OwnerReferences {
		switch {
		case ref.Kind == "IPAddressClaim" && ref.Name == claim.Name:
			ref.UID = claim.UID
		case ref.Kind == e.Address.Spec.PoolRef.Kind:
			block, controller := ref.BlockOwnerDeletion, ref.Controller
			ref = ps.ownerRef
			ref.BlockOwnerDeletion, ref.Controller = block, controller
		}
		out = append(out, ref)
	}
	return out
}

// recreatableMeta returns the part of an object's metadata with which it can be created again.
func recreatableMeta(m metav1.ObjectMeta) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Namespace: m.Namespace, Name: m.Name, GenerateName: m.GenerateName, Labels: maps.Clone(m.Labels), Annotations: maps.Clone(m.Annotations),
		OwnerReferences: slices.Clone(m.OwnerReferences), Finalizers: slices.Clone(m.Finalizers),
	}
}
