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

// hostDrainingReason returns what keeps a lease that is being deleted and that hosts show; the zero Reason if nothing
// does any more, and its locks are gone.
//
// A host takes the lock first, and reads the lease after that, before it adds the address. Here the lease was read
// first, already being deleted, and the lock is read after it, by a live read: so one of the two sees the other.
func (l *scope) hostDrainingReason(ctx context.Context, o *v1alpha1.IPLease) (leaseports.Reason, error) {
	names, err := l.lockNamesForLease(ctx, o)
	if err != nil {
		return leaseports.Reason{}, err
	}
	for _, name := range names {
		lock := &coordinationv1.Lease{}
		err := l.Live.Get(ctx, client.ObjectKey{Namespace: record.Namespace, Name: name}, lock)
		if apierrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			return leaseports.Reason{}, fmt.Errorf("reading the lock of the address of IPLease %s/%s: %w", o.Namespace, o.Name, err)
		}
		status := l.newHostStatus(o, lock)
		if status.Silent || status.PreviousHolder != "" {
			if status.ReachableByOther, err = l.isReachableByOther(ctx, o, status.Holder); err != nil {
				return leaseports.Reason{}, err
			}
		}
		if why := status.DrainingReason(); why != (leaseports.Reason{}) {
			return why, nil
		}
		// A host that takes the lock meanwhile keeps it.
		err = exact.DeleteWithPreconditions(ctx, l.Client, lock)
		if client.IgnoreNotFound(err) != nil {
			return leaseports.Reason{}, fmt.Errorf("deleting the lock of the address of IPLease %s/%s, which nobody shows any more: %w", o.Namespace, o.Name, err)
		}
	}
	return leaseports.Reason{}, nil
}

// lockNamesForLease returns the names of the locks that may be for a lease: that of its address, and, if its pool was
// in another network before, that of the earlier network.
func (l *scope) lockNamesForLease(ctx context.Context, o *v1alpha1.IPLease) ([]string, error) {
	out := []string{lockName(o)}
	all := &coordinationv1.LeaseList{}
	key := client.MatchingFields{lockIndex: record.LockName(leaseAddress(o), "")}
	if err := l.Client.List(ctx, all, client.InNamespace(record.Namespace), key, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("reading the locks of the address of IPLease %s/%s: %w", o.Namespace, o.Name, err)
	}
	for i := range all.Items {
		parsed, _, err := record.ParseLock(&all.Items[i])
		if err == nil && all.Items[i].Name != out[0] && parsed.Report != nil && parsed.Report.LeaseUID == o.UID {
			out = append(out, all.Items[i].Name)
		}
	}
	return out, nil
}

// isReachableByOther reports whether a host other than beside, which is not silent, reaches the address of a lease.
func (l *scope) isReachableByOther(ctx context.Context, o *v1alpha1.IPLease, beside string) (bool, error) {
	all := &coordinationv1.LeaseList{}
	key := client.MatchingFields{lockIndex: heartbeatIndexValue}
	if err := l.Client.List(ctx, all, client.InNamespace(record.Namespace), key, client.UnsafeDisableDeepCopy); err != nil {
		return false, fmt.Errorf("reading the heartbeats of hosts: %w", err)
	}
	for i := range all.Items {
		h, _, err := record.ParseHeartbeat(&all.Items[i])
		if err != nil {
			log.FromContext(ctx).Error(err, "Failed to parse the heartbeat of a host: it does not count as one that reaches the address")
			continue
		}
		if h.Name != beside && h.Network == o.Status.Network && h.CanReach(leaseAddress(o)) && l.heartbeats.livenessForHost(h.Name, l.now) != livenessSilent {
			return true, nil
		}
	}
	return false, nil
}
