package demand

import (
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/elastic"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/tenancy"
)

// Cluster is what is known of a Cluster on the side of the pools.
type Cluster struct {
	Ref         v1alpha1.ClusterReference
	Annotations map[string]string
	// Config is the ProviderConfig that it gets blocks from; nil where it gets nothing new.
	Config *v1alpha1.ProviderConfig
	// Pools of the ProviderConfig, in the order in which they are asked.
	Pools []tenancy.Pool
	// Blocks are its IPAllocations for load balancers, oldest first.
	Blocks []*v1alpha1.IPAllocation
}

// Workload is what its workload cluster asks for, and has.
type Workload struct {
	// Assess says what becomes of its Services when it is shown pools, and can be given more of some families; growth is
	// added to the one that is named.
	Assess func(shown []elastic.Desired, grows string, families [2]bool) elastic.Assessment
	// Unread says which pool of the load balancer cannot be read; empty: all can. What Services have, or may get, of it is not
	// known, so the Cluster gets nothing more.
	Unread string
	// Pool is the name of the pool that has all blocks, unless each has one of its own.
	Pool string
	// Emptied reports whether the pool that a block has for itself was seen to serve nobody any more.
	Emptied func(block types.UID) bool
}

// Decision is what becomes of the blocks of a Cluster.
type Decision struct {
	elastic.Assessment
	elastic.Plan

	// Config is the ProviderConfig that the Cluster gets blocks from, nil where it gets nothing new.
	Config   *v1alpha1.ProviderConfig
	Settings tenancy.Settings
	// Blocks are those that were decided upon.
	Blocks []elastic.Block
	// Unread says why nothing is asked for, where the load balancer has a pool that cannot be read.
	Unread string
	// Steps are the next things to do for growth.
	Steps []Step
	// Show are the pools that the workload cluster is to be shown.
	Show []elastic.Desired
}

// Decide decides what becomes of the blocks of a Cluster. A block that was added on demand stays for the grace without
// being used.
func Decide(c Cluster, w Workload, s tenancy.Settings, grace time.Duration, now time.Time) Decision {
	projection := elastic.Projection{Pool: w.Pool, Apart: s.Apart}
	d := Decision{Config: c.Config, Settings: s, Blocks: c.blocksOf(w.Emptied), Unread: w.Unread}
	d.Assessment = w.Assess(projection.Usable(d.Blocks), projection.Grows(), families(c.Pools))
	d.Plan = elastic.Decide(d.Assessment, d.Blocks, elastic.Settings{Increment: s.Increment, Quota: s.Quota, Grace: grace}, now)
	d.Marks = append(unmarked(c.Blocks), d.Marks...)
	if w.Unread == "" {
		d.Steps = c.grow(d.Assessment, d.Plan, s)
	}
	d.Show = projection.Shown(d.Blocks)
	return d
}

// families are those that pools have addresses of.
func families(pools []tenancy.Pool) (out [2]bool) {
	for _, p := range pools {
		out[family(p)] = true
	}
	return out
}

func family(p tenancy.Pool) elastic.Family {
	if p.IPv6 {
		return elastic.IPv6
	}
	return elastic.IPv4
}
