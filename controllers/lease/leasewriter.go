package lease

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/controllers/guard"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/exact"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/leaseports"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/tenancy"
)

// createRetryDelay is how long the controller waits before it creates a lease again that the API server has refused,
// for example by a ResourceQuota or an admission policy.
const createRetryDelay = time.Minute

// leaseWriter creates the leases of Services of a load balancer class, and deletes those that no Service uses any more
// (P5), or that are created again with another address (P7).
type leaseWriter struct {
	// maxAddressAttempts is how many addresses a Service gets, one after another, while a foreign machine answers for
	// each.
	maxAddressAttempts int
	recorder           events.EventRecorder
	schedule           *schedule
	state              *state
	api                *api
}

// createLeases creates leases for Services. They have no owner: the lease of a Service that is created again stays. A
// lease that the API server refuses does not block the others, and the refusal is recorded for its Services.
func (w *leaseWriter) createLeases(ctx context.Context, all []leaseports.LeaseRequest) (changed bool, err error) {
	refused := map[string]string{}
	for i := range all {
		wrote, err := w.createLease(ctx, &all[i])
		changed = changed || wrote
		switch {
		case apierrors.IsForbidden(err) || apierrors.IsInvalid(err):
			refused[all[i].Name] = err.Error()
			w.schedule.requeueWithin(createRetryDelay)
		case err != nil:
			return changed, err
		}
	}
	w.state.setCreateErrors(refused)
	return changed, nil
}

// createLease creates a lease. If it replaces one that never had an address, as the pool of that has none for it and
// another pool has, that one is deleted first. Nothing is written where that one is unmanaged.
func (w *leaseWriter) createLease(ctx context.Context, m *leaseports.LeaseRequest) (wrote bool, err error) {
	if m.Replaces != nil {
		if w.state.isUnmanaged(w.state.leasesByName[m.Name]) {
			return false, nil
		}
		if err := w.deleteLease(ctx, m.Replaces); err != nil {
			return false, err
		}
	}
	o := &v1alpha1.IPLease{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.state.namespace, Name: m.Name, Labels: map[string]string{v1alpha1.MadeForServicesLabel: m.OnlyService}},
		Spec:       v1alpha1.IPLeaseSpec{PoolRef: m.Pool},
	}
	if w.state.watchFilter != "" {
		o.Labels[clusterv1.WatchLabel] = w.state.watchFilter
	}
	if m.Address.IsValid() {
		o.Spec.Address = m.Address.String()
	}
	if tried := tenancy.FormatAttempts(m.TriedPools); tried != "" {
		o.Annotations = map[string]string{v1alpha1.TriedPoolsAnnotation: tried}
	}
	err = w.api.Client.Create(ctx, o)
	if apierrors.IsAlreadyExists(err) {
		err = apierrors.NewConflict(v1alpha1.GroupVersion.WithResource("ipleases").GroupResource(), m.Name, err) // the cache is behind
	}
	if err != nil {
		return false, fmt.Errorf("creating IPLease %s/%s for a Service: %w", w.state.namespace, m.Name, err)
	}
	return true, nil
}

// deleteUnusedLeases deletes the leases that were created for Services and that no Service uses any more (P5). The
// delete has what was read as preconditions, so that a lease to which a port was added meanwhile stays.
func (w *leaseWriter) deleteUnusedLeases(ctx context.Context) (changed bool, err error) {
	for _, state := range leaseports.FindUnusedLeases(w.state.leaseStates, w.state.serviceStates) {
		if o := w.state.leasesByName[state.Name]; w.state.isUnmanaged(o) {
			continue
		}
		asked, err := w.isRequestedLive(ctx, state)
		if err != nil {
			return false, err
		}
		if asked {
			continue // the watch brings the Service
		}
		if err := w.deleteLease(ctx, state); err != nil {
			return false, err
		}
		changed = true
	}
	return changed, nil
}

// isRequestedLive reports whether a Service of the namespace requests a lease, by a live read: the cache may be behind.
func (w *leaseWriter) isRequestedLive(ctx context.Context, state *leaseports.Lease) (bool, error) {
	all := &corev1.ServiceList{}
	if err := w.api.Live.List(ctx, all, client.InNamespace(w.state.namespace)); err != nil {
		return false, fmt.Errorf("listing the Services of namespace %s, for one that uses IPLease %s: %w", w.state.namespace, state.Name, err)
	}
	for i := range all.Items {
		s := leaseports.NewService(&all.Items[i], w.state.namespace)
		if isReportedWithoutLease(&all.Items[i]) {
			continue
		}
		if s.NamesLease(state.Name) && state.AllowsService(&s) {
			return true, nil
		}
	}
	return false, nil
}

// replaceConflictingLeases gives up leases that were created for Services and for whose addresses a foreign machine
// answers (P7). The address is recorded on the Service first, or a manager that dies in between would start from the
// beginning. Then the lease is deleted, as it was read. Once it is released, it is created again (PlanLeases). The
// allocator keeps the address in cooling.
func (w *leaseWriter) replaceConflictingLeases(ctx context.Context) (changed bool, err error) {
	for i := range w.state.leaseStates {
		state := &w.state.leaseStates[i]
		o := w.state.leasesByName[state.Name]
		if w.state.isUnmanaged(o) {
			continue
		}
		for j, s := range w.state.services {
			switch next := leaseports.DecideNextAddress(state, &w.state.serviceStates[j], w.maxAddressAttempts); {
			case next.RecordTried:
				noted := s.DeepCopy()
				leaseports.AddTriedAddress(noted, state.Address)
				if err := w.api.Client.Patch(ctx, noted, guard.NewOptimisticPatch(s)); err != nil {
					return false, fmt.Errorf("recording on Service %s/%s that %s is in use: %w", s.Namespace, s.Name, state.Address, err)
				}
				return true, nil // the next reconcile reads it
			case next.ReplaceLease:
				if err := w.deleteLease(ctx, state); err != nil {
					return false, err
				}
				w.recorder.Eventf(s, nil, corev1.EventTypeNormal, "NextAddress", "Lease", "another machine answers for %s; IPLease %s is replaced by one with another address", state.Address, state.Name)
				changed = true
			}
		}
	}
	return changed, nil
}

// deleteLease deletes a lease as it was read: its UID and resourceVersion are preconditions.
func (w *leaseWriter) deleteLease(ctx context.Context, state *leaseports.Lease) error {
	o := &v1alpha1.IPLease{ObjectMeta: metav1.ObjectMeta{Namespace: w.state.namespace, Name: state.Name}}
	if err := exact.DeleteWithPreconditions(ctx, w.api.Client, exact.WithUIDAndVersion(o, state.UID, state.ResourceVersion)); err != nil {
		return fmt.Errorf("deleting IPLease %s/%s, which was created for a Service: %w", w.state.namespace, state.Name, err)
	}
	return nil
}
