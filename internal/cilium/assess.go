package cilium

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/balancer"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/elastic"
)

// Assess says what becomes of the Services. Each keeps what it has; the others are placed in what is free, and those that
// find nothing in what the cluster would grow by. Cilium gives an address of each family by itself, of any pool that is for
// the Service, and shares one before it takes another. Which of those that wait gets what is free is Cilium's choice: how
// many are left over is the same, unless they share addresses.
//
// What Cilium says of a Service decides where more addresses would not help. Before it has a pool it says nothing.
func (o *observed) Assess(out balancer.Outlook) elastic.Assessment {
	p := newPlacing(o.pools, out)
	a := elastic.Assessment{Used: map[netip.Addr]struct{}{}}
	services := o.oldest()
	var waiting []*service
	for _, s := range services {
		for _, addr := range s.Has {
			a.Used[addr] = struct{}{}
		}
		switch {
		case !s.served(out.Class):
			a.Verdicts = append(a.Verdicts, elastic.Verdict{Service: &s.Service, State: elastic.Foreign, Why: fmt.Sprintf("it is of the load-balancer class %q", s.Class)})
			p.occupy(s, s.Has)
		case p.keeps(s):
			a.Verdicts = append(a.Verdicts, elastic.Verdict{Service: &s.Service, State: elastic.Placed})
		default:
			waiting = append(waiting, s)
		}
	}
	for _, s := range waiting {
		a.Verdicts = append(a.Verdicts, p.verdict(s, a.Used))
	}
	a.Lacking = p.grown
	return a
}

// oldest are the Services in the order in which they are looked at.
func (o *observed) oldest() []*service {
	out := make([]*service, len(o.services))
	for i := range o.services {
		out[i] = &o.services[i]
	}
	slices.SortFunc(out, func(a, b *service) int {
		return cmp.Or(a.Created.Compare(b.Created), cmp.Compare(a.Key(), b.Key()))
	})
	return out
}

// verdict places a Service that lacks an address.
func (p *placing) verdict(s *service, used map[netip.Addr]struct{}) elastic.Verdict {
	v := elastic.Verdict{Service: &s.Service, State: elastic.Fits}
	switch {
	case p.steps > maxSteps:
		v.State, v.Why = elastic.Stuck, "the cluster has too many Services and CiliumLoadBalancerIPPools to work out which address it would get"
		return v
	case s.lacks != nil && !slices.Contains(curable, s.lacks.Reason):
		v.State, v.Why = elastic.Stuck, said(s)
		return v
	case len(s.WantsIPs) > 0:
		if v.Why = p.placeAt(s, used); v.Why != "" {
			v.State = elastic.Stuck
		}
		return v
	}
	if len(s.Families) == 0 {
		v.State, v.Why = elastic.Stuck, "it lacks a cluster IP of an IP family that it asks for"
		return v
	}
	has, fits, lacks, why := len(s.Has) > 0, false, false, ""
	for _, f := range s.wants(p.kept(s)) {
		switch addr, grows := p.place(s, f); {
		case grows:
			lacks = true
		case addr.IsValid():
			used[addr], fits = struct{}{}, true
		default:
			why = p.without(s, f)
		}
	}
	switch {
	case lacks:
		v.State = elastic.Lacks
	case why != "" && (s.Stack != elastic.PreferDualStack || !has && !fits): // one that prefers two families is served with one
		v.State, v.Why = elastic.Stuck, why
	case !fits:
		v.State = elastic.Placed
	}
	return v
}

// said is what Cilium says of a Service.
func said(s *service) string {
	return fmt.Sprintf("Cilium says %s: %s", s.lacks.Reason, s.lacks.Message)
}

// without says why there is no address of a family.
func (p *placing) without(s *service, f elastic.Family) string {
	if s.lacks != nil {
		return said(s)
	}
	return fmt.Sprintf("no CiliumLoadBalancerIPPool that is for it (spec.serviceSelector) has a free %s address", f)
}
