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

// Conditions of a pool: the number of addresses that Cilium works with, and whether it overlaps with another pool.
const (
	totalCondition    = "cilium.io/IPsTotal"
	conflictCondition = "cilium.io/PoolConflict"
)

// parseRange returns the range of a block.
func (b Block) parseRange() (netipx.IPRange, error) {
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

// blocksFromRanges converts ranges to the blocks of a pool.
func blocksFromRanges(ranges []netipx.IPRange) []Block {
	out := make([]Block, 0, len(ranges))
	for _, r := range ranges {
		out = append(out, Block{Start: r.From().String(), Stop: r.To().String()})
	}
	return out
}

// matchesDesired reports whether a pool is in its desired state.
func (p *Pool) matchesDesired(d *elastic.DesiredPool) bool {
	return slices.Equal(p.Spec.Blocks, blocksFromRanges(d.Ranges)) && p.Spec.Disabled == !d.AutoAssign &&
		p.Labels[balancer.ManagedByLabel] == balancer.ManagedByValue
}

// overlapsRange reports whether a pool overlaps with a range. A block that cannot be parsed counts as overlapping.
func (p *Pool) overlapsRange(r netipx.IPRange) bool {
	return slices.ContainsFunc(p.Spec.Blocks, func(b Block) bool {
		other, err := b.parseRange()
		return err != nil || other.Overlaps(r)
	})
}

// isApplied reports whether Cilium works with a pool as it is now: Cilium writes the counts of a pool, with their
// generation, after it has moved the Services that the change affects.
func (p *Pool) isApplied() bool {
	total := meta.FindStatusCondition(p.Status.Conditions, totalCondition)
	return total != nil && total.ObservedGeneration == p.Generation
}

// conflictMessage states what keeps Cilium from assigning addresses of a pool; empty if nothing does.
func (p *Pool) conflictMessage() string {
	if c := meta.FindStatusCondition(p.Status.Conditions, conflictCondition); c != nil && c.Status == metav1.ConditionTrue {
		return fmt.Sprintf("CiliumLoadBalancerIPPool %s: %s", p.Name, c.Message)
	}
	return ""
}

// selectsService reports whether a pool serves a Service. A pool whose selector cannot be parsed serves none.
func selectsService(selector *metav1.LabelSelector, s *elastic.Service) bool {
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
