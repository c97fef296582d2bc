package lease

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/controllers/guard"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/leaseports"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/metrics"
)

// serviceWriter makes the writes of Services that were decided. Each is by the resourceVersion that was read, and one
// that shows an address only after a live read of its leases.
type serviceWriter struct {
	recorder events.EventRecorder
	schedule *schedule
	state    *state
	api      *api
}

// applyDecision makes the write of one kind for each Service that it is due for.
func (w *serviceWriter) applyDecision(ctx context.Context, decide serviceDecision) (changed bool, err error) {
	for i, s := range w.state.services {
		service := &w.state.serviceStates[i]
		one := decide(s, service)
		if one == nil {
			continue
		}
		if one.showsLeases {
			isGranted, err := w.isGrantedLive(ctx, service)
			if err != nil {
				return false, err
			}
			if !isGranted {
				continue // the watch of the lease enqueues the namespace
			}
		}
		done, err := w.patchService(ctx, s, one)
		if err != nil {
			return false, fmt.Errorf("%s: %w", one.action, err)
		}
		if !done {
			continue
		}
		if one.isFirst {
			metrics.LeaseServiceWait.Observe(w.schedule.now.Sub(s.CreationTimestamp.Time).Seconds())
		}
		if one.refusal != (leaseports.Reason{}) {
			w.recorder.Eventf(s, nil, corev1.EventTypeWarning, one.refusal.Reason, "Lease", "%s", one.refusal.Message)
			metrics.LeaseRefusals.WithLabelValues(w.state.namespace, one.refusal.Reason).Inc()
		}
		if _, asks := leaseports.ParseServiceRequest(s); !asks && s.Namespace != w.state.namespace {
			w.schedule.requeueWithin(shortRequeueDelay) // no watch enqueues the namespace for this Service any more
		}
		changed = true
	}
	return changed, nil
}

// isGrantedLive reports whether, on the API server, the leases of a Service have its ports on record, allow them to it,
// and have the addresses that were read: the cache may show a table from before another Service got the ports, and the
// Service may have requested them again since.
func (w *serviceWriter) isGrantedLive(ctx context.Context, service *leaseports.Service) (bool, error) {
	var leases []leaseports.Lease
	for _, name := range service.LeaseNames {
		live := &v1alpha1.IPLease{}
		// A lease that is gone is read as an empty one.
		err := w.api.Live.Get(ctx, client.ObjectKey{Namespace: w.state.namespace, Name: name}, live)
		if client.IgnoreNotFound(err) != nil {
			return false, fmt.Errorf("reading IPLease %s/%s, to publish Service %s: %w", w.state.namespace, name, service.Name, err)
		}
		if !mayBeShown(live, service.ShownBy) || leaseAddress(live) != leaseAddress(w.state.leasesByName[name]) {
			return false, nil
		}
		lease := leaseports.NewLease(live)
		for _, p := range service.Ports {
			if !lease.AllowsPort(p, service) {
				return false, nil
			}
		}
		leases = append(leases, lease)
	}
	return leaseports.HasRecordedPorts(service, leases), nil
}

// patchService makes a write of a Service. done is false if another writer reverts it.
func (w *serviceWriter) patchService(ctx context.Context, s *corev1.Service, one *serviceWrite) (done bool, err error) {
	switch {
	case one.ofCondition:
		return w.api.patchConditions(ctx, one.next, s)
	case one.ofStatus:
		err = w.api.Client.Status().Patch(ctx, one.next, guard.NewOptimisticPatch(s))
	default:
		err = w.api.Client.Patch(ctx, one.next, guard.NewOptimisticPatch(s))
	}
	return err == nil, err
}
