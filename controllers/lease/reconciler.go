// Package lease gives Services the ports of the leases that they name, and has MetalLB, or hosts, show the addresses.
// It decides with internal/leaseports; docs/design.md lists the rules that the code names, P2 to P7.
//
// The unit of work is a namespace: its leases, its Services and one IPAddressPool. Each reconcile makes the first
// writes that are due, and what they change enqueues the namespace for the next ones.
package lease

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"sync"
	"time"

	metallbv1beta1 "go.universe.tf/metallb/api/v1beta1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/cluster-api/util/annotations"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/controllers/guard"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/grants"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/leaseports"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pace"
)

// confirmationInterval is the time between two live reads that prove something together: longer than a write of MetalLB
// is in flight.
const confirmationInterval = 2 * time.Second

// shortRequeueDelay is after how long a namespace is reconciled again if no watch enqueues it.
const shortRequeueDelay = 100 * time.Millisecond

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

	mu sync.Mutex
	// observationsByNamespace holds when something was first observed, by namespace.
	observationsByNamespace map[string]map[observation]time.Time

	refusals addressRefusals
	// heartbeats are the heartbeats of hosts.
	heartbeats *heartbeats
}

// observation is a state that two live reads must show: no Service is shown behind a port of a lease, or behind any
// port; or a state that must last: no host has its address, MetalLB has not assigned an address to a Service, or a
// Service does not find its lease.
type observation struct {
	leaseUID types.UID
	port     leaseports.Port
	// formerService is the Service that had the port; if it is empty, the address itself is released.
	formerService leaseports.ServiceRef
	// withoutHost reports whether no host has the address.
	withoutHost bool
	// serviceUID is the Service that has no address from MetalLB, or, if leaseNotFound is set, no lease that it names.
	serviceUID    types.UID
	leaseNotFound bool
}

// scope is one reconcile of a namespace. The objects that it has read belong to the cache, and are not changed.
type scope struct {
	*Reconciler

	namespace string
	now       time.Time
	leases    []*v1alpha1.IPLease
	services  []*corev1.Service
	// leaseStates and serviceStates are the input of the decisions, in the order of leases and services.
	leaseStates   []leaseports.Lease
	serviceStates []leaseports.Service
	// classPools are the pools from which leases are created, by load balancer class; hostPools are those whose leases
	// hosts show.
	classPools []leaseports.Pool
	hostPools  map[v1alpha1.PoolReference]bool
	// addressPools are the IPAddressPools of the namespace, by name; poolsByAddress are the same by the addresses that
	// they have.
	addressPools   map[string]*metallbv1beta1.IPAddressPool
	poolsByAddress map[netip.Addr]*metallbv1beta1.IPAddressPool
	// leasesByName and leasesByAddress are the leases; portHolders are the Services that have ports of them;
	// readyEndpoints are the Services that have a ready endpoint, by namespace and name.
	leasesByName    map[string]*v1alpha1.IPLease
	leasesByAddress map[netip.Addr][]*v1alpha1.IPLease
	portHolders     map[leaseports.ServiceRef]bool
	readyEndpoints  map[string]map[string]bool
	// hostStatuses is what hosts report about the leases that they show, by the UID of the lease.
	hostStatuses map[types.UID]*leaseports.HostStatus
	// earlierObservations were made before this reconcile; observations are made by it.
	earlierObservations, observations map[observation]time.Time
	// checkedLeases are the leases for which this reconcile has checked whether they are still shown.
	checkedLeases map[types.UID]bool
	// requeueAfter is how long it takes until something must be checked again; 0 means not before something changes.
	requeueAfter time.Duration
}

// Reconcile makes the next writes for the leases and the Services of one namespace, which the name in the request
// names.
func (r *Reconciler) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	l := &scope{Reconciler: r, namespace: req.Name, now: r.Now(), observations: map[observation]time.Time{}, checkedLeases: map[types.UID]bool{}}
	if err := l.gatherState(ctx); err != nil {
		return reconcile.Result{}, err
	}
	r.mu.Lock()
	l.earlierObservations = r.observationsByNamespace[l.namespace]
	r.mu.Unlock()
	err := l.reconcileNamespace(ctx)
	r.mu.Lock()
	l.recordObservation()
	if r.observationsByNamespace == nil {
		r.observationsByNamespace = map[string]map[observation]time.Time{}
	}
	if delete(r.observationsByNamespace, l.namespace); len(l.observations) > 0 {
		r.observationsByNamespace[l.namespace] = l.observations
	}
	r.mu.Unlock()
	if isOwnObjectGone(err) {
		return guard.RequeueWithBackoff(), nil
	}
	delayed, err := pace.SplitDelayed(err)
	l.requeueWithin(delayed)
	result, err := guard.RequeueOnConflict(err, "serving the leases of namespace "+l.namespace)
	if err == nil && result.IsZero() {
		result.RequeueAfter = l.requeueAfter
	}
	return result, err
}

// patchConditions patches the conditions of an object. Where another writer reverts the patch, it is not done yet, and
// that is no error: the other objects of the namespace do not wait for it.
func (l *scope) patchConditions(ctx context.Context, next, before client.Object) (done bool, err error) {
	delayed, err := pace.SplitDelayed(l.Client.Status().Patch(ctx, next, guard.NewOptimisticPatch(before)))
	l.requeueWithin(delayed)
	return err == nil && delayed == 0, err
}

// requeueWithin requeues the namespace after d at the latest; 0 means that nothing is delayed.
func (l *scope) requeueWithin(d time.Duration) {
	if d > 0 {
		l.requeueAfter = grants.MinWait(l.requeueAfter, d)
	}
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

// recordObservation keeps the earlier observations that the addresses of leases are released, if this reconcile has not
// checked them, as an earlier step has changed something. A lease that is being deleted does not get back what it has
// lost.
func (l *scope) recordObservation() {
	for s, since := range l.earlierObservations {
		_, again := l.observations[s]
		if s.formerService == (leaseports.ServiceRef{}) && !s.withoutHost && !again && slices.ContainsFunc(l.leases, func(o *v1alpha1.IPLease) bool { return o.UID == s.leaseUID && !l.checkedLeases[s.leaseUID] }) {
			l.observations[s] = since
		}
	}
}

// reconcileNamespace makes the writes that are due. No write is based on what an earlier one has not yet brought about.
// An address that MetalLB refuses blocks neither the conditions of Services nor the release of what they have.
func (l *scope) reconcileNamespace(ctx context.Context) error {
	l.trackMissingHosts()
	services, made, next := leaseports.PlanLeases(l.serviceStates, l.leaseStates, l.classPools, l.now)
	if l.serviceStates = services; next > 0 {
		l.requeueAfter = grants.MinWait(l.requeueAfter, next)
	}
	l.trackPlacement()
	l.trackMissingLeases()
	if changed, err := l.createPlannedLeases(ctx, made); changed || err != nil {
		return err
	}
	never := func(string, leaseports.Holder) bool { return false }
	free, err := l.proveFreePorts(ctx, leaseports.DecidePorts(l.leaseStates, l.serviceStates, never).ReleasingPorts)
	if err != nil {
		return err
	}
	d := leaseports.DecidePorts(l.leaseStates, l.serviceStates, free)
	l.updateAddressInUse()
	d.SetExhaustedReasons(l.leaseStates, l.serviceStates, l.MaxAddressAttempts)
	l.updateMetrics(&d)
	var notShown error
	show := func(ctx context.Context, d *leaseports.Decision) (changed bool, err error) {
		changed, notShown = l.reconcilePools(ctx, d)
		return changed && notShown == nil, nil
	}
	for _, step := range []func(context.Context, *leaseports.Decision) (changed bool, err error){
		l.writePortTables, l.addFinalizers, show, l.setConditionOnServices, l.publishServices, l.clearServiceStatus, l.publishHostIngress, l.releaseDeletedLeases, l.deleteUnusedLeases, l.replaceConflictingLeases, l.clearTriedAddresses, l.reportConditions,
	} {
		if changed, err := step(ctx, &d); changed || err != nil {
			return errors.Join(err, notShown)
		}
	}
	return notShown
}

// createPlannedLeases creates the planned leases, and records for which Services it cannot.
func (l *scope) createPlannedLeases(ctx context.Context, made []leaseports.LeaseRequest) (changed bool, err error) {
	changed, refused, err := l.createLeases(ctx, made)
	for i := range l.serviceStates {
		for _, name := range l.serviceStates[i].LeaseNames {
			if why := refused[name]; why != "" {
				l.serviceStates[i].LeaseCreateError = why
			}
		}
	}
	return changed, err
}

// isUnmanaged reports whether a lease is paused, or served by another manager. All leases of a namespace share one
// IPAddressPool and the Services, so they are decided on together, and an unmanaged lease itself is not written.
func (l *scope) isUnmanaged(o *v1alpha1.IPLease) bool {
	return annotations.HasPaused(o) || guard.IsFilteredOut(o, l.WatchFilter)
}

// leaseAddress returns the address of a lease, or that of its record: after a move or a restore there is no status yet.
func leaseAddress(o *v1alpha1.IPLease) netip.Addr {
	a, err := netip.ParseAddr(o.Status.Address)
	if err != nil {
		a, _ = netip.ParseAddr(o.Annotations[v1alpha1.AddressAnnotation])
	}
	return a
}

// confirmedTwice reports whether a live read has shown something now and once before, some time ago. Otherwise the
// namespace is requeued.
func (l *scope) confirmedTwice(s observation) bool {
	since, before := l.earlierObservations[s]
	if !before {
		since = l.Now() // after the read, while l.now is from before it
	}
	l.observations[s] = since
	if wait := confirmationInterval - l.now.Sub(since); wait > 0 {
		l.requeueAfter = grants.MinWait(l.requeueAfter, wait)
		return false
	}
	return true
}
