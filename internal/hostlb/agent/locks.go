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

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/hostlb"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/hostlb/record"
)

// write writes the lock of an address (T2, T5), where it is as it was read.
func (a *Agent) write(ctx context.Context, op *hostlb.Op, lease client.ObjectKey) hostlb.Result {
	ctx, cancel := context.WithTimeout(ctx, a.Timing.Timeout())
	defer cancel()
	if op.Kind == hostlb.Take && op.Dead != "" {
		if err := a.stillSilent(ctx, op); err != nil {
			return hostlb.Result{Err: err}
		}
	}
	l, o := record.Lock{Address: op.Address, Network: a.Network}, &coordinationv1.Lease{}
	holder := ""
	switch op.Kind { //nolint:exhaustive // the others write no lock
	case hostlb.Take:
		holder, l.Report = a.Name, op.Report
		o.Spec.AcquireTime = ptr.To(metav1.NowMicro()) // so that it is written also where it is ours already
	case hostlb.Tell:
		holder, l.Report = a.Name, op.Report
	case hostlb.Leave:
		l.Left = a.Name
	}
	l.Write(o, holder)
	version, err := a.writeLock(ctx, o, op.Lock.Version)
	if errors.Is(err, hostlb.ErrChanged) && op.Kind == hostlb.Take && op.Lock.Holder == a.Name {
		return hostlb.Result{Err: err, Read: a.readLock(ctx, o.Name)}
	}
	if err != nil {
		return hostlb.Result{Err: err}
	}
	out := hostlb.Result{Version: version}
	if op.Kind == hostlb.Take && !op.Ends {
		out.Err = a.stillThere(ctx, op, lease)
	}
	return out
}

// writeLock writes a lock over that of a version, empty: there was none. It returns the version that it has then.
func (a *Agent) writeLock(ctx context.Context, o *coordinationv1.Lease, version string) (string, error) {
	var err error
	if version == "" {
		err = a.Client.Create(ctx, o)
	} else {
		err = patch(ctx, a.Client, o, version)
	}
	switch {
	case apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) || (version != "" && apierrors.IsNotFound(err)):
		return "", hostlb.ErrChanged
	case err != nil:
		return "", fmt.Errorf("writing the lock of an address, Lease %s/%s: %w", o.Namespace, o.Name, err)
	}
	return o.ResourceVersion, nil
}

// readLock reads a lock as the API server has it; nil: that failed. One that is not there is nobody's.
func (a *Agent) readLock(ctx context.Context, name string) *hostlb.ReadLock {
	o := &coordinationv1.Lease{}
	err := a.Live.Get(ctx, client.ObjectKey{Namespace: record.Namespace, Name: name}, o)
	if apierrors.IsNotFound(err) {
		return &hostlb.ReadLock{}
	}
	if err != nil {
		return nil
	}
	is := readLeaseOf(o)
	if is.err != nil {
		is.lock.Left = "?"
	}
	return &hostlb.ReadLock{Version: o.ResourceVersion, Holder: is.holder, Left: is.lock.Left, Report: is.lock.Report}
}

// silences are heartbeats that were read once more, by host: one read is for all locks of a host.
type silences struct {
	mu sync.Mutex
	of map[string]silence
}

type silence struct {
	version string
	at      time.Time
}

// stillSilent reads the heartbeat of who has a lock once more, if it was not read a moment ago.
func (a *Agent) stillSilent(ctx context.Context, op *hostlb.Op) error {
	a.silences.mu.Lock()
	defer a.silences.mu.Unlock()
	was, read := a.silences.of[op.Dead]
	if !read || was.version != op.DeadVersion || time.Since(was.at) >= a.Timing.Again {
		is := &coordinationv1.Lease{}
		err := a.Live.Get(ctx, client.ObjectKey{Namespace: record.Namespace, Name: record.HostName(op.Dead)}, is)
		if client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("reading the heartbeat of host %s: %w", op.Dead, err)
		}
		was = silence{is.ResourceVersion, time.Now()}
		if a.silences.of == nil {
			a.silences.of = map[string]silence{}
		}
		a.silences.of[op.Dead] = was
	}
	if was.version != op.DeadVersion {
		return hostlb.ErrAlive
	}
	return nil
}

// stillThere reads the lease of an address that is to be shown, as the API server has it.
func (a *Agent) stillThere(ctx context.Context, op *hostlb.Op, key client.ObjectKey) error {
	is := &v1alpha1.IPLease{}
	err := a.Live.Get(ctx, key, is)
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("reading IPLease %s: %w", key, err)
	}
	if is.UID != types.UID(op.Lease) || is.DeletionTimestamp != nil || !held(is) || is.Status.Address != op.Address.String() || is.Status.Network != a.Network {
		return hostlb.ErrGone
	}
	return nil
}

// readLocks are the locks and the heartbeats that the cache has. A lock of which nobody can read what it says was not proven to
// be empty: whoever takes it writes it anew.
func (a *Agent) readLocks(ctx context.Context, wanted []hostlb.Wanted) (map[netip.Addr]hostlb.ReadLock, []hostlb.ReadHost, error) {
	all := &coordinationv1.LeaseList{}
	if err := a.Cache.List(ctx, all, client.InNamespace(record.Namespace), client.UnsafeDisableDeepCopy); err != nil {
		return nil, nil, fmt.Errorf("reading the Leases of namespace %s: %w", record.Namespace, err)
	}
	byName := map[string]netip.Addr{}
	for i := range wanted {
		byName[record.LockName(wanted[i].Address, a.Network)] = wanted[i].Address
	}
	locks, hosts := map[netip.Addr]hostlb.ReadLock{}, []hostlb.ReadHost(nil)
	read := make(map[string]readLease, len(all.Items))
	var bad error
	for i := range all.Items {
		o := &all.Items[i]
		is, before := a.read[o.Name]
		if !before || is.version != o.ResourceVersion {
			is = readLeaseOf(o)
		}
		read[o.Name] = is
		bad = errors.Join(bad, is.err)
		switch {
		case record.IsHost(o.Name):
			if is.err == nil && is.host.Network == a.Network {
				hosts = append(hosts, hostlb.ReadHost{Host: is.host, Version: o.ResourceVersion})
			}
		case record.IsLock(o.Name):
			l := is.lock
			if is.err != nil {
				l = record.Lock{Address: byName[o.Name], Network: a.Network, Left: "?"}
			}
			if l.Address.IsValid() && l.Network == a.Network {
				locks[l.Address] = hostlb.ReadLock{Version: o.ResourceVersion, Holder: is.holder, Left: l.Left, Report: l.Report}
			}
		}
	}
	a.read = read
	a.tell("Leases", bad)
	return locks, hosts, nil
}

// readLease is what a Lease of a version says.
type readLease struct {
	version string
	host    hostlb.Host
	lock    record.Lock
	holder  string
	err     error
}

func readLeaseOf(o *coordinationv1.Lease) readLease {
	out := readLease{version: o.ResourceVersion}
	switch {
	case record.IsHost(o.Name):
		out.host, _, out.err = record.HostOf(o)
	case record.IsLock(o.Name):
		out.lock, out.holder, out.err = record.LockOf(o)
	}
	return out
}
