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

// The pool of a world grants each block to one IPAllocation, and again when that is gone. The promises of pools are
// tested with the allocator; here the pool keeps them.

// fromPool returns a ClusterCIDR for Clusters, with blocks for two Nodes each.
func fromPool(name string) *v1alpha1.ClusterCIDR {
	c := forClusters(clusterCIDR(name, "", 8))
	c.Spec.IPv4Pool = &v1alpha1.PodPool{Kind: v1alpha1.GlobalNetworkPoolKind, Name: "pods", NodesPerBlock: 2}
	return c
}

// alsoFromPool makes a ClusterCIDR take IPv6 from the pool too.
func alsoFromPool(c *v1alpha1.ClusterCIDR) *v1alpha1.ClusterCIDR {
	c.Spec.IPv6Pool = &v1alpha1.PodPool{Kind: v1alpha1.GlobalNetworkPoolKind, Name: "pods", NodesPerBlock: 2}
	return c
}

// atMost bounds the blocks of a Cluster.
func atMost(n int32, c *v1alpha1.ClusterCIDR) *v1alpha1.ClusterCIDR {
	c.Spec.IPv4Pool.MaxBlocks = &n
	return c
}

// freeBlocks returns the blocks of a family that no IPAllocation has.
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

// nextBlock returns the next IPAllocation that the pool answers, and its block; an invalid block means that the pool
// has none.
func (w *world) nextBlock() (*v1alpha1.IPAllocation, netip.Prefix, bool) {
	for _, a := range faults.ListObjects[*v1alpha1.IPAllocation](w.api) {
		free := w.freeBlocks(ptr.Deref(a.Spec.PrefixLength, 0) > 32)
		if pin := a.Spec.PinnedRange; pin != nil {
			free = slices.DeleteFunc(slices.Concat(w.freeBlocks(false), w.freeBlocks(true)), func(p netip.Prefix) bool { return p.Addr().String() != pin.StartAddress })
		}
		if a.Annotations[v1alpha1.AddressAnnotation] != "" {
			free = nil // a restore has brought it back, and another one has its addresses by now
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

func (w *world) answerAllocation(a *v1alpha1.IPAllocation, block netip.Prefix) {
	ref := faults.RefForObject(a)
	ready := metav1.Condition{Type: v1alpha1.ReadyCondition, Status: metav1.ConditionFalse, Reason: v1alpha1.PoolExhaustedReason, Message: "the pool has no free prefix"}
	w.ChangeAsUser("the pool answers "+a.Name, func() {
		if block.IsValid() {
			ready.Status, ready.Reason, ready.Message = metav1.ConditionTrue, v1alpha1.ReadyReason, ""
			_ = w.api.EditObject(ref, func(o client.Object) {
				o.SetAnnotations(map[string]string{
					v1alpha1.AddressAnnotation: netipx.RangeOfPrefix(block).String(), v1alpha1.ClusterCIDRAnnotation: a.Annotations[v1alpha1.ClusterCIDRAnnotation],
				})
			})
		}
		_ = faults.EditStatus(w.api, ref, func(o *v1alpha1.IPAllocation) {
			s := &o.Status
			meta.SetStatusCondition(&s.Conditions, ready)
			if block.IsValid() {
				r := netipx.RangeOfPrefix(block)
				s.Phase, s.StartAddress, s.EndAddress = v1alpha1.AllocationAllocated, r.From().String(), r.To().String()
			}
		})
	})
}

// checkGrantFromBlock checks that a grant from a ClusterCIDR with a pool is from a block that is open for it, and
// protected.
func (w *world) checkGrantFromBlock(g fence.Grant, open []fence.OpenRange) {
	for _, o := range faults.ListObjects[*v1alpha1.ClusterCIDR](w.api) {
		spec := o.Spec
		for _, cidr := range g.CIDRs {
			if o.GetName() != g.ClusterCIDRName || poolOf(spec, cidr.Addr().Is6()) == nil {
				continue
			}
			of := []netip.Prefix{cidr}
			i := slices.IndexFunc(open, func(o fence.OpenRange) bool {
				return o.ClusterCIDRName == g.ClusterCIDRName && !o.Draining && overlapCondition(o.CIDRs, of)
			})
			if i < 0 {
				w.Failf("K41: %s is granted %v of a block that is not open", g.NodeName, cidr)
				return
			}
			if !slices.ContainsFunc(w.blocks(), func(b nodeipam.Block) bool {
				return b.UID == open[i].UID && b.HasFinalizer && b.GrantedPrefix().IsValid() && overlapCondition([]netip.Prefix{b.GrantedPrefix()}, of)
			}) {
				w.Failf("K16: %s is granted %v of a block that is gone, or may go at any time", g.NodeName, cidr)
			}
		}
	}
}

func (w *world) blocks() (out []nodeipam.Block) {
	for _, o := range faults.ListObjects[*v1alpha1.IPAllocation](w.api) {
		b, _ := nodeipam.BlockFromAllocation(o)
		out = append(out, b)
	}
	return out
}

// checkBlockReleased checks that no Node has, or can get, anything of a block that others may have from now on.
func (w *world) checkBlockReleased(b nodeipam.Block) {
	of := []netip.Prefix{b.GrantedPrefix()}
	for _, n := range w.nodes() {
		if !w.foreign[n.UID] && overlapCondition(prefixes(n.Spec.PodCIDRs), of) {
			w.Failf("I1: block %s (%v) goes back, and Node %s has %v of it", b.Name, b.GrantedPrefix(), n.Name, n.Spec.PodCIDRs)
		}
	}
	for _, g := range w.state.InFlight {
		alive := slices.ContainsFunc(w.nodes(), func(n *corev1.Node) bool { return n.UID == g.NodeUID && len(n.Spec.PodCIDRs) == 0 })
		if alive && overlapCondition(g.CIDRs, of) {
			w.Failf("I1: block %s (%v) goes back, and a grant of it to %s is in flight", b.Name, b.GrantedPrefix(), g.NodeName)
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
		if !b.GrantedPrefix().IsValid() || b.Deleting || b.GrantedPrefix().Addr().Is6() != ipv6 {
			continue
		}
		for _, at := range []netip.Addr{b.GrantedPrefix().Addr(), netipx.RangeOfPrefix(b.GrantedPrefix()).To()} {
			if sub := netip.PrefixFrom(at, at.BitLen()-8).Masked(); !overlapCondition([]netip.Prefix{sub}, taken) {
				return true
			}
		}
	}
	return false
}

// checkBlocksAtRest checks that no block is left that is not needed.
func (w *world) checkBlocksAtRest() {
	for _, o := range faults.ListObjects[*v1alpha1.IPAllocation](w.api) {
		b, _ := nodeipam.BlockFromAllocation(o)
		used := slices.ContainsFunc(w.nodes(), func(n *corev1.Node) bool {
			return overlapCondition(prefixes(n.Spec.PodCIDRs), b.RecordedPrefixes())
		})
		if !used && (b.GrantedPrefix().IsValid() || b.Deleting) && !isKeptByForeign(o, v1alpha1.PodsFinalizer) {
			w.Failf("block %s is still there, and no Node uses it", b.Name)
		}
	}
}
