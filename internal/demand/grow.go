package demand

import (
	"math"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/elastic"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/tenancy"
)

// Step is the next thing to do for a block of one family that a Cluster lacks.
type Step struct {
	tenancy.Decision

	// Request is the IPAllocation that was asked for and is not granted yet; nil if there is none.
	Request *v1alpha1.IPAllocation
}

// grow asks the pools for what is lacking, one block of each family at a time. What was tried with the pools of one
// family is known to the step of the other: both are written in one annotation.
func (c Cluster) grow(a elastic.Assessment, plan elastic.Plan, s tenancy.Settings) []Step {
	switch {
	case c.Config == nil:
		return nil
	case !s.Elastic:
		return c.withdraw()
	case !c.begun():
		return nil
	}
	var steps []Step
	tried := c.Annotations[v1alpha1.TriedGrowthPoolsAnnotation]
	for _, f := range []elastic.Family{elastic.IPv4, elastic.IPv6} {
		if step, is := c.step(f, tried, a.Lacking[f], toAskFor(plan, f)); is {
			steps = append(steps, step)
			tried = tenancy.FormatTried(step.Tried)
		}
	}
	return steps
}

// withdraw gives up what was asked for while the Cluster was elastic and is not granted: else it would be granted whenever the
// pool has room, to a Cluster that does not grow.
func (c Cluster) withdraw() (steps []Step) {
	for _, a := range c.Blocks {
		if asksForMore(a) && a.DeletionTimestamp.IsZero() {
			steps = append(steps, Step{Decision: tenancy.Decision{Action: tenancy.Replace}, Request: a})
		}
	}
	return steps
}

// asksForMore reports whether an IPAllocation was made here to ask for growth, and is not granted. One that a person made is
// left as it is, whatever its name.
func asksForMore(a *v1alpha1.IPAllocation) bool {
	return !granted(a) && tenancy.Role(a) == v1alpha1.GrowthRole && !tenancy.StandingOf(a).Manual
}

// begun reports whether the Cluster has what it is to begin with.
func (c Cluster) begun() bool {
	first := slices.IndexFunc(c.Blocks, func(a *v1alpha1.IPAllocation) bool { return a.Name == tenancy.Name(c.Ref) })
	if first >= 0 {
		return granted(c.Blocks[first])
	}
	size, err := tenancy.Size(c.Config.Network(), c.Annotations)
	return err == nil && size.Count == 0
}

// toAskFor is how many addresses of a family are planned to be asked for.
func toAskFor(plan elastic.Plan, f elastic.Family) int32 {
	at := slices.IndexFunc(plan.Grow, func(g elastic.Growth) bool { return g.Family == f })
	if at < 0 {
		return 0
	}
	return int32(min(plan.Grow[at].Count, math.MaxInt32))
}

// step is what to do for a block of count addresses of a family, of which so many are lacking; false: nothing.
func (c Cluster) step(f elastic.Family, tried string, lacking int64, count int32) (Step, bool) {
	pools := slices.DeleteFunc(slices.Clone(c.Pools), func(p tenancy.Pool) bool { return family(p) != f })
	request := c.request(f, pools)
	switch {
	case request != nil && count == 0 && lacking > 0 && !c.stalled(request):
		return Step{}, false // it is on its way
	case request == nil && count == 0 && tried == "":
		return Step{}, false
	}
	attempts := tenancy.ParseTried(tried)
	situation := tenancy.Situation{
		Config: types.NamespacedName{Namespace: c.Config.Namespace, Name: c.Config.Name}, Count: count, Pools: pools, Tried: attempts,
	}
	if request != nil {
		situation.Standing = tenancy.StandingOf(request)
	}
	step := Step{Decision: tenancy.Grow(situation), Request: request}
	// What was tried with pools of the other family stays.
	for _, a := range attempts {
		if asked := (func(p tenancy.Pool) bool { return p.Ref == a.Pool }); slices.ContainsFunc(c.Pools, asked) && !slices.ContainsFunc(pools, asked) {
			step.Tried = append(step.Tried, a)
		}
	}
	return step, true
}

// request is the block that was asked for and is not granted yet, of the pools of a family. One of a pool that the
// ProviderConfig does not name any more is of the first family.
func (c Cluster) request(f elastic.Family, pools []tenancy.Pool) *v1alpha1.IPAllocation {
	for _, a := range c.Blocks {
		if !asksForMore(a) {
			continue
		}
		from := func(p tenancy.Pool) bool { return p.Ref == tenancy.StandingOf(a).Pool }
		if slices.ContainsFunc(pools, from) || (f == elastic.IPv4 && !slices.ContainsFunc(c.Pools, from)) {
			return a
		}
	}
	return nil
}
