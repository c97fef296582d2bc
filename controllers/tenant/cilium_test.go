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
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/cilium"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/faults"
)

// lbipam stands for the LB IPAM of Cilium's operator, by the rules of v1.20: one after the other it takes changes of pools and
// of Services, writes the Services that a change concerns, and then the counts of pools, with the generation of the pool that
// it works with. A pool whose spec is as it knows it is no change. test/e2e has the real one.
type lbipam struct {
	mood

	pools map[string]*takenPool
	given map[string]netip.Addr
	// pending is what it has decided and not written yet.
	pending []pendingWrite
}

type takenPool struct {
	announced

	spec string
	// generation of the pool when it was taken, and what was last said of it.
	generation int64
	said       string
}

type pendingWrite struct {
	text string
	do   func()
}

func (c *lbipam) works() (out []announced) {
	for _, name := range slices.Sorted(maps.Keys(c.pools)) {
		out = append(out, c.pools[name].announced)
	}
	return out
}

// steps are what it can do next.
func (c *lbipam) steps(w *world) []step {
	if c.stuck {
		return nil
	}
	if len(c.pending) > 0 {
		next := c.pending[0]
		return []step{{Class: placing, Text: "Cilium writes: " + next.text, Do: func() {
			c.pending = c.pending[1:]
			next.do()
		}}}
	}
	var out []step
	exist := map[string]bool{}
	for _, p := range listed[*cilium.Pool](w.work, faults.CiliumPools) {
		exist[p.Name] = true
		if known := c.pools[p.Name]; known == nil || known.spec != fmt.Sprint(p.Spec) {
			out = append(out, step{Class: taking, Text: fmt.Sprintf("Cilium takes %s at generation %d", p.Name, p.Generation), Do: func() { c.take(w, p) }})
		}
	}
	for name := range c.pools {
		if !exist[name] {
			out = append(out, step{Class: taking, Text: "Cilium forgets " + name, Do: func() {
				delete(c.pools, name)
				c.settle(w)
			}})
		}
	}
	if c.concerns(w) {
		out = append(out, step{Class: placing, Text: "Cilium looks at the Services", Do: func() { c.settle(w) }})
	}
	return out
}

func (c *lbipam) take(w *world, p *cilium.Pool) {
	is := &takenPool{announced: announced{name: p.Name, auto: !p.Spec.Disabled}, spec: fmt.Sprint(p.Spec), generation: p.Generation}
	for _, b := range p.Spec.Blocks {
		is.ranges = append(is.ranges, netipx.MustParseIPRange(b.Start+"-"+b.Stop))
	}
	if c.pools == nil {
		c.pools, c.given = map[string]*takenPool{}, map[string]netip.Addr{}
	}
	c.pools[p.Name] = is
	c.settle(w)
}

// concerns reports whether a Service is not as Cilium would have it. Without a pool it looks at none.
func (c *lbipam) concerns(w *world) bool {
	services := w.services()
	free := c.free().IsValid()
	gone := maps.Clone(c.given)
	for _, s := range services {
		delete(gone, s.Name)
		if len(c.pools) > 0 && (addressOf(s) != c.given[s.Name] || (!addressOf(s).IsValid() && free)) {
			return true
		}
	}
	return len(gone) > 0
}

// settle decides who has which address, and what is to be written.
func (c *lbipam) settle(w *world) {
	services := w.services()
	exist := map[string]bool{}
	for _, s := range services {
		exist[s.Name] = true
	}
	maps.DeleteFunc(c.given, func(name string, a netip.Addr) bool { return !exist[name] || !c.has(a, false) })
	for _, s := range services {
		if a := addressOf(s); a.IsValid() && !c.given[s.Name].IsValid() && c.has(a, true) && !slices.Contains(slices.Collect(maps.Values(c.given)), a) {
			c.given[s.Name] = a // it is imported
		}
	}
	for _, s := range services {
		if a := c.free(); !c.given[s.Name].IsValid() && a.IsValid() {
			c.given[s.Name] = a
		}
	}
	for _, s := range services {
		if a := c.given[s.Name]; a != addressOf(s) {
			c.write(w, s, a)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(c.pools)) {
		p := c.pools[name]
		if said := fmt.Sprint(p.size(), p.generation); said != p.said {
			p.said = said
			c.count(w, *p)
		}
	}
}

func (c *lbipam) has(a netip.Addr, enabled bool) bool {
	return slices.ContainsFunc(c.works(), func(p announced) bool { return p.has(a) && (p.auto || !enabled) })
}

// free is the first address that nobody has, of those that it may give.
func (c *lbipam) free() netip.Addr {
	taken := slices.Collect(maps.Values(c.given))
	for _, p := range c.works() {
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

func (c *lbipam) write(w *world, s *corev1.Service, a netip.Addr) {
	text := fmt.Sprintf("Service %s has %v", s.Name, a)
	c.pending = append(c.pending, pendingWrite{text, func() {
		w.workload("Cilium: "+text, func() error {
			return w.work.EditStatus(faults.RefOf(s), func(o client.Object) {
				if s, is := o.(*corev1.Service); is {
					s.Status.LoadBalancer.Ingress = nil
					if a.IsValid() {
						s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: a.String()}}
					}
				}
			})
		})
	}})
}

func (c *lbipam) count(w *world, p takenPool) {
	text := fmt.Sprintf("%s has %d addresses at generation %d", p.name, p.size(), p.generation)
	c.pending = append(c.pending, pendingWrite{text, func() {
		w.workload("Cilium: "+text, func() error {
			return w.work.EditStatus(faults.Ref{Kind: faults.CiliumPools, Name: p.name}, func(o client.Object) {
				if is, ok := o.(*cilium.Pool); ok {
					meta.SetStatusCondition(&is.Status.Conditions, metav1.Condition{
						Type: "cilium.io/IPsTotal", Status: metav1.ConditionUnknown, Reason: "noreason", ObservedGeneration: p.generation, Message: fmt.Sprint(p.size()),
					})
				}
			})
		})
	}})
}

// successors are MetalLB, and then Cilium, which gives nobody anything before it has a pool.
type successors struct {
	mood

	metalLB announcer
	cilium  lbipam
}

func (b *successors) works() []announced { return slices.Concat(b.metalLB.works(), b.cilium.works()) }

func (b *successors) steps(w *world) []step {
	if len(w.work.List(faults.CiliumPools))+len(b.cilium.pools) > 0 {
		b.cilium.mood = b.mood
		return b.cilium.steps(w)
	}
	b.metalLB.mood = b.mood
	return b.metalLB.steps(w)
}
