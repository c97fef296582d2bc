package tenant

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"go4.org/netipx"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/cilium"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/faults"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/sim"
)

// fakeCilium is a substitute for the LB IPAM of Cilium's operator, by the rules of v1.20: one after the other it takes
// changes of pools and of Services, writes the Services that a change concerns, and then the counts of pools, with the
// generation of the pool that it works with. A pool whose spec has not changed is no change. test/e2e has the real one.
type fakeCilium struct {
	balancerMood

	pools    map[string]*takenPool
	assigned map[string]netip.Addr
	// pending is what it has decided and not written yet.
	pending []pendingWrite
}

type takenPool struct {
	loadedPool

	spec string
	// generation is that of the pool when it was taken; lastStatus is what was last written about it.
	generation int64
	lastStatus string
}

type pendingWrite struct {
	text string
	do   func()
}

func (c *fakeCilium) loadedPools() (out []loadedPool) {
	for _, name := range slices.Sorted(maps.Keys(c.pools)) {
		out = append(out, c.pools[name].loadedPool)
	}
	return out
}

// steps returns what it can do next.
func (c *fakeCilium) steps(w *world) []sim.Step {
	if c.stuck {
		return nil
	}
	if len(c.pending) > 0 {
		next := c.pending[0]
		return []sim.Step{{Class: placing, Text: "Cilium writes: " + next.text, Run: func() {
			c.pending = c.pending[1:]
			next.do()
		}}}
	}
	var out []sim.Step
	exist := map[string]bool{}
	for _, p := range faults.ListObjects[*cilium.Pool](w.work) {
		exist[p.Name] = true
		if known := c.pools[p.Name]; known == nil || known.spec != fmt.Sprint(p.Spec) {
			out = append(out, sim.Step{Class: taking, Text: fmt.Sprintf("Cilium takes %s at generation %d", p.Name, p.Generation), Run: func() { c.loadPool(w, p) }})
		}
	}
	for name := range c.pools {
		if !exist[name] {
			out = append(out, sim.Step{Class: taking, Text: "Cilium forgets " + name, Run: func() {
				delete(c.pools, name)
				c.settle(w)
			}})
		}
	}
	if c.needsSettling(w) {
		out = append(out, sim.Step{Class: placing, Text: "Cilium looks at the Services", Run: func() { c.settle(w) }})
	}
	return out
}

func (c *fakeCilium) loadPool(w *world, p *cilium.Pool) {
	pool := &takenPool{loadedPool: loadedPool{name: p.Name, auto: !p.Spec.Disabled}, spec: fmt.Sprint(p.Spec), generation: p.Generation}
	for _, b := range p.Spec.Blocks {
		pool.ranges = append(pool.ranges, netipx.MustParseIPRange(b.Start+"-"+b.Stop))
	}
	if c.pools == nil {
		c.pools, c.assigned = map[string]*takenPool{}, map[string]netip.Addr{}
	}
	c.pools[p.Name] = pool
	c.settle(w)
}

// needsSettling reports whether a Service is not as Cilium would have it. Without a pool Cilium checks no Service.
func (c *fakeCilium) needsSettling(w *world) bool {
	services := w.services()
	free := c.free().IsValid()
	gone := maps.Clone(c.assigned)
	for _, s := range services {
		delete(gone, s.Name)
		if len(c.pools) > 0 && (addressOf(s) != c.assigned[s.Name] || (!addressOf(s).IsValid() && free)) {
			return true
		}
	}
	return len(gone) > 0
}

// settle decides which Service has which address, and what to write.
func (c *fakeCilium) settle(w *world) {
	services := w.services()
	exist := map[string]bool{}
	for _, s := range services {
		exist[s.Name] = true
	}
	maps.DeleteFunc(c.assigned, func(name string, a netip.Addr) bool { return !exist[name] || !c.hasAddress(a, false) })
	for _, s := range services {
		if a := addressOf(s); a.IsValid() && !c.assigned[s.Name].IsValid() && c.hasAddress(a, true) && !slices.Contains(slices.Collect(maps.Values(c.assigned)), a) {
			c.assigned[s.Name] = a // it is imported
		}
	}
	for _, s := range services {
		if a := c.free(); !c.assigned[s.Name].IsValid() && a.IsValid() {
			c.assigned[s.Name] = a
		}
	}
	for _, s := range services {
		if a := c.assigned[s.Name]; a != addressOf(s) {
			c.write(w, s, a)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(c.pools)) {
		p := c.pools[name]
		if status := fmt.Sprint(p.size(), p.generation); status != p.lastStatus {
			p.lastStatus = status
			c.count(w, *p)
		}
	}
}

func (c *fakeCilium) hasAddress(a netip.Addr, enabled bool) bool {
	return slices.ContainsFunc(c.loadedPools(), func(p loadedPool) bool { return p.has(a) && (p.auto || !enabled) })
}

// free returns the first address that no Service has, of those that Cilium may assign.
func (c *fakeCilium) free() netip.Addr {
	taken := slices.Collect(maps.Values(c.assigned))
	for _, p := range c.loadedPools() {
		for _, r := range p.ranges {
			for a := r.From(); p.auto && r.Contains(a); a = a.Next() {
				if !slices.Contains(taken, a) {
					return a
				}
			}
		}
	}
	return netip.Addr{}
}

func (c *fakeCilium) write(w *world, s *corev1.Service, a netip.Addr) {
	text := fmt.Sprintf("Service %s has %v", s.Name, a)
	c.pending = append(c.pending, pendingWrite{text, func() {
		w.workload("Cilium: "+text, func() error {
			return faults.EditStatus(w.work, faults.RefForObject(s), func(s *corev1.Service) {
				s.Status.LoadBalancer.Ingress = nil
				if a.IsValid() {
					s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: a.String()}}
				}
			})
		})
	}})
}

func (c *fakeCilium) count(w *world, p takenPool) {
	text := fmt.Sprintf("%s has %d addresses at generation %d", p.name, p.size(), p.generation)
	c.pending = append(c.pending, pendingWrite{text, func() {
		w.workload("Cilium: "+text, func() error {
			return faults.EditStatus(w.work, faults.Ref{Kind: faults.CiliumPools, Name: p.name}, func(pool *cilium.Pool) {
				meta.SetStatusCondition(&pool.Status.Conditions, metav1.Condition{
					Type: "cilium.io/IPsTotal", Status: metav1.ConditionUnknown, Reason: "noreason", ObservedGeneration: p.generation, Message: fmt.Sprint(p.size()),
				})
			})
		})
	}})
}

// fakeMigration is MetalLB, and then Cilium, which assigns nothing before it has a pool.
type fakeMigration struct {
	balancerMood

	metalLB fakeMetalLB
	cilium  fakeCilium
}

func (b *fakeMigration) loadedPools() []loadedPool {
	return slices.Concat(b.metalLB.loadedPools(), b.cilium.loadedPools())
}

func (b *fakeMigration) steps(w *world) []sim.Step {
	if len(w.work.List(faults.CiliumPools))+len(b.cilium.pools) > 0 {
		b.cilium.balancerMood = b.balancerMood
		return b.cilium.steps(w)
	}
	b.metalLB.balancerMood = b.balancerMood
	return b.metalLB.steps(w)
}
