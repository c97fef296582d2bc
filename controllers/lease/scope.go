package lease

import (
	"context"
	"errors"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/balancer"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/leaseports"
)

// scope is one reconcile of a namespace, in parts. A part uses those before it, in the order of the fields. The parts
// up to reader read; the next three decide, without a client; the others make the writes that are due.
type scope struct {
	schedule     *schedule
	observations *observations
	state        *state
	api          *api
	locks        *hostLocks
	reader       *reader

	// decision is which Service has which port. It is empty until reconcileNamespace decides it.
	decision       *leaseports.Decision
	delays         *delays
	leaseDecider   *leaseDecider
	serviceDecider *serviceDecider

	leases     *leaseWriter
	ports      *portWriter
	pools      *poolWriter
	finalizers *finalizerWriter
	services   *serviceWriter
	reports    *reportWriter
}

// newScope returns a reconcile of a namespace before it has read anything.
func newScope(r *Reconciler, namespace string, now time.Time) *scope {
	s := &scope{decision: &leaseports.Decision{}}
	remembered, _ := r.observations.Load(namespace)
	earlier, _ := remembered.(balancer.FirstSeen[observation])
	s.schedule = &schedule{now: now}
	s.observations = &observations{earlier: earlier, checkedLeases: map[types.UID]bool{}, clock: r.Now, schedule: s.schedule}
	s.state = &state{namespace: namespace, watchFilter: r.WatchFilter, EnabledBackends: r.EnabledBackends}
	s.api = &api{Client: r.Client, Live: r.Live, schedule: s.schedule}
	s.locks = &hostLocks{heartbeats: r.heartbeats, schedule: s.schedule, api: s.api}
	s.reader = &reader{readyEndpoints: map[string]map[string]bool{}, schedule: s.schedule, state: s.state, api: s.api, locks: s.locks}
	s.delays = &delays{observations: s.observations, state: s.state}
	s.leaseDecider = &leaseDecider{schedule: s.schedule, state: s.state, decision: s.decision, delays: s.delays, refusals: &r.refusals}
	s.serviceDecider = &serviceDecider{schedule: s.schedule, state: s.state, decision: s.decision, delays: s.delays}
	s.leases = &leaseWriter{maxAddressAttempts: r.MaxAddressAttempts, recorder: r.Recorder, schedule: s.schedule, state: s.state, api: s.api}
	s.ports = &portWriter{schedule: s.schedule, observations: s.observations, state: s.state, api: s.api, decision: s.decision}
	s.pools = &poolWriter{refusals: &r.refusals, schedule: s.schedule, state: s.state, api: s.api}
	s.finalizers = &finalizerWriter{schedule: s.schedule, observations: s.observations, api: s.api, locks: s.locks, decider: s.leaseDecider}
	s.services = &serviceWriter{recorder: r.Recorder, schedule: s.schedule, state: s.state, api: s.api}
	s.reports = &reportWriter{refusals: &r.refusals, recorder: r.Recorder, schedule: s.schedule, state: s.state, api: s.api, decider: s.leaseDecider}
	return s
}

// reconcileNamespace makes the writes that are due. No write is based on what an earlier one has not yet brought about.
// An address that MetalLB refuses blocks neither the conditions of Services nor the release of what they have.
func (s *scope) reconcileNamespace(ctx context.Context) error {
	s.delays.trackMissingHosts()
	services, made, next := leaseports.PlanLeases(s.state.serviceStates, s.state.leaseStates, s.state.classPools, s.schedule.now)
	s.state.serviceStates = services
	s.schedule.requeueWithin(next)
	s.delays.trackPlacement()
	s.delays.trackMissingLeases()
	if changed, err := s.leases.createLeases(ctx, made); changed || err != nil {
		return err
	}
	if err := s.decidePorts(ctx); err != nil {
		return err
	}
	updateMetrics(s.state, s.decision)
	var notShown error
	show := func(ctx context.Context) (changed bool, err error) {
		changed, notShown = s.pools.reconcilePools(ctx)
		return changed && notShown == nil, nil
	}
	write := func(decide serviceDecision) func(context.Context) (bool, error) {
		return func(ctx context.Context) (changed bool, err error) { return s.services.applyDecision(ctx, decide) }
	}
	for _, step := range []func(context.Context) (changed bool, err error){
		s.ports.writePortTables,
		s.finalizers.addFinalizers,
		show,
		write(s.serviceDecider.decideCondition),
		write(s.serviceDecider.decidePublication),
		write(s.serviceDecider.decideStatusRemoval),
		write(s.serviceDecider.decideHostIngress),
		s.finalizers.releaseDeletedLeases,
		s.leases.deleteUnusedLeases,
		s.leases.replaceConflictingLeases,
		write(s.serviceDecider.decideTriedAddressRemoval),
		s.reports.reportConditions,
	} {
		if changed, err := step(ctx); changed || err != nil {
			return errors.Join(err, notShown)
		}
	}
	return notShown
}

// decidePorts decides which Service has which port. A port that a Service loses is free for the next one once it is
// proven that no Service is shown behind it.
func (s *scope) decidePorts(ctx context.Context) error {
	never := func(string, leaseports.Holder) bool { return false }
	free, err := s.ports.proveFreePorts(ctx, leaseports.DecidePorts(s.state.leaseStates, s.state.serviceStates, never).ReleasingPorts)
	if err != nil {
		return err
	}
	*s.decision = leaseports.DecidePorts(s.state.leaseStates, s.state.serviceStates, free)
	s.state.updateAddressInUse()
	s.decision.SetExhaustedReasons(s.state.leaseStates, s.state.serviceStates, s.leases.maxAddressAttempts)
	return nil
}
