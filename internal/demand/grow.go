package demand

import (
	"math"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/elastic"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/tenancy"
)

// GrowthStep is the next step for a block of one family that a Cluster needs.
type GrowthStep struct {
	tenancy.Decision

	// PendingAllocation is the IPAllocation that was requested and is not granted yet, nil if there is none.
	PendingAllocation *v1alpha1.IPAllocation
}

// planGrowth requests from the pools what is missing, one block of each family at a time. The step of the second
// family begins with the attempts that the step of the first one returns: both are written to one annotation.
func (c Cluster) planGrowth(a elastic.Assessment, plan elastic.Plan, s tenancy.LoadBalancerSettings) []GrowthStep {
	switch {
	case c.ProviderConfig == nil:
		return nil
	case !s.Elastic:
		return c.withdrawPending()
	case !c.hasInitialBlock():
		return nil
	}
	var steps []GrowthStep
	tried := c.Annotations[v1alpha1.TriedGrowthPoolsAnnotation]
	for _, f := range []elastic.Family{elastic.IPv4, elastic.IPv6} {
		if step, ok := c.planGrowthStep(f, tried, a.Shortfall[f], plannedCount(plan, f)); ok {
			steps = append(steps, step)
			tried = tenancy.FormatAttempts(step.Attempts)
		}
	}
	return steps
}

// withdrawPending withdraws requests that were made while the Cluster was elastic and are not granted: a pool that
// gets room would otherwise grant them to a Cluster that does not grow.
func (c Cluster) withdrawPending() (steps []GrowthStep) {
	for _, a := range c.Blocks {
		if isPendingGrowth(a) && a.DeletionTimestamp.IsZero() {
			steps = append(steps, GrowthStep{Decision: tenancy.Decision{Action: tenancy.ActionReplace}, PendingAllocation: a})
		}
	}
	return steps
}

// isPendingGrowth reports whether an IPAllocation was created by this controller to request growth, and is not
// granted. One that a user created is left as it is, whatever its name.
func isPendingGrowth(a *v1alpha1.IPAllocation) bool {
	return !isGranted(a) && tenancy.RoleForAllocation(a) == v1alpha1.GrowthRole && !tenancy.NewCurrentAllocation(a).Manual
}

// hasInitialBlock reports whether the Cluster has the block that it begins with, or begins without one.
func (c Cluster) hasInitialBlock() bool {
	first := slices.IndexFunc(c.Blocks, func(a *v1alpha1.IPAllocation) bool { return a.Name == tenancy.InitialBlockName(c.Ref) })
	if first >= 0 {
		return isGranted(c.Blocks[first])
	}
	size, err := tenancy.ComputeInitialSize(c.ProviderConfig.Network(), c.Annotations)
	return err == nil && size.Count == 0
}

// plannedCount returns the number of addresses of a family that the plan requests.
func plannedCount(plan elastic.Plan, f elastic.Family) int32 {
	at := slices.IndexFunc(plan.Growths, func(g elastic.Growth) bool { return g.Family == f })
	if at < 0 {
		return 0
	}
	return int32(min(plan.Growths[at].Count, math.MaxInt32))
}

// planGrowthStep returns the step for a block of count addresses of a family with the given shortfall;
// false if there is nothing to do.
func (c Cluster) planGrowthStep(f elastic.Family, tried string, shortfall int64, count int32) (GrowthStep, bool) {
	pools := slices.DeleteFunc(slices.Clone(c.Pools), func(p tenancy.Pool) bool { return poolFamily(p) != f })
	request := c.findPendingAllocation(f, pools)
	switch {
	case request != nil && count == 0 && shortfall > 0 && !c.isStalled(request):
		return GrowthStep{}, false // it is on its way
	case request == nil && count == 0 && tried == "":
		return GrowthStep{}, false
	}
	attempts := tenancy.ParseAttempts(tried)
	situation := tenancy.AllocationRequest{
		Config: types.NamespacedName{Namespace: c.ProviderConfig.Namespace, Name: c.ProviderConfig.Name}, Count: count, Pools: pools, Attempts: attempts,
	}
	if request != nil {
		situation.Current = tenancy.NewCurrentAllocation(request)
	}
	step := GrowthStep{Decision: tenancy.DecideGrowthBlock(situation), PendingAllocation: request}
	// Attempts at pools of the other family stay.
	for _, a := range attempts {
		if asked := (func(p tenancy.Pool) bool { return p.Ref == a.Pool }); slices.ContainsFunc(c.Pools, asked) && !slices.ContainsFunc(pools, asked) {
			step.Attempts = append(step.Attempts, a)
		}
	}
	return step, true
}

// findPendingAllocation returns the block that was requested from the pools of a family and is not granted yet, nil
// if there is none. A request to a pool that the ProviderConfig does not name any more counts for IPv4.
func (c Cluster) findPendingAllocation(f elastic.Family, pools []tenancy.Pool) *v1alpha1.IPAllocation {
	for _, a := range c.Blocks {
		if !isPendingGrowth(a) {
			continue
		}
		from := func(p tenancy.Pool) bool { return p.Ref == tenancy.NewCurrentAllocation(a).Pool }
		if slices.ContainsFunc(pools, from) || (f == elastic.IPv4 && !slices.ContainsFunc(c.Pools, from)) {
			return a
		}
	}
	return nil
}
