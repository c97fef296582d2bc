package grants

import (
	"net/netip"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/ending"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/ledger"
)

// Address is the state that the allocator keeps of an address object. An address object, for example an IPAddress,
// publishes the grant of a claimant and has the name of that claimant. An Address never changes once it was observed:
// jobs read it without the lock of the pool.
type Address struct {
	// Kind is the kind of the claimant.
	Kind            ClaimantKind
	Namespace, Name string
	UID             types.UID
	ResourceVersion string
	ClaimantUID     types.UID
	// IP is the address of the object, or the first address of its prefix. It is not valid if the object has no
	// address that can be parsed: one bad object affects only itself.
	IP netip.Addr
	// OtherFinalizers are the finalizers of the object except ours.
	OtherFinalizers []string
	// HasFinalizer reports whether our finalizer is on the object.
	HasFinalizer bool
	Deleting     bool
	moved        bool
	// CreatedManually reports whether no known controller created the object: it names neither a claimant nor a pool
	// as its owner.
	CreatedManually bool
	// UsesMirroredPool reports whether the object names the pool of the in-cluster provider that its pool mirrors.
	UsesMirroredPool bool
	// CreatedUnix is the creation time of the object in Unix time, by the clock of the API server.
	CreatedUnix int64
	// KindData is the state that only the kind of the claimant reads.
	KindData any
}

// NewAddress returns the state of an address object of the claimants of a kind. own is the state that only that kind
// reads.
func NewAddress(k ClaimantKind, o Object, own any) *Address {
	out := &Address{
		Kind:            k,
		Namespace:       InternString(o.GetNamespace()),
		Name:            o.GetName(),
		UID:             o.GetUID(),
		ResourceVersion: o.GetResourceVersion(),
		Deleting:        o.GetDeletionTimestamp() != nil,
		CreatedUnix:     o.GetCreationTimestamp().Unix(),
		moved:           ending.IsMoved(o),
		KindData:        own,
	}
	out.HasFinalizer, out.OtherFinalizers = splitFinalizers(o.GetFinalizers(), k.Traits().AddressKind.Finalizer())
	return out
}

// Key returns the namespace and the name of the object.
func (a *Address) Key() types.NamespacedName {
	return types.NamespacedName{Namespace: a.Namespace, Name: a.Name}
}

func (a *Address) ledgerOwner() ledger.Owner {
	return ledger.Owner{Kind: a.Kind.Traits().Name, Namespace: a.Namespace, Name: a.Name, UID: a.ClaimantUID}
}

// NewObject returns an empty object of the kind and the name of the address object.
func (a *Address) NewObject() Object {
	return WithName(a.Kind.Traits().AddressKind.NewObject(), a.Namespace, a.Name)
}

// DisplayName returns the kind, the namespace and the name of the address object for messages.
func (a *Address) DisplayName() string {
	return a.Kind.Traits().AddressKind.KindName() + " " + a.Key().String()
}

// EventObject returns the object that events refer to: the claimant, or the address object if it has no claimant.
func (a *Address) EventObject() Object {
	if a.ClaimantUID == "" {
		out := a.NewObject()
		out.SetUID(a.UID)
		return out
	}
	out := WithName(a.Kind.NewObject(), a.Namespace, a.Name)
	out.SetUID(a.ClaimantUID)
	return out
}

// FinalizerMessage returns the end of a sentence that names the finalizers of other controllers that keep a deleted
// address object. It is empty if there are none.
func (a *Address) FinalizerMessage() string {
	if !a.Deleting || len(a.OtherFinalizers) == 0 {
		return ""
	}
	return "; finalizers of other controllers keep it, which these have to remove: " + strings.Join(a.OtherFinalizers, ", ")
}
