//go:build linux

// Package agent runs a host that shows addresses of leases: it reads the API server and the kernel, does what
// internal/hostlb decides, and records the outcomes.
//
// One goroutine syncs the host and changes its interfaces. Operations that may take long, writes and probes, run beside
// it and return their results to it: so an API server that does not answer keeps no address from being refreshed.
package agent

import (
	"context"
	"errors"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/hostlb"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/hostlb/forward"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/hostlb/netif"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/hostlb/wire"
)

const (
	// maxConcurrentWrites is how many writes are in flight at once, beside the heartbeat; maxConcurrentProbes is how many
	// probes are.
	maxConcurrentWrites = 32
	maxConcurrentProbes = 256
	// debounceDelay is how long changes are gathered before the next sync, at least; where there are many addresses, they
	// are gathered for as long as the last sync took.
	debounceDelay = 5 * time.Millisecond
	// releaseTimeout is how long a host that stops tries to release its addresses and locks.
	releaseTimeout = 5 * time.Second
)

// Options are the settings of a host.
type Options struct {
	// Name is the name of the host; Node is the name of its Node, empty if it is none; Network is the network that its
	// interfaces are in: spec.network of pools.
	Name, Node, Network string
	// Interfaces are the interfaces that addresses are put on; if empty, any that has an address of the network of the
	// lease.
	Interfaces []string
	Timing     hostlb.Timing
	// ForwardTraffic reports whether the host forwards the ports itself, to backends of BackendType.
	ForwardTraffic bool
	BackendType    hostlb.BackendType
	// MaxFiles is how many files forwarding may use; MaxUDPSessions and UDPIdleTimeout are those of forward.Forwarder.
	MaxFiles       int64
	MaxUDPSessions int
	UDPIdleTimeout time.Duration
	// ReleaseOnExit reports whether the host releases its addresses and locks when it stops. Otherwise its addresses stay
	// until the kernel removes them, so that a restart is not seen.
	ReleaseOnExit bool
}

// Agent runs a host.
type Agent struct {
	Options

	// Cache reads what its watches have shown, Client writes, and Live reads from the API server.
	Cache, Live client.Reader
	Client      client.Client
	Log         logr.Logger

	state *hostlb.HostState
	// linksMu guards links, linksByAddress and the networks of the host, for the goroutines that probe and announce.
	linksMu sync.RWMutex
	links   map[string]*link
	// linksByAddress has the interfaces that have each of our addresses, as they were last read.
	linksByAddress map[netip.Addr][]netif.Link
	heartbeats     heartbeats
	proxy          proxy
	metrics        metrics
	// heartbeatReads has the heartbeats of hosts that are taken for dead, as they were read from the API server.
	heartbeatReads heartbeatReads

	wakeups      chan struct{}
	completedOps chan completedOp
	claims       chan wire.Claim
	writeSlots   chan struct{}
	probeSlots   chan struct{}
	// managedAddresses are the addresses of leases that are on the interfaces.
	managedAddresses atomic.Pointer[map[netip.Addr]bool]
	// interfaceMACs are the MACs of all interfaces.
	interfaceMACs atomic.Pointer[map[string]bool]
	// leaseKeys are the keys of the leases, by UID.
	leaseKeys map[types.UID]client.ObjectKey
	// lastSuspended is for how long the machine had been suspended since its boot, as last recorded.
	lastSuspended time.Duration
	loggedErrors  map[string]string
	// parsedLeases has the contents of the coordination Leases as they were last read, by name.
	parsedLeases map[string]parsedLease
	// ready reports whether the host has read everything once, and its heartbeat was answered.
	ready atomic.Bool
}

// completedOp is an operation with its result.
type completedOp struct {
	op hostlb.Op
	hostlb.OpResult
}

// New returns a host that has not started.
func New(o Options, cache, live client.Reader, c client.Client, log logr.Logger) *Agent {
	a := &Agent{
		Options: o, Cache: cache, Live: live, Client: c, Log: log,
		state: hostlb.NewHostState(hostlb.Host{Name: o.Name, Network: o.Network, Node: o.Node, ForwardsTraffic: o.ForwardTraffic}, o.Timing),
		links: map[string]*link{}, heartbeats: heartbeats{machineID: readMachineID(), heartbeatTimeout: o.Timing.HeartbeatTimeout()},
		wakeups: make(chan struct{}, 1), completedOps: make(chan completedOp), claims: make(chan wire.Claim),
		writeSlots: make(chan struct{}, maxConcurrentWrites), probeSlots: make(chan struct{}, maxConcurrentProbes), loggedErrors: map[string]string{},
	}
	a.metrics = newMetrics()
	a.proxy.Agent, a.proxy.Forwarder = a, &forward.Forwarder{MaxFiles: o.MaxFiles, MaxUDPSessions: o.MaxUDPSessions, UDPIdleTimeout: o.UDPIdleTimeout}
	a.managedAddresses.Store(&map[netip.Addr]bool{})
	a.interfaceMACs.Store(&map[string]bool{})
	return a
}

// TriggerSync has the host sync: something has changed.
func (a *Agent) TriggerSync() {
	select {
	case a.wakeups <- struct{}{}:
	default:
	}
}

// TriggerPortSync has the host sync and set its ports again: a lease, a Service, its endpoints or a Node has changed.
func (a *Agent) TriggerPortSync() {
	a.proxy.portsChanged.Store(true)
	a.TriggerSync()
}

// IsReady reports whether the host has read everything once, and is known to the other hosts.
func (a *Agent) IsReady() bool { return a.ready.Load() }

// NeedLeaderElection returns false: each host runs.
func (a *Agent) NeedLeaderElection() bool { return false }

// Start runs the host until ctx ends. With ReleaseOnExit it then releases its addresses and locks, as far as it can.
func (a *Agent) Start(ctx context.Context) error {
	watching, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	err := netif.WatchChanges(watching, a.TriggerSync)
	if err != nil {
		return err
	}
	defer a.closeLinks()
	a.lastSuspended = suspendedDuration()
	stop := ctx.Done()
	var over <-chan time.Time
	var again time.Time
	var took time.Duration
	for changed := true; ; {
		if changed {
			began := time.Now()
			if again, err = a.syncOnce(watching); err != nil {
				return err
			}
			took = time.Since(began)
		}
		changed = true
		if a.state.Stopping && !a.state.HasLocksOrAddresses() && !a.state.HasWriteInFlight() {
			return a.heartbeats.deleteHeartbeat(watching, a)
		}
		select {
		case <-stop:
			if !a.ReleaseOnExit {
				return nil
			}
			stop, a.state.Stopping, over = nil, true, time.After(releaseTimeout)
		case <-over:
			return errors.New("the locks of this host could not be given up in time: other hosts take them once its heartbeat is old")
		case r := <-a.completedOps:
			if err := a.completeOps(&r, max(debounceDelay, took)); err != nil {
				return err
			}
		case c := <-a.claims:
			changed = a.handleClaim(c)
		case <-a.wakeups:
			<-time.After(max(debounceDelay, took)) // more changes follow
		case <-time.After(time.Until(again)):
		}
	}
}

// syncOnce reads everything, and runs the operations that are due. It returns when to sync again if nothing happens.
func (a *Agent) syncOnce(ctx context.Context) (again time.Time, err error) {
	if now := suspendedDuration(); now-a.lastSuspended > a.Timing.RetryInterval {
		a.lastSuspended = now
		a.Log.Info("The machine was suspended, removing its addresses until their holders are known")
		a.state.HandleResume()
		a.removeAllAddresses()
	}
	if err := a.readLinks(ctx); err != nil {
		a.logOnChange("interfaces", err)
		return time.Now().Add(a.Timing.RetryInterval), nil // the kernel removes the addresses if that does not end
	}
	a.logOnChange("interfaces", nil)
	if err := a.observeCache(ctx); err != nil {
		return time.Time{}, err // the cache has synced: it does not fail
	}
	for range 3 { // the changes decide on what is next
		now := time.Now()
		ops, next := a.state.PlanOps(now)
		again = next
		changed := false
		for _, op := range ops {
			changed = a.beginOp(ctx, &op) || changed
		}
		a.refreshAddresses(ops)
		if !changed {
			break
		}
		again = now
	}
	a.state.PruneAddresses()
	a.proxy.syncPorts(ctx)
	a.proxy.updatePortReports(time.Now())
	a.metrics.updateGauges(a)
	if again.IsZero() {
		again = time.Now().Add(a.Timing.Lifetime)
	}
	return again, nil
}

// beginOp runs an operation that takes no time, and begins any other. It reports whether an interface was changed.
func (a *Agent) beginOp(ctx context.Context, op *hostlb.Op) (changed bool) {
	switch op.Kind {
	case hostlb.AddAddress, hostlb.RemoveAddress:
		err := a.changeAddress(op)
		if a.state.CompleteOp(time.Now(), op, hostlb.OpResult{Err: err}); err != nil {
			a.Log.Error(err, "Failed to change an address")
		}
		return err == nil
	case hostlb.RefreshAddress: // refreshAddresses runs them all at once
	case hostlb.AnnounceAddress:
		go a.announceAddress(ctx, op.Address, op.AnnounceCount)
	case hostlb.ProbeAddress:
		go a.runInSlot(a.probeSlots, *op, func() hostlb.OpResult { return a.probeAddress(ctx, op.Address) })
	case hostlb.WriteHeartbeat:
		go a.runInSlot(nil, *op, func() hostlb.OpResult { return hostlb.OpResult{Err: a.heartbeats.writeHeartbeat(ctx, a, op.Host)} })
	default:
		key := a.leaseKeys[types.UID(op.LeaseUID)]
		go a.runInSlot(a.writeSlots, *op, func() hostlb.OpResult { return a.writeLockForOp(ctx, op, key) })
	}
	return false
}

// runInSlot runs an operation once a slot is free, and returns its result to the loop. A nil room has no limit.
func (a *Agent) runInSlot(room chan struct{}, op hostlb.Op, do func() hostlb.OpResult) {
	if room != nil {
		room <- struct{}{}
	}
	r := do()
	if room != nil {
		<-room
	}
	a.completedOps <- completedOp{op, r}
}

// completeOps records the result of an operation, and of all others that complete within the next moment.
func (a *Agent) completeOps(r *completedOp, moment time.Duration) error {
	over := time.After(moment)
	for {
		if err := a.completeOp(r); err != nil {
			return err
		}
		select {
		case next := <-a.completedOps:
			r = &next
		case <-over:
			return nil
		}
	}
}

// completeOp records the result of an operation.
func (a *Agent) completeOp(r *completedOp) error {
	now := time.Now()
	a.state.CompleteOp(now, &r.op, r.OpResult)
	a.metrics.countOp(r)
	switch {
	case r.op.Kind == hostlb.WriteHeartbeat && errors.Is(r.Err, errDuplicateHostName) && a.ready.Load():
		a.removeAllAddresses()
		return r.Err
	case r.op.Kind == hostlb.WriteHeartbeat:
		if a.logOnChange("heartbeat", r.Err); r.Err == nil {
			a.ready.Store(true)
		}
	case r.Err == nil && r.op.Kind != hostlb.ProbeAddress && r.op.Kind != hostlb.WriteReport:
		a.Log.Info("Wrote the lock of an address", "address", r.op.Address, "operation", r.op.Kind, "previousHolder", r.op.DeadHost)
	case r.Err != nil && !errors.Is(r.Err, hostlb.ErrLockChanged) && !errors.Is(r.Err, hostlb.ErrHolderAlive) && !errors.Is(r.Err, hostlb.ErrLeaseGone):
		a.Log.Error(r.Err, "Failed to run an operation on an address", "address", r.op.Address, "operation", r.op.Kind)
	}
	return nil
}

// handleClaim records that a machine claims an address of this host: while the lock is ours, the address is announced
// again. It reports whether to do that. Otherwise the host does not sync: any machine on the wire may claim addresses
// as often as it likes.
func (a *Agent) handleClaim(c wire.Claim) bool {
	if c.IsProbe || !a.state.ObserveClaim(time.Now(), c.Address, c.MAC.String()) {
		return false
	}
	a.metrics.conflicts.WithLabelValues("claim").Inc()
	a.Log.Info("Another machine claims an address of this host", "address", c.Address, "mac", c.MAC.String())
	return true
}

// errDuplicateHostName means that two machines use the name of the host, which its text follows.
var errDuplicateHostName = errors.New("is in use by another machine, or was before this one was booted. Waiting for its heartbeat to expire; if that machine is still running, start one of the two with a different --host-name")

func (a *Agent) probeAddress(ctx context.Context, address netip.Addr) hostlb.OpResult {
	w, err := a.connForAddress(address)
	if err != nil {
		return hostlb.OpResult{Err: err}
	}
	mac, err := w.ProbeAddress(ctx, address)
	if err != nil || mac == nil {
		return hostlb.OpResult{Err: err}
	}
	return hostlb.OpResult{ReplyMAC: mac.String()}
}

// announceAddress announces on the wire, that many times, that this host has an address.
func (a *Agent) announceAddress(ctx context.Context, address netip.Addr, times int) {
	w, err := a.connForAddress(address)
	if err == nil {
		err = w.AnnounceAddress(ctx, address, times)
	}
	if err != nil {
		a.Log.Error(err, "Failed to announce an address, machines on its network that knew another host for it learn the change when they ask", "address", address)
	}
}
