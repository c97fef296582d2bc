package lease

import (
	"context"
	"errors"
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

// hostLocks reads the locks and the heartbeats of hosts, which show which host has the address of a lease. It writes
// nothing but that it deletes the locks of leases that are being deleted.
type hostLocks struct {
	heartbeats *heartbeats
	schedule   *schedule
	api        *api
}

// readStatus returns what the cache shows of the host that has the address of a lease.
func (hl *hostLocks) readStatus(ctx context.Context, o *v1alpha1.IPLease) (*leaseports.HostStatus, error) {
	lock := &coordinationv1.Lease{}
	err := hl.api.Client.Get(ctx, client.ObjectKey{Namespace: record.Namespace, Name: lockName(o)}, lock)
	if apierrors.IsNotFound(err) {
		lock, err = nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading the lock of the address of IPLease %s/%s: %w", o.Namespace, o.Name, err)
	}
	status := hl.newHostStatus(o, lock)
	if status.Silent {
		status.ReachableByOther, err = hl.isReachableByOther(ctx, o, status.Holder)
	}
	return status, err
}

// releaseLocks deletes the locks of a lease that is being deleted and that hosts show. It returns what keeps the lease;
// the zero Reason if nothing does any more, and its locks are gone.
//
// A host takes the lock first, and reads the lease after that, before it adds the address. Here the lease was read
// first, already being deleted, and the lock is read after it, by a live read: so one of the two sees the other.
func (hl *hostLocks) releaseLocks(ctx context.Context, o *v1alpha1.IPLease) (leaseports.Reason, error) {
	names, err := hl.lockNamesForLease(ctx, o)
	if err != nil {
		return leaseports.Reason{}, err
	}
	for _, name := range names {
		lock := &coordinationv1.Lease{}
		err := hl.api.Live.Get(ctx, client.ObjectKey{Namespace: record.Namespace, Name: name}, lock)
		if apierrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			return leaseports.Reason{}, fmt.Errorf("reading the lock of the address of IPLease %s/%s: %w", o.Namespace, o.Name, err)
		}
		status := hl.newHostStatus(o, lock)
		if status.Silent || status.PreviousHolder != "" {
			if status.ReachableByOther, err = hl.isReachableByOther(ctx, o, status.Holder); err != nil {
				return leaseports.Reason{}, err
			}
		}
		if why := status.DrainingReason(); why != (leaseports.Reason{}) {
			return why, nil
		}
		// A host that takes the lock meanwhile keeps it.
		err = exact.DeleteWithPreconditions(ctx, hl.api.Client, lock)
		if client.IgnoreNotFound(err) != nil {
			return leaseports.Reason{}, fmt.Errorf("deleting the released lock of the address of IPLease %s/%s: %w", o.Namespace, o.Name, err)
		}
	}
	return leaseports.Reason{}, nil
}

// lockNamesForLease returns the names of the locks that may be for a lease: that of its address, and, if its pool was
// in another network before, that of the earlier network.
func (hl *hostLocks) lockNamesForLease(ctx context.Context, o *v1alpha1.IPLease) ([]string, error) {
	out := []string{lockName(o)}
	all := &coordinationv1.LeaseList{}
	key := client.MatchingFields{lockIndex: record.LockName(leaseAddress(o), "")}
	if err := hl.api.Client.List(ctx, all, client.InNamespace(record.Namespace), key, client.UnsafeDisableDeepCopy); err != nil {
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

// lockName returns the name of the lock of the address of a lease.
func lockName(o *v1alpha1.IPLease) string { return record.LockName(leaseAddress(o), o.Status.Network) }

// newHostStatus returns what the lock of the address of a lease shows; lock is nil if there is none.
func (hl *hostLocks) newHostStatus(o *v1alpha1.IPLease, lock *coordinationv1.Lease) *leaseports.HostStatus {
	out := &leaseports.HostStatus{HasLock: lock != nil}
	if lock == nil {
		return out
	}
	parsed, holder, err := record.ParseLock(lock)
	if err != nil {
		if cause := errors.Unwrap(err); cause != nil {
			err = cause // the wrapping text is for hosts
		}
		out.LockProblem = fmt.Sprintf("the lock of the address, Lease %s/%s, cannot be read: %v", lock.Namespace, lock.Name, err)
		return out
	}
	out.Holder, out.PreviousHolder = holder, parsed.ReleasedBy
	if holder != "" {
		life := hl.heartbeats.livenessForHost(holder, hl.schedule.now)
		out.Alive, out.Silent = life == livenessAlive, life == livenessSilent
	}
	if parsed.Report != nil && parsed.Report.LeaseUID == o.UID {
		out.Report = parsed.Report
	}
	return out
}

// isReachableByOther reports whether a host other than beside, which is not silent, reaches the address of a lease.
func (hl *hostLocks) isReachableByOther(ctx context.Context, o *v1alpha1.IPLease, beside string) (bool, error) {
	all := &coordinationv1.LeaseList{}
	key := client.MatchingFields{lockIndex: heartbeatIndexValue}
	if err := hl.api.Client.List(ctx, all, client.InNamespace(record.Namespace), key, client.UnsafeDisableDeepCopy); err != nil {
		return false, fmt.Errorf("reading the heartbeats of hosts: %w", err)
	}
	for i := range all.Items {
		h, _, err := record.ParseHeartbeat(&all.Items[i])
		if err != nil {
			log.FromContext(ctx).Error(err, "Failed to parse the heartbeat of a host: it does not count as one that reaches the address")
			continue
		}
		if h.Name != beside && h.Network == o.Status.Network && h.CanReach(leaseAddress(o)) && hl.heartbeats.livenessForHost(h.Name, hl.schedule.now) != livenessSilent {
			return true, nil
		}
	}
	return false, nil
}
