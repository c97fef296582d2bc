package elastic

import (
	"fmt"
	"net/netip"
)

// ServiceState is the predicted outcome for a Service.
type ServiceState int

const (
	// ServicePlaced means that the Service has its addresses.
	ServicePlaced ServiceState = iota
	// ServicePlaceable means that MetalLB will place the Service in addresses that the cluster already has.
	ServicePlaceable
	// ServiceNeedsGrowth means that the Service has no address, and that growth gives it one.
	ServiceNeedsGrowth
	// ServiceStuck means that the Service has no address, and that growth does not help: a user must change the
	// Service or a pool.
	ServiceStuck
	// ServiceOtherClass means that the Service is of another load-balancer class, which MetalLB ignores.
	ServiceOtherClass
)

// ServiceAssessment is the predicted outcome for one Service.
type ServiceAssessment struct {
	Service *Service
	State   ServiceState
	// Message states for users why the Service is stuck, or why it has no address.
	Message string
}

// Inventory is what a workload cluster requests, and what it may have.
type Inventory struct {
	Services []Service
	// Pools are the desired pools: those that grow contain every block of the cluster, whether or not MetalLB has
	// applied it yet.
	Pools []Pool
	// LoadBalancerClass is the class of the Services that MetalLB serves (its flag --lb-class). It is usually empty.
	LoadBalancerClass string
	// GrowableFamilies reports for each family whether the cluster can get more addresses of it.
	GrowableFamilies [2]bool
}

// Assessment is the result of AssessServices.
type Assessment struct {
	ServiceAssessments []ServiceAssessment
	// Shortfall is the number of addresses of each family that are missing. Services that can share an address count
	// once. Services that prefer two addresses and have one take any address that is added, so they count if other
	// Services lack addresses too.
	Shortfall [2]int64
	// UsedAddresses are the addresses that a Service has, is about to get, or gets together with another one.
	UsedAddresses map[netip.Addr]struct{}
}

// AssessServices replays how MetalLB places the Services of an inventory. Each Service keeps what it has; the others
// are placed, oldest first, in what is free; those that find nothing are placed in the addresses that the cluster
// would grow by.
//
// MetalLB chooses which of the waiting Services gets a free address. The number that remains without one is the same
// for each choice, unless Services share addresses or choose between pools: then the next assessment sees what
// MetalLB chose. The cost is O(Services * pools) if few Services share addresses, and is bounded to some seconds:
// Services beyond that limit are reported as stuck.
func AssessServices(in Inventory) Assessment {
	r := newAllocatorReplay(in.Pools)
	out := Assessment{UsedAddresses: map[netip.Addr]struct{}{}}
	var served []addressUser
	var waiting []*Service
	for _, s := range sortByAge(in.Services) {
		out.addUsedAddresses(s.Addresses)
		switch {
		case r.isOverLimit():
			out.ServiceAssessments = append(out.ServiceAssessments, ServiceAssessment{s, ServiceStuck, tooManyObjectsMessage})
		case s.LoadBalancerClass != in.LoadBalancerClass:
			out.ServiceAssessments = append(out.ServiceAssessments, ServiceAssessment{s, ServiceOtherClass, fmt.Sprintf("it is of the load-balancer class %q", s.LoadBalancerClass)})
		case len(s.Families) == 0 || (s.FamilyPolicy == RequireDualStack && !s.isDualStack()):
			out.ServiceAssessments = append(out.ServiceAssessments, ServiceAssessment{s, ServiceStuck, "it lacks a cluster IP of an IP family that it asks for"})
		case len(s.Addresses) > 0 && r.keepAddresses(s):
			served = append(served, addressUser{s, s.Addresses})
			out.ServiceAssessments = append(out.ServiceAssessments, ServiceAssessment{Service: s, State: ServicePlaced})
		case s.RequestProblem != "":
			out.ServiceAssessments = append(out.ServiceAssessments, ServiceAssessment{s, ServiceStuck, s.RequestProblem})
		default:
			waiting = append(waiting, s)
		}
	}
	for i := range served {
		out.addUsedAddresses(r.completeDualStack(&served[i]))
	}
	var left []ServiceAssessment
	for _, s := range waiting {
		addrs, why := r.placeService(s)
		if why != "" {
			left = append(left, ServiceAssessment{s, ServiceStuck, why})
			continue
		}
		out.addUsedAddresses(addrs)
		served = append(served, addressUser{s, addrs})
		out.ServiceAssessments = append(out.ServiceAssessments, ServiceAssessment{Service: s, State: ServicePlaceable})
	}
	r.growableFamilies = in.GrowableFamilies
	for _, v := range left {
		switch addrs, why := r.placeService(v.Service); why {
		case "":
			v.State = ServiceNeedsGrowth
			out.addUsedAddresses(addrs)
		case tooManyObjectsMessage:
			v.Message = why
		}
		out.ServiceAssessments = append(out.ServiceAssessments, v)
	}
	r.growableFamilies = [2]bool{r.grownCounts[IPv4] > 0, r.grownCounts[IPv6] > 0}
	for i := range served {
		r.completeDualStack(&served[i])
	}
	out.Shortfall = r.grownCounts
	return out
}

// addUsedAddresses adds addresses to UsedAddresses. Addresses that the cluster would grow by belong to no block and
// are left out.
func (a *Assessment) addUsedAddresses(addrs []netip.Addr) {
	for _, addr := range addrs {
		if !growthRanges[AddressFamily(addr)].Contains(addr) {
			a.UsedAddresses[addr] = struct{}{}
		}
	}
}

// CountInState returns the number of Services in a state.
func (a Assessment) CountInState(s ServiceState) int {
	n := 0
	for _, v := range a.ServiceAssessments {
		if v.State == s {
			n++
		}
	}
	return n
}
