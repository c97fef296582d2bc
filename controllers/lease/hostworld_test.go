package lease

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/hostlb"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/hostlb/record"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/leaseports"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/faults"
)

// lifetime is how long an address is on the interface of a host that does nothing any more, beat how often one writes its
// heartbeat, and givenUp after how long without one its locks are taken.
const (
	lifetime = 10 * time.Second
	beat     = lifetime / 3
	givenUp  = lifetime + lifetime/4
)

// host is one that shows addresses, as far as the manager sees it: it keeps the contract of docs/design.md (T1 to T6). What it
// does about an address it does in steps, and anything may happen in between.
type host struct {
	name string
	// off: it is dead, or frozen. It does nothing, and what it shows goes when its lifetime is over.
	off bool
	// has is what is on its interface, by address, and for which lease.
	has map[netip.Addr]types.UID
	// sees are the leases as its watch has shown them.
	sees map[string]*v1alpha1.IPLease
	seen int
	// next is the next step of what it has begun.
	next func()
	text string
	// beats is when it writes its heartbeat, heard when others last heard it.
	beats, heard time.Time
	// trouble is what it reports of what it shows.
	trouble record.Report
}

func (w *world) newHost(name string) {
	w.hosts = append(w.hosts, &host{name: name, has: map[netip.Addr]types.UID{}, sees: map[string]*v1alpha1.IPLease{}})
}

// lock reads the lock of an address; nil: there is none.
func (w *world) lock(a netip.Addr) (o *coordinationv1.Lease, says record.Lock, holder string) {
	for _, is := range w.api.List(faults.HostLeases) {
		if o, isLock := is.(*coordinationv1.Lease); isLock && o.Name == record.LockName(a, "") {
			says, holder, err := record.LockOf(o)
			if err != nil {
				panic(err)
			}
			return o, says, holder
		}
	}
	return nil, record.Lock{Address: a}, ""
}

// writeLock writes the lock of an address, if nobody has since it was read.
func (w *world) writeLock(h *host, was *coordinationv1.Lease, says record.Lock, holder string) (done bool) {
	w.change(fmt.Sprintf("%s writes the lock of %s: holder %q, left %q", h.name, says.Address, holder, says.Left), func() {
		if was == nil {
			o := &coordinationv1.Lease{}
			says.Write(o, holder)
			done = w.api.Create(o) == nil
			return
		}
		done = w.api.Edit(faults.RefOf(was), func(o client.Object) {
			if o.GetResourceVersion() == was.ResourceVersion && o.GetUID() == was.UID {
				l, _ := o.(*coordinationv1.Lease)
				says.Write(l, holder)
				done = true
			}
		}) == nil && done
	})
	return done
}

// mayHave are the leases whose addresses a host is to show, and that are being given back, as it sees them.
func (h *host) mayHave() (wanted, ending map[netip.Addr]*v1alpha1.IPLease) {
	wanted, ending = map[netip.Addr]*v1alpha1.IPLease{}, map[netip.Addr]*v1alpha1.IPLease{}
	for _, l := range h.sees {
		a := addressOf(l)
		switch {
		case !byHost(l) || !a.IsValid():
		case l.DeletionTimestamp != nil:
			ending[a] = l
		case len(l.Status.Ports) > 0 && mayShow(l):
			wanted[a] = l
		}
	}
	return wanted, ending
}

func mayShow(l *v1alpha1.IPLease) bool {
	return controllerutil.ContainsFinalizer(l, v1alpha1.LeaseShownFinalizer) && controllerutil.ContainsFinalizer(l, v1alpha1.IPLeaseFinalizer)
}

// answers reports whether somebody answers for an address, other than a host.
func (w *world) isAnswered(a netip.Addr, but *host) bool {
	return slices.ContainsFunc(w.hosts, func(h *host) bool { _, has := h.has[a]; return has && h != but })
}

// isSilent reports whether a host was not heard for so long that its locks are taken.
func (w *world) isSilent(name string) bool {
	at := slices.IndexFunc(w.hosts, func(h *host) bool { return h.name == name })
	return at < 0 || time.Since(w.hosts[at].heard) >= givenUp
}

// hostSteps are what hosts can do.
func (w *world) hostSteps() []step {
	var out []step
	for _, h := range w.hosts {
		if h.off {
			continue
		}
		if changes := w.api.Changes(faults.Leases, h.seen); len(changes) > 0 {
			c := changes[0]
			out = append(out, step{Text: h.name + ": watch lease " + c.Object.GetName(), Do: func() {
				h.seen++
				w.vainly-- // there may be many, when it wakes up
				if delete(h.sees, c.Object.GetName()); !c.Deleted {
					h.sees[c.Object.GetName()], _ = c.Object.DeepCopyObject().(*v1alpha1.IPLease)
				}
			}})
		}
		if h.next != nil {
			out = append(out, step{Text: h.name + ": " + h.text, Do: func() {
				do := h.next
				h.next = nil
				do()
			}})
			continue
		}
		wanted, ending := h.mayHave()
		all := map[netip.Addr]bool{}
		for _, of := range []map[netip.Addr]*v1alpha1.IPLease{wanted, ending} {
			for a := range of {
				all[a] = true
			}
		}
		for a := range h.has {
			all[a] = true
		}
		for _, a := range w.lockedBy(h.name) {
			all[a] = true
		}
		for _, a := range slices.SortedFunc(maps.Keys(all), netip.Addr.Compare) {
			if text, do := w.about(h, a, wanted[a], ending[a]); do != nil {
				out = append(out, step{Text: h.name + ": " + text, Do: do})
			}
		}
	}
	return out
}

func (w *world) lockedBy(name string) []netip.Addr {
	var out []netip.Addr
	for _, o := range w.api.List(faults.HostLeases) {
		if l, is := o.(*coordinationv1.Lease); is && record.IsLock(l.Name) {
			if says, holder, err := record.LockOf(l); err == nil && holder == name {
				out = append(out, says.Address)
			}
		}
	}
	return out
}

// about is what a host does next about an address; nil: nothing.
func (w *world) about(h *host, a netip.Addr, wanted, ending *v1alpha1.IPLease) (string, func()) {
	o, says, holder := w.lock(a)
	uid, has := h.has[a]
	switch {
	case has && (holder != h.name || wanted == nil || wanted.UID != uid):
		return "takes off " + a.String(), func() { w.takeOff(h, a) }
	case holder == h.name && wanted != nil && has:
		report := h.trouble
		report.Lease, report.Announced = wanted.UID, true
		if says.Report.Equal(&report) {
			return "", nil
		}
		return "reports " + a.String(), func() {
			says.Report, says.Left = &report, ""
			if w.writeLock(h, o, says, h.name) && report.Announced {
				w.announced[wanted.UID] = true
			}
		}
	case holder == h.name && w.foreign[a] && wanted != nil && !has:
		report := record.Report{Lease: wanted.UID, Reason: v1alpha1.AddressInUseReason, Message: "a machine answers for it"}
		if says.Report.Equal(&report) {
			return "", nil
		}
		return "reports that somebody else has " + a.String(), func() {
			says.Report, says.Left = &report, ""
			w.writeLock(h, o, says, h.name)
		}
	case holder == h.name && w.isAnswered(a, h): // it is asked again later
		return "", nil
	case holder == h.name && wanted != nil:
		return "asks the wire about " + a.String(), func() { w.then(h, "reads lease "+wanted.Name, func() { w.add(h, a, wanted) }) }
	case holder == h.name:
		return "asks the wire about " + a.String() + ", to give it up", func() {
			w.then(h, "gives up "+a.String(), func() { w.writeLock(h, o, record.Lock{Address: a}, "") })
		}
	case holder != "" && !w.isSilent(holder):
		return "", nil
	case wanted != nil || (ending != nil && (holder != "" || says.Left != "")):
		return "is to take " + a.String(), func() {
			w.then(h, "takes "+a.String(), func() { w.writeLock(h, o, record.Lock{Address: a}, h.name) })
		}
	}
	return "", nil
}

// then has a host do something as its next step.
func (w *world) then(h *host, text string, do func()) {
	h.text, h.next, w.lastNews = text, do, time.Now()
}

// add reads a lease, and adds its address if it is to be shown still: after that, the lock keeps the lease.
func (w *world) add(h *host, a netip.Addr, wanted *v1alpha1.IPLease) {
	live := w.leases()[wanted.Name]
	if _, _, holder := w.lock(a); holder != h.name || live == nil || live.UID != wanted.UID || live.DeletionTimestamp != nil || !mayShow(live) {
		return // its watch says so, too
	}
	w.then(h, "adds "+a.String(), func() {
		if w.isAnswered(a, h) || w.foreign[a] {
			return
		}
		h.has[a] = wanted.UID
		w.Notef("    %s has %s", h.name, a)
		w.checkShown()
	})
}

func (w *world) takeOff(h *host, a netip.Addr) {
	delete(h.has, a)
	w.lastNews = time.Now()
}

// checkShown checks that no host has the address of a lease that was given back (P6).
func (w *world) checkShown() {
	byUID := map[types.UID]*v1alpha1.IPLease{}
	for _, l := range w.leases() {
		byUID[l.UID] = l
	}
	for _, h := range w.hosts {
		for a, uid := range h.has {
			if l := byUID[uid]; !w.released[uid] && (l == nil || !controllerutil.ContainsFinalizer(l, v1alpha1.LeaseShownFinalizer)) {
				w.Wrongf("P6: host %s has %s of a lease that was given back", h.name, a)
			}
		}
	}
}

// checkPublished checks what Services say that hosts show.
func (w *world) checkPublished(was, now map[string]*corev1.Service) {
	has := map[string]string{}
	for _, name := range slices.Sorted(maps.Keys(now)) {
		s := now[name]
		for _, in := range s.Status.LoadBalancer.Ingress {
			for _, p := range in.Ports {
				key := fmt.Sprintf("%s %s/%d", in.IP, p.Protocol, p.Port)
				if has[key] != "" {
					w.Wrongf("%s is published for %s and for %s", key, has[key], name)
				}
				has[key] = name
			}
			if len(in.Ports) > 0 {
				w.checkIngress(was[name], s, in)
			}
		}
	}
}

// checkIngress checks an address that a Service is published with on hosts, and was not before (P3).
func (w *world) checkIngress(was, s *corev1.Service, in corev1.LoadBalancerIngress) {
	a := netip.MustParseAddr(in.IP)
	var l *v1alpha1.IPLease
	for _, is := range w.leases() {
		if byHost(is) && addressOf(is) == a {
			l = is
		}
	}
	if l == nil {
		return // it was given back by a person's word
	}
	before := was != nil && was.UID == s.UID && leaseports.Shows(was, a)
	if !before && !w.announced[l.UID] {
		w.Wrongf("P3: Service %s is published with %s, which no host has announced", s.Name, a)
	}
	for _, p := range in.Ports {
		port := leaseports.Port{Protocol: p.Protocol, Number: p.Port}
		if (was == nil || was.UID != s.UID || !leaseports.ShowsPort(was, a, port)) &&
			!slices.Contains(leaseports.LeaseOf(l).Table, leaseports.Holder{Port: port, Service: leaseports.RefOf(s, ns), UID: s.UID}) {
			w.Wrongf("P3: Service %s is published with %s %s, which it does not have on record", s.Name, a, port)
		}
	}
}

// beatAll has the hosts write their heartbeats that are due, and tells managers who has fallen silent. It returns when it is to
// be called again.
func (w *world) beatAll(next time.Time) time.Time {
	for _, h := range w.hosts {
		if h.off {
			continue
		}
		if !h.beats.After(time.Now()) {
			h.beats, h.heard = time.Now().Add(beat), time.Now()
			is := &hostlb.Host{Name: h.name, Networks: []hostlb.Network{{Prefix: netip.MustParsePrefix("10.0.0.0/16"), MAC: "m", Interface: "eth0"}}}
			write := func(o client.Object) {
				l, _ := o.(*coordinationv1.Lease)
				record.WriteHost(l, is, "boot", metav1.NewMicroTime(time.Now()), int32(lifetime/time.Second))
			}
			o := &coordinationv1.Lease{}
			if write(o); w.api.Edit(faults.RefOf(o), write) != nil {
				_ = w.api.Create(o)
			}
		}
		next = earlier(next, h.beats)
	}
	for _, m := range w.managers {
		if m.dead || m.asleep {
			continue
		}
		silent, left := m.heard.due(time.Now())
		for _, name := range silent {
			w.Notef("%s: host %s is silent", m.name, name)
			for _, r := range m.ofHost(w.t.Context(), name) {
				m.queues[r.Name].Wake()
			}
		}
		if left > 0 {
			next = earlier(next, time.Now().Add(left))
		}
	}
	return next
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

// drawOfHosts draws what a user, or a host, does next.
func (w *world) drawOfHosts() action {
	name := fmt.Sprintf("h%d", w.r.IntN(4))
	ports := []corev1.ServicePort{{Protocol: corev1.ProtocolTCP, Port: int32(80 + w.r.IntN(2))}}
	if w.r.IntN(3) == 0 {
		ports = append(ports, corev1.ServicePort{Protocol: corev1.ProtocolUDP, Port: 53})
	}
	service := faults.Ref{Kind: faults.Services, Namespace: ns, Name: name}
	h := w.hosts[w.r.IntN(len(w.hosts))]
	howLong := time.Duration(3+w.r.IntN(60)) * time.Second
	switch w.r.IntN(22) {
	case 0, 1:
		return newServiceOnHosts(ns, name, "", ports)
	case 20, 21:
		return inUseByOthers([]string{ofPool["c"], ofPool["d"], "10.0.0.1"}[w.r.IntN(3)], howLong)
	case 2, 3, 4:
		return newServiceOnHosts(ns, name, "dock", ports)
	case 5:
		return newServiceOnHosts(other, name, ns+"/dock", ports)
	case 6, 7:
		return newLeaseOnHosts("dock")
	case 8:
		return deletion(faults.Ref{Kind: faults.Leases, Namespace: ns, Name: "dock"})
	case 9:
		return deletion(service)
	case 10:
		return action{fmt.Sprintf("Service %s asks for %v", name, ports), func(w *world) {
			_ = w.api.Edit(service, func(o client.Object) { o.(*corev1.Service).Spec.Ports = ports })
		}}
	case 11:
		return action{"Service " + name + " is of type ClusterIP", func(w *world) {
			_ = w.api.Edit(service, func(o client.Object) {
				s := o.(*corev1.Service)
				s.Spec.Type, s.Spec.LoadBalancerClass = corev1.ServiceTypeClusterIP, nil
			})
			_ = w.api.EditStatus(service, func(o client.Object) { // as the API server does
				if s := o.(*corev1.Service); s.Spec.Type == corev1.ServiceTypeClusterIP {
					s.Status.LoadBalancer = corev1.LoadBalancerStatus{}
				}
			})
		}}
	case 12:
		return action{"host " + h.name + " is in trouble", func(w *world) {
			h.trouble = record.Report{Ports: []record.PortReport{{Protocol: corev1.ProtocolTCP, Port: 80, Reason: v1alpha1.PortInUseOnHostReason, Message: "in use"}}}
			w.After(0, howLong, func() { h.trouble, w.lastNews = record.Report{}, time.Now() })
		}}
	case 13, 14:
		return action{"host " + h.name + " is frozen, or killed", func(w *world) { w.turnOff(h, howLong, true) }}
	case 15, 16:
		return action{"host " + h.name + " is cut off from the API server", func(w *world) { w.turnOff(h, howLong, false) }}
	case 17:
		return action{"host " + h.name + " is stopped", func(w *world) { w.stop(h, howLong) }}
	default:
		kind := []faults.Kind{faults.HostLeases, faults.HostLeases, faults.Leases, faults.Services}[w.r.IntN(4)]
		return action{"a watch of " + string(kind) + " stalls", func(w *world) {
			m := w.managers[len(w.managers)-1]
			m.stalled = kind
			w.After(0, howLong, func() { m.stalled, w.lastNews = "", time.Now() })
		}}
	}
}

// stop has a host end in good order, and start again later: it does not wait for the wire.
func (w *world) stop(h *host, howLong time.Duration) {
	if h.off {
		return
	}
	for a := range h.has {
		w.takeOff(h, a)
	}
	for _, a := range w.lockedBy(h.name) {
		o, _, _ := w.lock(a)
		w.writeLock(h, o, record.Lock{Address: a, Left: h.name}, "")
	}
	h.next = nil
	w.turnOff(h, howLong, true)
}

// turnOff has a host do nothing for a while. What is on its interface goes when its lifetime is over, if nobody refreshes it; what
// it has begun it does when it wakes up, if it was frozen.
func (w *world) turnOff(h *host, howLong time.Duration, frozen bool) {
	if h.off {
		return
	}
	h.off = true
	if w.r.IntN(2) == 0 || strings.HasPrefix(h.text, "adds") {
		h.next = nil // killed; or what it has read is too old when it wakes up, and it sees that by its clock
	}
	if shows := maps.Clone(h.has); frozen {
		w.After(0, min(lifetime, howLong), func() {
			w.Notef("the kernel of %s takes off what it had", h.name)
			for a := range shows {
				w.takeOff(h, a)
			}
		})
	}
	w.After(0, howLong, func() {
		w.Notef("host %s goes on", h.name)
		h.off, h.beats, w.lastNews = false, time.Now(), time.Now()
	})
}

// newLeaseOnHosts makes a lease of the pool of hosts, for all namespaces.
func newLeaseOnHosts(name string) action {
	return action{"lease " + name, func(w *world) {
		_ = w.api.Create(&v1alpha1.IPLease{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name}, Spec: v1alpha1.IPLeaseSpec{PoolRef: v1alpha1.PoolReference{Name: "c"}, NamespaceSelector: &metav1.LabelSelector{}}})
	}}
}

// newServiceOnHosts makes a Service of the class of hosts; without the name of a lease, one is made for it.
func newServiceOnHosts(namespace, name, lease string, ports []corev1.ServicePort) action {
	return action{fmt.Sprintf("Service %s of %s is shown by hosts, lease %q: %v", name, namespace, lease, ports), func(w *world) {
		s := &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
			Spec: corev1.ServiceSpec{
				Type: corev1.ServiceTypeLoadBalancer, ClusterIPs: []string{"10.96.0.1"}, Ports: ports, LoadBalancerClass: ptr.To(v1alpha1.HostLoadBalancerClass),
			},
		}
		if lease != "" {
			metav1.SetMetaDataAnnotation(&s.ObjectMeta, v1alpha1.LeaseAnnotation, lease)
		}
		_ = w.api.Create(s)
	}}
}
