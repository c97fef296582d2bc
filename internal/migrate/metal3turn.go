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

// Metal3Entry is an IPClaim and its IPAddress, as they were found.
type Metal3Entry struct {
	Claim   *m3ipamv1.IPClaim   `json:"claim"`
	Address *m3ipamv1.IPAddress `json:"address"`
}

// get reads what there is of it: nil for what is gone.
func (e *Metal3Entry) get(ctx context.Context, from client.Reader) (*m3ipamv1.IPClaim, *m3ipamv1.IPAddress, error) {
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
		return nil, nil, fmt.Errorf("IPClaim %s or its IPAddress %s was created anew since the import began: delete it", client.ObjectKeyFromObject(e.Claim), e.Address.Name)
	}
	return claim, address, nil
}

// owns reports whether somebody is an owner of what the import has made of it: the IPClaim, or, where somebody deleted that, the
// Metal3Data of the machine.
func (e *Metal3Entry) owns(r metav1.OwnerReference) bool {
	return r.UID == e.Claim.UID || slices.ContainsFunc(e.Claim.OwnerReferences, func(of metav1.OwnerReference) bool {
		return of.Kind == "Metal3Data" && of.UID == r.UID
	})
}

func (o metal3Pool) turn(ctx context.Context, t *turner, e Entry, released bool) error {
	claim, address, err := e.Metal3.get(ctx, t.client)
	switch {
	case err != nil:
		return err
	case claim == nil:
		return o.gone(ctx, t, e, address)
	case claim.DeletionTimestamp != nil && slices.Equal(claim.Finalizers, []string{m3ipamv1.IPClaimFinalizer}):
		if err := without(ctx, t.client, claim, m3ipamv1.IPClaimFinalizer); err != nil {
			return err
		}
		return o.gone(ctx, t, e, address) // its provider would let it go, were it there
	case t.to.ours:
		return o.forward(ctx, t, e, released, claim, address)
	}
	return o.backward(ctx, t, e, claim, address)
}

// forward gives an IPClaim a claim beside it. Its IPAddress has the address until our claim has a record of it. When Metal3's
// IPAM has no finalizer there any more, both go as soon as CAPM3 lets go of them, and ours with them.
func (metal3Pool) forward(ctx context.Context, t *turner, e Entry, released bool, claim *m3ipamv1.IPClaim, address *m3ipamv1.IPAddress) error {
	if _, _, err := ours(ctx, t, e, t.to); err != nil {
		return err
	}
	if err := t.turn(ctx, e, released); err != nil {
		return err
	}
	if address != nil && address.DeletionTimestamp == nil { // CAPM3 finds one that is being deleted as long as it is there
		if err := without(ctx, t.client, address, m3ipamv1.IPAddressFinalizer); err != nil {
			return err
		}
	}
	return without(ctx, t.client, claim, m3ipamv1.IPClaimFinalizer)
}

// leaveWaiting takes Metal3's finalizer off IPClaims that wait, as nobody else does when there is no IPPool. Metal3's IPAM puts
// it on again with an address.
func (o metal3Pool) leaveWaiting(ctx context.Context, m *Move) error {
	list := &m3ipamv1.IPClaimList{}
	if err := m.Client.List(ctx, list, client.InNamespace(o.Namespace)); err != nil {
		return fmt.Errorf("listing the IPClaims of Metal3: %w", err)
	}
	for i := range list.Items {
		if c := &list.Items[i]; c.Spec.Pool.Name != o.Name || c.Status.Address != nil {
			continue
		}
		key := client.ObjectKeyFromObject(&list.Items[i])
		err := retry.RetryOnConflict(patience, func() error {
			claim := &m3ipamv1.IPClaim{}
			if err := m.Client.Get(ctx, key, claim); err != nil {
				return client.IgnoreNotFound(err)
			}
			return without(ctx, m.Client, claim, m3ipamv1.IPClaimFinalizer)
		})
		if err != nil {
			return err
		}
		m.Say("%s", waitsOn(key))
	}
	return nil
}

// backward gives the finalizers back, and takes ours away. What is being deleted cannot get any: it goes with its machine.
func (metal3Pool) backward(ctx context.Context, t *turner, e Entry, claim *m3ipamv1.IPClaim, address *m3ipamv1.IPAddress) error {
	if claim.DeletionTimestamp == nil {
		if err := likeBefore(ctx, t.client, claim, claim.OwnerReferences, e.Metal3.Claim.Finalizers); err != nil {
			return err
		}
		if address != nil {
			if err := likeBefore(ctx, t.client, address, address.OwnerReferences, e.Metal3.Address.Finalizers); err != nil {
				return err
			}
		}
	}
	return removeOurs(ctx, t, e, t.from)
}

// gone takes away what is left of an entry whose IPClaim went meanwhile: its machine is gone.
func (metal3Pool) gone(ctx context.Context, t *turner, e Entry, address *m3ipamv1.IPAddress) error {
	if err := t.release(ctx, e.key()); err != nil {
		return err
	}
	side := t.from
	if t.to.ours {
		side = t.to
	}
	if err := removeOurs(ctx, t, e, side); err != nil || address == nil {
		return err
	}
	return remove(ctx, t.client, address)
}

// removeOurs removes the claim of our pool and its IPAddress.
func removeOurs(ctx context.Context, t *turner, e Entry, s side) error {
	claim, address, err := ours(ctx, t, e, s)
	if err != nil {
		return err
	}
	if address != nil {
		if err := remove(ctx, t.client, address); err != nil {
			return err
		}
	}
	if claim != nil {
		return remove(ctx, t.client, claim)
	}
	return nil
}

// ours reads what the import has made of an entry. A machine that came later may have a claim of the same name, and the
// address that the former one gave back.
func ours(ctx context.Context, t *turner, e Entry, s side) (*ipamv1.IPAddressClaim, *ipamv1.IPAddress, error) {
	claim, address, err := t.look(ctx, e)
	if err != nil {
		return nil, nil, err
	}
	if claim != nil && claim.Spec.PoolRef != s.ref || address != nil && address.Spec.PoolRef != s.ref {
		return nil, nil, fmt.Errorf("claim %s or its IPAddress names %s %s: delete it first", e.key(), t.from.ref.Kind, t.from.ref.Name)
	}
	if claim != nil && !slices.ContainsFunc(claim.OwnerReferences, e.Metal3.owns) {
		return nil, nil, fmt.Errorf("claim %s is not of the import: it came later; delete it first", e.key())
	}
	return claim, address, nil
}

// without takes a finalizer off an object.
func without(ctx context.Context, c client.Client, obj client.Object, finalizer string) error {
	left := slices.DeleteFunc(slices.Clone(obj.GetFinalizers()), func(f string) bool { return f == finalizer })
	if len(left) == len(obj.GetFinalizers()) {
		return nil
	}
	if err := client.IgnoreNotFound(change(ctx, c, obj, func() { obj.SetFinalizers(left) })); err != nil {
		return fmt.Errorf("taking the finalizer off %s %s: %w", kindOf(obj), client.ObjectKeyFromObject(obj), err)
	}
	return nil
}
