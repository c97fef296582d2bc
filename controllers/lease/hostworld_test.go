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
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/sim"
)

// lifetime is how long an address stays on the interface of a host that does nothing any more; heartbeatInterval is how
// often a host writes its heartbeat; takeoverAfter is after how long without a heartbeat its locks are taken.
const (
	lifetime          = 10 * time.Second
	heartbeatInterval = lifetime / 3
	takeoverAfter     = lifetime + lifetime/4
)

// host is a host that shows addresses, as far as the manager sees it: it follows the contract of docs/design.md (T1 to
// T6). It changes an address in steps, and anything may happen in between.
type host struct {
	name string
	// off reports whether the host is dead, or frozen: it does nothing, and its addresses go when their lifetime is
	// over.
	off bool
	// shownLeases are the addresses on its interface, each with the UID of its lease.
	shownLeases map[netip.Addr]types.UID
	// cachedLeases are the leases as its watch has shown them.
	cachedLeases map[string]*v1alpha1.IPLease
	seen         int
	// nextStep is the next step of what the host has begun.
	nextStep func()
	text     string
	// nextHeartbeat is when the host writes its heartbeat; lastSeen is when others last saw it.
	nextHeartbeat, lastSeen time.Time
	// reported is what the host reports about the addresses that it shows.
	reported record.Report
}

func (w *world) newHost(name string) {
	w.hosts = append(w.hosts, &host{name: name, shownLeases: map[netip.Addr]types.UID{}, cachedLeases: map[string]*v1alpha1.IPLease{}})
}

// lock reads the lock of an address; nil if there is none.
func (w *world) lock(a netip.Addr) (o *coordinationv1.Lease, lock record.Lock, holder string) {
	for _, o := range faults.ListObjects[*coordinationv1.Lease](w.api) {
		if o.Name == record.LockName(a, "") {
			lock, holder, err := record.ParseLock(o)
			if err != nil {
				panic(err)
			}
			return o, lock, holder
		}
	}
	return nil, record.Lock{Address: a}, ""
}

// writeLock writes the lock of an address, unless it was written since it was read.
func (w *world) writeLock(h *host, was *coordinationv1.Lease, lock record.Lock, holder string) (done bool) {
	w.Change(fmt.Sprintf("%s writes the lock of %s: holder %q, left %q", h.name, lock.Address, holder, lock.ReleasedBy), func() {
		if was == nil {
			o := &coordinationv1.Lease{}
			lock.WriteLease(o, holder)
			done = w.api.Create(o) == nil
			return
		}
		done = w.api.EditObject(faults.RefForObject(was), func(o client.Object) {
			if o.GetResourceVersion() == was.ResourceVersion && o.GetUID() == was.UID {
				l, _ := o.(*coordinationv1.Lease)
				lock.WriteLease(l, holder)
				done = true
			}
		}) == nil && done
	})
	return done
}

// mayHave returns the leases whose addresses a host should show, and those that are being released, as the host sees
// them.
func (h *host) mayHave() (wanted, ending map[netip.Addr]*v1alpha1.IPLease) {
	wanted, ending = map[netip.Addr]*v1alpha1.IPLease{}, map[netip.Addr]*v1alpha1.IPLease{}
	for _, l := range h.cachedLeases {
		a := leaseAddress(l)
		switch {
		case !isShownByHost(l) || !a.IsValid():
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

// hasOtherResponder reports whether a host other than but answers for an address.
func (w *world) hasOtherResponder(a netip.Addr, but *host) bool {
	return slices.ContainsFunc(w.hosts, func(h *host) bool { _, ok := h.shownLeases[a]; return ok && h != but })
}

// isSilent reports whether the heartbeat of a host was missing for so long that its locks are taken.
func (w *world) isSilent(name string) bool {
	at := slices.IndexFunc(w.hosts, func(h *host) bool { return h.name == name })
	return at < 0 || time.Since(w.hosts[at].lastSeen) >= takeoverAfter
}

// hostSteps returns the steps that hosts can do.
func (w *world) hostSteps() []sim.Step {
	var out []sim.Step
	for _, h := range w.hosts {
		if h.off {
			continue
		}
		if changes := w.api.ChangesSince(faults.Leases, h.seen); len(changes) > 0 {
			c := changes[0]
			out = append(out, sim.Step{Text: h.name + ": watch lease " + c.Object.GetName(), Run: func() {
				h.seen++
				w.StepsSinceChange-- // there may be many, when it wakes up
				if delete(h.cachedLeases, c.Object.GetName()); !c.Deleted {
					h.cachedLeases[c.Object.GetName()], _ = c.Object.DeepCopyObject().(*v1alpha1.IPLease)
				}
			}})
		}
		if h.nextStep != nil {
			out = append(out, sim.Step{Text: h.name + ": " + h.text, Run: func() {
				do := h.nextStep
				h.nextStep = nil
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
		for a := range h.shownLeases {
			all[a] = true
		}
		for _, a := range w.lockedBy(h.name) {
			all[a] = true
		}
		for _, a := range slices.SortedFunc(maps.Keys(all), netip.Addr.Compare) {
			if text, do := w.nextHostAction(h, a, wanted[a], ending[a]); do != nil {
				out = append(out, sim.Step{Text: h.name + ": " + text, Run: do})
			}
		}
	}
	return out
}

func (w *world) lockedBy(name string) []netip.Addr {
	var out []netip.Addr
	for _, l := range faults.ListObjects[*coordinationv1.Lease](w.api) {
		if record.IsLockName(l.Name) {
			if lock, holder, err := record.ParseLock(l); err == nil && holder == name {
				out = append(out, lock.Address)
			}
		}
	}
	return out
}

// nextHostAction returns what a host does next with an address; nil if nothing.
func (w *world) nextHostAction(h *host, a netip.Addr, wanted, ending *v1alpha1.IPLease) (string, func()) {
	o, lock, holder := w.lock(a)
	uid, ok := h.shownLeases[a]
	switch {
	case ok && (holder != h.name || wanted == nil || wanted.UID != uid):
		return "takes off " + a.String(), func() { w.removeAddress(h, a) }
	case holder == h.name && wanted != nil && ok:
		report := h.reported
		report.LeaseUID, report.Announced = wanted.UID, true
		if lock.Report.Equal(&report) {
			return "", nil
		}
		return "reports " + a.String(), func() {
			lock.Report, lock.ReleasedBy = &report, ""
			if w.writeLock(h, o, lock, h.name) && report.Announced {
				w.announced[wanted.UID] = true
			}
		}
	case holder == h.name && w.foreign[a] && wanted != nil && !ok:
		report := record.Report{LeaseUID: wanted.UID, Reason: v1alpha1.AddressInUseReason, Message: "a machine answers for it"}
		if lock.Report.Equal(&report) {
			return "", nil
		}
		return "reports that another device has " + a.String(), func() {
			lock.Report, lock.ReleasedBy = &report, ""
			w.writeLock(h, o, lock, h.name)
		}
	case holder == h.name && w.hasOtherResponder(a, h): // the host probes again later
		return "", nil
	case holder == h.name && wanted != nil:
		return "asks the wire about " + a.String(), func() { w.queueHostStep(h, "reads lease "+wanted.Name, func() { w.add(h, a, wanted) }) }
	case holder == h.name:
		return "asks the wire about " + a.String() + ", to give it up", func() {
			w.queueHostStep(h, "gives up "+a.String(), func() { w.writeLock(h, o, record.Lock{Address: a}, "") })
		}
	case holder != "" && !w.isSilent(holder):
		return "", nil
	case wanted != nil || (ending != nil && (holder != "" || lock.ReleasedBy != "")):
		return "is to take " + a.String(), func() {
			w.queueHostStep(h, "takes "+a.String(), func() { w.writeLock(h, o, record.Lock{Address: a}, h.name) })
		}
	}
	return "", nil
}

// queueHostStep sets the next step of a host.
func (w *world) queueHostStep(h *host, text string, do func()) {
	h.text, h.nextStep, w.LastChange = text, do, time.Now()
}

// add reads a lease, and adds its address if it must still be shown: after that, the lock keeps the lease.
func (w *world) add(h *host, a netip.Addr, wanted *v1alpha1.IPLease) {
	live := w.leases()[wanted.Name]
	if _, _, holder := w.lock(a); holder != h.name || live == nil || live.UID != wanted.UID || live.DeletionTimestamp != nil || !mayShow(live) {
		return // its watch shows that, too
	}
	w.queueHostStep(h, "adds "+a.String(), func() {
		if w.hasOtherResponder(a, h) || w.foreign[a] {
			return
		}
		h.shownLeases[a] = wanted.UID
		w.Tracef("    %s has %s", h.name, a)
		w.checkShown()
	})
}

func (w *world) removeAddress(h *host, a netip.Addr) {
	delete(h.shownLeases, a)
	w.LastChange = time.Now()
}

// checkShown checks that no host has the address of a lease that was released (P6).
func (w *world) checkShown() {
	byUID := map[types.UID]*v1alpha1.IPLease{}
	for _, l := range w.leases() {
		byUID[l.UID] = l
	}
	for _, h := range w.hosts {
		for a, uid := range h.shownLeases {
			if l := byUID[uid]; !w.released[uid] && (l == nil || !controllerutil.ContainsFinalizer(l, v1alpha1.LeaseShownFinalizer)) {
				w.Failf("P6: host %s has %s of a lease that was released", h.name, a)
			}
		}
	}
}

// checkPublished checks what the status of Services shows for hosts.
func (w *world) checkPublished(was, now map[string]*corev1.Service) {
	publishedFor := map[string]string{}
	for _, name := range slices.Sorted(maps.Keys(now)) {
		s := now[name]
		for _, in := range s.Status.LoadBalancer.Ingress {
			for _, p := range in.Ports {
				key := fmt.Sprintf("%s %s/%d", in.IP, p.Protocol, p.Port)
				if publishedFor[key] != "" {
					w.Failf("%s is published for %s and for %s", key, publishedFor[key], name)
				}
				publishedFor[key] = name
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
	for _, lease := range w.leases() {
		if isShownByHost(lease) && leaseAddress(lease) == a {
			l = lease
		}
	}
	if l == nil {
		return // a user confirmed its release
	}
	before := was != nil && was.UID == s.UID && leaseports.ShowsAddress(was, a)
	if !before && !w.announced[l.UID] {
		w.Failf("P3: Service %s is published with %s, which no host has announced", s.Name, a)
	}
	for _, p := range in.Ports {
		port := leaseports.Port{Protocol: p.Protocol, Number: p.Port}
		if (was == nil || was.UID != s.UID || !leaseports.StatusHasPort(was, a, port)) &&
			!slices.Contains(leaseports.NewLease(l).PortTable, leaseports.Holder{Port: port, Service: leaseports.NewServiceRef(s, ns), UID: s.UID}) {
			w.Failf("P3: Service %s is published with %s %s, which it does not have on record", s.Name, a, port)
		}
	}
}

// writeHeartbeats writes the heartbeats of hosts that are due, and enqueues in the managers what concerns hosts that
// have become silent. It returns when it must be called again.
func (w *world) writeHeartbeats(next time.Time) time.Time {
	for _, h := range w.hosts {
		if h.off {
			continue
		}
		if !h.nextHeartbeat.After(time.Now()) {
			h.nextHeartbeat, h.lastSeen = time.Now().Add(heartbeatInterval), time.Now()
			hostState := &hostlb.Host{Name: h.name, Networks: []hostlb.Network{{Prefix: netip.MustParsePrefix("10.0.0.0/16"), MAC: "m", Interface: "eth0"}}}
			write := func(o client.Object) {
				l, _ := o.(*coordinationv1.Lease)
				record.WriteHeartbeat(l, hostState, "boot", metav1.NewMicroTime(time.Now()), int32(lifetime/time.Second))
			}
			o := &coordinationv1.Lease{}
			if write(o); w.api.EditObject(faults.RefForObject(o), write) != nil {
				_ = w.api.Create(o)
			}
		}
		next = earlier(next, h.nextHeartbeat)
	}
	for _, m := range w.Managers {
		if m.Dead || m.Asleep {
			continue
		}
		silent, left := m.heartbeats.expireHosts(time.Now())
		for _, name := range silent {
			w.Tracef("%s: host %s is silent", m.Name, name)
			for _, r := range m.requestsForHost(w.T.Context(), name) {
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
		return inUseByOthers([]string{poolAddresses["c"], poolAddresses["d"], "10.0.0.1"}[w.r.IntN(3)], howLong)
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
		return sim.NewAction(fmt.Sprintf("Service %s asks for %v", name, ports), func(w *world) {
			_ = faults.EditObject(w.api, service, func(o *corev1.Service) { o.Spec.Ports = ports })
		})
	case 11:
		return sim.NewAction("Service "+name+" is of type ClusterIP", func(w *world) {
			_ = faults.EditObject(w.api, service, func(s *corev1.Service) {
				s.Spec.Type, s.Spec.LoadBalancerClass = corev1.ServiceTypeClusterIP, nil
			})
			_ = w.api.EditStatus(service, func(o client.Object) { // as the API server does
				if s := o.(*corev1.Service); s.Spec.Type == corev1.ServiceTypeClusterIP {
					s.Status.LoadBalancer = corev1.LoadBalancerStatus{}
				}
			})
		})
	case 12:
		return sim.NewAction("host "+h.name+" is in trouble", func(w *world) {
			h.reported = record.Report{Ports: []record.PortReport{{Protocol: corev1.ProtocolTCP, Port: 80, Reason: v1alpha1.PortInUseOnHostReason, Message: "in use"}}}
			w.DelayStep(0, howLong, func() { h.reported, w.LastChange = record.Report{}, time.Now() })
		})
	case 13, 14:
		return sim.NewAction("host "+h.name+" is frozen, or killed", func(w *world) { w.turnOff(h, howLong, true) })
	case 15, 16:
		return sim.NewAction("host "+h.name+" is cut off from the API server", func(w *world) { w.turnOff(h, howLong, false) })
	case 17:
		return sim.NewAction("host "+h.name+" is stopped", func(w *world) { w.stop(h, howLong) })
	default:
		kind := []faults.Kind{faults.HostLeases, faults.HostLeases, faults.Leases, faults.Services}[w.r.IntN(4)]
		return sim.NewAction("a watch of "+string(kind)+" stalls", func(w *world) {
			m := w.Managers[len(w.Managers)-1]
			m.stallWatch(kind)
			w.DelayStep(0, howLong, func() {
				m.stallWatch("")
				w.LastChange = time.Now()
			})
		})
	}
}

// stallWatch makes the watch on one kind at most show nothing.
func (m *manager) stallWatch(kind faults.Kind) {
	if m.stalled != "" {
		m.UnmuteWatches(m.stalled)
	}
	if m.stalled = kind; kind != "" {
		m.MuteWatches(kind)
	}
}

// stop ends a host in good order, and starts it again later: it does not wait for a probe of the network.
func (w *world) stop(h *host, howLong time.Duration) {
	if h.off {
		return
	}
	for a := range h.shownLeases {
		w.removeAddress(h, a)
	}
	for _, a := range w.lockedBy(h.name) {
		o, _, _ := w.lock(a)
		w.writeLock(h, o, record.Lock{Address: a, ReleasedBy: h.name}, "")
	}
	h.nextStep = nil
	w.turnOff(h, howLong, true)
}

// turnOff makes a host do nothing for a while. The addresses on its interface go when their lifetime is over, if they
// are not refreshed; what it has begun it does when it wakes up, if it was frozen.
func (w *world) turnOff(h *host, howLong time.Duration, frozen bool) {
	if h.off {
		return
	}
	h.off = true
	if w.r.IntN(2) == 0 || strings.HasPrefix(h.text, "adds") {
		h.nextStep = nil // killed; or what it has read is too old when it wakes up, which it sees by its clock
	}
	if shows := maps.Clone(h.shownLeases); frozen {
		w.DelayStep(0, min(lifetime, howLong), func() {
			w.Tracef("the kernel of %s takes off what it had", h.name)
			for a := range shows {
				w.removeAddress(h, a)
			}
		})
	}
	w.DelayStep(0, howLong, func() {
		w.Tracef("host %s goes on", h.name)
		h.off, h.nextHeartbeat, w.LastChange = false, time.Now(), time.Now()
	})
}

// newLeaseOnHosts creates a lease of the pool of hosts, for all namespaces.
func newLeaseOnHosts(name string) action {
	return sim.NewAction("lease "+name, func(w *world) {
		_ = w.api.Create(&v1alpha1.IPLease{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name}, Spec: v1alpha1.IPLeaseSpec{PoolRef: v1alpha1.PoolReference{Name: "c"}, NamespaceSelector: &metav1.LabelSelector{}}})
	})
}

// newServiceOnHosts creates a Service of the class of hosts; without the name of a lease, one is created for it.
func newServiceOnHosts(namespace, name, lease string, ports []corev1.ServicePort) action {
	return sim.NewAction(fmt.Sprintf("Service %s of %s is shown by hosts, lease %q: %v", name, namespace, lease, ports), func(w *world) {
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
	})
}
