package lease

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/exact"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/grants"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/leaseports"
)

// createRetryDelay is how long the controller waits before it creates a lease again that the API server has refused,
// for example by a ResourceQuota or an admission policy.
const createRetryDelay = time.Minute

// createLeases creates leases for Services of a load balancer class. They have no owner: the lease of a Service that is
// created again stays. It returns why the API server refuses a lease, by its name; that does not block the others.
func (l *scope) createLeases(ctx context.Context, all []leaseports.LeaseRequest) (changed bool, refused map[string]string, err error) {
	refused = map[string]string{}
	for i := range all {
		wrote, err := l.createLease(ctx, &all[i])
		changed = changed || wrote
		switch {
		case apierrors.IsForbidden(err) || apierrors.IsInvalid(err):
			refused[all[i].Name] = err.Error()
			l.requeueAfter = grants.MinWait(l.requeueAfter, createRetryDelay)
		case err != nil:
			return changed, refused, err
		}
	}
	return changed, refused, nil
}

// createLease creates a lease. If it replaces one that never had an address, as the pool of that has none for it and
// another pool has, that one is deleted first. Nothing is written where that one is unmanaged.
func (l *scope) createLease(ctx context.Context, m *leaseports.LeaseRequest) (wrote bool, err error) {
	if m.Replaces != nil {
		if l.isUnmanaged(l.leasesByName[m.Name]) {
			return false, nil
		}
		if err := l.deleteLease(ctx, m.Replaces); err != nil {
			return false, err
		}
	}
	o := &v1alpha1.IPLease{
		ObjectMeta: metav1.ObjectMeta{Namespace: l.namespace, Name: m.Name, Labels: map[string]string{v1alpha1.MadeForServicesLabel: m.OnlyService}},
		Spec:       v1alpha1.IPLeaseSpec{PoolRef: m.Pool},
	}
	if l.WatchFilter != "" {
		o.Labels[clusterv1.WatchLabel] = l.WatchFilter
	}
	if m.Address.IsValid() {
		o.Spec.Address = m.Address.String()
	}
	if tried := leaseports.FormatTriedPools(m.TriedPools); tried != "" {
		o.Annotations = map[string]string{v1alpha1.TriedPoolsAnnotation: tried}
	}
	err = l.Client.Create(ctx, o)
	if apierrors.IsAlreadyExists(err) {
		err = apierrors.NewConflict(v1alpha1.GroupVersion.WithResource("ipleases").GroupResource(), m.Name, err) // the cache is behind
	}
	if err != nil {
		return false, fmt.Errorf("making IPLease %s/%s for a Service: %w", l.namespace, m.Name, err)
	}
	return true, nil
}

// deleteUnusedLeases deletes the leases that were created for Services and that no Service uses any more (P5). The
// delete has what was read as preconditions, so that a lease to which a port was added meanwhile stays.
func (l *scope) deleteUnusedLeases(ctx context.Context, _ *leaseports.Decision) (changed bool, err error) {
	for _, state := range leaseports.FindUnusedLeases(l.leaseStates, l.serviceStates) {
		if o := l.leasesByName[state.Name]; l.isUnmanaged(o) {
			continue
		}
		asked, err := l.isRequestedLive(ctx, state)
		if err != nil {
			return false, err
		}
		if asked {
			continue // the watch brings the Service
		}
		if err := l.deleteLease(ctx, state); err != nil {
			return false, err
		}
		changed = true
	}
	return changed, nil
}

// isRequestedLive reports whether a Service of the namespace requests a lease, by a live read: the cache may be behind.
func (l *scope) isRequestedLive(ctx context.Context, state *leaseports.Lease) (bool, error) {
	all := &corev1.ServiceList{}
	if err := l.Live.List(ctx, all, client.InNamespace(l.namespace)); err != nil {
		return false, fmt.Errorf("listing the Services of namespace %s, for one that uses IPLease %s: %w", l.namespace, state.Name, err)
	}
	for i := range all.Items {
		s := leaseports.NewService(&all.Items[i], l.namespace)
		if isReportedWithoutLease(&all.Items[i]) {
			continue
		}
		if s.NamesLease(state.Name) && state.AllowsService(&s) {
			return true, nil
		}
	}
	return false, nil
}

// deleteLease deletes a lease as it was read: its UID and resourceVersion are preconditions.
func (l *scope) deleteLease(ctx context.Context, state *leaseports.Lease) error {
	o := &v1alpha1.IPLease{ObjectMeta: metav1.ObjectMeta{Namespace: l.namespace, Name: state.Name}}
	if err := exact.DeleteWithPreconditions(ctx, l.Client, exact.WithUIDAndVersion(o, state.UID, state.ResourceVersion)); err != nil {
		return fmt.Errorf("deleting IPLease %s/%s, which was made for a Service: %w", l.namespace, state.Name, err)
	}
	return nil
}
