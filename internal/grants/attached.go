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

// ClaimantOf is the UID of the claimant that an attached object is of. The object names it, unless the garbage collector has
// taken that reference off, as it does where a claimant is deleted in the foreground and the pool owns the object too. It is
// still the claimant's of its name, which is being deleted and has what it shows on record.
func (m *Memory) ClaimantOf(a *Attached) types.UID {
	if a.ClaimantUID != "" || a.ByHand {
		return a.ClaimantUID
	}
	if c := m.ByName[a.Key()]; c != nil && c.Deleting && c.HasRecord() && a.IP.IsValid() && c.Record.From() == a.IP {
		return c.Owner.UID
	}
	return ""
}

// ascribe has an attached object that is remembered be its claimant's, which was seen to be deleted after it.
func (m *Memory) ascribe(a *Attached) *Attached {
	uid := m.ClaimantOf(a)
	if uid == a.ClaimantUID {
		return a
	}
	its := *a // jobs read what is remembered
	its.ClaimantUID = uid
	m.attach(&its)
	return &its
}

// attach remembers an attached object, and states what it shows.
func (m *Memory) attach(a *Attached) {
	m.Attached[a.Key()] = a
	if a.IP.IsValid() {
		m.Ledger.Add(ledger.Fact{Key: ledger.Key{Source: ledger.Object, UID: a.UID}, Owner: a.owner(), Range: m.Ledger.Unit(a.IP)})
	}
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
