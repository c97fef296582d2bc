package demand

import (
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/elastic"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/tenancy"
)

// Cluster is the state of a Cluster in the management cluster.
type Cluster struct {
	Ref         v1alpha1.ClusterReference
	Annotations map[string]string
	// ProviderConfig is the ProviderConfig that it gets blocks from, nil if it gets nothing new.
	ProviderConfig *v1alpha1.ProviderConfig
	// Pools are the pools of the ProviderConfig, in the order in which they are asked.
	Pools []tenancy.Pool
	// Blocks are its IPAllocations for load balancers, oldest first.
	Blocks []*v1alpha1.IPAllocation
}

// Workload is what the workload cluster requests and has.
type Workload struct {
	// AssessServices predicts the outcome for its Services if the given pools are projected to it and it can get more
	// of some families; growth is added to the pool that grows names.
	AssessServices func(shown []elastic.DesiredPool, grows string, families [2]bool) elastic.Assessment
	// UnreadablePool describes a pool of the load balancer that cannot be parsed; empty if there is none. What
	// Services have, or may get, of it is not known, so the Cluster gets nothing more.
	UnreadablePool string
	// SharedPool is the name of the pool that contains all blocks, unless each block has a pool of its own.
	SharedPool string
	// IsEmptied reports whether the pool that a block has for itself was seen to serve no Service any more.
	IsEmptied func(block types.UID) bool
}

// Decision is the result of DecideBlocks for a Cluster.
type Decision struct {
	elastic.Assessment
	elastic.Plan

	// ProviderConfig is the ProviderConfig that the Cluster gets blocks from, nil if it gets nothing new.
	ProviderConfig *v1alpha1.ProviderConfig
	Settings       tenancy.LoadBalancerSettings
	// Blocks are the blocks that were decided on.
	Blocks []elastic.Block
	// UnreadablePool describes the pool of the load balancer that cannot be parsed, which is why nothing is
	// requested.
	UnreadablePool string
	// GrowthSteps are the next steps for growth.
	GrowthSteps []GrowthStep
	// DesiredPools are the pools to project to the workload cluster.
	DesiredPools []elastic.DesiredPool
}

// DecideBlocks decides on the blocks of a Cluster. A block that was added on demand stays for the grace period
// without being used.
func DecideBlocks(c Cluster, w Workload, s tenancy.LoadBalancerSettings, grace time.Duration, now time.Time) Decision {
	projection := elastic.Projection{SharedPool: w.SharedPool, PoolPerAllocation: s.PoolPerAllocation}
	d := Decision{ProviderConfig: c.ProviderConfig, Settings: s, Blocks: c.decidedBlocks(w.IsEmptied), UnreadablePool: w.UnreadablePool}
	d.Assessment = w.AssessServices(projection.UsablePools(d.Blocks), projection.GrowthPool(), poolFamilies(c.Pools))
	d.Plan = elastic.PlanBlocks(d.Assessment, d.Blocks, elastic.PlanSettings{Increment: s.Increment, Quota: s.Quota, GracePeriod: grace}, now)
	d.UsageChanges = append(initialUsageChanges(c.Blocks), d.UsageChanges...)
	if w.UnreadablePool == "" {
		d.GrowthSteps = c.planGrowth(d.Assessment, d.Plan, s)
	}
	d.DesiredPools = projection.ProjectedPools(d.Blocks)
	return d
}

// poolFamilies reports for each family whether a pool has addresses of it.
func poolFamilies(pools []tenancy.Pool) (out [2]bool) {
	for _, p := range pools {
		out[poolFamily(p)] = true
	}
	return out
}

func poolFamily(p tenancy.Pool) elastic.Family {
	if p.IsIPv6 {
		return elastic.IPv6
	}
	return elastic.IPv4
}
