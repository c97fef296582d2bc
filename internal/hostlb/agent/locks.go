//go:build linux

package agent

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/hostlb"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/hostlb/record"
)

// writeLockForOp writes the lock of an address (T2, T5), if the lock is still as it was read.
func (a *Agent) writeLockForOp(ctx context.Context, op *hostlb.Op, lease client.ObjectKey) hostlb.OpResult {
	ctx, cancel := context.WithTimeout(ctx, a.Timing.APITimeout())
	defer cancel()
	if op.Kind == hostlb.AcquireLock && op.DeadHost != "" {
		if err := a.verifyHolderDead(ctx, op); err != nil {
			return hostlb.OpResult{Err: err}
		}
	}
	l, o := record.Lock{Address: op.Address, Network: a.Network}, &coordinationv1.Lease{}
	holder := ""
	switch op.Kind { //nolint:exhaustive // the others write no lock
	case hostlb.AcquireLock:
		holder, l.Report = a.Name, op.Report
		o.Spec.AcquireTime = ptr.To(metav1.NowMicro()) // so that the write changes a lock that is ours already
	case hostlb.WriteReport:
		holder, l.Report = a.Name, op.Report
	case hostlb.ReleaseUnconfirmed:
		l.ReleasedBy = a.Name
	}
	l.WriteLease(o, holder)
	version, err := a.writeLock(ctx, o, op.Lock.Version)
	if errors.Is(err, hostlb.ErrLockChanged) && op.Kind == hostlb.AcquireLock && op.Lock.Holder == a.Name {
		return hostlb.OpResult{Err: err, ObservedLock: a.getLiveLock(ctx, o.Name)}
	}
	if err != nil {
		return hostlb.OpResult{Err: err}
	}
	out := hostlb.OpResult{LockVersion: version}
	if op.Kind == hostlb.AcquireLock && !op.LeaseDeleting {
		out.Err = a.verifyLease(ctx, op, lease)
	}
	return out
}

// writeLock writes a lock over a version of it, which is empty if there was none. It returns the new version.
func (a *Agent) writeLock(ctx context.Context, o *coordinationv1.Lease, version string) (string, error) {
	var err error
	if version == "" {
		err = a.Client.Create(ctx, o)
	} else {
		err = patchLease(ctx, a.Client, o, version)
	}
	switch {
	case apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) || (version != "" && apierrors.IsNotFound(err)):
		return "", hostlb.ErrLockChanged
	case err != nil:
		return "", fmt.Errorf("writing the lock of an address, Lease %s/%s: %w", o.Namespace, o.Name, err)
	}
	return o.ResourceVersion, nil
}

// getLiveLock reads a lock from the API server, and returns nil if that fails. A lock that does not exist has no
// holder.
func (a *Agent) getLiveLock(ctx context.Context, name string) *hostlb.ObservedLock {
	o := &coordinationv1.Lease{}
	err := a.Live.Get(ctx, client.ObjectKey{Namespace: record.Namespace, Name: name}, o)
	if apierrors.IsNotFound(err) {
		return &hostlb.ObservedLock{}
	}
	if err != nil {
		return nil
	}
	parsed := parseLease(o)
	if parsed.err != nil {
		parsed.lock.ReleasedBy = "?"
	}
	return &hostlb.ObservedLock{Version: o.ResourceVersion, Holder: parsed.holder, ReleasedBy: parsed.lock.ReleasedBy, Report: parsed.lock.Report}
}

// heartbeatReads has heartbeats that were read from the API server, by host: one read serves all locks of a host.
type heartbeatReads struct {
	mu     sync.Mutex
	byHost map[string]heartbeatRead
}

type heartbeatRead struct {
	version string
	readAt  time.Time
}

// verifyHolderDead reads the heartbeat of the holder of a lock from the API server, if it was not read a moment ago. It
// returns ErrHolderAlive if the heartbeat has changed.
func (a *Agent) verifyHolderDead(ctx context.Context, op *hostlb.Op) error {
	a.heartbeatReads.mu.Lock()
	defer a.heartbeatReads.mu.Unlock()
	last, read := a.heartbeatReads.byHost[op.DeadHost]
	if !read || last.version != op.DeadHostVersion || time.Since(last.readAt) >= a.Timing.RetryInterval {
		live := &coordinationv1.Lease{}
		err := a.Live.Get(ctx, client.ObjectKey{Namespace: record.Namespace, Name: record.HeartbeatName(op.DeadHost)}, live)
		if client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("reading the heartbeat of host %s: %w", op.DeadHost, err)
		}
		last = heartbeatRead{live.ResourceVersion, time.Now()}
		if a.heartbeatReads.byHost == nil {
			a.heartbeatReads.byHost = map[string]heartbeatRead{}
		}
		a.heartbeatReads.byHost[op.DeadHost] = last
	}
	if last.version != op.DeadHostVersion {
		return hostlb.ErrHolderAlive
	}
	return nil
}

// verifyLease reads the lease of an address from the API server, before the address is shown. It returns ErrLeaseGone
// if the address must not be shown for that lease any more.
func (a *Agent) verifyLease(ctx context.Context, op *hostlb.Op, key client.ObjectKey) error {
	live := &v1alpha1.IPLease{}
	err := a.Live.Get(ctx, key, live)
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("reading IPLease %s: %w", key, err)
	}
	if live.UID != types.UID(op.LeaseUID) || live.DeletionTimestamp != nil || !hasFinalizers(live) || live.Status.Address != op.Address.String() || live.Status.Network != a.Network {
		return hostlb.ErrLeaseGone
	}
	return nil
}

// listLocksAndHosts returns the locks and the heartbeats that the cache has. A lock that cannot be parsed is not proven
// to be empty: the host that takes it writes it again.
func (a *Agent) listLocksAndHosts(ctx context.Context, wanted []hostlb.WantedAddress) (map[netip.Addr]hostlb.ObservedLock, []hostlb.ObservedHost, error) {
	all := &coordinationv1.LeaseList{}
	if err := a.Cache.List(ctx, all, client.InNamespace(record.Namespace), client.UnsafeDisableDeepCopy); err != nil {
		return nil, nil, fmt.Errorf("reading the Leases of namespace %s: %w", record.Namespace, err)
	}
	byName := map[string]netip.Addr{}
	for i := range wanted {
		byName[record.LockName(wanted[i].Address, a.Network)] = wanted[i].Address
	}
	locks, hosts := map[netip.Addr]hostlb.ObservedLock{}, []hostlb.ObservedHost(nil)
	read := make(map[string]parsedLease, len(all.Items))
	var bad error
	for i := range all.Items {
		o := &all.Items[i]
		parsed, before := a.parsedLeases[o.Name]
		if !before || parsed.version != o.ResourceVersion {
			parsed = parseLease(o)
		}
		read[o.Name] = parsed
		bad = errors.Join(bad, parsed.err)
		switch {
		case record.IsHeartbeatName(o.Name):
			if parsed.err == nil && parsed.host.Network == a.Network {
				hosts = append(hosts, hostlb.ObservedHost{Host: parsed.host, Version: o.ResourceVersion})
			}
		case record.IsLockName(o.Name):
			l := parsed.lock
			if parsed.err != nil {
				l = record.Lock{Address: byName[o.Name], Network: a.Network, ReleasedBy: "?"}
			}
			if l.Address.IsValid() && l.Network == a.Network {
				locks[l.Address] = hostlb.ObservedLock{Version: o.ResourceVersion, Holder: parsed.holder, ReleasedBy: l.ReleasedBy, Report: l.Report}
			}
		}
	}
	a.parsedLeases = read
	a.logOnChange("Leases", bad)
	return locks, hosts, nil
}

// parsedLease is the content of a version of a coordination Lease.
type parsedLease struct {
	version string
	host    hostlb.Host
	lock    record.Lock
	holder  string
	err     error
}

func parseLease(o *coordinationv1.Lease) parsedLease {
	out := parsedLease{version: o.ResourceVersion}
	switch {
	case record.IsHeartbeatName(o.Name):
		out.host, _, out.err = record.ParseHeartbeat(o)
	case record.IsLockName(o.Name):
		out.lock, out.holder, out.err = record.ParseLock(o)
	}
	return out
}

// hasFinalizers reports whether a lease has the finalizer of the pool that grants its address, and the one that is on
// it while the address is shown: the address is not released before both are removed.
func hasFinalizers(o *v1alpha1.IPLease) bool {
	return controllerutil.ContainsFinalizer(o, v1alpha1.IPLeaseFinalizer) && controllerutil.ContainsFinalizer(o, v1alpha1.LeaseShownFinalizer)
}
