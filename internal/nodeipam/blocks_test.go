package nodeipam_test

import (
	"net/netip"
	"slices"

	"go4.org/netipx"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/fence"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/nodeipam"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/faults"
)

// The pool of a world: it gives each block to one IPAllocation, and anew when that is gone. What it promises is tested with
// the allocator; here it keeps it.

// fromPool is a ClusterCIDR for Clusters, of blocks for two Nodes each.
func fromPool(name string) *v1alpha1.ClusterCIDR {
	c := forClusters(clusterCIDR(name, "", 8))
	c.Spec.IPv4Pool = &v1alpha1.PodPool{Kind: v1alpha1.GlobalNetworkPoolKind, Name: "pods", NodesPerBlock: 2}
	return c
}

// alsoFromPool has a ClusterCIDR give IPv6 from the pool too.
func alsoFromPool(c *v1alpha1.ClusterCIDR) *v1alpha1.ClusterCIDR {
	c.Spec.IPv6Pool = &v1alpha1.PodPool{Kind: v1alpha1.GlobalNetworkPoolKind, Name: "pods", NodesPerBlock: 2}
	return c
}

// atMost bounds the blocks of a Cluster.
func atMost(n int32, c *v1alpha1.ClusterCIDR) *v1alpha1.ClusterCIDR {
	c.Spec.IPv4Pool.MaxBlocks = &n
	return c
}

// freeBlocks are those of a family that no IPAllocation has.
func (w *world) freeBlocks(ipv6 bool) (free []netip.Prefix) {
	for _, p := range prefixes(w.pool) {
		if p.Addr().Is6() == ipv6 && !slices.ContainsFunc(w.api.List(faults.Allocations), func(o client.Object) bool {
			return o.GetAnnotations()[v1alpha1.AddressAnnotation] == netipx.RangeOfPrefix(p).String()
		}) {
			free = append(free, p)
		}
	}
	return free
}

// nextBlock is the next IPAllocation that the pool answers, and with which block; not valid: it has none.
func (w *world) nextBlock() (*v1alpha1.IPAllocation, netip.Prefix, bool) {
	for _, o := range w.api.List(faults.Allocations) {
		a := o.(*v1alpha1.IPAllocation)
		free := w.freeBlocks(ptr.Deref(a.Spec.PrefixLength, 0) > 32)
		if pin := a.Spec.PinnedRange; pin != nil {
			free = slices.DeleteFunc(slices.Concat(w.freeBlocks(false), w.freeBlocks(true)), func(p netip.Prefix) bool { return p.Addr().String() != pin.StartAddress })
		}
		if a.Annotations[v1alpha1.AddressAnnotation] != "" {
			free = nil // what a restore has brought, and another has by now
		}
		switch {
		case a.DeletionTimestamp != nil || a.Status.StartAddress != "":
		case len(free) > 0:
			return a, free[0], true
		case len(a.Status.Conditions) == 0:
			return a, netip.Prefix{}, true
		}
	}
	return nil, netip.Prefix{}, false
}

func (w *world) give(a *v1alpha1.IPAllocation, block netip.Prefix) {
	before, ref := w.api.Version(), faults.RefOf(a)
	ready := metav1.Condition{Type: v1alpha1.ReadyCondition, Status: metav1.ConditionFalse, Reason: v1alpha1.PoolExhaustedReason, Message: "the pool has no free prefix"}
	if block.IsValid() {
		ready.Status, ready.Reason, ready.Message = metav1.ConditionTrue, v1alpha1.ReadyReason, ""
		_ = w.api.Edit(ref, func(o client.Object) {
			o.SetAnnotations(map[string]string{
				v1alpha1.AddressAnnotation: netipx.RangeOfPrefix(block).String(), v1alpha1.ClusterCIDRAnnotation: a.Annotations[v1alpha1.ClusterCIDRAnnotation],
			})
		})
	}
	_ = w.api.EditStatus(ref, func(o client.Object) {
		s := &o.(*v1alpha1.IPAllocation).Status
		meta.SetStatusCondition(&s.Conditions, ready)
		if block.IsValid() {
			r := netipx.RangeOfPrefix(block)
			s.StartAddress, s.EndAddress = r.From().String(), r.To().String()
		}
	})
	w.changed(before, "the user: the pool answers "+a.Name)
}

// fromBlocks checks that a grant of a ClusterCIDR with a pool is of a block that is open for it, and protected.
func (w *world) fromBlocks(g fence.Grant, open []fence.Open) {
	for _, o := range w.api.List(faults.ClusterCIDRs) {
		spec := o.(*v1alpha1.ClusterCIDR).Spec
		for _, cidr := range g.CIDRs {
			if o.GetName() != g.From || poolOf(spec, cidr.Addr().Is6()) == nil {
				continue
			}
			of := []netip.Prefix{cidr}
			i := slices.IndexFunc(open, func(o fence.Open) bool { return o.For == g.From && !o.Draining && overlap(o.CIDRs, of) })
			if i < 0 {
				w.Wrongf("K41: %s is granted %v of a block that is not open", g.Node, cidr)
				return
			}
			if !slices.ContainsFunc(w.blocks(), func(b nodeipam.Block) bool {
				return b.UID == open[i].UID && b.Protected && b.Prefix.IsValid() && overlap([]netip.Prefix{b.Prefix}, of)
			}) {
				w.Wrongf("K16: %s is granted %v of a block that is gone, or may go at any time", g.Node, cidr)
			}
		}
	}
}

func (w *world) blocks() (out []nodeipam.Block) {
	for _, o := range w.api.List(faults.Allocations) {
		b, _ := nodeipam.BlockOf(o.(*v1alpha1.IPAllocation))
		out = append(out, b)
	}
	return out
}

// letGoOfBlock checks that no Node has anything of a block that others may have from now on, nor can get any.
func (w *world) letGoOfBlock(b nodeipam.Block) {
	of := []netip.Prefix{b.Prefix}
	for _, n := range w.nodes() {
		if !w.foreign[n.UID] && overlap(prefixes(n.Spec.PodCIDRs), of) {
			w.Wrongf("I1: block %s (%v) goes back, and Node %s has %v of it", b.Name, b.Prefix, n.Name, n.Spec.PodCIDRs)
		}
	}
	for _, g := range w.state.InFlight {
		alive := slices.ContainsFunc(w.nodes(), func(n *corev1.Node) bool { return n.UID == g.UID && len(n.Spec.PodCIDRs) == 0 })
		if alive && overlap(g.CIDRs, of) {
			w.Wrongf("I1: block %s (%v) goes back, and a grant of it to %s is in flight", b.Name, b.Prefix, g.Node)
		}
	}
}

func poolOf(spec v1alpha1.ClusterCIDRSpec, ipv6 bool) *v1alpha1.PodPool {
	if ipv6 {
		return spec.IPv6Pool
	}
	return spec.IPv4Pool
}

// blockWithRoom reports whether a block of a family has room for another Node.
func (w *world) blockWithRoom(taken []netip.Prefix, ipv6 bool) bool {
	for _, b := range w.blocks() {
		if !b.Prefix.IsValid() || b.Deleting || b.Prefix.Addr().Is6() != ipv6 {
			continue
		}
		for _, at := range []netip.Addr{b.Prefix.Addr(), netipx.RangeOfPrefix(b.Prefix).To()} {
			if sub := netip.PrefixFrom(at, at.BitLen()-8).Masked(); !overlap([]netip.Prefix{sub}, taken) {
				return true
			}
		}
	}
	return false
}

// backAtRest checks that no block is left that nobody needs.
func (w *world) backAtRest() {
	for _, o := range w.api.List(faults.Allocations) {
		b, _ := nodeipam.BlockOf(o.(*v1alpha1.IPAllocation))
		used := slices.ContainsFunc(w.nodes(), func(n *corev1.Node) bool {
			return overlap(prefixes(n.Spec.PodCIDRs), b.Had)
		})
		if !used && (b.Prefix.IsValid() || b.Deleting) && !isAnothers(o, v1alpha1.PodsFinalizer) {
			w.Wrongf("block %s is still there, and no Node uses it", b.Name)
		}
	}
}
