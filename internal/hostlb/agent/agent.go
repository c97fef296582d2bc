//go:build linux

// Package agent is a host that shows addresses of leases: it reads the API server and the kernel, does what internal/hostlb
// decides, and writes down what became of it.
//
// One goroutine looks and changes the interfaces. What may take its time, writes and questions to the wire, is done beside it,
// and comes back as a result: so an API server that does not answer keeps no address from being refreshed.
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
	// writers is how many writes are under way at once, beside the heartbeat; askers, how many questions to the wire.
	writers = 32
	askers  = 256
	// settle is how long what has changed is gathered before it is looked at, at least; where there are many addresses, for as
	// long again as it takes to look.
	settle = 5 * time.Millisecond
	// leaving is how long a host that stops tries to give up what it has.
	leaving = 5 * time.Second
)

// Options are those of a host.
type Options struct {
	// Name is that of the host, Node that of its Node, empty if it is none; Network, the one that its interfaces are in:
	// spec.network of pools.
	Name, Node, Network string
	// Interfaces are those that addresses are put on, none: any that has an address of the network of the lease.
	Interfaces []string
	Timing     hostlb.Timing
	// Forward: it forwards the ports by itself, Via where to.
	Forward bool
	Via     hostlb.Via
	// MaxFiles is how many files what is forwarded may use; MaxSessions and Idle are those of forward.Forwarder.
	MaxFiles    int64
	MaxSessions int
	Idle        time.Duration
	// Release: it gives up what it has when it stops. Otherwise its addresses stay until the kernel takes them away, for a restart.
	Release bool
}

// Agent is a host.
type Agent struct {
	Options

	// Cache reads what its watches have shown, Client writes, Live reads what the API server has.
	Cache, Live client.Reader
	Client      client.Client
	Log         logr.Logger

	memory *hostlb.Memory
	// wires guards links, on, and the networks of the host, for what asks and announces beside the loop.
	wires sync.RWMutex
	links map[string]*link
	// on are the interfaces that have our addresses, as they were last read.
	on      map[netip.Addr][]netif.Link
	beats   beats
	proxy   proxy
	metrics metrics
	// silences are those of hosts that are taken for dead.
	silences silences

	wake    chan struct{}
	results chan result
	claims  chan wire.Claim
	writing chan struct{}
	asking  chan struct{}
	// mine are the addresses that are on the interfaces.
	mine atomic.Pointer[map[netip.Addr]bool]
	// macs are those of all interfaces.
	macs atomic.Pointer[map[string]bool]
	// keys are where leases are, by UID.
	keys map[types.UID]client.ObjectKey
	// asleep is how long the machine was suspended since it was booted.
	asleep time.Duration
	told   map[string]string
	// read is what the Leases said when they were last read, by name.
	read map[string]readLease
	// ready: it was read once what there is, and the heartbeat is answered.
	ready atomic.Bool
}

// result is what became of something.
type result struct {
	op hostlb.Op
	hostlb.Result
}

// New is a host that has not begun.
func New(o Options, cache, live client.Reader, c client.Client, log logr.Logger) *Agent {
	a := &Agent{
		Options: o, Cache: cache, Live: live, Client: c, Log: log,
		memory: hostlb.NewMemory(hostlb.Host{Name: o.Name, Network: o.Network, Node: o.Node, Forwards: o.Forward}, o.Timing),
		links:  map[string]*link{}, beats: beats{machine: machine(), patience: o.Timing.Patience()},
		wake: make(chan struct{}, 1), results: make(chan result), claims: make(chan wire.Claim),
		writing: make(chan struct{}, writers), asking: make(chan struct{}, askers), told: map[string]string{},
	}
	a.metrics = newMetrics()
	a.proxy.Agent, a.proxy.Forwarder = a, &forward.Forwarder{MaxFiles: o.MaxFiles, MaxSessions: o.MaxSessions, Idle: o.Idle}
	a.mine.Store(&map[netip.Addr]bool{})
	a.macs.Store(&map[string]bool{})
	return a
}

// Wake has it look: something has changed.
func (a *Agent) Wake() {
	select {
	case a.wake <- struct{}{}:
	default:
	}
}

// Changed has it look, and set its ports anew: a lease, a Service, its endpoints or a Node has changed.
func (a *Agent) Changed() {
	a.proxy.changed.Store(true)
	a.Wake()
}

// Ready reports whether the host has read what there is, and is known to the others.
func (a *Agent) Ready() bool { return a.ready.Load() }

// NeedLeaderElection says that each host runs.
func (a *Agent) NeedLeaderElection() bool { return false }

// Start runs the host until the context ends, and has then given up what it has, as far as it could.
func (a *Agent) Start(ctx context.Context) error {
	watching, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	err := netif.Watch(watching, a.Wake)
	if err != nil {
		return err
	}
	defer a.close()
	a.asleep = suspended()
	stop := ctx.Done()
	var over <-chan time.Time
	var again time.Time
	var took time.Duration
	for news := true; ; {
		if news {
			began := time.Now()
			if again, err = a.look(watching); err != nil {
				return err
			}
			took = time.Since(began)
		}
		news = true
		if a.memory.Stopping && !a.memory.Holds() && !a.memory.Busy() {
			return a.beats.end(watching, a)
		}
		select {
		case <-stop:
			if !a.Release {
				return nil
			}
			stop, a.memory.Stopping, over = nil, true, time.After(leaving)
		case <-over:
			return errors.New("the locks of this host could not be given up in time: other hosts take them once its heartbeat is old")
		case r := <-a.results:
			if err := a.doneAll(&r, max(settle, took)); err != nil {
				return err
			}
		case c := <-a.claims:
			news = a.claimed(c)
		case <-a.wake:
			<-time.After(max(settle, took)) // more of it comes
		case <-time.After(time.Until(again)):
		}
	}
}

// look looks, and does what is to be done now. It returns when to look again if nothing happens.
func (a *Agent) look(ctx context.Context) (again time.Time, err error) {
	if now := suspended(); now-a.asleep > a.Timing.Again {
		a.asleep = now
		a.Log.Info("The machine was suspended: its addresses are taken off, until it is known who has them")
		a.memory.Woke()
		a.dropAll()
	}
	if err := a.readLinks(ctx); err != nil {
		a.tell("interfaces", err)
		return time.Now().Add(a.Timing.Again), nil // the kernel takes the addresses away if that does not end
	}
	a.tell("interfaces", nil)
	if err := a.gather(ctx); err != nil {
		return time.Time{}, err // the cache has them: it does not fail
	}
	for range 3 { // what was changed decides on what is next
		now := time.Now()
		ops, next := a.memory.Next(now)
		again = next
		changed := false
		for _, op := range ops {
			changed = a.begin(ctx, &op) || changed
		}
		a.refresh(ops)
		if !changed {
			break
		}
		again = now
	}
	a.memory.Forget()
	a.proxy.set(ctx)
	a.proxy.report(time.Now())
	a.metrics.measure(a)
	if again.IsZero() {
		again = time.Now().Add(a.Timing.Lifetime)
	}
	return again, nil
}

// begin does what is done at once, and begins what takes its time. It reports whether an interface was changed.
func (a *Agent) begin(ctx context.Context, op *hostlb.Op) (changed bool) {
	switch op.Kind {
	case hostlb.Add, hostlb.Remove:
		err := a.change(op)
		if a.memory.Done(time.Now(), op, hostlb.Result{Err: err}); err != nil {
			a.Log.Error(err, "An address could not be changed")
		}
		return err == nil
	case hostlb.Refresh: // all at once
	case hostlb.Announce:
		go a.announce(ctx, op.Address, op.Times)
	case hostlb.Probe:
		go a.in(a.asking, *op, func() hostlb.Result { return a.probe(ctx, op.Address) })
	case hostlb.Beat:
		go a.in(nil, *op, func() hostlb.Result { return hostlb.Result{Err: a.beats.write(ctx, a, op.Host)} })
	default:
		key := a.keys[types.UID(op.Lease)]
		go a.in(a.writing, *op, func() hostlb.Result { return a.write(ctx, op, key) })
	}
	return false
}

// in does something when there is room for it, and returns what became of it to the loop.
func (a *Agent) in(room chan struct{}, op hostlb.Op, do func() hostlb.Result) {
	if room != nil {
		room <- struct{}{}
	}
	r := do()
	if room != nil {
		<-room
	}
	a.results <- result{op, r}
}

// doneAll takes in what became of something, and of all that ends in the next moment.
func (a *Agent) doneAll(r *result, moment time.Duration) error {
	over := time.After(moment)
	for {
		if err := a.done(r); err != nil {
			return err
		}
		select {
		case next := <-a.results:
			r = &next
		case <-over:
			return nil
		}
	}
}

// done takes in what became of something.
func (a *Agent) done(r *result) error {
	now := time.Now()
	a.memory.Done(now, &r.op, r.Result)
	a.metrics.count(r)
	switch {
	case r.op.Kind == hostlb.Beat && errors.Is(r.Err, errTwin) && a.ready.Load():
		a.dropAll()
		return r.Err
	case r.op.Kind == hostlb.Beat:
		if a.tell("heartbeat", r.Err); r.Err == nil {
			a.ready.Store(true)
		}
	case r.Err == nil && r.op.Kind != hostlb.Probe && r.op.Kind != hostlb.Tell:
		a.Log.Info("Wrote the lock of an address", "address", r.op.Address, "what", r.op.Kind, "of", r.op.Dead)
	case r.Err != nil && !errors.Is(r.Err, hostlb.ErrChanged) && !errors.Is(r.Err, hostlb.ErrAlive) && !errors.Is(r.Err, hostlb.ErrGone):
		a.Log.Error(r.Err, "Something could not be done for an address", "address", r.op.Address, "what", r.op.Kind)
	}
	return nil
}

// tell logs what is wrong, once, and that it is not any more.
func (a *Agent) tell(what string, err error) {
	text := ""
	if err != nil {
		text = err.Error()
	}
	switch was := a.told[what]; {
	case was == text:
		return
	case err != nil:
		a.Log.Error(err, "Something is wrong", "what", what)
	case was != "":
		a.Log.Info("All is well again", "what", what)
	}
	a.told[what] = text
}

// claimed takes in that a machine says to have an address of ours: while the lock is ours, it is told again who has it. It reports
// whether that is to be done. Otherwise the host does not look for it: anyone on the wire may claim addresses as often as he likes.
func (a *Agent) claimed(c wire.Claim) bool {
	if c.Probe || !a.memory.Claim(time.Now(), c.Address, c.MAC.String()) {
		return false
	}
	a.metrics.conflicts.WithLabelValues("claim").Inc()
	a.Log.Info("Somebody claims an address of this host", "address", c.Address, "mac", c.MAC.String())
	return true
}

// errTwin says that two machines have the name of the host.
var errTwin = errors.New("another machine is alive under the name of this host, or was until this one was booted: it is waited until its heartbeat is old; if it lives, give one of them another name (--host-name)")

func (a *Agent) probe(ctx context.Context, address netip.Addr) hostlb.Result {
	w, err := a.wireOf(address)
	if err != nil {
		return hostlb.Result{Err: err}
	}
	mac, err := w.Probe(ctx, address)
	if err != nil || mac == nil {
		return hostlb.Result{Err: err}
	}
	return hostlb.Result{MAC: mac.String()}
}

// announce says on the wire so many times that this host has an address.
func (a *Agent) announce(ctx context.Context, address netip.Addr, times int) {
	w, err := a.wireOf(address)
	if err == nil {
		err = w.Announce(ctx, address, times)
	}
	if err != nil {
		a.Log.Error(err, "An address could not be announced: machines on its network that knew another host for it learn it when they ask", "address", address)
	}
}
