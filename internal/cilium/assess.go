package cilium

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/balancer"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/elastic"
)

// AssessServices predicts the outcome for the Services. Each keeps what it has; the others are placed in what is
// free, and those that find nothing in the addresses that the cluster would grow by. Cilium assigns an address of
// each family separately, from any pool that selects the Service, and shares an address before it uses another one.
// Cilium chooses which of the waiting Services gets a free address: the number that remains without one is the same
// for each choice, unless Services share addresses.
//
// The condition that Cilium sets on a Service decides where more addresses would not help. Before it has a pool,
// Cilium sets none.
func (o *observedCluster) AssessServices(out balancer.DesiredState) elastic.Assessment {
	p := newPlacement(o.pools, out)
	a := elastic.Assessment{UsedAddresses: map[netip.Addr]struct{}{}}
	services := o.servicesByAge()
	var waiting []*service
	for _, s := range services {
		for _, addr := range s.Addresses {
			a.UsedAddresses[addr] = struct{}{}
		}
		switch {
		case !s.isServed(out.LoadBalancerClass):
			a.ServiceAssessments = append(a.ServiceAssessments, elastic.ServiceAssessment{Service: &s.Service, State: elastic.ServiceOtherClass, Message: fmt.Sprintf("it is of the load-balancer class %q", s.LoadBalancerClass)})
			p.assignAddresses(s, s.Addresses)
		case p.keepAddresses(s):
			a.ServiceAssessments = append(a.ServiceAssessments, elastic.ServiceAssessment{Service: &s.Service, State: elastic.ServicePlaced})
		default:
			waiting = append(waiting, s)
		}
	}
	for _, s := range waiting {
		a.ServiceAssessments = append(a.ServiceAssessments, p.assessService(s, a.UsedAddresses))
	}
	a.Shortfall = p.grownCounts
	return a
}

// servicesByAge returns the Services in the order in which they are assessed.
func (o *observedCluster) servicesByAge() []*service {
	out := make([]*service, len(o.services))
	for i := range o.services {
		out[i] = &o.services[i]
	}
	slices.SortFunc(out, func(a, b *service) int {
		return cmp.Or(a.Created.Compare(b.Created), cmp.Compare(a.Key(), b.Key()))
	})
	return out
}

// assessService places a Service that needs an address.
func (p *placement) assessService(s *service, used map[netip.Addr]struct{}) elastic.ServiceAssessment {
	v := elastic.ServiceAssessment{Service: &s.Service, State: elastic.ServicePlaceable}
	switch {
	case p.stepCount > maxPlacementSteps:
		v.State, v.Message = elastic.ServiceStuck, "the cluster has too many Services and CiliumLoadBalancerIPPools to work out which address it would get"
		return v
	case s.unsatisfied != nil && !slices.Contains(growthCurableReasons, s.unsatisfied.Reason):
		v.State, v.Message = elastic.ServiceStuck, conditionMessage(s)
		return v
	case len(s.RequestedIPs) > 0:
		if v.Message = p.placeAtRequestedIPs(s, used); v.Message != "" {
			v.State = elastic.ServiceStuck
		}
		return v
	}
	if len(s.Families) == 0 {
		v.State, v.Message = elastic.ServiceStuck, "it lacks a cluster IP of an IP family that it asks for"
		return v
	}
	hasAddress, fits, needsGrowth, why := len(s.Addresses) > 0, false, false, ""
	for _, f := range s.missingFamilies(p.keptAddresses(s)) {
		switch addr, grows := p.placeInFamily(s, f); {
		case grows:
			needsGrowth = true
		case addr.IsValid():
			used[addr], fits = struct{}{}, true
		default:
			why = p.noAddressMessage(s, f)
		}
	}
	switch {
	case needsGrowth:
		v.State = elastic.ServiceNeedsGrowth
	case why != "" && (s.FamilyPolicy != elastic.PreferDualStack || !hasAddress && !fits): // one that prefers two families is served with one
		v.State, v.Message = elastic.ServiceStuck, why
	case !fits:
		v.State = elastic.ServicePlaced
	}
	return v
}

// conditionMessage returns the reason and message that Cilium reports on a Service.
func conditionMessage(s *service) string {
	return fmt.Sprintf("Cilium says %s: %s", s.unsatisfied.Reason, s.unsatisfied.Message)
}

// noAddressMessage states why there is no address of a family.
func (p *placement) noAddressMessage(s *service, f elastic.Family) string {
	if s.unsatisfied != nil {
		return conditionMessage(s)
	}
	return fmt.Sprintf("no CiliumLoadBalancerIPPool that is for it (spec.serviceSelector) has a free %s address", f)
}
