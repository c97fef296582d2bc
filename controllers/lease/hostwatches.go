package lease

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

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

// Indexes of the cache. Locks, and the leases that hosts show, by the name that the lock of their address has without a network:
// that of a pool may change. Locks by the host that has the address, or had it last.
const (
	lockIndex   = "hosts.lock"
	holderIndex = "hosts.holder"
)

// Values of lockIndex beside names: of all heartbeats, and of all leases that are being deleted.
const (
	heartbeatsValue = "heartbeats"
	drainingValue   = "draining"
)

// leaseLocks are the values of lockIndex of a lease.
func leaseLocks(o client.Object) []string {
	l, is := o.(*v1alpha1.IPLease)
	if !is || !byHost(l) || !addressOf(l).IsValid() {
		return nil
	}
	out := []string{record.LockName(addressOf(l), "")}
	if l.DeletionTimestamp != nil {
		out = append(out, drainingValue)
	}
	return out
}

// locks are the values of lockIndex of a coordination Lease.
func locks(o client.Object) []string {
	l, is := o.(*coordinationv1.Lease)
	switch {
	case !is:
		return nil
	case record.IsHost(l.Name):
		return []string{heartbeatsValue}
	case !record.IsLock(l.Name):
		return nil
	}
	says, _, err := record.LockOf(l)
	if err != nil {
		return []string{l.Name}
	}
	return []string{record.LockName(says.Address, "")}
}

// holders are the values of holderIndex of a coordination Lease.
func holders(o client.Object) []string {
	l, is := o.(*coordinationv1.Lease)
	if !is || !record.IsLock(l.Name) {
		return nil
	}
	if holder := ptr.Deref(l.Spec.HolderIdentity, ""); holder != "" {
		return []string{holder}
	}
	if says, _, err := record.LockOf(l); err == nil && says.Left != "" {
		return []string{says.Left}
	}
	return nil
}

// watchHosts registers the watches of what hosts write. A lock wakes the namespaces of the leases of its address. A heartbeat wakes
// nobody, but where its host lives again, or has fallen silent.
func (r *Reconciler) watchHosts(ctx context.Context, mgr ctrl.Manager, b *builder.Builder) error {
	r.heard = newHeartbeats()
	for _, index := range []struct {
		of   client.Object
		name string
		key  client.IndexerFunc
	}{{&v1alpha1.IPLease{}, lockIndex, leaseLocks}, {&coordinationv1.Lease{}, lockIndex, locks}, {&coordinationv1.Lease{}, holderIndex, holders}} {
		if err := mgr.GetFieldIndexer().IndexField(ctx, index.of, index.name, index.key); err != nil {
			return fmt.Errorf("indexing %T: %w", index.of, err)
		}
	}
	if err := mgr.Add(r.heard); err != nil {
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
			wake(q, r.ofHostObject(ctx, e.Object, !e.IsInInitialList))
		},
		UpdateFunc: func(ctx context.Context, e event.UpdateEvent, q queue) {
			wake(q, r.ofHostObject(ctx, e.ObjectNew, false))
		},
		DeleteFunc: func(ctx context.Context, e event.DeleteEvent, q queue) { wake(q, r.ofLock(ctx, e.Object)) },
	})
	b.WatchesRawSource(source.Channel(r.heard.events, handler.TypedEnqueueRequestsFromMapFunc(r.ofHost)))
	return nil
}

// ofHostObject are the namespaces that something concerns which a host has written. New: it was made while this manager listened.
func (r *Reconciler) ofHostObject(ctx context.Context, o client.Object, isNew bool) []reconcile.Request {
	l, is := o.(*coordinationv1.Lease)
	if !is || !record.IsHost(o.GetName()) {
		return r.ofLock(ctx, o)
	}
	host := strings.TrimPrefix(l.Name, record.HostName(""))
	if !r.heard.hear(host, l, isNew, r.Now()) {
		return nil
	}
	return r.ofHost(ctx, host)
}

// ofLock are the namespaces of the leases of the address of a lock.
func (r *Reconciler) ofLock(ctx context.Context, o client.Object) []reconcile.Request {
	if !record.IsLock(o.GetName()) {
		return nil
	}
	return r.ofLeases(ctx, locks(o)...)
}

// ofHost are the namespaces of the leases whose addresses a host has, or had last, and of those that are being deleted: it may be
// the one that can ask the wire.
func (r *Reconciler) ofHost(ctx context.Context, host string) []reconcile.Request {
	all := &coordinationv1.LeaseList{}
	if err := r.Client.List(ctx, all, client.InNamespace(record.Namespace), client.MatchingFields{holderIndex: host}, client.UnsafeDisableDeepCopy); err != nil {
		log.FromContext(ctx).Error(err, "the leases of a host are looked at later", "host", host)
	}
	values := []string{drainingValue}
	for i := range all.Items {
		values = append(values, locks(&all.Items[i])...)
	}
	return r.ofLeases(ctx, values...)
}

// ofLeases are the namespaces of the leases with one of these values of lockIndex.
func (r *Reconciler) ofLeases(ctx context.Context, values ...string) []reconcile.Request {
	seen := map[string]bool{}
	for _, value := range values {
		all := &v1alpha1.IPLeaseList{}
		if err := r.Client.List(ctx, all, client.MatchingFields{lockIndex: value}, client.UnsafeDisableDeepCopy); err != nil {
			log.FromContext(ctx).Error(err, "leases that hosts show are looked at later")
		}
		for i := range all.Items {
			seen[all.Items[i].Namespace] = true
		}
	}
	return namespaces(slices.Sorted(maps.Keys(seen))...)
}
