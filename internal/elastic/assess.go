package elastic

import (
	"fmt"
	"net/netip"
)

// State is what becomes of a Service.
type State int

const (
	// Placed has its addresses.
	Placed State = iota
	// Fits will be placed by MetalLB, in what the cluster has.
	Fits
	// Lacks has no address, and growth gives it one.
	Lacks
	// Stuck has no address, and no growth gives it one: the Service or a pool must be changed by a person.
	Stuck
	// Foreign is of another load-balancer class: MetalLB does not look at it.
	Foreign
)

// Verdict is what becomes of one Service.
type Verdict struct {
	Service *Service
	State   State
	// Why a Service is stuck, or lacks an address: what a person reads.
	Why string
}

// Inventory is what a workload cluster asks for, and what it may have.
type Inventory struct {
	Services []Service
	// Pools as they are to be: those that grow hold every block of the cluster, whether or not MetalLB has seen
	// it yet.
	Pools []Pool
	// Class of the Services that MetalLB serves: its flag --lb-class. Usually empty.
	Class string
	// Grows tells of which families the cluster can be given more.
	Grows [2]bool
}

// Assessment is what an inventory comes to.
type Assessment struct {
	Verdicts []Verdict
	// Lacking is how many addresses of each family are missing. Services that can share one lack one. Those that
	// prefer two addresses and have one take the first that come, so they count where others lack one.
	Lacking [2]int64
	// Used are the addresses that a Service has, is about to be given, or takes once it is given another one too.
	Used map[netip.Addr]struct{}
}

// Assess replays what MetalLB makes of an inventory. Each Service keeps what it has; the others are placed, oldest
// first, in what is free; for those that find nothing, in what the cluster would grow by.
//
// Which of the Services that wait gets what is free is MetalLB's choice. How many are left over is the same, unless
// they share addresses or choose between pools: what MetalLB chose is then seen the next time. It costs O(Services ·
// pools) where few of them share addresses, and some seconds at most: Services beyond that are said to be stuck.
func Assess(in Inventory) Assessment {
	r := newReplay(in.Pools)
	out := Assessment{Used: map[netip.Addr]struct{}{}}
	var served []holder
	var waiting []*Service
	for _, s := range oldest(in.Services) {
		out.use(s.Has)
		switch {
		case r.exhausted():
			out.Verdicts = append(out.Verdicts, Verdict{s, Stuck, tooMuch})
		case s.Class != in.Class:
			out.Verdicts = append(out.Verdicts, Verdict{s, Foreign, fmt.Sprintf("it is of the load-balancer class %q", s.Class)})
		case len(s.Families) == 0 || (s.Stack == RequireDualStack && !s.dual()):
			out.Verdicts = append(out.Verdicts, Verdict{s, Stuck, "it lacks a cluster IP of an IP family that it asks for"})
		case len(s.Has) > 0 && r.keeps(s):
			served = append(served, holder{s, s.Has})
			out.Verdicts = append(out.Verdicts, Verdict{Service: s, State: Placed})
		case s.WantsError != "":
			out.Verdicts = append(out.Verdicts, Verdict{s, Stuck, s.WantsError})
		default:
			waiting = append(waiting, s)
		}
	}
	for i := range served {
		out.use(r.complete(&served[i]))
	}
	var left []Verdict
	for _, s := range waiting {
		addrs, why := r.place(s)
		if why != "" {
			left = append(left, Verdict{s, Stuck, why})
			continue
		}
		out.use(addrs)
		served = append(served, holder{s, addrs})
		out.Verdicts = append(out.Verdicts, Verdict{Service: s, State: Fits})
	}
	r.grows = in.Grows
	for _, v := range left {
		switch addrs, why := r.place(v.Service); why {
		case "":
			v.State = Lacks
			out.use(addrs)
		case tooMuch:
			v.Why = why
		}
		out.Verdicts = append(out.Verdicts, v)
	}
	r.grows = [2]bool{r.grown[IPv4] > 0, r.grown[IPv6] > 0}
	for i := range served {
		r.complete(&served[i])
	}
	out.Lacking = r.grown
	return out
}

// use counts addresses among those that are used. Those that do not exist yet are in no block.
func (a *Assessment) use(addrs []netip.Addr) {
	for _, addr := range addrs {
		if !notYet[FamilyOf(addr)].Contains(addr) {
			a.Used[addr] = struct{}{}
		}
	}
}

// Count is how many Services are in a state.
func (a Assessment) Count(s State) int {
	n := 0
	for _, v := range a.Verdicts {
		if v.State == s {
			n++
		}
	}
	return n
}
