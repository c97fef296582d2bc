package lease

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	metallbv1beta1 "go.universe.tf/metallb/api/v1beta1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/leaseports"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/faults"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/faults/schedule"
)

// A world is an API server, managers, an allocator, MetalLB and a user, driven step by step in virtual time, in an order
// that a seed says. The API server is a fake, as are the allocator and MetalLB: here every schedule counts. What the real
// ones do, test/e2e finds out.

const (
	ns      = "team"
	latency = 5 * time.Millisecond
	// still is how long nothing happens before all is taken to be at rest: longer than anything is asked again.
	still = time.Minute
	// tooMany steps that change nothing are too many.
	tooMany = 300
)

// watched are the kinds that managers watch.
var watched = []faults.Kind{faults.Leases, faults.Services, faults.MetalLBPools, faults.Advertisements}

type class int

type step = schedule.Step[class]

type quiet struct{}

func (quiet) Eventf(runtime.Object, runtime.Object, string, string, string, string, ...any) {}

// manager is a process: a reconciler, its cache and its queue.
type manager struct {
	*Reconciler

	name         string
	cache        *cached
	ctx          context.Context //nolint:containedctx // the life of the process
	kill         context.CancelFunc
	queue        schedule.Queue
	seen         map[faults.Kind]int
	dead, asleep bool
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
	namespace := (&client.ListOptions{}).ApplyOptions(opts).Namespace
	kind := map[bool]faults.Kind{true: faults.Leases, false: faults.Services}[reflect.TypeOf(list) == reflect.TypeFor[*v1alpha1.IPLeaseList]()]
	for ref, o := range c.objects {
		if ref.Kind == kind && ref.Namespace == namespace {
			out = append(out, o.DeepCopyObject())
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
	vainly   int
	calls    int
	// running is MetalLB's configuration, by address; placing, what it has decided and not written; frozen, that it does
	// nothing.
	running map[string]bool
	placing func()
	frozen  bool
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
	synctest.Test(t, func(t *testing.T) {
		w := &world{t: t, r: rand.New(rand.NewPCG(seed, 7)), api: faults.New(), running: map[string]bool{}}
		w.trouble = w.r.IntN(6)
		for range 6 + w.r.IntN(10) {
			w.script = append(w.script, w.draw())
		}
		if seed%10 < 2 {
			w.script = unheard()
		}
		for range 1 + seed%2 {
			w.start()
		}
		w.toRest()
		if !w.Failed() {
			w.examine()
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
		w.Report(t)
	})
}

func (w *world) start() {
	name := string(rune('a' + len(w.managers)))
	c := &cached{w.api.Client(name), map[faults.Ref]client.Object{}}
	m := &manager{name: name, cache: c, seen: map[faults.Kind]int{}, Reconciler: &Reconciler{Client: c, Live: c.Live(), Recorder: quiet{}, Now: time.Now}}
	m.ctx, m.kill = context.WithCancel(w.t.Context())
	for _, kind := range watched { // its caches are filled before it begins
		m.seen[kind] = len(w.api.Changes(kind, 0))
		for _, o := range w.api.List(kind) {
			m.show(faults.Change{Object: o})
		}
	}
	w.managers = append(w.managers, m)
	w.Notef("manager %s starts", name)
}

// show shows a manager a change, and wakes it as its watches do.
func (m *manager) show(c faults.Change) {
	ref := faults.RefOf(c.Object)
	old := m.cache.objects[ref]
	if delete(m.cache.objects, ref); !c.Deleted {
		m.cache.objects[ref] = c.Object.DeepCopyObject().(client.Object)
	}
	switch o := c.Object.(type) {
	case *corev1.Service:
		if was, is := old.(*corev1.Service); concerns(o) || (is && concerns(was)) {
			m.queue.Wake()
		}
	case *metallbv1beta1.IPAddressPool, *v1alpha1.IPLease:
		m.queue.Wake()
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
		if steps := w.steps(); len(steps) > 0 {
			if len(w.script) > 0 && w.r.IntN(30) == 0 { // while others are at work, too
				w.act()
				continue
			}
			s := steps[w.r.IntN(len(steps))]
			w.Notef("%s", s.Text)
			s.Do()
			if w.vainly++; w.vainly > tooMany {
				w.Wrongf("the managers spin: %d steps without a change", tooMany)
			}
			continue
		}
		idle := time.Since(w.lastNews)
		if idle >= still && !w.Waits() && len(w.script) == 0 {
			return
		}
		next := w.Sooner(w.lastNews.Add(still))
		if len(w.script) > 0 {
			next = w.Sooner(time.Now().Add(time.Second))
		}
		for _, m := range w.managers {
			if !m.dead && !m.asleep {
				next = m.queue.Sooner(next)
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
			if changes := w.api.Changes(kind, m.seen[kind]); len(changes) > 0 {
				c := changes[0]
				out = append(out, step{Text: fmt.Sprintf("%s: watch %s %s at %s", m.name, kind, c.Object.GetName(), c.Object.GetResourceVersion()), Do: func() {
					m.seen[kind]++
					m.show(c)
				}})
			}
		}
		if m.queue.Due() {
			out = append(out, step{Text: m.name + ": reconcile", Do: func() {
				m.queue.Run(func() (reconcile.Result, error) {
					return m.Reconcile(m.ctx, reconcile.Request{NamespacedName: types.NamespacedName{Name: ns}})
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
	return append(out, w.metalLB()...)
}

// serve lets a call happen, or go wrong.
func (w *world) serve(m *manager, r *faults.Request) {
	w.api.Take(r)
	w.calls++
	<-time.After(latency)
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
	w.change(r.String(), func() { value, err = w.api.Do(r) })
	if err == nil && r.Write() {
		w.Writes++
		w.check(services, leases)
	}
	return value, err
}

func (w *world) change(by string, do func()) {
	before := w.api.Version()
	if do(); w.api.Version() != before {
		w.Notef("    %s: now %d", by, w.api.Version())
		w.lastNews, w.vainly = time.Now(), 0
	}
}

func (w *world) services() map[string]*corev1.Service {
	out := map[string]*corev1.Service{}
	for _, o := range w.api.List(faults.Services) {
		if s, is := o.(*corev1.Service); is {
			out[s.Name] = s
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
	for name, s := range now {
		was := services[name]
		text := s.Annotations[v1alpha1.LeasedAddressesAnnotation]
		if text == "" || was == nil || was.Annotations[v1alpha1.LeasedAddressesAnnotation] == text {
			continue
		}
		for _, p := range leaseports.ServiceOf(s).Ports {
			if !slices.ContainsFunc(slices.Collect(maps.Values(live)), func(l *v1alpha1.IPLease) bool {
				return l.Status.Address == text && slices.Contains(leaseports.LeaseOf(l).Table, leaseports.Holder{Port: p, Service: s.Name, UID: s.UID})
			}) {
				w.Wrongf("P3: Service %s is published with %s, and does not have %s on record", name, text, p)
			}
		}
	}
	for name, l := range leases {
		is := live[name]
		for _, h := range l.Status.Ports {
			s := now[h.Service]
			if is == nil || is.UID != l.UID || slices.Contains(is.Status.Ports, h) || s == nil || s.UID != h.UID {
				continue
			}
			behind := slices.Contains(leaseports.ServiceOf(s).Ports, leaseports.Port{Protocol: h.Protocol, Number: h.Port})
			if a, err := netip.ParseAddr(l.Status.Address); err == nil && behind && leaseports.Shows(s, a) {
				w.Wrongf("P4: the port %s/%d of %s is taken from Service %s, which shows it", h.Protocol, h.Port, name, h.Service)
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
		return is && p.Status.AvailableIPv4 > 0
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

// allocate is what the allocator does: a lease gets the first address that nobody has, and gives it back when it is deleted
// and not shown.
func (w *world) allocate() []step {
	used := map[string]bool{}
	all := w.leases()
	for _, l := range all {
		used[l.Status.Address] = true
	}
	for _, name := range slices.Sorted(maps.Keys(all)) { // a seed tells one story
		l := all[name]
		ref := faults.RefOf(l)
		if l.DeletionTimestamp != nil && controllerutil.ContainsFinalizer(l, v1alpha1.IPLeaseFinalizer) && !controllerutil.ContainsFinalizer(l, v1alpha1.LeaseShownFinalizer) {
			return []step{{Text: "the allocator releases " + l.Name, Do: func() {
				w.change("released", func() {
					_ = w.api.Edit(ref, func(o client.Object) { controllerutil.RemoveFinalizer(o, v1alpha1.IPLeaseFinalizer) })
				})
			}}}
		}
		for _, a := range []string{"10.0.0.1", "10.0.0.2"} {
			if l.DeletionTimestamp == nil && l.Status.Address == "" && !used[a] {
				return []step{{Text: "the allocator gives " + l.Name + " " + a, Do: func() {
					w.change("granted", func() {
						_ = w.api.Edit(ref, func(o client.Object) { controllerutil.AddFinalizer(o, v1alpha1.IPLeaseFinalizer) })
						_ = w.api.EditStatus(ref, func(o client.Object) { o.(*v1alpha1.IPLease).Status.Address = a })
					})
				}}}
			}
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
				out[address] = true
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
		has, wants := "", s.Annotations["metallb.io/loadBalancerIPs"]
		if len(s.Status.LoadBalancer.Ingress) > 0 {
			has = s.Status.LoadBalancer.Ingress[0].IP
		}
		next := has
		switch {
		case has != "" && !w.running[has]:
			next = ""
		case wants != "" && wants != has && w.running[wants] && w.mayShare(services, s, wants):
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
		if other.Name == s.Name || len(other.Status.LoadBalancer.Ingress) == 0 || other.Status.LoadBalancer.Ingress[0].IP != address {
			continue
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
	switch w.r.IntN(13) {
	case 0, 1, 2, 3:
		return newService(name, lease, ports)
	case 4, 5, 6:
		return newLease(lease)
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

func newService(name, lease string, ports []corev1.ServicePort) action {
	return action{fmt.Sprintf("Service %s names %s: %v", name, lease, ports), func(w *world) {
		_ = w.api.Create(&corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name, Annotations: map[string]string{v1alpha1.LeaseAnnotation: lease}},
			Spec:       corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer, ClusterIPs: []string{"10.96.0.1"}, Ports: ports},
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
		newLease("shop"), newLease("mail"), newService("s0", "shop", ports), newService("s1", "mail", ports), freeze(40 * time.Second),
		deletion(faults.Ref{Kind: faults.Services, Namespace: ns, Name: "s0"}), deletion(faults.Ref{Kind: faults.Leases, Namespace: ns, Name: "shop"}),
	}
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
	known, asking := []leaseports.Lease{}, []leaseports.Service{}
	for _, l := range all {
		if known = append(known, leaseports.LeaseOf(l)); l.DeletionTimestamp != nil {
			w.Wrongf("lease %s is still being deleted", l.Name)
		}
	}
	for _, s := range services {
		asking = append(asking, leaseports.ServiceOf(s))
	}
	d := leaseports.Decide(known, asking, func(string, leaseports.Holder) bool { return true })
	shown := map[string]bool{}
	for _, l := range all {
		if got, want := l.Status.Ports, leaseports.TableOf(d.Tables[l.Name]); !slices.Equal(got, want) {
			w.Wrongf("lease %s has %v, and is to have %v", l.Name, got, want)
		}
		if controllerutil.ContainsFinalizer(l, v1alpha1.LeaseShownFinalizer) {
			shown[l.Status.Address] = true
		}
	}
	if got := w.configured(); !reflect.DeepEqual(got, shown) {
		w.Wrongf("MetalLB has %v, and is to have %v", got, shown)
	}
	for _, s := range services {
		is, told := conditionOf(s), d.Verdicts[s.UID]
		has := ""
		if len(s.Status.LoadBalancer.Ingress) > 0 {
			has = s.Status.LoadBalancer.Ingress[0].IP
		}
		want := ""
		if told.Reason == v1alpha1.GrantedReason {
			want = all[leaseports.ServiceOf(s).Leases[0]].Status.Address
		}
		if has != want || s.Annotations[v1alpha1.LeasedAddressesAnnotation] != want {
			w.Wrongf("Service %s has %q, is published with %q, and is to have %q: %s", s.Name, has, s.Annotations[v1alpha1.LeasedAddressesAnnotation], want, told.Message)
		}
		if (told == leaseports.Verdict{}) != (is == nil) || (is != nil && (is.Reason != told.Reason || is.Message != told.Message)) {
			w.Wrongf("Service %s is told %+v, and is to be told %+v", s.Name, is, told)
		}
	}
}
