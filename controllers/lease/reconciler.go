// Package lease gives Services the ports of the leases that they name, and has MetalLB, or hosts, show the addresses.
// It decides with internal/leaseports; docs/design.md lists the rules that the code names, P2 to P7.
//
// The unit of work is a namespace: its leases, its Services and one IPAddressPool. Each reconcile makes the first
// writes that are due, and what they change enqueues the namespace for the next ones.
package lease

import (
	"context"
	"errors"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/controllers/guard"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pace"
)

// Reconciler serves the leases of a namespace. Its permissions are in roles of their own,
// config/rbac/service_leases_role.yaml.
type Reconciler struct {
	// Client writes, and reads from a cache; Live reads from the API server.
	Client   client.Client
	Live     client.Reader
	Recorder events.EventRecorder
	Now      func() time.Time
	// WatchFilter is the value of the watch label of the leases that are served; if it is empty, all are.
	WatchFilter string
	// MaxAddressAttempts is how many addresses a Service gets, one after another, while a foreign machine answers for
	// each.
	MaxAddressAttempts int
	// EnabledBackends are the load balancers that show the addresses.
	EnabledBackends

	// observations has the observations of the last reconcile of each namespace: balancer.FirstSeen[observation] by name.
	observations sync.Map
	refusals     addressRefusals
	heartbeats   *heartbeats
}

// Reconcile makes the next writes for the leases and the Services of one namespace, which the name in the request
// names.
func (r *Reconciler) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	s := newScope(r, req.Name, r.Now())
	if err := s.reader.gatherState(ctx); err != nil {
		return reconcile.Result{}, err
	}
	err := s.reconcileNamespace(ctx)
	s.observations.keepUnchecked(s.state.leases)
	if r.observations.Delete(req.Name); len(s.observations.current) > 0 {
		r.observations.Store(req.Name, s.observations.current)
	}
	if isOwnObjectGone(err) {
		return guard.RequeueWithBackoff(), nil
	}
	delayed, err := pace.SplitDelayed(err)
	s.schedule.requeueWithin(delayed)
	result, err := guard.RequeueOnConflict(err, "serving the leases of namespace "+req.Name)
	if err == nil && result.IsZero() {
		result.RequeueAfter = s.schedule.requeueAfter
	}
	return result, err
}

// isOwnObjectGone reports whether err means that the Service or the lease to write is gone. If MetalLB's kinds or its
// namespace are gone, that is a fault.
func isOwnObjectGone(err error) bool {
	var status apierrors.APIStatus
	if !apierrors.IsNotFound(err) || !errors.As(err, &status) || status.Status().Details == nil {
		return false
	}
	kind := status.Status().Details.Kind
	return kind == "services" || kind == "ipleases"
}
