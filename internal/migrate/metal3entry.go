package migrate

import (
	"context"
	"fmt"
	"slices"

	m3ipamv1 "github.com/metal3-io/ip-address-manager/api/v1alpha1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/retry"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Metal3Entry is an IPClaim and its IPAddress, as they were before the import.
type Metal3Entry struct {
	Claim   *m3ipamv1.IPClaim   `json:"claim"`
	Address *m3ipamv1.IPAddress `json:"address"`
}

// getLive reads both objects; nil for one that is gone. It returns an error if one of them was created again since.
func (e *Metal3Entry) getLive(ctx context.Context, from client.Reader) (*m3ipamv1.IPClaim, *m3ipamv1.IPAddress, error) {
	claim, address := &m3ipamv1.IPClaim{}, &m3ipamv1.IPAddress{}
	if err := from.Get(ctx, client.ObjectKeyFromObject(e.Claim), claim); apierrors.IsNotFound(err) {
		claim = nil
	} else if err != nil {
		return nil, nil, fmt.Errorf("reading IPClaim %s: %w", client.ObjectKeyFromObject(e.Claim), err)
	}
	if err := from.Get(ctx, client.ObjectKeyFromObject(e.Address), address); apierrors.IsNotFound(err) {
		address = nil
	} else if err != nil {
		return nil, nil, fmt.Errorf("reading IPAddress %s of Metal3: %w", client.ObjectKeyFromObject(e.Address), err)
	}
	if claim != nil && claim.UID != e.Claim.UID || address != nil && address.UID != e.Address.UID {
		return nil, nil, fmt.Errorf("IPClaim %s or its IPAddress %s was recreated since the import began: delete it", client.ObjectKeyFromObject(e.Claim), e.Address.Name)
	}
	return claim, address, nil
}

// isImportOwner reports whether an owner reference names an owner of the claim that the import created for this entry:
// the IPClaim, or, where a user has deleted that, the Metal3Data of the machine.
func (e *Metal3Entry) isImportOwner(r metav1.OwnerReference) bool {
	return r.UID == e.Claim.UID || slices.ContainsFunc(e.Claim.OwnerReferences, func(of metav1.OwnerReference) bool {
		return of.Kind == "Metal3Data" && of.UID == r.UID
	})
}

func (mp metal3Pool) moveEntry(ctx context.Context, t *entryMover, e Entry, released bool) error {
	claim, address, err := e.Metal3.getLive(ctx, t.client)
	switch {
	case err != nil:
		return err
	case claim == nil:
		return mp.cleanUpReleased(ctx, t, e, address)
	case claim.DeletionTimestamp != nil && slices.Equal(claim.Finalizers, []string{m3ipamv1.IPClaimFinalizer}):
		if err := removeFinalizer(ctx, t.client, claim, m3ipamv1.IPClaimFinalizer); err != nil {
			return err
		}
		return mp.cleanUpReleased(ctx, t, e, address) // its provider would release it, if it ran
	case t.to.isTarget:
		return mp.importEntry(ctx, t, e, released, claim, address)
	}
	return mp.rollbackEntry(ctx, t, e, claim, address)
}

// importEntry creates a claim of Cluster API beside an IPClaim. The IPAddress of Metal3 has the address until our claim
// has a record of it. Once Metal3's IPAM has no finalizer on them any more, both are gone as soon as CAPM3 releases
// them, and our claim with them.
func (metal3Pool) importEntry(ctx context.Context, t *entryMover, e Entry, released bool, claim *m3ipamv1.IPClaim, address *m3ipamv1.IPAddress) error {
	if _, _, err := getImported(ctx, t, e, t.to); err != nil {
		return err
	}
	if err := t.moveEntry(ctx, e, released); err != nil {
		return err
	}
	if address != nil && address.DeletionTimestamp == nil { // CAPM3 uses it until it is gone
		if err := removeFinalizer(ctx, t.client, address, m3ipamv1.IPAddressFinalizer); err != nil {
			return err
		}
	}
	return removeFinalizer(ctx, t.client, claim, m3ipamv1.IPClaimFinalizer)
}

// releaseWaiting removes Metal3's finalizer from IPClaims that wait: without an IPPool nothing else does. Metal3's IPAM
// adds it again with an address.
func (mp metal3Pool) releaseWaiting(ctx context.Context, m *Import) error {
	list := &m3ipamv1.IPClaimList{}
	if err := m.Client.List(ctx, list, client.InNamespace(mp.Namespace)); err != nil {
		return fmt.Errorf("listing the IPClaims of Metal3: %w", err)
	}
	for i := range list.Items {
		if c := &list.Items[i]; c.Spec.Pool.Name != mp.Name || c.Status.Address != nil {
			continue
		}
		key := client.ObjectKeyFromObject(&list.Items[i])
		err := retry.RetryOnConflict(conflictBackoff, func() error {
			claim := &m3ipamv1.IPClaim{}
			if err := m.Client.Get(ctx, key, claim); err != nil {
				return client.IgnoreNotFound(err)
			}
			return removeFinalizer(ctx, m.Client, claim, m3ipamv1.IPClaimFinalizer)
		})
		if err != nil {
			return err
		}
		m.Reportf("%s", describeWaitingClaim(key))
	}
	return nil
}

// rollbackEntry restores the finalizers of the IPClaim and its IPAddress, and deletes our claim. An object that is
// being deleted cannot get finalizers: it is gone together with its machine.
func (metal3Pool) rollbackEntry(ctx context.Context, t *entryMover, e Entry, claim *m3ipamv1.IPClaim, address *m3ipamv1.IPAddress) error {
	if claim.DeletionTimestamp == nil {
		if err := ensureOwnersAndFinalizers(ctx, t.client, claim, claim.OwnerReferences, e.Metal3.Claim.Finalizers); err != nil {
			return err
		}
		if address != nil {
			if err := ensureOwnersAndFinalizers(ctx, t.client, address, address.OwnerReferences, e.Metal3.Address.Finalizers); err != nil {
				return err
			}
		}
	}
	return deleteImported(ctx, t, e, t.from)
}

// cleanUpReleased deletes the remaining objects of an entry whose IPClaim is gone, and with it its machine.
func (metal3Pool) cleanUpReleased(ctx context.Context, t *entryMover, e Entry, address *m3ipamv1.IPAddress) error {
	if err := t.recordRelease(ctx, e.key()); err != nil {
		return err
	}
	side := t.from
	if t.to.isTarget {
		side = t.to
	}
	if err := deleteImported(ctx, t, e, side); err != nil || address == nil {
		return err
	}
	return deleteWithFinalizers(ctx, t.client, address)
}

// deleteImported deletes the claim of our pool and its IPAddress.
func deleteImported(ctx context.Context, t *entryMover, e Entry, s poolSide) error {
	claim, address, err := getImported(ctx, t, e, s)
	if err != nil {
		return err
	}
	if address != nil {
		if err := deleteWithFinalizers(ctx, t.client, address); err != nil {
			return err
		}
	}
	if claim != nil {
		return deleteWithFinalizers(ctx, t.client, claim)
	}
	return nil
}

// getImported reads the claim and the IPAddress that the import created for an entry. It returns an error where they
// are not from the import: a later machine may have a claim of the same name, and the address that was released before.
func getImported(ctx context.Context, t *entryMover, e Entry, s poolSide) (*ipamv1.IPAddressClaim, *ipamv1.IPAddress, error) {
	claim, address, err := t.getLive(ctx, e)
	if err != nil {
		return nil, nil, err
	}
	if claim != nil && claim.Spec.PoolRef != s.poolRef || address != nil && address.Spec.PoolRef != s.poolRef {
		return nil, nil, fmt.Errorf("claim %s or its IPAddress names %s %s: delete it first", e.key(), t.from.poolRef.Kind, t.from.poolRef.Name)
	}
	if claim != nil && !slices.ContainsFunc(claim.OwnerReferences, e.Metal3.isImportOwner) {
		return nil, nil, fmt.Errorf("claim %s is not of the import: it came later; delete it first", e.key())
	}
	return claim, address, nil
}

// removeFinalizer removes a finalizer from an object.
func removeFinalizer(ctx context.Context, c client.Client, obj client.Object, finalizer string) error {
	left := slices.DeleteFunc(slices.Clone(obj.GetFinalizers()), func(f string) bool { return f == finalizer })
	if len(left) == len(obj.GetFinalizers()) {
		return nil
	}
	if err := client.IgnoreNotFound(patchObject(ctx, c, obj, func() { obj.SetFinalizers(left) })); err != nil {
		return fmt.Errorf("taking the finalizer off %s %s: %w", kindName(obj), client.ObjectKeyFromObject(obj), err)
	}
	return nil
}
