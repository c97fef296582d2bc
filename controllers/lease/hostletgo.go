package lease

import (
	"context"
	"fmt"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/exact"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/hostlb/record"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/leaseports"
)

// stillOnHost says what keeps a lease that is being deleted and that hosts show; the zero verdict: nothing any more, and its locks
// are gone.
//
// A host takes the lock first, and then reads the lease, before it adds the address. Here the lease was read first, as one that
// is being deleted, and the lock after it, by a live read: so one of the two sees the other.
func (l *look) stillOnHost(ctx context.Context, o *v1alpha1.IPLease) (leaseports.Verdict, error) {
	names, err := l.locksOf(ctx, o)
	if err != nil {
		return leaseports.Verdict{}, err
	}
	for _, name := range names {
		lock := &coordinationv1.Lease{}
		err := l.Live.Get(ctx, client.ObjectKey{Namespace: record.Namespace, Name: name}, lock)
		if apierrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			return leaseports.Verdict{}, fmt.Errorf("reading the lock of the address of IPLease %s/%s: %w", o.Namespace, o.Name, err)
		}
		is := l.onHost(o, lock)
		if is.Silent || is.Left != "" {
			if is.Reached, err = l.reached(ctx, o, is.Holder); err != nil {
				return leaseports.Verdict{}, err
			}
		}
		if why := is.Draining(); why != (leaseports.Verdict{}) {
			return why, nil
		}
		// Whoever takes it meanwhile keeps it.
		err = exact.Delete(ctx, l.Client, lock)
		if client.IgnoreNotFound(err) != nil {
			return leaseports.Verdict{}, fmt.Errorf("deleting the lock of the address of IPLease %s/%s, which nobody shows any more: %w", o.Namespace, o.Name, err)
		}
	}
	return leaseports.Verdict{}, nil
}

// locksOf are the names of the locks that a lease may be shown by: that of its address, and where its pool was in another network
// before, that of then.
func (l *look) locksOf(ctx context.Context, o *v1alpha1.IPLease) ([]string, error) {
	out := []string{lockOf(o)}
	all := &coordinationv1.LeaseList{}
	key := client.MatchingFields{lockIndex: record.LockName(addressOf(o), "")}
	if err := l.Client.List(ctx, all, client.InNamespace(record.Namespace), key, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("reading the locks of the address of IPLease %s/%s: %w", o.Namespace, o.Name, err)
	}
	for i := range all.Items {
		is, _, err := record.LockOf(&all.Items[i])
		if err == nil && all.Items[i].Name != out[0] && is.Report != nil && is.Report.Lease == o.UID {
			out = append(out, all.Items[i].Name)
		}
	}
	return out, nil
}

// reached reports whether a host which is not silent reaches the address of a lease, beside one.
func (l *look) reached(ctx context.Context, o *v1alpha1.IPLease, beside string) (bool, error) {
	all := &coordinationv1.LeaseList{}
	key := client.MatchingFields{lockIndex: heartbeatsValue}
	if err := l.Client.List(ctx, all, client.InNamespace(record.Namespace), key, client.UnsafeDisableDeepCopy); err != nil {
		return false, fmt.Errorf("reading the heartbeats of hosts: %w", err)
	}
	for i := range all.Items {
		h, _, err := record.HostOf(&all.Items[i])
		if err != nil {
			log.FromContext(ctx).Error(err, "a host is not asked whether it reaches an address")
			continue
		}
		if h.Name != beside && h.Network == o.Status.Network && h.Reaches(addressOf(o)) && l.heard.lives(h.Name, l.now) != silent {
			return true, nil
		}
	}
	return false, nil
}
