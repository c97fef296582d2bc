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
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/hostlb/record"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/leaseports"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/metallb"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pace"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/faults"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/faults/schedule"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

// A world is an API server, managers, an allocator, MetalLB and a user, driven step by step in virtual time, in an order
// that a seed says. The API server is a fake, as are the allocator and MetalLB: here every schedule counts. What the real
// ones do, test/e2e finds out.

const (
	// ns has the leases, other has Services that use them too.
	ns      = "team"
	other   = "other"
	byClass = "butler.butlerlabs.dev/metallb"
	latency = 5 * time.Millisecond
	// still is how long nothing happens before all is taken to be at rest: longer than anything is asked again.
	still = 2 * time.Minute
	// tooMany steps that change nothing are too many.
	tooMany = 300
)

// watched are the kinds that managers watch.
var watched = []faults.Kind{
	faults.Leases, faults.Services, faults.Endpoints, faults.MetalLBPools, faults.Advertisements, faults.Pools, faults.Namespaces,
	faults.HostLeases,
}

// ofPool is the one address of each pool that leases are made of; c and d are of hosts. Those that people make have others.
var ofPool = map[string]string{"a": "10.0.1.1", "b": "10.0.2.1", "c": "10.0.3.1", "d": "10.0.4.1"}

type class int

type step = schedule.Step[class]

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

// manager is a process: a reconciler, its cache and its queue.
type manager struct {
	*Reconciler

	name         string
	cache        *cached
	ctx          context.Context //nolint:containedctx // the life of the process
	kill         context.CancelFunc
	queues       map[string]*schedule.Queue
	seen         map[faults.Kind]int
	dead, asleep bool
	// stalled is the kind whose watch shows nothing.
	stalled faults.Kind
}

// cached is a client that reads what its watches have shown.
type cached struct {
	*faults.Client

	objects map[faults.Ref]client.Object
}

func (c *cached) Get(_ context.Context, key client.ObjectKey, o client.Object, _ ...client.GetOption) error {
	ref := faults.RefOf(o)
	ref.Namespace, ref.Name = key.Namespace, key.Name
	is := c.objects[ref]
	if is == nil {
		return apierrors.NewNotFound(schema.GroupResource{Resource: string(ref.Kind)}, key.Name)
	}
	reflect.ValueOf(o).Elem().Set(reflect.ValueOf(is.DeepCopyObject()).Elem())
	return nil
}

func (c *cached) List(_ context.Context, list client.ObjectList, opts ...client.ListOption) error {
	var out []runtime.Object
	o := (&client.ListOptions{}).ApplyOptions(opts)
	items, _ := reflect.TypeOf(list).Elem().FieldByName("Items")
	kind := faults.RefOf(reflect.New(items.Type.Elem()).Interface().(client.Object)).Kind
	indexes := map[string]client.IndexerFunc{
		foreignIndex: foreign, classIndex: classOf, givenIndex: given, leasesIndex: leasesOf, holderIndex: holders,
		lockIndex: func(o client.Object) []string { return append(leaseLocks(o), locks(o)...) },
	}
	for ref, is := range c.objects {
		fits := ref.Kind == kind && (o.Namespace == "" || ref.Namespace == o.Namespace) &&
			(o.LabelSelector == nil || o.LabelSelector.Matches(labels.Set(is.GetLabels())))
		for name, index := range indexes {
			if o.FieldSelector == nil {
				break
			}
			if value, asked := o.FieldSelector.RequiresExactMatch(name); asked {
				fits = fits && slices.Contains(index(is), value)
			}
		}
		if fits {
			out = append(out, is.DeepCopyObject())
		}
	}
	slices.SortFunc(out, func(a, b runtime.Object) int {
		return strings.Compare(a.(client.Object).GetName(), b.(client.Object).GetName())
	})
	return meta.SetList(list, out)
}

type world struct {
	schedule.Run

	t        *testing.T
	r        *rand.Rand
	api      *faults.Server
	managers []*manager
	answers  []func()
	texts    []string
	owners   []*manager
	script   []action
	// trouble is how many more calls go wrong.
	trouble  int
	lastNews time.Time
	lastCall time.Time
	vainly   int
	calls    int
	// running is MetalLB's configuration, by address; placing, what it has decided and not written; frozen, that it does
	// nothing.
	running map[string]bool
	// last is which IPAddressPool had an address last.
	last    map[string]string
	placing func()
	frozen  bool
	// noLeases: a quota refuses those that are made.
	noLeases bool
	warnings warnings
	// hosts show addresses; announced are the leases of which one has said so, released those that a person gave back.
	hosts               []*host
	announced, released map[types.UID]bool
	// foreign are the addresses for which somebody foreign answers; rests, until when nobody is given one.
	foreign map[netip.Addr]bool
	rests   map[string]time.Time
	// obstacle is what the API server refuses for a while; nil: nothing.
	obstacle *obstacle
}

type action struct {
	text string
	do   func(*world)
}

// H17: TestWorlds runs random stories in random orders of steps, with one manager and with two, while calls fail, answers are
// lost, and managers die and sleep.
func TestWorlds(t *testing.T) {
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

// runStory runs a world that something was done to before a manager starts.
func runStory(t *testing.T, seed uint64, prepare func(*world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := &world{t: t, r: rand.New(rand.NewPCG(seed, 7)), api: faults.New(), running: map[string]bool{}, last: map[string]string{}, announced: map[types.UID]bool{}, released: map[types.UID]bool{}, foreign: map[netip.Addr]bool{}, rests: map[string]time.Time{}}
		w.trouble = w.r.IntN(6)
		w.build()
		w.newHost("h1")
		w.newHost("h2")
		for range 6 + w.r.IntN(10) {
			draw := w.draw
			if seed%3 > 0 && w.r.IntN(3) > 0 {
				draw = w.drawOfHosts
			}
			w.script = append(w.script, draw())
		}
		switch seed % 10 {
		case 0, 1:
			if w.script = unheard(); seed%20 == 10 {
				w.script = renamed()
			}
		case 2:
			w.script = attempts(seed%20 == 2)
		case 3:
			w.script = usurped()
		case 4:
			w.script, w.trouble = calm(), 0
			switch seed % 30 {
			case 14:
				w.script = together()
			case 24:
				w.script = unfound()
			}
		case 5:
			w.script, w.trouble = unplaced(), 0
			w.act()
		case 6:
			if seed%20 == 6 {
				w.script, w.trouble = cutOff(), 0
			}
		}
		prepare(w)
		for range 1 + seed%2 {
			w.start()
		}
		w.toRest()
		if !w.Failed() {
			w.examine()
		}
		switch warned := w.obstacle == nil; { // what a refusal has Services told is another matter
		case warned && seed%10 == 4:
			w.wantWarnings(unfoundWarnings(seed)...)
		case warned && seed%10 == 5:
			w.wantWarnings("web NotPlaced: the Service has TCP/80 of 10.0.0.1, and MetalLB has not given it the address; see its events, and the condition Announced of IPLease shop")
		}
		for _, m := range w.managers {
			m.dead = true
			m.kill()
		}
		for synctest.Wait(); len(w.api.Waiting())+len(w.answers) > 0; synctest.Wait() {
			for _, r := range w.api.Waiting() {
				w.api.Take(r)
				r.Answer(nil, schedule.ErrKilled)
			}
			for _, answer := range w.answers {
				answer()
			}
			w.answers, w.texts, w.owners = nil, nil, nil
		}
		w.Report(t, w.api)
	})
}

func (w *world) start() {
	name := string(rune('a' + len(w.managers)))
	c := &cached{w.api.Client(name), map[faults.Ref]client.Object{}}
	m := &manager{name: name, cache: c, seen: map[faults.Kind]int{}, queues: map[string]*schedule.Queue{ns: {MaxBackoff: guard.MostBackoff}, other: {MaxBackoff: guard.MostBackoff}}, Reconciler: &Reconciler{Client: (&pace.Writes{Clock: clock.RealClock{}}).Client(c), Live: c.Live(), Recorder: &w.warnings, Now: time.Now, Ways: Ways{MetalLB: true, Hosts: true}, AddressAttempts: 2, heard: newHeartbeats()}}
	m.ctx, m.kill = context.WithCancel(w.t.Context())
	for _, kind := range watched { // its caches are filled before it begins
		m.seen[kind] = len(w.api.Changes(kind, 0))
		for _, o := range w.api.List(kind) {
			m.show(faults.Change{Object: o}, false)
		}
	}
	w.managers = append(w.managers, m)
	w.Notef("manager %s starts", name)
}

// show shows a manager a change, and wakes it as its watches do. Listens: it was there before the change.
func (m *manager) show(c faults.Change, listens bool) {
	ref := faults.RefOf(c.Object)
	old := m.cache.objects[ref]
	if delete(m.cache.objects, ref); !c.Deleted {
		m.cache.objects[ref] = c.Object.DeepCopyObject().(client.Object)
	}
	ctx := context.Background() // a cache that is in memory
	var woken []reconcile.Request
	switch o := c.Object.(type) {
	case *corev1.Service:
		woken = ofService(ctx, o)
		if old != nil {
			woken = append(woken, ofService(ctx, old)...)
		}
	case *v1alpha1.IPLease:
		woken = namespaces(o.Namespace)
	case *metallbv1beta1.IPAddressPool:
		woken = namespaces(append(leasesOf(o), m.refusals.forget()...)...)
	case *discoveryv1.EndpointSlice:
		woken = m.ofEndpoints(ctx, o)
	case *metallbv1beta1.L2Advertisement:
		woken = m.ofAdvertisement(ctx, o)
	case *v1alpha1.NetworkPool:
		woken = m.ofPool(ctx, o)
	case *coordinationv1.Lease:
		if woken = m.ofLock(ctx, o); !c.Deleted {
			woken = m.ofHostObject(ctx, o, listens && old == nil)
		}
	case *metav1.PartialObjectMetadata:
		woken = m.ofNamespace(ctx, o)
	}
	for _, r := range woken {
		m.queues[r.Name].Wake()
	}
}

// build makes what there is before a manager starts.
func (w *world) build() {
	for _, name := range []string{ns, other} {
		o := lookup.NamespaceMetadata()
		o.SetName(name)
		o.SetLabels(map[string]string{"is": name})
		_ = w.api.Create(o)
	}
	for _, name := range slices.Sorted(maps.Keys(ofPool)) {
		pool := framework.MakePool(name).Namespace(ns).Addresses(ofPool[name]).Obj()
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
		_ = w.api.EditStatus(faults.RefOf(pool), func(o client.Object) { o.(*v1alpha1.NetworkPool).Status = pool.Status })
	}
}

func (w *world) toRest() {
	w.lastNews = time.Now()
	for {
		synctest.Wait()
		if w.Failed() {
			return
		}
		if w.Due() {
			continue
		}
		beats := w.beatAll(time.Now().Add(still))
		if steps := w.steps(); len(steps) > 0 {
			if len(w.script) > 0 && w.r.IntN(30) == 0 { // while others are at work, too
				w.act()
				continue
			}
			s := steps[w.r.IntN(len(steps))]
			w.Notef("%s", s.Text)
			s.Do()
			if stalled := slices.ContainsFunc(w.managers, func(m *manager) bool { return m.stalled != "" }); !stalled {
				w.vainly++ // else who is behind tries again, until he is not
			}
			if w.vainly > tooMany {
				w.Wrongf("the managers spin: %d steps without a change", tooMany)
			}
			continue
		}
		idle := time.Since(w.lastNews)
		if idle >= still && !w.Waits() && len(w.script) == 0 {
			return
		}
		rests := w.lastNews.Add(still)
		if idle >= still { // it waits for what is put off: each millisecond until then would be looked at
			rests = time.Now().Add(still)
		}
		next := earlier(w.Sooner(rests), beats)
		if len(w.script) > 0 {
			next = w.Sooner(time.Now().Add(time.Second))
		}
		for _, m := range w.managers {
			if !m.dead && !m.asleep {
				for _, q := range m.queues {
					next = q.Sooner(next)
				}
			}
		}
		<-time.After(max(time.Until(next), time.Millisecond))
		if len(w.script) > 0 && w.r.IntN(2) == 0 {
			w.act()
		}
	}
}

func (w *world) steps() []step {
	var out []step
	for _, m := range w.managers {
		if m.dead || m.asleep {
			continue
		}
		for _, kind := range watched {
			if changes := w.api.Changes(kind, m.seen[kind]); len(changes) > 0 && kind != m.stalled {
				c := changes[0]
				out = append(out, step{Text: fmt.Sprintf("%s: watch %s %s at %s", m.name, kind, c.Object.GetName(), c.Object.GetResourceVersion()), Do: func() {
					m.seen[kind]++
					m.show(c, true)
					if record.IsHost(c.Object.GetName()) {
						w.vainly-- // they come for ever
					}
				}})
			}
		}
		for _, name := range []string{ns, other} {
			q := m.queues[name]
			if !q.Due() {
				continue
			}
			out = append(out, step{Text: m.name + ": reconcile " + name, Do: func() {
				if !w.obstacle.lasts() && time.Since(w.lastNews) > still/2 && time.Since(w.lastCall) > notMadeFor+twice {
					w.Wrongf("manager %s reconciles at rest", m.name)
				}
				w.obstacle.kicked(m.name + " " + name)
				q.Run(func() (reconcile.Result, error) {
					return m.Reconcile(m.ctx, reconcile.Request{NamespacedName: types.NamespacedName{Name: name}})
				}, func(text string) { w.Wrongf("%s", text) })
			}})
		}
	}
	for i := range w.answers {
		if w.owners[i].asleep {
			continue
		}
		out = append(out, step{Text: w.texts[i], Do: func() {
			do := w.answers[i]
			w.answers, w.texts, w.owners = slices.Delete(w.answers, i, i+1), slices.Delete(w.texts, i, i+1), slices.Delete(w.owners, i, i+1)
			do()
		}})
	}
	for _, r := range w.api.Waiting() {
		at := slices.IndexFunc(w.managers, func(m *manager) bool { return m.name == r.Client })
		m := w.managers[at]
		if m.dead {
			w.api.Take(r)
			r.Answer(nil, schedule.ErrKilled)
			continue
		}
		if !m.asleep {
			out = append(out, step{Text: r.String(), Do: func() { w.serve(m, r) }})
		}
	}
	out = append(out, w.allocate()...)
	out = append(out, w.hostSteps()...)
	return append(out, w.metalLB()...)
}

// serve lets a call happen, or go wrong.
func (w *world) serve(m *manager, r *faults.Request) {
	w.api.Take(r)
	w.calls++
	w.lastCall = time.Now()
	<-time.After(latency)
	if w.obstacle.meets(w, r) {
		w.answer(m, r, nil, w.obstacle.err)
		return
	}
	if w.trouble > 0 && w.r.IntN(12) == 0 {
		w.trouble--
		w.lastNews = time.Now()
		switch w.r.IntN(5) {
		case 0: // it is lost
			w.answer(m, r, nil, schedule.ErrTimeout)
			return
		case 1: // it happens, and the answer is lost
			_, _ = w.happens(r)
			w.answer(m, r, nil, schedule.ErrTimeout)
			return
		case 2: // the manager dies before
			w.crash(m)
			return
		case 3: // or after it
			_, _ = w.happens(r)
			w.crash(m)
			return
		case 4: // it sleeps with the call on its way, and others go on
			w.Notef("manager %s sleeps", m.name)
			m.asleep = true
			if len(w.managers) == 1 {
				w.start()
			}
			w.After(0, time.Duration(3+w.r.IntN(20))*time.Second, func() {
				w.Notef("manager %s wakes up", m.name)
				m.asleep, w.lastNews = false, time.Now()
				value, err := w.happens(r)
				w.answer(m, r, value, err)
			})
			return
		}
	}
	value, err := w.happens(r)
	w.answer(m, r, value, err)
}

func (w *world) crash(m *manager) {
	w.Notef("manager %s is killed", m.name)
	m.dead = true
	m.kill()
	w.start()
}

func (w *world) answer(m *manager, r *faults.Request, value any, err error) {
	text := r.String() + ": answered"
	if err != nil {
		text += ", " + err.Error()
	}
	w.answers, w.texts, w.owners = append(w.answers, func() { r.Answer(value, err) }), append(w.texts, text), append(w.owners, m)
}

// happens has a call of a manager happen, and checks the promise.
func (w *world) happens(r *faults.Request) (value any, err error) {
	services, leases := w.services(), w.leases()
	w.change(r.String(), func() {
		if w.noLeases && r.Verb == "create" && r.Ref.Kind == faults.Leases {
			err = apierrors.NewForbidden(schema.GroupResource{Resource: "ipleases"}, r.Ref.Name, errors.New("exceeded quota"))
			return
		}
		value, err = w.api.Do(r)
	})
	if err == nil && r.Write() {
		w.Writes++
		w.check(services, leases)
	}
	return value, err
}

func (w *world) change(by string, do func()) {
	before := w.api.Version()
	do()
	if w.obstacle.lasts() {
		w.obstacle.guard(w, controllerutil.AddFinalizer)
	}
	if w.api.Version() != before {
		w.Notef("    %s: now %d", by, w.api.Version())
		w.lastNews, w.vainly = time.Now(), 0
	}
}

// services are those of both namespaces, by how the leases name them.
func (w *world) services() map[string]*corev1.Service {
	out := map[string]*corev1.Service{}
	for _, o := range w.api.List(faults.Services) {
		if s, is := o.(*corev1.Service); is {
			out[leaseports.RefOf(s, ns).String()] = s
		}
	}
	return out
}

func (w *world) leases() map[string]*v1alpha1.IPLease {
	out := map[string]*v1alpha1.IPLease{}
	for _, o := range w.api.List(faults.Leases) {
		if l, is := o.(*v1alpha1.IPLease); is {
			out[l.Name] = l
		}
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
		for _, p := range leaseports.ServiceOf(s, ns).Ports {
			if !slices.ContainsFunc(slices.Collect(maps.Values(live)), func(l *v1alpha1.IPLease) bool {
				return l.Status.Address == text && slices.Contains(leaseports.LeaseOf(l).Table, leaseports.Holder{Port: p, Service: leaseports.RefOf(s, ns), UID: s.UID})
			}) {
				w.Wrongf("P3: Service %s is published with %s, and does not have %s on record", name, text, p)
			}
		}
	}
	for name, l := range leases {
		is := live[name]
		_, made := l.Labels[v1alpha1.MadeForServicesLabel]
		if ends := made && l.DeletionTimestamp == nil && (is == nil || is.UID != l.UID || is.DeletionTimestamp != nil) && len(l.Status.Ports) > 0; ends && !leaseports.LeaseOf(l).UsedByOthers {
			w.Wrongf("P5: lease %s is deleted, and Service %s has a port of it", name, l.Status.Ports[0].Service)
		} else if ends {
			w.checkReplaced(l, now[l.Labels[v1alpha1.MadeForServicesLabel]])
		}
		for _, h := range leaseports.LeaseOf(l).Table {
			s := now[h.Service.String()]
			if is == nil || is.UID != l.UID || slices.Contains(leaseports.LeaseOf(is).Table, h) || s == nil || s.UID != h.UID {
				continue
			}
			behind := slices.Contains(leaseports.ServiceOf(s, ns).Ports, h.Port)
			if a, err := netip.ParseAddr(l.Status.Address); err == nil && ((behind && leaseports.Shows(s, a)) || leaseports.ShowsPort(s, a, h.Port)) {
				w.Wrongf("P4: the port %s of %s is taken from Service %s, which shows it", h.Port, name, h.Service)
			}
		}
		if is != nil && is.UID == l.UID && controllerutil.ContainsFinalizer(l, v1alpha1.LeaseShownFinalizer) && !controllerutil.ContainsFinalizer(is, v1alpha1.LeaseShownFinalizer) {
			w.checkGivenUp(name, l.Status.Address)
		}
	}
}

// checkGivenUp checks that nobody shows the address of a lease that is given back. MetalLB tells by its count of a pool that
// it has taken a change. Of one that is gone, or that it has never counted, it tells nothing: while it sleeps, it may have the
// address still.
func (w *world) checkGivenUp(name, address string) {
	tells := slices.ContainsFunc(w.api.List(faults.MetalLBPools), func(o client.Object) bool {
		p, is := o.(*metallbv1beta1.IPAddressPool)
		return is && p.Status.AvailableIPv4 > 0 && p.Name == w.last[address]
	})
	if w.configured()[address] || (tells && w.running[address]) {
		w.Wrongf("P6: lease %s is given back, and MetalLB has %s", name, address)
	}
	for _, s := range w.services() {
		if a, err := netip.ParseAddr(address); err == nil && leaseports.Shows(s, a) {
			w.Wrongf("P6: lease %s is given back, and Service %s shows %s", name, s.Name, address)
		}
	}
}

// allocate is what the allocator does: a lease gets the first address of its pool that nobody has, or is told that there is
// none, and gives it back when it is deleted and not shown.
func (w *world) allocate() []step {
	used := map[string]bool{}
	for a, until := range w.rests {
		used[a] = until.After(time.Now())
	}
	all := w.leases()
	for _, l := range all {
		used[l.Status.Address] = true
	}
	for _, name := range slices.Sorted(maps.Keys(all)) { // a seed tells one story
		l := all[name]
		ref := faults.RefOf(l)
		if l.DeletionTimestamp != nil && controllerutil.ContainsFinalizer(l, v1alpha1.IPLeaseFinalizer) && !controllerutil.ContainsFinalizer(l, v1alpha1.LeaseShownFinalizer) {
			return []step{{Text: "the allocator releases " + l.Name, Do: func() {
				if leaseports.LeaseOf(l).UsedByOthers {
					w.rest(l.Status.Address)
				}
				w.change("released", func() {
					_ = w.api.Edit(ref, func(o client.Object) { controllerutil.RemoveFinalizer(o, v1alpha1.IPLeaseFinalizer) })
				})
			}}}
		}
		if l.DeletionTimestamp != nil || l.Status.Address != "" {
			continue
		}
		for _, a := range addressesFor(l) {
			if !used[a] {
				return []step{{Text: "the allocator gives " + l.Name + " " + a, Do: func() {
					w.change("granted", func() {
						_ = w.api.Edit(ref, func(o client.Object) { controllerutil.AddFinalizer(o, v1alpha1.IPLeaseFinalizer) })
						_ = w.api.EditStatus(ref, func(o client.Object) {
							o.(*v1alpha1.IPLease).Status.Address = a
							setReady(o.(*v1alpha1.IPLease), metav1.ConditionTrue, v1alpha1.AllocatedReason)
						})
					})
				}}}
			}
		}
		if meta.FindStatusCondition(l.Status.Conditions, v1alpha1.ReadyCondition) == nil {
			return []step{{Text: "the allocator has nothing for " + l.Name, Do: func() {
				w.change("refused", func() {
					_ = w.api.EditStatus(ref, func(o client.Object) {
						setReady(o.(*v1alpha1.IPLease), metav1.ConditionFalse, ipamv1.IPAddressClaimReadyPoolExhaustedReason)
					})
				})
			}}}
		}
	}
	return w.countPools(used)
}

// countPools says in the status of the pools what is left.
func (w *world) countPools(used map[string]bool) []step {
	for _, o := range w.api.List(faults.Pools) {
		p, _ := o.(*v1alpha1.NetworkPool)
		left := int64(1)
		if used[ofPool[p.Name]] {
			left = 0
		}
		if p.Status.AvailableIPs != left {
			return []step{{Text: "the allocator counts " + p.Name, Do: func() {
				w.change("counted", func() {
					_ = w.api.EditStatus(faults.RefOf(p), func(o client.Object) { o.(*v1alpha1.NetworkPool).Status.AvailableIPs = left })
				})
			}}}
		}
	}
	return nil
}

// addressesFor are those that a lease can have.
func addressesFor(l *v1alpha1.IPLease) []string {
	switch only, made := ofPool[l.Spec.PoolRef.Name]; {
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

// allowed reports whether MetalLB may give a Service an address: its IPAddressPool is for its namespace.
func (w *world) allowed(s *corev1.Service, address string) bool {
	for _, o := range w.api.List(faults.MetalLBPools) {
		p, _ := o.(*metallbv1beta1.IPAddressPool)
		if !slices.Contains(metallb.LeasesIn(p), netip.MustParseAddr(address)) || s.Labels[v1alpha1.LeasedLabel] == "" {
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
	for _, o := range w.api.List(faults.MetalLBPools) {
		if p, is := o.(*metallbv1beta1.IPAddressPool); is {
			for _, text := range p.Spec.Addresses {
				address, _, _ := strings.Cut(text, "-")
				out[address], w.last[address] = true, p.Name
			}
		}
	}
	return out
}

// metalLB takes its pools, counts them, and gives a Service the address that it asks for, or takes it away. What it has
// decided it writes some time later, if the Service is as it was.
func (w *world) metalLB() []step {
	if w.frozen {
		return nil
	}
	if w.placing != nil {
		return []step{{Text: "MetalLB writes", Do: func() {
			do := w.placing
			w.placing = nil
			do()
		}}}
	}
	var out []step
	if want := w.configured(); !reflect.DeepEqual(want, w.running) {
		out = append(out, step{Text: fmt.Sprintf("MetalLB takes %v", want), Do: func() { w.running, w.lastNews = want, time.Now() }})
	} else {
		for _, o := range w.api.List(faults.MetalLBPools) {
			p, _ := o.(*metallbv1beta1.IPAddressPool)
			if n := int64(len(p.Spec.Addresses)); p.Status.AvailableIPv4 != n {
				out = append(out, step{Text: "MetalLB counts", Do: func() {
					w.change("MetalLB counts", func() {
						_ = w.api.EditStatus(faults.RefOf(p), func(o client.Object) { o.(*metallbv1beta1.IPAddressPool).Status.AvailableIPv4 = n })
					})
				}})
			}
		}
	}
	services := w.services()
	for _, name := range slices.Sorted(maps.Keys(services)) {
		s := services[name]
		if ptr.Deref(s.Spec.LoadBalancerClass, "") == v1alpha1.HostLoadBalancerClass {
			continue // it is no class of MetalLB's
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
			return append(out, step{Text: fmt.Sprintf("MetalLB decides: %s has %q", name, next), Do: func() {
				w.lastNews = time.Now()
				w.placing = func() {
					if is := w.services()[name]; is == nil || is.ResourceVersion != version {
						return
					}
					w.change("MetalLB places "+name, func() {
						_ = w.api.EditStatus(faults.RefOf(s), func(o client.Object) {
							in := &o.(*corev1.Service).Status.LoadBalancer.Ingress
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
		return action{text, func(w *world) { _ = w.api.Edit(ref, change) }}
	}
	switch w.r.IntN(24) {
	case 23:
		return forge(other, "thief", fmt.Sprintf("10.0.0.%d", 1+w.r.IntN(2)), ports)
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
		return newServiceOfClass(name, ofPool["a"], ports)
	case 20:
		return endpoints(name)
	case 22:
		return action{"a quota refuses leases", func(w *world) {
			w.noLeases = true
			w.After(0, time.Duration(3+w.r.IntN(90))*time.Second, func() { w.noLeases, w.lastNews = false, time.Now() })
		}}
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

// newServiceOfClass makes a Service that gets a lease made, for an address or any.
func newServiceOfClass(name, address string, ports []corev1.ServicePort) action {
	return action{fmt.Sprintf("Service %s is of the class, address %q: %v", name, address, ports), func(w *world) {
		_ = w.api.Create(&corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name},
			Spec: corev1.ServiceSpec{
				Type: corev1.ServiceTypeLoadBalancer, ClusterIPs: []string{"10.96.0.1"}, Ports: ports, LoadBalancerClass: ptr.To(byClass), LoadBalancerIP: address,
			},
		})
	}}
}

// endpoints gives a Service a ready endpoint, or takes it away.
func endpoints(name string) action {
	return action{"Service " + name + " has an endpoint, or none", func(w *world) {
		e := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name, Labels: map[string]string{discoveryv1.LabelServiceName: name}}}
		if e.Endpoints = []discoveryv1.Endpoint{{}}; w.api.Create(e) != nil {
			_ = w.api.Delete(faults.RefOf(e), false)
		}
	}}
}

func newService(namespace, name, lease string, ports []corev1.ServicePort) action {
	return action{fmt.Sprintf("Service %s of %s names %s: %v", name, namespace, lease, ports), func(w *world) {
		_ = w.api.Create(&corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Annotations: map[string]string{v1alpha1.LeaseAnnotation: lease}},
			Spec:       corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer, ClusterIPs: []string{"10.96.0.1"}, Ports: ports},
		})
	}}
}

// forge makes a Service that has no lease, and bears what those have that MetalLB gives the address of one.
func forge(namespace, name, address string, ports []corev1.ServicePort) action {
	return action{fmt.Sprintf("Service %s of %s forges that it has %s: %v", name, namespace, address, ports), func(w *world) {
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
	}}
}

func newLease(name string) action {
	return action{"lease " + name, func(w *world) {
		_ = w.api.Create(&v1alpha1.IPLease{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name}})
	}}
}

func deletion(of faults.Ref) action {
	return action{"delete " + string(of.Kind) + " " + of.Name, func(w *world) { _ = w.api.Delete(of, false) }}
}

// freeze has MetalLB do nothing for a while.
func freeze(howLong time.Duration) action {
	return action{"MetalLB sleeps", func(w *world) {
		w.frozen = true
		w.After(0, howLong, func() { w.frozen, w.lastNews = false, time.Now() })
	}}
}

// unheard is a story that chance seldom tells: of two leases one goes, and its Service, while MetalLB does not hear it.
func unheard() []action {
	ports := []corev1.ServicePort{{Protocol: corev1.ProtocolTCP, Port: 80}}
	return []action{
		newLease("shop"), newLease("mail"), newService(ns, "s0", "shop", ports), newService(ns, "s1", "mail", ports), freeze(40 * time.Second),
		deletion(faults.Ref{Kind: faults.Services, Namespace: ns, Name: "s0"}), deletion(faults.Ref{Kind: faults.Leases, Namespace: ns, Name: "shop"}),
	}
}

// renamed is a story of a Service that names its lease no more, asks for its port still, and shows its address, since a policy
// refuses what is written of it: the next one waits for the port.
func renamed() []action {
	ports := []corev1.ServicePort{{Protocol: corev1.ProtocolTCP, Port: 80}}
	return []action{newLease("shop"), newService(ns, "s0", "shop", ports), newService(ns, "s1", "shop", ports), {"s0 is to name no lease soon", func(w *world) {
		w.After(0, time.Minute, func() {
			if w.obstacle == nil {
				w.obstacle = &obstacle{of: isOf(faults.Services), err: errors.New("a policy refuses it"), kicks: map[string]int{}, calls: map[string]int{}}
				w.After(0, refusalLasts, func() { w.obstacle.end(w) })
			}
			_ = w.api.Edit(faults.Ref{Kind: faults.Services, Namespace: ns, Name: "s0"}, func(o client.Object) { delete(o.GetAnnotations(), v1alpha1.LeaseAnnotation) })
			w.lastNews = time.Now()
		})
	}}}
}

// calm is a story of Services that get what they ask for at once.
func calm() []action {
	ports := []corev1.ServicePort{{Protocol: corev1.ProtocolTCP, Port: 80}}
	return []action{
		newLease("shop"), newService(ns, "web", "shop", ports), newServiceOfClass("classy", "", ports), newServiceOnHosts(ns, "dock", "", ports),
	}
}

// together is a story of a Service and a guest that are made a moment before the lease that they name, as one file may have them.
func together() []action {
	ports := func(n int32) []corev1.ServicePort {
		return []corev1.ServicePort{{Protocol: corev1.ProtocolTCP, Port: n}}
	}
	web, guest, lease := newService(ns, "web", "front", ports(80)), newService(other, "guest", ns+"/front", ports(443)), newLease("front")
	return []action{{"Service web and Service guest of other, then lease front, which they name", func(w *world) {
		web.do(w)
		guest.do(w)
		w.After(0, 2*time.Second, func() {
			lease.do(w)
			_ = w.api.Edit(faults.Ref{Kind: faults.Leases, Namespace: ns, Name: "front"}, func(o client.Object) {
				o.(*v1alpha1.IPLease).Spec.NamespaceSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"is": other}}
			})
			w.lastNews = time.Now()
		})
	}}}
}

// unfound is a story of a Service and a guest that name a lease which never comes.
func unfound() []action {
	ports := []corev1.ServicePort{{Protocol: corev1.ProtocolTCP, Port: 80}}
	return []action{newService(ns, "web", "lost", ports), newService(other, "guest", ns+"/lost", ports)}
}

// unfoundWarnings are the Warning events of a story in which little goes wrong.
func unfoundWarnings(seed uint64) []string {
	if seed%30 != 24 {
		return nil
	}
	return []string{
		"guest NotAllowed: there is no IPLease lost that Services of namespace other may use; its spec.namespaceSelector has to select that",
		"web LeaseNotFound: there is no IPLease lost in this namespace; create it, or correct the annotation butler.butlerlabs.dev/lease",
	}
}

// unplaced is a story of a Service that has its ports, and of MetalLB, which gives it nothing for a while.
func unplaced() []action {
	ports := []corev1.ServicePort{{Protocol: corev1.ProtocolTCP, Port: 80}}
	return []action{newLease("shop"), {"MetalLB is not there", func(w *world) { w.frozen = true }}, newService(ns, "web", "shop", ports), {"the user waits", func(w *world) {
		w.After(0, time.Minute, func() {
			if is := conditionOf(w.services()["web"]); w.obstacle == nil && (is == nil || is.Status != metav1.ConditionFalse || is.Reason != v1alpha1.NotPlacedReason) {
				w.Wrongf("a Service without an address for a minute is told %+v", is)
			}
			w.frozen, w.lastNews = false, time.Now()
		})
	}}}
}

// wantWarnings checks the Warning events on Services; managers may say each.
func (w *world) wantWarnings(want ...string) {
	slices.Sort(w.warnings.of)
	if got := slices.Compact(w.warnings.of); !slices.Equal(got, want) {
		w.Wrongf("Services have the Warning events %q, and are to have %q", got, want)
	}
}

// usurped is a story of a guest who forges that a Service of its has a port of a shared lease, before that of the owner asks for it.
func usurped() []action {
	port := func(n int32) []corev1.ServicePort {
		return []corev1.ServicePort{{Protocol: corev1.ProtocolTCP, Port: n}}
	}
	return []action{
		newLease("shop"),
		{"shop is for Services of the other namespace", func(w *world) {
			_ = w.api.Edit(faults.Ref{Kind: faults.Leases, Namespace: ns, Name: "shop"}, func(o client.Object) {
				o.(*v1alpha1.IPLease).Spec.NamespaceSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"is": other}}
			})
		}},
		newService(ns, "web", "shop", port(80)), newService(other, "guest", ns+"/shop", port(8443)),
		forge(other, "thief", "10.0.0.1", port(25)), newService(ns, "mail", "shop", port(25)),
	}
}

// cutOff is a story of a host that shows an address and does not reach the API server while the Service and the lease are deleted.
func cutOff() []action {
	ports := []corev1.ServicePort{{Protocol: corev1.ProtocolTCP, Port: 80}}
	lease, service := faults.Ref{Kind: faults.Leases, Namespace: ns, Name: "dock"}, faults.Ref{Kind: faults.Services, Namespace: ns, Name: "web"}
	return []action{newLeaseOnHosts(lease.Name), newServiceOnHosts(ns, service.Name, lease.Name, ports), {"what shows dock is cut off soon, and dock deleted", func(w *world) {
		w.After(0, 30*time.Second, func() {
			for _, h := range w.hosts {
				if len(h.has) > 0 {
					w.turnOff(h, 20*time.Second, false)
				}
			}
			deletion(service).do(w)
			deletion(lease).do(w)
			w.lastNews = time.Now()
		})
	}}}
}

func (w *world) act() {
	a := w.script[0]
	w.script = w.script[1:]
	w.change("the user: "+a.text, func() { a.do(w) })
	w.lastNews = time.Now()
}

// examine checks the end: whoever can be is served, and nothing is left of those that are gone.
func (w *world) examine() {
	services, all := w.services(), w.leases()
	// What a manager would decide that starts now.
	w.start()
	m := w.managers[len(w.managers)-1]
	l := &look{Reconciler: m.Reconciler, namespace: ns, now: time.Now(), seen: map[sight]time.Time{}, asked: map[types.UID]bool{}}
	if err := l.gather(w.t.Context()); err != nil {
		w.Wrongf("%v", err)
		return
	}
	asking, made, _ := leaseports.Make(l.asking, l.known, l.classes, time.Now())
	for _, one := range made {
		w.Wrongf("lease %s is to be made", one.Name)
	}
	for _, one := range leaseports.Unused(l.known, asking) {
		w.Wrongf("lease %s is of no use", one.Name)
	}
	d := leaseports.Decide(l.known, asking, func(string, leaseports.Holder) bool { return true })
	d.Exhaust(l.known, asking, m.AddressAttempts)
	shown, used := map[string]bool{}, false
	for _, o := range all {
		used = used || (len(o.Status.Ports) > 0 && !byHost(o))
	}
	byRef := map[leaseports.Ref]*leaseports.Service{}
	for i := range asking {
		byRef[asking[i].Ref] = &asking[i]
	}
	for _, o := range all {
		if o.DeletionTimestamp != nil {
			w.Wrongf("lease %s is still being deleted", o.Name)
		}
		if got, want := o.Status.Ports, leaseports.TableOf(d.Tables[o.Name]); !slices.Equal(got, want) {
			w.Wrongf("lease %s has %v, and is to have %v", o.Name, got, want)
		}
		held := controllerutil.ContainsFinalizer(o, v1alpha1.LeaseShownFinalizer)
		ofHosts := byHost(o) || (o.Status.ShownBy == "" && l.byHosts(o))
		if used && !held && o.Status.Address != "" && !ofHosts {
			w.Wrongf("lease %s is not shown with the others", o.Name)
		}
		if held && !ofHosts {
			shown[o.Status.Address] = true
		}
		if w.foreign[addressOf(o)] && ofHosts && len(o.Status.Ports) > 0 {
			w.examineInUse(o, asking, m.AddressAttempts)
			continue
		}
		if has := w.isAnswered(addressOf(o), nil); ofHosts && has != (len(o.Status.Ports) > 0) {
			w.Wrongf("that a host has %s is %v", o.Status.Address, has)
		}
		if announced := meta.IsStatusConditionTrue(o.Status.Conditions, v1alpha1.AnnouncedCondition); len(o.Status.Ports) > 0 && !announced {
			w.Wrongf("lease %s is not said to be announced", o.Name)
		}
		if is := meta.FindStatusCondition(o.Status.Conditions, v1alpha1.AnnouncedCondition); len(o.Status.Ports) == 0 && is != nil {
			w.Wrongf("lease %s, which no Service has, says %s: %s", o.Name, is.Reason, is.Message)
		}
		if is := meta.FindStatusCondition(o.Status.Conditions, v1alpha1.InUseCondition); len(o.Status.Ports) > 0 && (is == nil || is.Status != inUse(o, byRef).Status) {
			w.Wrongf("lease %s says of its use %+v", o.Name, is)
		}
	}
	for name, s := range services {
		for _, l := range l.known {
			if ports := leaseports.Usurped(s, &l, ns); len(ports) > 0 && l.Address.IsValid() {
				w.Wrongf("Service %s shows %v of lease %s, and was not given them", name, ports, l.Name)
			}
		}
		if _, labelled := s.Labels[v1alpha1.LeasedLabel]; labelled && s.Annotations[v1alpha1.LeasedAddressesAnnotation] == "" {
			w.Wrongf("Service %s bears the label of those that have a lease, and has none", name)
		}
	}
	if got := w.configured(); !reflect.DeepEqual(got, shown) {
		w.Wrongf("MetalLB has %v, and is to have %v", got, shown)
	}
	for _, is := range asking {
		w.examineService(services[is.String()], &is, &d, all)
	}
}

// examineService checks that a Service has what it is to have, and is told so.
func (w *world) examineService(s *corev1.Service, as *leaseports.Service, d *leaseports.Decision, all map[string]*v1alpha1.IPLease) {
	is, told := conditionOf(s), d.Verdicts[s.UID]
	has, want := "", ""
	if len(s.Status.LoadBalancer.Ingress) > 0 {
		has = s.Status.LoadBalancer.Ingress[0].IP
	}
	if told.Reason == v1alpha1.GrantedReason {
		want = all[as.Leases[0]].Status.Address
	}
	published := s.Annotations[v1alpha1.LeasedAddressesAnnotation]
	if as.By == v1alpha1.ShownByHost && published == "" {
		published = want
	}
	if has != want || published != want {
		w.Wrongf("Service %s has %q, is published with %q, and is to have %q: %s", as.Ref, has, s.Annotations[v1alpha1.LeasedAddressesAnnotation], want, told.Message)
	}
	if (told == leaseports.Verdict{}) != (is == nil) || (is != nil && (is.Reason != told.Reason || is.Message != told.Message)) {
		w.Wrongf("Service %s is told %+v, and is to be told %+v", as.Ref, is, told)
	}
}
