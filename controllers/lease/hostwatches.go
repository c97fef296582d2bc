package lease

import (
	"context"
	"fmt"
	"maps"
	"slices"

	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/hostlb/record"
)

// The keys of these indexes of the cache: lockIndex has locks, and the leases that hosts show, by the name that the
// lock of their address has without a network, as the network of a pool may change; holderIndex has locks by the host
// that has the address, or had it last.
const (
	lockIndex   = "hosts.lock"
	holderIndex = "hosts.holder"
)

// These are the values of lockIndex that are no names: of all heartbeats, and of all leases that are being deleted.
const (
	heartbeatIndexValue = "heartbeats"
	drainingIndexValue  = "draining"
)

// leaseLockKeys returns the values of lockIndex for an IPLease.
func leaseLockKeys(o client.Object) []string {
	l, ok := o.(*v1alpha1.IPLease)
	if !ok || !isShownByHost(l) || !leaseAddress(l).IsValid() {
		return nil
	}
	out := []string{record.LockName(leaseAddress(l), "")}
	if l.DeletionTimestamp != nil {
		out = append(out, drainingIndexValue)
	}
	return out
}

// lockKeys returns the values of lockIndex for a coordination Lease.
func lockKeys(o client.Object) []string {
	l, ok := o.(*coordinationv1.Lease)
	switch {
	case !ok:
		return nil
	case record.IsHeartbeatName(l.Name):
		return []string{heartbeatIndexValue}
	case !record.IsLockName(l.Name):
		return nil
	}
	parsed, _, err := record.ParseLock(l)
	if err != nil {
		return []string{l.Name}
	}
	return []string{record.LockName(parsed.Address, "")}
}

// holderKeys returns the values of holderIndex for a coordination Lease.
func holderKeys(o client.Object) []string {
	l, ok := o.(*coordinationv1.Lease)
	if !ok || !record.IsLockName(l.Name) {
		return nil
	}
	if holder := ptr.Deref(l.Spec.HolderIdentity, ""); holder != "" {
		return []string{holder}
	}
	if parsed, _, err := record.ParseLock(l); err == nil && parsed.ReleasedBy != "" {
		return []string{parsed.ReleasedBy}
	}
	return nil
}

// watchHosts registers the watches of the objects that hosts write. A lock enqueues the namespaces of the leases of its
// address. A heartbeat enqueues namespaces only when its host is alive again, or has become silent.
func (r *Reconciler) watchHosts(ctx context.Context, mgr ctrl.Manager, b *builder.Builder) error {
	r.heartbeats = newHeartbeats()
	for _, index := range []struct {
		of   client.Object
		name string
		key  client.IndexerFunc
	}{{&v1alpha1.IPLease{}, lockIndex, leaseLockKeys}, {&coordinationv1.Lease{}, lockIndex, lockKeys}, {&coordinationv1.Lease{}, holderIndex, holderKeys}} {
		if err := mgr.GetFieldIndexer().IndexField(ctx, index.of, index.name, index.key); err != nil {
			return fmt.Errorf("indexing %T: %w", index.of, err)
		}
	}
	if err := mgr.Add(r.heartbeats); err != nil {
		return fmt.Errorf("listening for hosts: %w", err)
	}
	type queue = workqueue.TypedRateLimitingInterface[reconcile.Request]
	wake := func(q queue, all []reconcile.Request) {
		for _, one := range all {
			q.Add(one)
		}
	}
	b.Watches(&coordinationv1.Lease{}, handler.Funcs{
		CreateFunc: func(ctx context.Context, e event.CreateEvent, q queue) {
			wake(q, r.requestsForHostObject(ctx, e.Object, !e.IsInInitialList))
		},
		UpdateFunc: func(ctx context.Context, e event.UpdateEvent, q queue) {
			wake(q, r.requestsForHostObject(ctx, e.ObjectNew, false))
		},
		DeleteFunc: func(ctx context.Context, e event.DeleteEvent, q queue) { wake(q, r.requestsForLock(ctx, e.Object)) },
	})
	b.WatchesRawSource(source.Channel(r.heartbeats.silentHosts, handler.TypedEnqueueRequestsFromMapFunc(r.requestsForHost)))
	return nil
}

// requestsForHostObject returns requests for the namespaces that an object written by a host concerns. isNew reports
// whether the object was created while this manager watched.
func (r *Reconciler) requestsForHostObject(ctx context.Context, o client.Object, isNew bool) []reconcile.Request {
	l, ok := o.(*coordinationv1.Lease)
	if !ok || !record.IsHeartbeatName(o.GetName()) {
		return r.requestsForLock(ctx, o)
	}
	host := record.HostFromHeartbeatName(l.Name)
	if !r.heartbeats.observeHeartbeat(host, l, isNew, r.Now()) {
		return nil
	}
	return r.requestsForHost(ctx, host)
}

// requestsForLock returns requests for the namespaces of the leases of the address of a lock.
func (r *Reconciler) requestsForLock(ctx context.Context, o client.Object) []reconcile.Request {
	if !record.IsLockName(o.GetName()) {
		return nil
	}
	return r.requestsForLockKeys(ctx, lockKeys(o)...)
}

// requestsForHost returns requests for the namespaces of the leases whose addresses a host has, or had last, and of
// those that are being deleted: the host may be the one that can probe the network.
func (r *Reconciler) requestsForHost(ctx context.Context, host string) []reconcile.Request {
	all := &coordinationv1.LeaseList{}
	if err := r.Client.List(ctx, all, client.InNamespace(record.Namespace), client.MatchingFields{holderIndex: host}, client.UnsafeDisableDeepCopy); err != nil {
		log.FromContext(ctx).Error(err, "Failed to list the locks of a host: its leases are reconciled later", "host", host)
	}
	values := []string{drainingIndexValue}
	for i := range all.Items {
		values = append(values, lockKeys(&all.Items[i])...)
	}
	return r.requestsForLockKeys(ctx, values...)
}

// requestsForLockKeys returns requests for the namespaces of the leases with one of these values of lockIndex.
func (r *Reconciler) requestsForLockKeys(ctx context.Context, values ...string) []reconcile.Request {
	seen := map[string]bool{}
	for _, value := range values {
		all := &v1alpha1.IPLeaseList{}
		if err := r.Client.List(ctx, all, client.MatchingFields{lockIndex: value}, client.UnsafeDisableDeepCopy); err != nil {
			log.FromContext(ctx).Error(err, "Failed to list leases that hosts show: they are reconciled later")
		}
		for i := range all.Items {
			seen[all.Items[i].Namespace] = true
		}
	}
	return requestsForNamespaces(slices.Sorted(maps.Keys(seen))...)
}
