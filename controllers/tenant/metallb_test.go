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
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/sim"
)

// fakeMetalLB is MetalLB's controller: it works with the pools that it took last, assigns Services addresses of them
// one at a time, and counts. What it has decided is written some time later. The order of what it can do is open: its
// watches of pools and of Services, and the writer of its counts, are independent of each other.
type fakeMetalLB struct {
	balancerMood

	loaded []loadedPool
	// pendingWrite is what it has decided and not written yet.
	pendingWrite func()
	text         string
}

// fakeBalancer is the load balancer of the workload cluster.
type fakeBalancer interface {
	// steps returns what it can do next.
	steps(w *world) []sim.Step
	// loadedPools returns the pools that it works with.
	loadedPools() []loadedPool
	currentMood() *balancerMood
}

// balancerMood is the state of a load balancer.
type balancerMood struct {
	// frozen reports whether it does nothing; stuck reports whether it has not reconciled the Services yet.
	frozen, stuck bool
	// idleVersion is the version at which it had nothing to do.
	idleVersion int64
}

func (m *balancerMood) currentMood() *balancerMood { return m }

func (m *fakeMetalLB) loadedPools() []loadedPool { return m.loaded }

// loadedPool is a pool as a load balancer has taken it.
type loadedPool struct {
	name   string
	ranges []netipx.IPRange
	auto   bool
	// avoidsBuggyIPs reports whether MetalLB leaves out the addresses that end in 0 or 255 (avoidBuggyIPs).
	avoidsBuggyIPs bool
}

func (a loadedPool) String() string {
	return fmt.Sprintf("%s %v %t %t", a.name, a.ranges, a.auto, a.avoidsBuggyIPs)
}

func (a loadedPool) has(addr netip.Addr) bool {
	return !a.leavesOut(addr) && slices.ContainsFunc(a.ranges, func(r netipx.IPRange) bool { return r.Contains(addr) })
}

func (a loadedPool) leavesOut(addr netip.Addr) bool {
	last := addr.AsSlice()
	return a.avoidsBuggyIPs && len(last) == 4 && (last[3] == 0 || last[3] == 255)
}

// size returns how many addresses MetalLB counts: of each network of a range those that it does not leave out, and one
// less where the network is one address that it leaves out, as it subtracts the first address and the last one.
func (a loadedPool) size() (n int64) {
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

// steps returns what MetalLB can do next.
func (m *fakeMetalLB) steps(w *world) []sim.Step {
	var out []sim.Step
	wanted, problem := configured(w)
	if problem == "" && !slices.EqualFunc(m.loaded, wanted, func(a, b loadedPool) bool {
		return a.name == b.name && a.auto == b.auto && a.avoidsBuggyIPs == b.avoidsBuggyIPs && slices.Equal(a.ranges, b.ranges)
	}) {
		out = append(out, sim.Step{Class: taking, Text: fmt.Sprintf("MetalLB takes %v", wanted), Run: func() { m.loaded = wanted }})
	}
	switch {
	case m.stuck:
	case m.pendingWrite != nil:
		out = append(out, sim.Step{Class: placing, Text: "MetalLB writes: " + m.text, Run: func() {
			do := m.pendingWrite
			m.pendingWrite = nil
			do()
		}})
	default:
		if s := m.placeService(w); s != nil {
			out = append(out, *s)
		}
	}
	if s := m.count(w); s != nil {
		out = append(out, *s)
	}
	return out
}

// configured returns the existing pools. Two that overlap are a problem: MetalLB takes neither.
func configured(w *world) (out []loadedPool, problem string) {
	for _, p := range faults.ListObjects[*metallbv1beta1.IPAddressPool](w.work) {
		a := loadedPool{name: p.Name, auto: ptr.Deref(p.Spec.AutoAssign, true), avoidsBuggyIPs: p.Spec.AvoidBuggyIPs}
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

// placeService returns what MetalLB does for the first Service that does not have what it should have.
func (m *fakeMetalLB) placeService(w *world) *sim.Step {
	services := w.services()
	for _, s := range services {
		if current := addressOf(s); current.IsValid() && !slices.ContainsFunc(m.loaded, func(a loadedPool) bool { return a.has(current) }) {
			return m.decideAddress(w, s, m.free(services))
		}
	}
	for _, s := range services {
		if free := m.free(services); !addressOf(s).IsValid() && free.IsValid() {
			return m.decideAddress(w, s, free)
		}
	}
	return nil
}

func (m *fakeMetalLB) decideAddress(w *world, s *corev1.Service, addr netip.Addr) *sim.Step {
	text := fmt.Sprintf("Service %s has %v", s.Name, addr)
	return &sim.Step{Class: placing, Text: "MetalLB decides: " + text, Run: func() {
		m.text = text
		m.pendingWrite = func() {
			w.workload("MetalLB: "+text, func() error {
				return faults.EditStatus(w.work, faults.RefForObject(s), func(s *corev1.Service) {
					s.Status.LoadBalancer.Ingress = nil
					if addr.IsValid() {
						s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: addr.String()}}
					}
				})
			})
		}
	}}
}

// free returns the first address that no Service has, of those that MetalLB may assign.
func (m *fakeMetalLB) free(services []*corev1.Service) netip.Addr {
	for _, p := range m.loaded {
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

// count writes how many addresses the pools have that MetalLB works with: its only acknowledgement (ADR 7).
func (m *fakeMetalLB) count(w *world) *sim.Step {
	for _, p := range faults.ListObjects[*metallbv1beta1.IPAddressPool](w.work) {
		at := slices.IndexFunc(m.loaded, func(a loadedPool) bool { return a.name == p.Name })
		if at < 0 {
			continue
		}
		var counts metallbv1beta1.IPAddressPoolStatus
		for _, s := range w.services() {
			if m.loaded[at].has(addressOf(s)) {
				counts.AssignedIPv4++
			}
		}
		counts.AvailableIPv4 = m.loaded[at].size() - counts.AssignedIPv4
		if counts == p.Status {
			continue
		}
		return &sim.Step{Class: counting, Text: fmt.Sprintf("MetalLB counts %d in %s", m.loaded[at].size(), p.Name), Run: func() {
			w.workload("MetalLB counts", func() error {
				if counts == (metallbv1beta1.IPAddressPoolStatus{}) { // the writer of the status shows that it has counted
					_ = w.work.EditObject(faults.RefForObject(p), func(o client.Object) {
						o.SetManagedFields([]metav1.ManagedFieldsEntry{{Manager: "controller", Subresource: "status"}})
					})
				}
				return faults.EditStatus(w.work, faults.RefForObject(p), func(p *metallbv1beta1.IPAddressPool) {
					p.Status = counts
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
