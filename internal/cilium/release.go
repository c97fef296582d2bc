package cilium

import (
	"context"
	"fmt"

	"go4.org/netipx"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/balancer"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/poolutil"
)

// checkReleased returns how a workload cluster still uses a range that was withdrawn from it, empty if the cluster
// has released it. No pool may contain the range, Cilium must have applied every pool of blocks as it is now, and no
// Service may have an address of the range.
func checkReleased(ctx context.Context, live client.Reader, r netipx.IPRange) (why string, err error) {
	pools := &PoolList{}
	err = live.List(ctx, pools)
	if err != nil && !balancer.IsMissing(err) {
		return "", fmt.Errorf("listing the CiliumLoadBalancerIPPools: %w", err)
	}
	for i := range pools.Items {
		if p := &pools.Items[i]; p.overlapsRange(r) {
			return fmt.Sprintf("CiliumLoadBalancerIPPool %s still has %s", p.Name, poolutil.FormatRange(r)), nil
		}
	}
	if why, err = balancer.FindRangeUser(ctx, live, r); why != "" || err != nil {
		return why, err
	}
	for i := range pools.Items {
		if p := &pools.Items[i]; balancer.IsManaged(p) && !p.isApplied() {
			return notAppliedMessage(p), nil
		}
	}
	return "", nil
}

// notAppliedMessage states that Cilium has not applied a pool, and what to do.
func notAppliedMessage(p *Pool) string {
	return fmt.Sprintf("Cilium has not applied the change of CiliumLoadBalancerIPPool %s yet: its condition %s is not of generation %d; if that lasts, check that cilium-operator runs, or restart it",
		p.Name, totalCondition, p.Generation)
}

// checkPoolEmpty returns what keeps a pool that serves no new Services from being emptied, empty if nothing does.
func checkPoolEmpty(ctx context.Context, live client.Reader, pool string, r netipx.IPRange) (why string, err error) {
	p := &Pool{}
	err = live.Get(ctx, client.ObjectKey{Name: pool}, p)
	switch {
	case balancer.IsMissing(err):
		return "", nil
	case err != nil:
		return "", fmt.Errorf("reading CiliumLoadBalancerIPPool %s: %w", pool, err)
	case !p.Spec.Disabled && len(p.Spec.Blocks) > 0:
		return fmt.Sprintf("CiliumLoadBalancerIPPool %s still serves new Services", pool), nil
	case !p.isApplied():
		return notAppliedMessage(p), nil
	}
	return balancer.FindRangeUser(ctx, live, r)
}
