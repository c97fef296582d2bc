// Package lease gives Services the ports of the leases that they name, and has MetalLB, or hosts, show the addresses. What is decided
// is in internal/leaseports; the rules that the code names, P2 to P7, are in docs/design.md.
//
// The unit of work is a namespace: its leases, its Services and one IPAddressPool. Each reconcile makes the first writes
// that are due, and what they change wakes it for the next.
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

// twice is how long apart two live reads are that prove something: longer than a write takes that MetalLB was about to make.
const twice = 2 * time.Second

// soon is when a namespace is looked at again that no watch wakes.
const soon = 100 * time.Millisecond

// Reconciler serves the leases of a namespace. Its rights are roles of their own, config/rbac/service_leases_role.yaml.
type Reconciler struct {
	// Client writes, and reads a cache; Live reads what the API server has.
	Client   client.Client
	Live     client.Reader
	Recorder events.EventRecorder
	Now      func() time.Time
	// WatchFilter, where set, is the value of the label of the leases that are served.
	WatchFilter string
	// AddressAttempts is how many addresses a Service gets, one after another, for which somebody else answers.
	AddressAttempts int
	// Ways are who shows the addresses of what is served.
	Ways

	mu sync.Mutex
	// seen is when a live read first showed something, by namespace.
	seen map[string]map[sight]time.Time

	refusals refusals
	// heard are the heartbeats of hosts.
	heard *heartbeats
}

// sight is something that two live reads are to show: that nobody is shown behind a port of a lease, or behind any; or that is to
// last: that no host has its address, that MetalLB has not given a Service one, or that a Service does not find its lease.
type sight struct {
	lease types.UID
	port  leaseports.Port
	// by is the Service that had the port; without a name: the address itself is let go of.
	by leaseports.Ref
	// without a host.
	without bool
	// service without an address of MetalLB; unfound: without a lease that it names.
	service types.UID
	unfound bool
}

// look is one reconcile of a namespace. What it has read is the cache's, and is not changed.
type look struct {
	*Reconciler

	namespace string
	now       time.Time
	leases    []*v1alpha1.IPLease
	services  []*corev1.Service
	// known and asking are what is decided on; asking has the order of the Services.
	known  []leaseports.Lease
	asking []leaseports.Service
	// classes are the pools that leases are made of, by load balancer class; ofHosts, those whose leases hosts show.
	classes []leaseports.Pool
	ofHosts map[v1alpha1.PoolReference]bool
	// pools are the IPAddressPools of the namespace, by name, and shownIn by the addresses that they have.
	pools   map[string]*metallbv1beta1.IPAddressPool
	shownIn map[netip.Addr]*metallbv1beta1.IPAddressPool
	// byName are the leases, holders those that have ports of them, endpoints which Service of a namespace has a ready one.
	byName    map[string]*v1alpha1.IPLease
	byAddress map[netip.Addr][]*v1alpha1.IPLease
	holders   map[leaseports.Ref]bool
	endpoints map[string]map[string]bool
	// onHosts is what hosts say of the leases that they show.
	onHosts map[types.UID]*leaseports.OnHost
	// before is what was seen before, seen what is seen now.
	before, seen map[sight]time.Time
	// asked are the leases of which it was asked whether they are shown still.
	asked map[types.UID]bool
	// wait is how long until something is to be looked at again; 0: until something changes.
	wait time.Duration
}

// Reconcile brings the leases and the Services of one namespace forward: its name is that of the request.
func (r *Reconciler) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	l := &look{Reconciler: r, namespace: req.Name, now: r.Now(), seen: map[sight]time.Time{}, asked: map[types.UID]bool{}}
	if err := l.gather(ctx); err != nil {
		return reconcile.Result{}, err
	}
	r.mu.Lock()
	l.before = r.seen[l.namespace]
	r.mu.Unlock()
	err := l.bringForward(ctx)
	r.mu.Lock()
	l.keepSights()
	if r.seen == nil {
		r.seen = map[string]map[sight]time.Time{}
	}
	if delete(r.seen, l.namespace); len(l.seen) > 0 {
		r.seen[l.namespace] = l.seen
	}
	r.mu.Unlock()
	if ownGone(err) {
		return guard.Behind(), nil
	}
	delayed, err := pace.Split(err)
	l.delay(delayed)
	result, err := guard.Retry(err, "serving the leases of namespace "+l.namespace)
	if err == nil && result.IsZero() {
		result.RequeueAfter = l.wait
	}
	return result, err
}

// setConditions patches the conditions of an object. It is not done yet, and no error, where another writer reverts it: the other
// objects of the namespace do not wait for that.
func (l *look) setConditions(ctx context.Context, next, before client.Object) (done bool, err error) {
	delayed, err := pace.Split(l.Client.Status().Patch(ctx, next, guard.SinceRead(before)))
	l.delay(delayed)
	return err == nil && delayed == 0, err
}

// delay has the namespace looked at again after a time; 0: nothing is delayed.
func (l *look) delay(d time.Duration) {
	if d > 0 {
		l.wait = grants.Sooner(l.wait, d)
	}
}

// ownGone reports whether a Service or a lease is gone that was to be written. That MetalLB's kinds are gone, or its
// namespace, is a fault.
func ownGone(err error) bool {
	var status apierrors.APIStatus
	if !apierrors.IsNotFound(err) || !errors.As(err, &status) || status.Status().Details == nil {
		return false
	}
	kind := status.Status().Details.Kind
	return kind == "services" || kind == "ipleases"
}

// keepSights keeps when it was first seen that the addresses of leases are let go of: an earlier step has changed something,
// and nobody looked this time. What a lease that is being deleted has lost it does not get again.
func (l *look) keepSights() {
	for s, since := range l.before {
		_, again := l.seen[s]
		if s.by == (leaseports.Ref{}) && !s.without && !again && slices.ContainsFunc(l.leases, func(o *v1alpha1.IPLease) bool { return o.UID == s.lease && !l.asked[s.lease] }) {
			l.seen[s] = since
		}
	}
}

// bringForward makes the writes that are due: none is made on what an earlier one has not brought about. What MetalLB does
// not take stops nobody from being told, nor from giving up what he has.
func (l *look) bringForward(ctx context.Context) error {
	l.awaitHosts()
	services, made, next := leaseports.Make(l.asking, l.known, l.classes, l.now)
	if l.asking = services; next > 0 {
		l.wait = grants.Sooner(l.wait, next)
	}
	l.awaitMetalLB()
	l.awaitLeases()
	if changed, err := l.makeAll(ctx, made); changed || err != nil {
		return err
	}
	never := func(string, leaseports.Holder) bool { return false }
	free, err := l.prove(ctx, leaseports.Decide(l.known, l.asking, never).Leaving)
	if err != nil {
		return err
	}
	d := leaseports.Decide(l.known, l.asking, free)
	l.heedHosts()
	d.Exhaust(l.known, l.asking, l.AddressAttempts)
	l.measure(&d)
	var notShown error
	show := func(ctx context.Context, d *leaseports.Decision) (changed bool, err error) {
		changed, notShown = l.show(ctx, d)
		return changed && notShown == nil, nil
	}
	for _, step := range []func(context.Context, *leaseports.Decision) (changed bool, err error){
		l.writeTables, l.hold, show, l.tell, l.publish, l.clear, l.publishOnHosts, l.letGo, l.endUnused, l.nextAddress, l.forgetTried, l.report,
	} {
		if changed, err := step(ctx, &d); changed || err != nil {
			return errors.Join(err, notShown)
		}
	}
	return notShown
}

// makeAll makes the leases that are to be made, and notes for which Services it cannot.
func (l *look) makeAll(ctx context.Context, made []leaseports.Made) (changed bool, err error) {
	changed, refused, err := l.make(ctx, made)
	for i := range l.asking {
		for _, name := range l.asking[i].Leases {
			if why := refused[name]; why != "" {
				l.asking[i].NotMade = why
			}
		}
	}
	return changed, err
}

// leftAlone reports whether a lease is paused, or another manager's. All leases of a namespace have one IPAddressPool and
// its Services, so they are decided on together, and its own is not written.
func (l *look) leftAlone(o *v1alpha1.IPLease) bool {
	return annotations.HasPaused(o) || guard.IsAnothers(o, l.WatchFilter)
}

// addressOf is the address of a lease, or that of its record: after a move or a restore there is no status yet.
func addressOf(o *v1alpha1.IPLease) netip.Addr {
	a, err := netip.ParseAddr(o.Status.Address)
	if err != nil {
		a, _ = netip.ParseAddr(o.Annotations[v1alpha1.AddressAnnotation])
	}
	return a
}

// twiceSeen reports whether a live read has shown something now and once before, some time ago. Else it is to be looked at
// again.
func (l *look) twiceSeen(s sight) bool {
	since, before := l.before[s]
	if !before {
		since = l.Now() // after it was read; a look is as old as its begin
	}
	l.seen[s] = since
	if wait := twice - l.now.Sub(since); wait > 0 {
		l.wait = grants.Sooner(l.wait, wait)
		return false
	}
	return true
}
