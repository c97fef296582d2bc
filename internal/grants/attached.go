package grants

import (
	"net/netip"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/ending"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/ledger"
)

// Attached is what the allocator remembers of an object that shows what a claimant was granted, and has its name. Once
// observed it never changes: jobs read it without the lock.
type Attached struct {
	// Kind is that of the claimant.
	Kind            Kind
	Namespace, Name string
	UID             types.UID
	Version         string
	ClaimantUID     types.UID
	// ip is its address, or the first of its prefix: invalid where the object's cannot be parsed. One bad object
	// concerns only itself.
	IP netip.Addr
	// Others are its finalizers but ours.
	Others []string
	// Protected: our finalizer is on it.
	Protected bool
	Deleting  bool
	moved     bool
	// ByHand: nobody that we know has made it. It names neither a claimant nor a pool as its owner.
	ByHand bool
	// Mirrored: it names the pool of the in-cluster provider that its pool mirrors.
	Mirrored bool
	// Created is when it was made, by the clock of the API server, in Unix time.
	Created int64
	// Own is what only its kind remembers.
	Own any
}

// AttachedOf returns what is remembered of an object that is attached to claimants of a kind.
func AttachedOf(k Kind, o Object, own any) *Attached {
	out := &Attached{
		Kind:      k,
		Namespace: Intern(o.GetNamespace()),
		Name:      o.GetName(),
		UID:       o.GetUID(),
		Version:   o.GetResourceVersion(),
		Deleting:  o.GetDeletionTimestamp() != nil,
		Created:   o.GetCreationTimestamp().Unix(),
		moved:     ending.IsMoved(o),
		Own:       own,
	}
	out.Protected, out.Others = split(o.GetFinalizers(), k.Traits().Attaches.Finalizer())
	return out
}

// Key names the object.
func (a *Attached) Key() types.NamespacedName {
	return types.NamespacedName{Namespace: a.Namespace, Name: a.Name}
}

func (a *Attached) owner() ledger.Owner {
	return ledger.Owner{Kind: a.Kind.Traits().Name, Namespace: a.Namespace, Name: a.Name, UID: a.ClaimantUID}
}

// Object is an empty object with the kind and the name of an attached one.
func (a *Attached) Object() Object {
	return Named(a.Kind.Traits().Attaches.Object(), a.Namespace, a.Name)
}

// Text names an attached object for a person.
func (a *Attached) Text() string { return a.Kind.Traits().Attaches.Kind() + " " + a.Key().String() }

// Subject is the claimant of an attached object, or the object where it has none.
func (a *Attached) Subject() Object {
	if a.ClaimantUID == "" {
		out := a.Object()
		out.SetUID(a.UID)
		return out
	}
	out := Named(a.Kind.Object(), a.Namespace, a.Name)
	out.SetUID(a.ClaimantUID)
	return out
}

// KeptBy names the finalizers of others that keep a deleted IPAddress, to end a sentence.
func (a *Attached) KeptBy() string {
	if !a.Deleting || len(a.Others) == 0 {
		return ""
	}
	return "; finalizers of other controllers keep it, which these have to remove: " + strings.Join(a.Others, ", ")
}
