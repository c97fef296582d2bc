package cilium

import (
	"fmt"
	"net/netip"
	"slices"

	"go4.org/netipx"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/balancer"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/elastic"
)

// Conditions of a pool: how many addresses it has, as Cilium works with it, and whether it has any of another pool's.
const (
	totalCondition    = "cilium.io/IPsTotal"
	conflictCondition = "cilium.io/PoolConflict"
)

// rangeOf reads a block.
func (b Block) rangeOf() (netipx.IPRange, error) {
	if b.CIDR != "" {
		p, err := netip.ParsePrefix(b.CIDR)
		if err != nil {
			return netipx.IPRange{}, err
		}
		return netipx.RangeOfPrefix(p), nil
	}
	first, err := netip.ParseAddr(b.Start)
	if err != nil {
		return netipx.IPRange{}, err
	}
	last := first
	if b.Stop != "" {
		if last, err = netip.ParseAddr(b.Stop); err != nil {
			return netipx.IPRange{}, err
		}
	}
	r := netipx.IPRangeFrom(first, last)
	if !r.IsValid() {
		return r, fmt.Errorf("%s does not come after %s", b.Stop, b.Start)
	}
	return r, nil
}

// blocksOf are ranges as a pool has them.
func blocksOf(ranges []netipx.IPRange) []Block {
	out := make([]Block, 0, len(ranges))
	for _, r := range ranges {
		out = append(out, Block{Start: r.From().String(), Stop: r.To().String()})
	}
	return out
}

// asDesired reports whether a pool is as it is to be.
func (p *Pool) asDesired(d *elastic.Desired) bool {
	return slices.Equal(p.Spec.Blocks, blocksOf(d.Ranges)) && p.Spec.Disabled == !d.AutoAssign &&
		p.Labels[balancer.ManagedLabel] == balancer.ManagedValue
}

// overlaps reports whether a pool has any of a range. A block that cannot be read may have.
func (p *Pool) overlaps(r netipx.IPRange) bool {
	return slices.ContainsFunc(p.Spec.Blocks, func(b Block) bool {
		has, err := b.rangeOf()
		return err != nil || has.Overlaps(r)
	})
}

// taken reports whether Cilium works with a pool as it is now: it writes the counts of a pool when it has moved the Services
// that the change concerns, and says of which generation they are.
func (p *Pool) taken() bool {
	total := meta.FindStatusCondition(p.Status.Conditions, totalCondition)
	return total != nil && total.ObservedGeneration == p.Generation
}

// problem says what keeps Cilium from giving anybody an address of a pool; empty: nothing.
func (p *Pool) problem() string {
	if c := meta.FindStatusCondition(p.Status.Conditions, conflictCondition); c != nil && c.Status == metav1.ConditionTrue {
		return fmt.Sprintf("CiliumLoadBalancerIPPool %s: %s", p.Name, c.Message)
	}
	return ""
}

// admits reports whether a pool is for a Service. One whose selector cannot be read is for none.
func admits(selector *metav1.LabelSelector, s *elastic.Service) bool {
	if selector == nil {
		return true
	}
	match, err := metav1.LabelSelectorAsSelector(selector)
	if err != nil {
		return false
	}
	all := labels.Set{"io.kubernetes.service.namespace": s.Namespace, "io.kubernetes.service.name": s.Name}
	return match.Matches(labels.Merge(s.Labels, all))
}
