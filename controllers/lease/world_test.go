package lease

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	metallbv1beta1 "go.universe.tf/metallb/api/v1beta1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/controllers/guard"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/controllers/lookup"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/balancer"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/hostlb/record"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/leaseports"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/metallb"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pace"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/faults"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/sim"
)

// A world is an API server, managers, hosts, an allocator, MetalLB and a user, in an order that a seed determines. The
// API server, the hosts, the allocator and MetalLB are fakes, so that every schedule can be run. test/e2e tests the real
// ones.

const (
	// ns has the leases; other has Services that use them too.
	ns      = "team"
	other   = "other"
	byClass = "butler.butlerlabs.dev/metallb"
	// restPeriod is how long nothing must happen until everything counts as at rest: longer than any recheck takes.
	restPeriod = 2 * time.Minute
)

var namespaces = []string{ns, other}

// watched are the kinds that managers watch.
var watched = []faults.Kind{
	faults.Leases, faults.Services, faults.EndpointSlices, faults.MetalLBPools, faults.L2Advertisements, faults.Pools, faults.Namespaces,
	faults.HostLeases,
}

// poolAddresses is the one address of each pool from which leases are created; c and d are pools of hosts. Leases that
// users create have other addresses.
var poolAddresses = map[string]string{"a": "10.0.1.1", "b": "10.0.2.1", "c": "10.0.3.1", "d": "10.0.4.1"}

// action is an action of a user.
type action = sim.Action[*world]

// warnings are the events of type Warning on Services.
type warnings struct {
	mu sync.Mutex
	of []string
}

func (w *warnings) Eventf(about, _ runtime.Object, kind, reason, _, note string, args ...any) {
	s, is := about.(*corev1.Service)
	if !is || kind != corev1.EventTypeWarning {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.of = append(w.of, s.Name+" "+reason+": "+fmt.Sprintf(note, args...))
}

// manager is a reconciler, its cache and its queues.
type manager struct {
	*sim.Process
	*Reconciler

	cache  *faults.Cache
	queues map[string]*sim.Queue
	// stalled is the kind whose watch shows nothing.
	stalled faults.Kind
}

type world struct {
	*sim.World[*world, *manager]

	r   *rand.Rand
	api *faults.Server
	// remainingFaults is how many more calls fail.
	remainingFaults int
	lastCall        time.Time
	// nextBeat is when a host writes its heartbeat, or is missed.
	nextBeat time.Time
	// running is MetalLB's configuration, by address; pendingWrite is what MetalLB has decided and not written yet;
	// frozen reports whether MetalLB does nothing.
	running map[string]bool
	// last is the IPAddressPool that had an address last.
	last         map[string]string
	pendingWrite func()
	frozen       bool
	// noLeases reports whether a quota refuses new leases.
	noLeases bool
	warnings warnings
	// hosts show addresses; announced are the leases that a host has reported as announced; released are those that a
	// user released.
	hosts               []*host
	announced, released map[types.UID]bool
	// foreign are the addresses for which a foreign machine answers; restingUntil is until when an address is granted
	// to no lease.
	foreign      map[netip.Addr]bool
	restingUntil map[string]time.Time
	// keptKinds are the kinds whose deleted objects are kept by a foreign finalizer.
	keptKinds []faults.Kind
}

// TestRandomSequences (H17) runs random stories in random orders of steps, with one manager and with two, while calls
// fail, answers are lost, and managers die and sleep.
func TestRandomSequences(t *testing.T) {
	n := 1000
	if testing.Short() {
		n = 150
	}
	for seed := range n {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { runWorld(t, uint64(seed)) })
	}
}

func runWorld(t *testing.T, seed uint64) {
	t.Helper()
	runStory(t, seed, func(*world) {})
}

// runStory runs a world that prepare has changed before a manager starts.
func runStory(t *testing.T, seed uint64, prepare func(*world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := &world{r: rand.New(rand.NewPCG(seed, 7)), api: faults.NewServer(), running: map[string]bool{}, last: map[string]string{}, announced: map[types.UID]bool{}, released: map[types.UID]bool{}, foreign: map[netip.Addr]bool{}, restingUntil: map[string]time.Time{}}
		w.World = sim.NewWorld(t, w, sim.Config[*manager]{
			Servers: []*faults.Server{w.api}, StartInPlaceOf: func(*manager) { w.start() },
			Rest: restPeriod, NextTime: w.nextTime, OtherSteps: w.otherSteps, AnswersDead: true, Execute: w.execute,
			BeforeStep: w.beforeStep, OnCall: w.onCall, OnWatchEvent: w.onWatchEvent, OnReconcile: w.checkRest,
			AfterWrite: w.addForeignFinalizers,
		})
		w.Order, w.UserWhims, w.Disturb = sim.RandomOrder(w.r), w.r, (*world).injectFault
		w.remainingFaults = w.r.IntN(6)
		w.build()
		w.newHost("h1")
		w.newHost("h2")
		for range 6 + w.r.IntN(10) {
			draw := w.draw
			if seed%3 > 0 && w.r.IntN(3) > 0 {
				draw = w.drawOfHosts
			}
			w.Script = append(w.Script, draw())
		}
		switch seed % 10 {
		case 0, 1:
			if w.Script = missedDeletionStory(); seed%20 == 10 {
				w.Script = renamedLeaseStory()
			}
		case 2:
			w.Script = inUseStory(seed%20 == 2)
		case 3:
			w.Script = usurpedPortStory()
		case 4:
			w.Script, w.remainingFaults = calmStory(), 0
			switch seed % 30 {
			case 14:
				w.Script = createdTogetherStory()
			case 24:
				w.Script = missingLeaseStory()
			}
		case 5:
			w.Script, w.remainingFaults = unplacedServiceStory(), 0
			w.Act()
		case 6:
			if seed%20 == 6 {
				w.Script, w.remainingFaults = cutOffHostStory(), 0
			}
		}
		prepare(w)
		for range 1 + seed%2 {
			w.start()
		}
		w.Play(func() {
			w.examine()
			switch warned := !w.Obstructed; { // a refusal makes Services get other warnings
			case warned && seed%10 == 4:
				w.wantWarnings(missingLeaseWarnings(seed)...)
			case warned && seed%10 == 5:
				w.wantWarnings("web NotPlaced: the Service has TCP/80 of 10.0.0.1, and MetalLB has not given it the address; see its events, and the condition Announced of IPLease shop")
			}
		})
	})
}

func (w *world) start() {
	m := &manager{Process: w.NewProcess(), cache: newCache(), queues: map[string]*sim.Queue{}}
	c := w.api.NewClient(m.Name)
	m.Reconciler = &Reconciler{
		Client: (&pace.WritePacer{Clock: clock.RealClock{}}).WrapClient(faults.NewCachedClient(c, m.cache)), Live: c.LiveReader(), Recorder: &w.warnings, Now: time.Now,
		EnabledBackends: EnabledBackends{MetalLB: true, Hosts: true}, MaxAddressAttempts: 2, heartbeats: newHeartbeats(),
	}
	for _, namespace := range namespaces {
		m.queues[namespace] = &sim.Queue{Name: namespace, MaxBackoff: guard.MaxBackoff, Reconcile: func() (reconcile.Result, error) {
			return m.Reconcile(m.Context, reconcile.Request{NamespacedName: types.NamespacedName{Name: namespace}})
		}}
	}
	m.Synced = true
	m.AddWatches(w.api, watched...)
	for _, kind := range watched { // its caches are filled before it begins
		w.Relist(m, kind, 0, 0)
	}
	w.AddManager(m)
}

// newCache returns a cache with the indexes of a manager.
func newCache() *faults.Cache {
	cache := faults.NewCache()
	cache.Indexes = map[string]client.IndexerFunc{
		foreignNamespaceIndex: foreignNamespaceKeys, loadBalancerClassIndex: loadBalancerClassKeys, statusAddressIndex: statusAddressKeys, leaseNamespaceIndex: leaseNamespaceKeys, holderIndex: holderKeys,
		lockIndex: func(o client.Object) []string { return append(leaseLockKeys(o), lockKeys(o)...) },
	}
	return cache
}

// Queues implements sim.Manager.
func (m *manager) Queues() []*sim.Queue { return []*sim.Queue{m.queues[ns], m.queues[other]} }

// ReplaceKind implements sim.Manager.
func (m *manager) ReplaceKind(_ faults.Kind, listed []client.Object) {
	for _, o := range listed {
		m.show(faults.Change{Object: o}, false)
	}
}

// ShowChange implements sim.Manager.
func (m *manager) ShowChange(c faults.Change) { m.show(c, true) }

// show shows a manager a change, and enqueues what its watches do. listens reports whether the manager watched before
// the change.
func (m *manager) show(c faults.Change, listens bool) {
	old := m.cache.Object(faults.RefForObject(c.Object))
	m.cache.ShowChange(c)
	ctx := context.Background() // the cache is in memory
	var woken []reconcile.Request
	switch o := c.Object.(type) {
	case *corev1.Service:
		woken = requestsForService(ctx, o)
		if old != nil {
			woken = append(woken, requestsForService(ctx, old)...)
		}
	case *v1alpha1.IPLease:
		woken = requestsForNamespaces(o.Namespace)
	case *metallbv1beta1.IPAddressPool:
		woken = requestsForNamespaces(append(leaseNamespaceKeys(o), m.refusals.forgetAll()...)...)
	case *discoveryv1.EndpointSlice:
		woken = m.requestsForEndpoints(ctx, o)
	case *metallbv1beta1.L2Advertisement:
		woken = m.requestsForAdvertisement(ctx, o)
	case *v1alpha1.NetworkPool:
		woken = m.requestsForPool(ctx, o)
	case *coordinationv1.Lease:
		if woken = m.requestsForLock(ctx, o); !c.Deleted {
			woken = m.requestsForHostObject(ctx, o, listens && old == nil)
		}
	case *metav1.PartialObjectMetadata:
		woken = m.requestsForNamespace(ctx, o)
	}
	for _, r := range woken {
		m.queues[r.Name].Wake()
	}
}

// build creates what exists before a manager starts.
func (w *world) build() {
	for _, name := range namespaces {
		o := lookup.NamespaceMetadata()
		o.SetName(name)
		o.SetLabels(map[string]string{"is": name})
		_ = w.api.Create(o)
	}
	for _, name := range slices.Sorted(maps.Keys(poolAddresses)) {
		pool := framework.MakePool(name).Namespace(ns).Addresses(poolAddresses[name]).Obj()
		pool.Spec.Leases = &v1alpha1.Leases{LoadBalancerClass: byClass}
		if name == "c" || name == "d" {
			pool.Spec.Leases.LoadBalancerClass = v1alpha1.HostLoadBalancerClass
		}
		if name == "b" || name == "d" {
			pool.Spec.Leases.Priority, pool.Spec.Leases.ReleaseIdleAfterSeconds = 1, 20
		}
		pool.Status.TotalIPs, pool.Status.AvailableIPs = 1, 1
		meta.SetStatusCondition(&pool.Status.Conditions, metav1.Condition{Type: v1alpha1.ReadyCondition, Status: metav1.ConditionTrue, Reason: "Ready"})
		_ = w.api.Create(pool)
		_ = faults.EditStatus(w.api, faults.RefForObject(pool), func(o *v1alpha1.NetworkPool) { o.Status = pool.Status })
	}
}

// beforeStep makes hosts write their heartbeats. A manager that is behind tries again until it is not.
func (w *world) beforeStep() {
	w.nextBeat = w.writeHeartbeats(time.Now().Add(restPeriod))
	if slices.ContainsFunc(w.Managers, func(m *manager) bool { return m.stalled != "" }) {
		w.StepsSinceChange = 0
	}
}

// onCall records when a manager last called. While an obstacle lasts, its costs bound the failed calls.
func (w *world) onCall(*faults.Request) {
	if w.lastCall = time.Now(); w.Obstacle != nil {
		w.StepsSinceChange = 0
	}
}

// onWatchEvent does not count heartbeats, which never end.
func (w *world) onWatchEvent(_ *manager, c faults.Change) {
	if record.IsHeartbeatName(c.Object.GetName()) {
		w.StepsSinceChange--
	}
}

// checkRest checks that nothing is reconciled at rest.
func (w *world) checkRest(m *manager, _ *sim.Queue) {
	if w.Obstacle == nil && time.Since(w.LastChange) > restPeriod/2 && time.Since(w.lastCall) > createRetryDelay+balancer.ConfirmationInterval {
		w.Failf("manager %s reconciles at rest", m.Name)
	}
}

// nextTime returns when the world is examined again if nothing happens before.
func (w *world) nextTime() time.Time {
	switch {
	case len(w.Script) > 0:
		return time.Now().Add(time.Second)
	case time.Since(w.LastChange) >= restPeriod: // it waits for what is delayed, without a step each millisecond
		return earlier(time.Now().Add(restPeriod), w.nextBeat)
	}
	return earlier(w.LastChange.Add(restPeriod), w.nextBeat)
}

// otherSteps returns what the allocator, the hosts and MetalLB can do next.
func (w *world) otherSteps() []sim.Step {
	return slices.Concat(w.allocate(), w.hostSteps(), w.metalLB())
}

// injectFault makes a random call fail, or its manager die or sleep.
func (w *world) injectFault(r *faults.Request) bool {
	if w.remainingFaults == 0 || w.r.IntN(12) > 0 {
		return false
	}
	w.remainingFaults--
	switch w.r.IntN(5) {
	case 0:
		return w.Answer(r, nil, sim.ErrTimeout)
	case 1:
		return w.LoseAnswer(r)
	case 2:
		return w.CrashBefore(r)
	case 3:
		return w.CrashAfter(r)
	}
	m := w.Manager(r.Client) // it sleeps with the call in flight, and others continue
	w.Tracef("manager %s sleeps", m.Name)
	m.Asleep = true
	if len(w.Managers) == 1 {
		w.start()
	}
	w.DelayStep(0, time.Duration(3+w.r.IntN(20))*time.Second, func() {
		w.Tracef("manager %s wakes up", m.Name)
		m.Asleep, w.LastChange = false, time.Now()
		w.ExecuteAndAnswer(r)
	})
	return true
}

// execute executes a call of a manager, and checks the promise.
func (w *world) execute(r *faults.Request) (any, error) {
	if w.noLeases && r.Verb == "create" && r.Ref.Kind == faults.Leases {
		return nil, apierrors.NewForbidden(schema.GroupResource{Resource: "ipleases"}, r.Ref.Name, errors.New("exceeded quota"))
	}
	services, leases := w.services(), w.leases()
	value, err := w.api.ExecuteRequest(r)
	if err == nil && r.IsWrite() {
		w.check(services, leases)
	}
	return value, err
}

// services returns the Services of both namespaces, by the text of the reference that the leases use.
func (w *world) services() map[string]*corev1.Service {
	out := map[string]*corev1.Service{}
	for _, s := range faults.ListObjects[*corev1.Service](w.api) {
		out[leaseports.NewServiceRef(s, ns).String()] = s
	}
	return out
}

func (w *world) leases() map[string]*v1alpha1.IPLease {
	out := map[string]*v1alpha1.IPLease{}
	for _, l := range faults.ListObjects[*v1alpha1.IPLease](w.api) {
		out[l.Name] = l
	}
	return out
}

// check checks what a manager has written.
func (w *world) check(services map[string]*corev1.Service, leases map[string]*v1alpha1.IPLease) {
	now, live := w.services(), w.leases()
	w.checkPublished(services, now)
	w.checkShown()
	for name, s := range now {
		was := services[name]
		text := s.Annotations[v1alpha1.LeasedAddressesAnnotation]
		if text == "" || was == nil || was.Annotations[v1alpha1.LeasedAddressesAnnotation] == text {
			continue
		}
		for _, p := range leaseports.NewService(s, ns).Ports {
			if !slices.ContainsFunc(slices.Collect(maps.Values(live)), func(l *v1alpha1.IPLease) bool {
				return l.Status.Address == text && slices.Contains(leaseports.NewLease(l).PortTable, leaseports.Holder{Port: p, Service: leaseports.NewServiceRef(s, ns), UID: s.UID})
			}) {
				w.Failf("P3: Service %s is published with %s, and does not have %s on record", name, text, p)
			}
		}
	}
	for name, l := range leases {
		is := live[name]
		_, made := l.Labels[v1alpha1.MadeForServicesLabel]
		if ends := made && l.DeletionTimestamp == nil && (is == nil || is.UID != l.UID || is.DeletionTimestamp != nil) && len(l.Status.Ports) > 0; ends && !leaseports.NewLease(l).AddressInUse {
			w.Failf("P5: lease %s is deleted, and Service %s has a port of it", name, l.Status.Ports[0].Service)
		} else if ends {
			w.checkReplaced(l, now[l.Labels[v1alpha1.MadeForServicesLabel]])
		}
		for _, h := range leaseports.NewLease(l).PortTable {
			s := now[h.Service.String()]
			if is == nil || is.UID != l.UID || slices.Contains(leaseports.NewLease(is).PortTable, h) || s == nil || s.UID != h.UID {
				continue
			}
			behind := slices.Contains(leaseports.NewService(s, ns).Ports, h.Port)
			if a, err := netip.ParseAddr(l.Status.Address); err == nil && ((behind && leaseports.ShowsAddress(s, a)) || leaseports.StatusHasPort(s, a, h.Port)) {
				w.Failf("P4: the port %s of %s is taken from Service %s, which shows it", h.Port, name, h.Service)
			}
		}
		if is != nil && is.UID == l.UID && controllerutil.ContainsFinalizer(l, v1alpha1.LeaseShownFinalizer) && !controllerutil.ContainsFinalizer(is, v1alpha1.LeaseShownFinalizer) {
			w.checkGivenUp(name, l.Status.Address)
		}
	}
}

// checkGivenUp checks that the address of a released lease is not shown. MetalLB reports by its count of a pool that it
// has applied a change. For a pool that is gone, or that it has never counted, it reports nothing: while it sleeps, it
// may still have the address.
func (w *world) checkGivenUp(name, address string) {
	publishes := slices.ContainsFunc(w.api.List(faults.MetalLBPools), func(o client.Object) bool {
		p, is := o.(*metallbv1beta1.IPAddressPool)
		return is && p.Status.AvailableIPv4 > 0 && p.Name == w.last[address]
	})
	if w.configured()[address] || (publishes && w.running[address]) {
		w.Failf("P6: lease %s is released, and MetalLB has %s", name, address)
	}
	for _, s := range w.services() {
		if a, err := netip.ParseAddr(address); err == nil && leaseports.ShowsAddress(s, a) {
			w.Failf("P6: lease %s is released, and Service %s shows %s", name, s.Name, address)
		}
	}
}

// allocate returns the steps of the allocator: a lease gets the first free address of its pool, or the condition that
// there is none, and its address is released when it is deleted and not shown.
func (w *world) allocate() []sim.Step {
	used := map[string]bool{}
	for a, until := range w.restingUntil {
		used[a] = until.After(time.Now())
	}
	all := w.leases()
	for _, l := range all {
		used[l.Status.Address] = true
	}
	for _, name := range slices.Sorted(maps.Keys(all)) { // a seed must always run the same story
		l := all[name]
		ref := faults.RefForObject(l)
		if l.DeletionTimestamp != nil && controllerutil.ContainsFinalizer(l, v1alpha1.IPLeaseFinalizer) && !controllerutil.ContainsFinalizer(l, v1alpha1.LeaseShownFinalizer) {
			return []sim.Step{{Text: "the allocator releases " + l.Name, Run: func() {
				if leaseports.NewLease(l).AddressInUse {
					w.quarantineAddress(l.Status.Address)
				}
				w.Change("released", func() {
					_ = w.api.EditObject(ref, func(o client.Object) { controllerutil.RemoveFinalizer(o, v1alpha1.IPLeaseFinalizer) })
				})
			}}}
		}
		if l.DeletionTimestamp != nil || l.Status.Address != "" {
			continue
		}
		for _, a := range addressesFor(l) {
			if !used[a] {
				return []sim.Step{{Text: "the allocator gives " + l.Name + " " + a, Run: func() {
					w.Change("granted", func() {
						_ = w.api.EditObject(ref, func(o client.Object) { controllerutil.AddFinalizer(o, v1alpha1.IPLeaseFinalizer) })
						_ = faults.EditStatus(w.api, ref, func(o *v1alpha1.IPLease) {
							o.Status.Address = a
							setReady(o, metav1.ConditionTrue, v1alpha1.AllocatedReason)
						})
					})
				}}}
			}
		}
		if meta.FindStatusCondition(l.Status.Conditions, v1alpha1.ReadyCondition) == nil {
			return []sim.Step{{Text: "the allocator has nothing for " + l.Name, Run: func() {
				w.Change("refused", func() {
					_ = faults.EditStatus(w.api, ref, func(o *v1alpha1.IPLease) {
						setReady(o, metav1.ConditionFalse, ipamv1.IPAddressClaimReadyPoolExhaustedReason)
					})
				})
			}}}
		}
	}
	return w.countPools(used)
}

// countPools writes the number of free addresses into the status of the pools.
func (w *world) countPools(used map[string]bool) []sim.Step {
	for _, p := range faults.ListObjects[*v1alpha1.NetworkPool](w.api) {
		left := int64(1)
		if used[poolAddresses[p.Name]] {
			left = 0
		}
		if p.Status.AvailableIPs != left {
			return []sim.Step{{Text: "the allocator counts " + p.Name, Run: func() {
				w.Change("counted", func() {
					_ = faults.EditStatus(w.api, faults.RefForObject(p), func(o *v1alpha1.NetworkPool) { o.Status.AvailableIPs = left })
				})
			}}}
		}
	}
	return nil
}

// addressesFor returns the addresses that a lease can have.
func addressesFor(l *v1alpha1.IPLease) []string {
	switch only, made := poolAddresses[l.Spec.PoolRef.Name]; {
	case !made:
		return []string{"10.0.0.1", "10.0.0.2"}
	case l.Spec.Address != "" && l.Spec.Address != only:
		return nil
	default:
		return []string{only}
	}
}

func setReady(l *v1alpha1.IPLease, is metav1.ConditionStatus, reason string) {
	meta.SetStatusCondition(&l.Status.Conditions, metav1.Condition{Type: v1alpha1.ReadyCondition, Status: is, Reason: reason})
}

// allowed reports whether MetalLB may assign an address to a Service: the IPAddressPool must allow its namespace.
func (w *world) allowed(s *corev1.Service, address string) bool {
	for _, p := range faults.ListObjects[*metallbv1beta1.IPAddressPool](w.api) {
		if !slices.Contains(metallb.LeaseAddresses(p), netip.MustParseAddr(address)) || s.Labels[v1alpha1.LeasedLabel] == "" {
			continue
		}
		if slices.Contains(p.Spec.AllocateTo.Namespaces, s.Namespace) {
			return true
		}
		for _, text := range p.Spec.AllocateTo.NamespaceSelectors {
			if selector, err := metav1.LabelSelectorAsSelector(&text); err == nil && selector.Matches(labels.Set(w.labels(s.Namespace))) {
				return true
			}
		}
	}
	return false
}

func (w *world) labels(namespace string) map[string]string {
	for _, o := range w.api.List(faults.Namespaces) {
		if o.GetName() == namespace {
			return o.GetLabels()
		}
	}
	return nil
}

func (w *world) configured() map[string]bool {
	out := map[string]bool{}
	for _, p := range faults.ListObjects[*metallbv1beta1.IPAddressPool](w.api) {
		for _, text := range p.Spec.Addresses {
			address, _, _ := strings.Cut(text, "-")
			out[address], w.last[address] = true, p.Name
		}
	}
	return out
}

// metalLB returns the steps of MetalLB: it applies its pools, counts them, and assigns a Service the address that it
// requests, or removes it. It writes what it has decided some time later, if the Service has not changed.
func (w *world) metalLB() []sim.Step {
	if w.frozen {
		return nil
	}
	if w.pendingWrite != nil {
		return []sim.Step{{Text: "MetalLB writes", Run: func() {
			do := w.pendingWrite
			w.pendingWrite = nil
			do()
		}}}
	}
	var out []sim.Step
	if want := w.configured(); !reflect.DeepEqual(want, w.running) {
		out = append(out, sim.Step{Text: fmt.Sprintf("MetalLB takes %v", want), Run: func() { w.running, w.LastChange = want, time.Now() }})
	} else {
		for _, p := range faults.ListObjects[*metallbv1beta1.IPAddressPool](w.api) {
			if n := int64(len(p.Spec.Addresses)); p.Status.AvailableIPv4 != n {
				out = append(out, sim.Step{Text: "MetalLB counts", Run: func() {
					w.Change("MetalLB counts", func() {
						_ = faults.EditStatus(w.api, faults.RefForObject(p), func(o *metallbv1beta1.IPAddressPool) { o.Status.AvailableIPv4 = n })
					})
				}})
			}
		}
	}
	services := w.services()
	for _, name := range slices.Sorted(maps.Keys(services)) {
		s := services[name]
		if ptr.Deref(s.Spec.LoadBalancerClass, "") == v1alpha1.HostLoadBalancerClass {
			continue // the class is not MetalLB's
		}
		has, wants := "", cmp.Or(s.Annotations["metallb.io/loadBalancerIPs"], s.Spec.LoadBalancerIP)
		if len(s.Status.LoadBalancer.Ingress) > 0 {
			has = s.Status.LoadBalancer.Ingress[0].IP
		}
		next := has
		switch {
		case has != "" && (!w.running[has] || !w.allowed(s, has)):
			next = ""
		case wants != "" && wants != has && w.running[wants] && w.allowed(s, wants) && w.mayShare(services, s, wants):
			next = wants
		case wants != "" && wants != has && has != "":
			next = ""
		}
		if next != has {
			version := s.ResourceVersion
			return append(out, sim.Step{Text: fmt.Sprintf("MetalLB decides: %s has %q", name, next), Run: func() {
				w.LastChange = time.Now()
				w.pendingWrite = func() {
					if is := w.services()[name]; is == nil || is.ResourceVersion != version {
						return
					}
					w.Change("MetalLB places "+name, func() {
						_ = faults.EditStatus(w.api, faults.RefForObject(s), func(o *corev1.Service) {
							in := &o.Status.LoadBalancer.Ingress
							if *in = nil; next != "" {
								*in = []corev1.LoadBalancerIngress{{IP: next}}
							}
						})
					})
				}
			}})
		}
	}
	return out
}

func (w *world) mayShare(services map[string]*corev1.Service, s *corev1.Service, address string) bool {
	for _, other := range services {
		if other.UID == s.UID || len(other.Status.LoadBalancer.Ingress) == 0 || other.Status.LoadBalancer.Ingress[0].IP != address {
			continue
		}
		if key := s.Annotations["metallb.io/allow-shared-ip"]; key == "" || key != other.Annotations["metallb.io/allow-shared-ip"] {
			return false
		}
		for _, p := range other.Spec.Ports {
			if slices.ContainsFunc(s.Spec.Ports, func(q corev1.ServicePort) bool { return p.Port == q.Port && p.Protocol == q.Protocol }) {
				return false
			}
		}
	}
	return true
}

// draw draws what a user does next.
func (w *world) draw() action {
	name, lease := fmt.Sprintf("s%d", w.r.IntN(4)), []string{"shop", "mail"}[w.r.IntN(2)]
	ports := []corev1.ServicePort{{Protocol: corev1.ProtocolTCP, Port: int32(80 + w.r.IntN(2))}}
	if w.r.IntN(3) == 0 {
		ports = append(ports, corev1.ServicePort{Protocol: corev1.ProtocolUDP, Port: 53})
	}
	service, of := faults.Ref{Kind: faults.Services, Namespace: ns, Name: name}, faults.Ref{Kind: faults.Leases, Namespace: ns, Name: lease}
	edit := func(ref faults.Ref, text string, change func(client.Object)) action {
		return sim.NewAction(text, func(w *world) { _ = w.api.EditObject(ref, change) })
	}
	switch w.r.IntN(24) {
	case 23:
		return newForgedService(other, "thief", fmt.Sprintf("10.0.0.%d", 1+w.r.IntN(2)), ports)
	case 0, 1, 2, 3:
		return newService(ns, name, lease, ports)
	case 4, 5, 6:
		return newLease(lease)
	case 13, 14:
		return newService(other, name, ns+"/"+lease, ports)
	case 15:
		return edit(of, fmt.Sprintf("%s selects another namespace, or none", lease), func(o client.Object) {
			l := o.(*v1alpha1.IPLease)
			if l.Spec.NamespaceSelector == nil {
				l.Spec.NamespaceSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"is": other}}
			} else {
				l.Spec.NamespaceSelector = nil
			}
		})
	case 16:
		return edit(faults.Ref{Kind: faults.Namespaces, Name: other}, "the other namespace is labelled anew", func(o client.Object) {
			if o.GetLabels()["is"] == other {
				o.SetLabels(map[string]string{"is": "none"})
			} else {
				o.SetLabels(map[string]string{"is": other})
			}
		})
	case 17, 18:
		return newServiceOfClass(name, "", ports)
	case 19:
		return newServiceOfClass(name, poolAddresses["a"], ports)
	case 20:
		return endpoints(name)
	case 22:
		return sim.NewAction("a quota refuses leases", func(w *world) {
			w.noLeases = true
			w.DelayStep(0, time.Duration(3+w.r.IntN(90))*time.Second, func() { w.noLeases, w.LastChange = false, time.Now() })
		})
	case 21:
		return deletion(faults.Ref{Kind: faults.Services, Namespace: other, Name: name})
	case 7:
		return deletion(service)
	case 8:
		return deletion(of)
	case 9:
		return edit(service, fmt.Sprintf("Service %s asks for %v", name, ports), func(o client.Object) { o.(*corev1.Service).Spec.Ports = ports })
	case 10:
		return edit(service, fmt.Sprintf("Service %s names another lease, or none", name), func(o client.Object) {
			if delete(o.GetAnnotations(), v1alpha1.LeaseAnnotation); len(ports) > 1 {
				metav1.SetMetaDataAnnotation(&o.(*corev1.Service).ObjectMeta, v1alpha1.LeaseAnnotation, lease)
			}
		})
	case 11:
		return freeze(time.Duration(3+w.r.IntN(20)) * time.Second)
	default:
		return edit(of, fmt.Sprintf("TCP/80 of %s is for %s", lease, name), func(o client.Object) {
			o.(*v1alpha1.IPLease).Spec.Ports = []v1alpha1.LeasePort{{Protocol: corev1.ProtocolTCP, Port: 80, Service: name}, {Protocol: corev1.ProtocolUDP, Port: 53}}
		})
	}
}

// newServiceOfClass creates a Service for which a lease is created, for the given address or any.
func newServiceOfClass(name, address string, ports []corev1.ServicePort) action {
	return sim.NewAction(fmt.Sprintf("Service %s is of the class, address %q: %v", name, address, ports), func(w *world) {
		_ = w.api.Create(&corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name},
			Spec: corev1.ServiceSpec{
				Type: corev1.ServiceTypeLoadBalancer, ClusterIPs: []string{"10.96.0.1"}, Ports: ports, LoadBalancerClass: ptr.To(byClass), LoadBalancerIP: address,
			},
		})
	})
}

// endpoints gives a Service a ready endpoint, or removes it.
func endpoints(name string) action {
	return sim.NewAction("Service "+name+" has an endpoint, or none", func(w *world) {
		e := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name, Labels: map[string]string{discoveryv1.LabelServiceName: name}}}
		if e.Endpoints = []discoveryv1.Endpoint{{}}; w.api.Create(e) != nil {
			_ = w.api.Delete(faults.RefForObject(e), false)
		}
	})
}

func newService(namespace, name, lease string, ports []corev1.ServicePort) action {
	return sim.NewAction(fmt.Sprintf("Service %s of %s names %s: %v", name, namespace, lease, ports), func(w *world) {
		_ = w.api.Create(&corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Annotations: map[string]string{v1alpha1.LeaseAnnotation: lease}},
			Spec:       corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer, ClusterIPs: []string{"10.96.0.1"}, Ports: ports},
		})
	})
}

// newForgedService creates a Service that has no lease, and carries the label and the annotations for which MetalLB
// assigns the address of one.
func newForgedService(namespace, name, address string, ports []corev1.ServicePort) action {
	return sim.NewAction(fmt.Sprintf("Service %s of %s forges that it has %s: %v", name, namespace, address, ports), func(w *world) {
		key := ""
		for _, s := range w.services() {
			key = cmp.Or(key, s.Annotations["metallb.io/allow-shared-ip"])
		}
		_ = w.api.Create(&corev1.Service{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: namespace, Name: name, Labels: map[string]string{v1alpha1.LeasedLabel: "true"},
				Annotations: map[string]string{"metallb.io/loadBalancerIPs": address, "metallb.io/allow-shared-ip": key},
			},
			Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer, ClusterIPs: []string{"10.96.0.1"}, Ports: ports},
		})
	})
}

func newLease(name string) action {
	return sim.NewAction("lease "+name, func(w *world) {
		_ = w.api.Create(&v1alpha1.IPLease{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name}})
	})
}

func deletion(of faults.Ref) action {
	return sim.NewAction("delete "+string(of.Kind)+" "+of.Name, func(w *world) { _ = w.api.Delete(of, false) })
}

// freeze makes MetalLB do nothing for a while.
func freeze(howLong time.Duration) action {
	return sim.NewAction("MetalLB sleeps", func(w *world) {
		w.frozen = true
		w.DelayStep(0, howLong, func() { w.frozen, w.LastChange = false, time.Now() })
	})
}

// missedDeletionStory is a story that seldom happens by chance: of two leases one is deleted, and its Service, while
// MetalLB sleeps and does not see it.
func missedDeletionStory() []action {
	ports := []corev1.ServicePort{{Protocol: corev1.ProtocolTCP, Port: 80}}
	return []action{
		newLease("shop"), newLease("mail"), newService(ns, "s0", "shop", ports), newService(ns, "s1", "mail", ports), freeze(40 * time.Second),
		deletion(faults.Ref{Kind: faults.Services, Namespace: ns, Name: "s0"}), deletion(faults.Ref{Kind: faults.Leases, Namespace: ns, Name: "shop"}),
	}
}

// renamedLeaseStory is a story of a Service that does not name its lease any more, still requests its port, and shows
// its address, as a policy refuses what the manager writes: the next Service waits for the port.
func renamedLeaseStory() []action {
	ports := []corev1.ServicePort{{Protocol: corev1.ProtocolTCP, Port: 80}}
	return []action{newLease("shop"), newService(ns, "s0", "shop", ports), newService(ns, "s1", "shop", ports), sim.NewAction("s0 is to name no lease soon", func(w *world) {
		w.DelayStep(0, time.Minute, func() {
			if !w.Obstructed {
				w.startObstacle(obstacle{Obstacle: newRefusal(errors.New("a policy refuses it"), writesOfKinds(faults.Services))})
				w.DelayStep(0, refusalLasts, func() { w.endObstacle() })
			}
			_ = w.api.EditObject(faults.Ref{Kind: faults.Services, Namespace: ns, Name: "s0"}, func(o client.Object) { delete(o.GetAnnotations(), v1alpha1.LeaseAnnotation) })
			w.LastChange = time.Now()
		})
	})}
}

// calmStory is a story of Services that get what they request at once.
func calmStory() []action {
	ports := []corev1.ServicePort{{Protocol: corev1.ProtocolTCP, Port: 80}}
	return []action{
		newLease("shop"), newService(ns, "web", "shop", ports), newServiceOfClass("classy", "", ports), newServiceOnHosts(ns, "dock", "", ports),
	}
}

// createdTogetherStory is a story of a Service and a guest that are created a moment before the lease that they name,
// as if all were in one file.
func createdTogetherStory() []action {
	ports := func(n int32) []corev1.ServicePort {
		return []corev1.ServicePort{{Protocol: corev1.ProtocolTCP, Port: n}}
	}
	web, guest, lease := newService(ns, "web", "front", ports(80)), newService(other, "guest", ns+"/front", ports(443)), newLease("front")
	return []action{sim.NewAction("Service web and Service guest of other, then lease front, which they name", func(w *world) {
		web.Do(w)
		guest.Do(w)
		w.DelayStep(0, 2*time.Second, func() {
			lease.Do(w)
			_ = faults.EditObject(w.api, faults.Ref{Kind: faults.Leases, Namespace: ns, Name: "front"}, func(o *v1alpha1.IPLease) {
				o.Spec.NamespaceSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"is": other}}
			})
			w.LastChange = time.Now()
		})
	})}
}

// missingLeaseStory is a story of a Service and a guest that name a lease which is never created.
func missingLeaseStory() []action {
	ports := []corev1.ServicePort{{Protocol: corev1.ProtocolTCP, Port: 80}}
	return []action{newService(ns, "web", "lost", ports), newService(other, "guest", ns+"/lost", ports)}
}

// missingLeaseWarnings are the Warning events of a story in which little goes wrong.
func missingLeaseWarnings(seed uint64) []string {
	if seed%30 != 24 {
		return nil
	}
	return []string{
		"guest NotAllowed: there is no IPLease lost that Services of namespace other may use; its spec.namespaceSelector has to select that",
		"web LeaseNotFound: there is no IPLease lost in this namespace; create it, or correct the annotation butler.butlerlabs.dev/lease",
	}
}

// unplacedServiceStory is a story of a Service that has its ports, and of MetalLB, which assigns it nothing for a
// while.
func unplacedServiceStory() []action {
	ports := []corev1.ServicePort{{Protocol: corev1.ProtocolTCP, Port: 80}}
	return []action{newLease("shop"), sim.NewAction("MetalLB is not there", func(w *world) { w.frozen = true }), newService(ns, "web", "shop", ports), sim.NewAction("the user waits", func(w *world) {
		w.DelayStep(0, time.Minute, func() {
			if is := leaseCondition(w.services()["web"]); !w.Obstructed && (is == nil || is.Status != metav1.ConditionFalse || is.Reason != v1alpha1.NotPlacedReason) {
				w.Failf("a Service without an address for a minute has the condition %+v", is)
			}
			w.frozen, w.LastChange = false, time.Now()
		})
	})}
}

// wantWarnings checks the Warning events on Services; several managers may record the same one.
func (w *world) wantWarnings(want ...string) {
	slices.Sort(w.warnings.of)
	if got := slices.Compact(w.warnings.of); !slices.Equal(got, want) {
		w.Failf("Services have the Warning events %q, and are to have %q", got, want)
	}
}

// usurpedPortStory is a story of a guest who forges that a Service of theirs has a port of a shared lease, before a
// Service of the owner requests that port.
func usurpedPortStory() []action {
	port := func(n int32) []corev1.ServicePort {
		return []corev1.ServicePort{{Protocol: corev1.ProtocolTCP, Port: n}}
	}
	return []action{
		newLease("shop"),
		sim.NewAction("shop is for Services of the other namespace", func(w *world) {
			_ = faults.EditObject(w.api, faults.Ref{Kind: faults.Leases, Namespace: ns, Name: "shop"}, func(o *v1alpha1.IPLease) {
				o.Spec.NamespaceSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"is": other}}
			})
		}),
		newService(ns, "web", "shop", port(80)), newService(other, "guest", ns+"/shop", port(8443)),
		newForgedService(other, "thief", "10.0.0.1", port(25)), newService(ns, "mail", "shop", port(25)),
	}
}

// cutOffHostStory is a story of a host that shows an address and does not reach the API server while the Service and
// the lease are deleted.
func cutOffHostStory() []action {
	ports := []corev1.ServicePort{{Protocol: corev1.ProtocolTCP, Port: 80}}
	lease, service := faults.Ref{Kind: faults.Leases, Namespace: ns, Name: "dock"}, faults.Ref{Kind: faults.Services, Namespace: ns, Name: "web"}
	return []action{newLeaseOnHosts(lease.Name), newServiceOnHosts(ns, service.Name, lease.Name, ports), sim.NewAction("what shows dock is cut off soon, and dock deleted", func(w *world) {
		w.DelayStep(0, 30*time.Second, func() {
			for _, h := range w.hosts {
				if len(h.shownLeases) > 0 {
					w.turnOff(h, 20*time.Second, false)
				}
			}
			deletion(service).Do(w)
			deletion(lease).Do(w)
			w.LastChange = time.Now()
		})
	})}
}

// examine checks the end: every Service that can be served is, and nothing is left of those that are gone.
func (w *world) examine() {
	services, all := w.services(), w.leases()
	// This is what a manager that starts now would decide.
	w.start()
	m := w.Managers[len(w.Managers)-1]
	s := newScope(m.Reconciler, ns, time.Now())
	if err := s.reader.gatherState(w.T.Context()); err != nil {
		w.Failf("%v", err)
		return
	}
	st := s.state
	asking, made, _ := leaseports.PlanLeases(st.serviceStates, st.leaseStates, st.classPools, time.Now())
	for _, one := range made {
		w.Failf("lease %s is to be made", one.Name)
	}
	for _, one := range leaseports.FindUnusedLeases(st.leaseStates, asking) {
		w.Failf("lease %s is of no use", one.Name)
	}
	d := leaseports.DecidePorts(st.leaseStates, asking, func(string, leaseports.Holder) bool { return true })
	d.SetExhaustedReasons(st.leaseStates, asking, m.MaxAddressAttempts)
	shown, used := map[string]bool{}, false
	for _, o := range all {
		used = used || (len(o.Status.Ports) > 0 && !isShownByHost(o))
	}
	byRef := map[leaseports.ServiceRef]*leaseports.Service{}
	for i := range asking {
		byRef[asking[i].ServiceRef] = &asking[i]
	}
	for _, o := range all {
		if o.DeletionTimestamp != nil {
			w.Failf("lease %s is still being deleted", o.Name)
		}
		if got, want := o.Status.Ports, leaseports.ToLeasedPorts(d.PortTables[o.Name]); !slices.Equal(got, want) {
			w.Failf("lease %s has %v, and is to have %v", o.Name, got, want)
		}
		held := controllerutil.ContainsFinalizer(o, v1alpha1.LeaseShownFinalizer)
		ofHosts := isShownByHost(o) || (o.Status.ShownBy == "" && st.isPoolShownByHosts(o))
		if used && !held && o.Status.Address != "" && !ofHosts {
			w.Failf("lease %s is not shown with the others", o.Name)
		}
		if held && !ofHosts {
			shown[o.Status.Address] = true
		}
		if w.foreign[leaseAddress(o)] && ofHosts && len(o.Status.Ports) > 0 {
			w.examineInUse(o, asking, m.MaxAddressAttempts)
			continue
		}
		if has := w.hasOtherResponder(leaseAddress(o), nil); ofHosts && has != (len(o.Status.Ports) > 0) {
			w.Failf("that a host has %s is %v", o.Status.Address, has)
		}
		if announced := meta.IsStatusConditionTrue(o.Status.Conditions, v1alpha1.AnnouncedCondition); len(o.Status.Ports) > 0 && !announced {
			w.Failf("lease %s is not said to be announced", o.Name)
		}
		if is := meta.FindStatusCondition(o.Status.Conditions, v1alpha1.AnnouncedCondition); len(o.Status.Ports) == 0 && is != nil {
			w.Failf("lease %s, which no Service has, says %s: %s", o.Name, is.Reason, is.Message)
		}
		if is := meta.FindStatusCondition(o.Status.Conditions, v1alpha1.InUseCondition); len(o.Status.Ports) > 0 && (is == nil || is.Status != inUseCondition(o, byRef).Status) {
			w.Failf("lease %s says of its use %+v", o.Name, is)
		}
	}
	for name, s := range services {
		for _, l := range st.leaseStates {
			if ports := leaseports.FindUsurpedPorts(s, &l, ns); len(ports) > 0 && l.Address.IsValid() {
				w.Failf("Service %s shows %v of lease %s, and was not given them", name, ports, l.Name)
			}
		}
		if _, labelled := s.Labels[v1alpha1.LeasedLabel]; labelled && s.Annotations[v1alpha1.LeasedAddressesAnnotation] == "" {
			w.Failf("Service %s bears the label of those that have a lease, and has none", name)
		}
	}
	if got := w.configured(); !reflect.DeepEqual(got, shown) {
		w.Failf("MetalLB has %v, and is to have %v", got, shown)
	}
	for _, is := range asking {
		w.examineService(services[is.String()], &is, &d, all)
	}
}

// examineService checks that a Service has what it should have, and that its condition shows that.
func (w *world) examineService(s *corev1.Service, as *leaseports.Service, d *leaseports.Decision, all map[string]*v1alpha1.IPLease) {
	is, reason := leaseCondition(s), d.Reasons[s.UID]
	has, want := "", ""
	if len(s.Status.LoadBalancer.Ingress) > 0 {
		has = s.Status.LoadBalancer.Ingress[0].IP
	}
	if reason.Reason == v1alpha1.GrantedReason {
		want = all[as.LeaseNames[0]].Status.Address
	}
	published := s.Annotations[v1alpha1.LeasedAddressesAnnotation]
	if as.ShownBy == v1alpha1.ShownByHost && published == "" {
		published = want
	}
	if has != want || published != want {
		w.Failf("Service %s has %q, is published with %q, and is to have %q: %s", as.ServiceRef, has, s.Annotations[v1alpha1.LeasedAddressesAnnotation], want, reason.Message)
	}
	if (reason == leaseports.Reason{}) != (is == nil) || (is != nil && (is.Reason != reason.Reason || is.Message != reason.Message)) {
		w.Failf("Service %s has the condition %+v, and needs %+v", as.ServiceRef, is, reason)
	}
}
