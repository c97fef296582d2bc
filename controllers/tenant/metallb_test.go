package tenant

import (
	"fmt"
	"net/netip"
	"slices"

	metallbv1beta1 "go.universe.tf/metallb/api/v1beta1"
	"go4.org/netipx"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/poolutil"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/faults"
)

// announcer is MetalLB's controller: it works with the pools that it took last, gives Services addresses of them one
// at a time, and counts. What it has decided is written some time later. Which of what it can do is next is
// not said: its watches of pools and of Services, and what writes its counts, know nothing of each other.
type announcer struct {
	mood

	running []announced
	// write is what it has decided and not written yet.
	write func()
	text  string
}

// standIn stands for the load balancer of the workload cluster.
type standIn interface {
	// steps are what it can do next.
	steps(w *world) []step
	// works are the pools that it works with.
	works() []announced
	is() *mood
}

// mood is how a load balancer is.
type mood struct {
	// frozen: it does nothing. stuck: it has yet to look at the Services.
	frozen, stuck bool
	// content is the version at which it had nothing to do.
	content int64
}

func (m *mood) is() *mood { return m }

func (m *announcer) works() []announced { return m.running }

// announced is a pool as a load balancer has taken it.
type announced struct {
	name   string
	ranges []netipx.IPRange
	auto   bool
	// careful: MetalLB leaves out the addresses that end in 0 or 255 (avoidBuggyIPs).
	careful bool
}

func (a announced) String() string {
	return fmt.Sprintf("%s %v %t %t", a.name, a.ranges, a.auto, a.careful)
}

func (a announced) has(addr netip.Addr) bool {
	return !a.leavesOut(addr) && slices.ContainsFunc(a.ranges, func(r netipx.IPRange) bool { return r.Contains(addr) })
}

func (a announced) leavesOut(addr netip.Addr) bool {
	last := addr.AsSlice()
	return a.careful && len(last) == 4 && (last[3] == 0 || last[3] == 255)
}

// size is how many addresses MetalLB counts: of each network of a range those that it does not leave out, and one less where
// the network is one address that it leaves out, as it subtracts the first address and the last one.
func (a announced) size() (n int64) {
	for _, r := range a.ranges {
		n += poolutil.Size(r)
		for _, p := range r.Prefixes() {
			for addr := p.Addr(); p.Contains(addr); addr = addr.Next() {
				if a.leavesOut(addr) {
					n--
				}
			}
			if p.IsSingleIP() && a.leavesOut(p.Addr()) {
				n--
			}
		}
	}
	return n
}

// steps are what MetalLB can do next.
func (m *announcer) steps(w *world) []step {
	var out []step
	wanted, problem := configured(w)
	if problem == "" && !slices.EqualFunc(m.running, wanted, func(a, b announced) bool {
		return a.name == b.name && a.auto == b.auto && a.careful == b.careful && slices.Equal(a.ranges, b.ranges)
	}) {
		out = append(out, step{Class: taking, Text: fmt.Sprintf("MetalLB takes %v", wanted), Do: func() { m.running = wanted }})
	}
	switch {
	case m.stuck:
	case m.write != nil:
		out = append(out, step{Class: placing, Text: "MetalLB writes: " + m.text, Do: func() {
			do := m.write
			m.write = nil
			do()
		}})
	default:
		if s := m.place(w); s != nil {
			out = append(out, *s)
		}
	}
	if s := m.count(w); s != nil {
		out = append(out, *s)
	}
	return out
}

// configured are the pools that there are. Two that overlap are a problem: MetalLB takes neither.
func configured(w *world) (out []announced, problem string) {
	for _, o := range w.work.List(faults.MetalLBPools) {
		p, _ := o.(*metallbv1beta1.IPAddressPool)
		a := announced{name: p.Name, auto: ptr.Deref(p.Spec.AutoAssign, true), careful: p.Spec.AvoidBuggyIPs}
		for _, text := range p.Spec.Addresses {
			r := netipx.MustParseIPRange(text)
			for _, other := range append(slices.Clone(out), a) {
				if slices.ContainsFunc(other.ranges, r.Overlaps) {
					problem = fmt.Sprintf("%s of %s overlaps %s", r, p.Name, other.name)
				}
			}
			a.ranges = append(a.ranges, r)
		}
		if len(a.ranges) == 0 {
			problem = p.Name + " is empty"
		}
		out = append(out, a)
	}
	return out, problem
}

// place is what MetalLB does for the first Service that has not what it is to have.
func (m *announcer) place(w *world) *step {
	services := w.services()
	for _, s := range services {
		if has := addressOf(s); has.IsValid() && !slices.ContainsFunc(m.running, func(a announced) bool { return a.has(has) }) {
			return m.decide(w, s, m.free(services))
		}
	}
	for _, s := range services {
		if free := m.free(services); !addressOf(s).IsValid() && free.IsValid() {
			return m.decide(w, s, free)
		}
	}
	return nil
}

func (m *announcer) decide(w *world, s *corev1.Service, addr netip.Addr) *step {
	text := fmt.Sprintf("Service %s has %v", s.Name, addr)
	return &step{Class: placing, Text: "MetalLB decides: " + text, Do: func() {
		m.text = text
		m.write = func() {
			w.workload("MetalLB: "+text, func() error {
				return w.work.EditStatus(faults.RefOf(s), func(o client.Object) {
					if s, is := o.(*corev1.Service); is {
						s.Status.LoadBalancer.Ingress = nil
						if addr.IsValid() {
							s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: addr.String()}}
						}
					}
				})
			})
		}
	}}
}

// free is the first address that no Service has, of those that it may give.
func (m *announcer) free(services []*corev1.Service) netip.Addr {
	for _, p := range m.running {
		for _, r := range p.ranges {
			for a := r.From(); p.auto && r.Contains(a); a = a.Next() {
				if !p.leavesOut(a) && !slices.ContainsFunc(services, func(s *corev1.Service) bool { return addressOf(s) == a }) {
					return a
				}
			}
		}
	}
	return netip.Addr{}
}

// count writes how many addresses the pools have that MetalLB works with: its one acknowledgement (ADR 7).
func (m *announcer) count(w *world) *step {
	for _, o := range w.work.List(faults.MetalLBPools) {
		p, _ := o.(*metallbv1beta1.IPAddressPool)
		at := slices.IndexFunc(m.running, func(a announced) bool { return a.name == p.Name })
		if at < 0 {
			continue
		}
		var counts metallbv1beta1.IPAddressPoolStatus
		for _, s := range w.services() {
			if m.running[at].has(addressOf(s)) {
				counts.AssignedIPv4++
			}
		}
		counts.AvailableIPv4 = m.running[at].size() - counts.AssignedIPv4
		if counts == p.Status {
			continue
		}
		return &step{Class: counting, Text: fmt.Sprintf("MetalLB counts %d in %s", m.running[at].size(), p.Name), Do: func() {
			w.workload("MetalLB counts", func() error {
				if counts == (metallbv1beta1.IPAddressPoolStatus{}) { // that it has counted is known by who wrote the status
					_ = w.work.Edit(faults.RefOf(p), func(o client.Object) {
						o.SetManagedFields([]metav1.ManagedFieldsEntry{{Manager: "controller", Subresource: "status"}})
					})
				}
				return w.work.EditStatus(faults.RefOf(p), func(o client.Object) {
					if p, is := o.(*metallbv1beta1.IPAddressPool); is {
						p.Status = counts
					}
				})
			})
		}}
	}
	return nil
}

func addressOf(s *corev1.Service) netip.Addr {
	if len(s.Status.LoadBalancer.Ingress) == 0 {
		return netip.Addr{}
	}
	return netip.MustParseAddr(s.Status.LoadBalancer.Ingress[0].IP)
}
