package cilium

import (
	"context"
	"fmt"

	"go4.org/netipx"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/balancer"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/poolutil"
)

// letGo tells what a workload cluster still does with a range that was taken away from it. No pool may have the range, and
// Cilium must have taken every pool that shows blocks as it is now. No Service may have an address of the range.
func letGo(ctx context.Context, live client.Reader, r netipx.IPRange) (why string, err error) {
	pools := &PoolList{}
	err = live.List(ctx, pools)
	if err != nil && !balancer.Missing(err) {
		return "", fmt.Errorf("listing the CiliumLoadBalancerIPPools: %w", err)
	}
	for i := range pools.Items {
		if p := &pools.Items[i]; p.overlaps(r) {
			return fmt.Sprintf("CiliumLoadBalancerIPPool %s still has %s", p.Name, poolutil.FormatRange(r)), nil
		}
	}
	if why, err = balancer.User(ctx, live, r); why != "" || err != nil {
		return why, err
	}
	for i := range pools.Items {
		if p := &pools.Items[i]; balancer.Made(p) && !p.taken() {
			return untaken(p), nil
		}
	}
	return "", nil
}

// untaken says what to do where Cilium does not take a pool.
func untaken(p *Pool) string {
	return fmt.Sprintf("Cilium has not applied the change of CiliumLoadBalancerIPPool %s yet: its condition %s is not of generation %d; if that lasts, check that cilium-operator runs, or restart it",
		p.Name, totalCondition, p.Generation)
}

// empty tells what keeps a pool that serves no new Services from being emptied.
func empty(ctx context.Context, live client.Reader, pool string, r netipx.IPRange) (why string, err error) {
	p := &Pool{}
	err = live.Get(ctx, client.ObjectKey{Name: pool}, p)
	switch {
	case balancer.Missing(err):
		return "", nil
	case err != nil:
		return "", fmt.Errorf("reading CiliumLoadBalancerIPPool %s: %w", pool, err)
	case !p.Spec.Disabled && len(p.Spec.Blocks) > 0:
		return fmt.Sprintf("CiliumLoadBalancerIPPool %s still serves new Services", pool), nil
	case !p.taken():
		return untaken(p), nil
	}
	return balancer.User(ctx, live, r)
}
