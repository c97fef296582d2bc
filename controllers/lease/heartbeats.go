package lease

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/hostlb"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/hostlb/record"
)

// heartbeats records, by the clock of the manager, when the heartbeat of each host last changed: clocks are not
// compared (T1). A host is alive once its heartbeat was seen to change, and silent once it has not changed for the
// FailoverTimeout of its lifetime. Each host that becomes silent is sent as an event, so no reconcile has to poll for
// it.
//
// hostlb.HostState does so for the hosts, where each new version of the Lease is a change and a host is alive until its
// heartbeat has timed out: in doubt, no host takes over. Here only a renewal is a change, and a host is alive after one:
// in doubt, it is reported neither as alive nor as silent.
type heartbeats struct {
	mu          sync.Mutex
	byHost      map[string]*heartbeat
	recheck     chan struct{}
	silentHosts chan event.TypedGenericEvent[string]
}

// heartbeat is the state of the heartbeat of one host.
type heartbeat struct {
	// observed reports whether the heartbeat was read; renewTime is its renew time then, by the host's clock.
	observed  bool
	renewTime time.Time
	// lastChange is when the heartbeat last changed, or when the host was first tracked.
	lastChange time.Time
	timeout    time.Duration
	liveness   liveness
}

// liveness is what is known about whether a host is alive.
type liveness int

const (
	// livenessUnknown means that no change of the heartbeat was seen yet.
	livenessUnknown liveness = iota
	livenessAlive
	livenessSilent
)

// noHostTimeout is how long no host may have an address until the condition shows it: longer than a start and a
// failover take.
var noHostTimeout = hostlb.DefaultTiming().FailoverTimeout()

func newHeartbeats() *heartbeats {
	return &heartbeats{byHost: map[string]*heartbeat{}, recheck: make(chan struct{}, 1), silentHosts: make(chan event.TypedGenericEvent[string])}
}

// observeHeartbeat records the heartbeat of a host. isNew reports whether the heartbeat was created while this manager
// watched, so that the host is alive; otherwise only a change shows that. It reports whether the host was not known to
// be alive before, and is now.
func (h *heartbeats) observeHeartbeat(host string, o *coordinationv1.Lease, isNew bool, now time.Time) (woke bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	renewed, lifetime := record.ParseRenewal(o)
	tracked := h.byHost[host]
	if tracked == nil {
		tracked = h.startTracking(host, now)
	}
	changed := isNew || (tracked.observed && !tracked.renewTime.Equal(renewed))
	tracked.observed, tracked.renewTime = true, renewed
	tracked.timeout = hostlb.NewTiming(cmp.Or(lifetime, hostlb.DefaultTiming().Lifetime)).FailoverTimeout()
	if changed {
		woke = tracked.liveness != livenessAlive
		tracked.liveness, tracked.lastChange = livenessAlive, now
	}
	if woke {
		h.signalRecheck() // a later change only postpones when it is silent
	}
	return woke
}

// startTracking begins to track the heartbeat of a host.
func (h *heartbeats) startTracking(host string, now time.Time) *heartbeat {
	tracked := &heartbeat{lastChange: now, timeout: noHostTimeout}
	h.byHost[host] = tracked
	h.signalRecheck()
	return tracked
}

// livenessForHost returns what is known about a host. A host that is not known yet is tracked from now on.
func (h *heartbeats) livenessForHost(host string, now time.Time) liveness {
	h.mu.Lock()
	defer h.mu.Unlock()
	tracked := h.byHost[host]
	if tracked == nil {
		tracked = h.startTracking(host, now)
	}
	return tracked.liveness
}

// signalRecheck makes Start compute again when the next host becomes silent.
func (h *heartbeats) signalRecheck() {
	select {
	case h.recheck <- struct{}{}:
	default:
	}
}

// expireHosts returns the hosts that have become silent, sorted, and how long it takes until the next one does, 0 if
// none can.
func (h *heartbeats) expireHosts(now time.Time) (hosts []string, next time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for name, tracked := range h.byHost {
		switch left := tracked.timeout - now.Sub(tracked.lastChange); {
		case tracked.liveness == livenessSilent:
		case left <= 0:
			tracked.liveness = livenessSilent
			hosts = append(hosts, name)
		case next == 0 || left < next:
			next = left
		}
	}
	slices.Sort(hosts)
	return hosts, next
}

// Start sends an event for each host that becomes silent, until the manager ends.
func (h *heartbeats) Start(ctx context.Context) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-h.recheck:
		case <-timer.C:
		}
		hosts, next := h.expireHosts(time.Now())
		for _, host := range hosts {
			select {
			case <-ctx.Done():
				return nil
			case h.silentHosts <- event.TypedGenericEvent[string]{Object: host}:
			}
		}
		if next > 0 {
			timer.Reset(next)
		}
	}
}
