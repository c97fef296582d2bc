package lease

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/hostlb"
)

// heartbeats notes, by the clock of the manager, when the heartbeat of each host last changed: clocks are not compared (T1).
// A host is alive when it was heard to change, and silent when it was not for 2.5 times the duration of its Lease: by then
// another one has taken its addresses over, if there is one. It says so by an event, so nobody has to look.
type heartbeats struct {
	mu     sync.Mutex
	of     map[string]*heartbeat
	sooner chan struct{}
	events chan event.TypedGenericEvent[string]
}

// heartbeat is that of a host.
type heartbeat struct {
	// seen: there is one, which was renewed then by the host's clock.
	seen    bool
	renewed time.Time
	// heard is when it last changed, or was first looked for.
	heard    time.Time
	patience time.Duration
	life     life
}

// life is what is known of whether a host lives.
type life int

const (
	// unknown: it was seen, and not heard yet.
	unknown life = iota
	alive
	silent
)

// patienceOf is after how long without a change a host is silent.
func patienceOf(duration time.Duration) time.Duration { return duration * 5 / 2 }

// noHostAfter is for how long no host has an address until that is said: longer than a start and a failover take.
var noHostAfter = patienceOf(hostlb.DefaultTiming().Lifetime)

func newHeartbeats() *heartbeats {
	return &heartbeats{of: map[string]*heartbeat{}, sooner: make(chan struct{}, 1), events: make(chan event.TypedGenericEvent[string])}
}

// hear notes the heartbeat of a host. New: it was made while this manager listened, so the host lives; else only a change
// shows that. It reports whether the host was not known to live before, and is now.
func (h *heartbeats) hear(host string, o *coordinationv1.Lease, isNew bool, now time.Time) (woke bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	var renewed time.Time
	if o.Spec.RenewTime != nil {
		renewed = o.Spec.RenewTime.Time
	}
	is := h.of[host]
	if is == nil {
		is = h.begin(host, now)
	}
	changed := isNew || (is.seen && !is.renewed.Equal(renewed))
	is.seen, is.renewed = true, renewed
	is.patience = patienceOf(cmp.Or(time.Duration(ptr.Deref(o.Spec.LeaseDurationSeconds, 0))*time.Second, hostlb.DefaultTiming().Lifetime))
	if changed {
		woke = is.life != alive
		is.life, is.heard = alive, now
	}
	if woke {
		h.hurry() // a change later on only puts off when it is silent
	}
	return woke
}

// begin begins to listen for a host.
func (h *heartbeats) begin(host string, now time.Time) *heartbeat {
	is := &heartbeat{heard: now, patience: noHostAfter}
	h.of[host] = is
	h.hurry()
	return is
}

// lives returns what is known of a host. Of one that is not known it is listened from now on.
func (h *heartbeats) lives(host string, now time.Time) life {
	h.mu.Lock()
	defer h.mu.Unlock()
	is := h.of[host]
	if is == nil {
		is = h.begin(host, now)
	}
	return is.life
}

// hurry has Start look again when the next host is silent.
func (h *heartbeats) hurry() {
	select {
	case h.sooner <- struct{}{}:
	default:
	}
}

// due returns the hosts that have fallen silent, ordered, and how long it is until the next one does; 0: none can.
func (h *heartbeats) due(now time.Time) (hosts []string, next time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for name, is := range h.of {
		switch left := is.patience - now.Sub(is.heard); {
		case is.life == silent:
		case left <= 0:
			is.life = silent
			hosts = append(hosts, name)
		case next == 0 || left < next:
			next = left
		}
	}
	slices.Sort(hosts)
	return hosts, next
}

// Start says which hosts have fallen silent, until the manager ends.
func (h *heartbeats) Start(ctx context.Context) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-h.sooner:
		case <-timer.C:
		}
		hosts, next := h.due(time.Now())
		for _, host := range hosts {
			select {
			case <-ctx.Done():
				return nil
			case h.events <- event.TypedGenericEvent[string]{Object: host}:
			}
		}
		if next > 0 {
			timer.Reset(next)
		}
	}
}
