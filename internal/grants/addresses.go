package grants

import (
	"net/netip"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/ending"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/ledger"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/term"
)

// Addresses are the known IPAddresses of the pool, by name. Those without a known claim, which are not being moved,
// are the orphans. An Address does not change: a newer version replaces it.
type Addresses struct {
	ByName map[types.NamespacedName]*Address
	// Orphans are the IPAddresses without a known claim.
	Orphans map[types.NamespacedName]*Orphan

	claimants *Claimants
	space     *Space
}

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

// ClaimantUIDFor returns the UID of the claimant that an address object belongs to, or "" if there is none. The
// object names its claimant, unless the garbage collector has removed that owner reference: it does so when the
// claimant is deleted in the foreground and the pool owns the object as well. The object then still belongs to the
// claimant of its name, if that is being deleted and has the same address on record.
func (as *Addresses) ClaimantUIDFor(a *Address) types.UID {
	if a.ClaimantUID != "" || a.CreatedManually {
		return a.ClaimantUID
	}
	if c := as.claimants.ByName[a.Key()]; c != nil && c.Deleting && c.HasRecord() && a.IP.IsValid() && c.RecordedRange.From() == a.IP {
		return c.Owner.UID
	}
	return ""
}

// assignClaimant assigns an observed address object to the claimant of its name, if the deletion of the claimant was
// observed after the object. It returns the Address that the pool has from then on.
func (as *Addresses) assignClaimant(a *Address) *Address {
	uid := as.ClaimantUIDFor(a)
	if uid == a.ClaimantUID {
		return a
	}
	assigned := *a // jobs read the old one without the lock
	assigned.ClaimantUID = uid
	as.addAddress(&assigned)
	return &assigned
}

// addAddress stores an address object, and adds the fact about its address to the ledger.
func (as *Addresses) addAddress(a *Address) {
	as.ByName[a.Key()] = a
	if a.IP.IsValid() {
		as.space.Ledger.AddFact(ledger.Fact{Key: ledger.Key{Source: ledger.SourceObject, UID: a.UID}, Owner: a.ledgerOwner(), Range: as.space.Ledger.UnitRange(a.IP)})
	}
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

// IsFinalizerHeld reports whether only finalizers of other controllers keep the IPAddress of a deleted claim. There
// is nothing left for this manager to do then, and the watch shows when the IPAddress is gone.
func (as *Addresses) IsFinalizerHeld(c *Claimant) bool {
	addr := as.AddressFor(c)
	return addr != nil && addr.ClaimantUID == c.Owner.UID && addr.Deleting && !addr.HasFinalizer && len(addr.OtherFinalizers) > 0
}

// FirstMirroredPoolUser returns the name of the first claim that names the mirrored pool, or of the first IPAddress
// that names it if no claim does. It is empty if none is known.
func (as *Addresses) FirstMirroredPoolUser() string {
	var names []string
	for _, c := range as.claimants.ByUID {
		if c.UsesMirroredPool {
			names = append(names, c.Kind.Traits().Name+" "+c.Owner.Namespace+"/"+c.Owner.Name)
		}
	}
	if len(names) == 0 {
		for _, a := range as.ByName {
			if a.UsesMirroredPool {
				names = append(names, a.DisplayName())
			}
		}
	}
	if len(names) == 0 {
		return ""
	}
	return slices.Min(names)
}

// AddressFor returns the address object of the name of a claimant, or nil if there is none or the kind of the
// claimant has none.
func (as *Addresses) AddressFor(c *Claimant) *Address {
	if c.Kind.Traits().AddressKind == nil {
		return nil
	}
	return as.ByName[NamespacedNameFromOwner(c.Owner)]
}

// KeepsManualAddress reports whether an address object without owners is left alone. One that a user deletes is
// released, unless the claimant of its name has its address on record.
func (as *Addresses) KeepsManualAddress(s *Orphan) bool {
	if !s.CreatedManually || !s.Deleting {
		return s.CreatedManually
	}
	c := as.claimants.ByName[s.Key()]
	return c != nil && c.RecordedRange.IsValid() && c.RecordedRange.From() == s.IP
}

// MarkNeverPublished marks the address object of a claimant that has ended as never published, if the status of the
// claimant never named it.
func (as *Addresses) MarkNeverPublished(c *Claimant, a *Address) {
	if s := as.Orphans[a.Key()]; s != nil && s.UID == a.UID && a.ClaimantUID == c.Owner.UID && !c.StatusHasAddress {
		s.NeverPublished = true
	}
}

// Orphan is an address object without a known claimant.
type Orphan struct {
	*Address
	// OrphanedSince is when a live read first showed that the object has no claimant.
	OrphanedSince time.Time
	// Conflicts reports whether a claimant of another pool needs the name of the object.
	Conflicts bool
	// NeverPublished reports whether the claim of the object ended before its status named the object, so that no
	// consumer can use the address.
	NeverPublished bool
	// ProvenOrphan reports whether it is proven that the object has no claimant and has to be removed.
	ProvenOrphan bool
	// Retry is the progress of the jobs that remove or adopt the object.
	term.Retry
}

// orphanRetryOffset is added to the failures of an orphan when its retry delay is computed, because orphans are not
// urgent.
const orphanRetryOffset = 4

// RecordAttempt records an attempt to remove or adopt an orphan that is still there: the attempt has failed, or a
// finalizer of another controller keeps the object.
func (o *Orphan) RecordAttempt(err error, now time.Time) {
	o.SetRetryTime(now, orphanRetryOffset, err)
	o.Failures++
}

// MarkConflict records that a claimant of another pool needs the name of the object. It reports whether that is new.
func (o *Orphan) MarkConflict() bool {
	isNew := !o.Conflicts
	o.Conflicts = true
	return isNew
}
