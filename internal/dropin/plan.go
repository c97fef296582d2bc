package dropin

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/cooling"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"
)

// Plan is the effect of a hand-back.
type Plan struct {
	// Pools lists the pools that are returned to the in-cluster provider.
	Pools []string `json:"pools"`
	// Waiting lists the claimants that name a mirror and have no address: after the hand-back they would wait for ever.
	Waiting []string `json:"waiting,omitempty"`
	// EndedMirrors lists former mirrors, which stay: their source pools do not exist any more.
	EndedMirrors []string `json:"ended,omitempty"`
	// Problems lists the obstacles; with any of them nothing is handed back.
	Problems []Problem `json:"problems"`
}

// Problem is an obstacle, and the advice how to remove it.
type Problem struct {
	Message string `json:"what"`
	Advice  string `json:"do"`
}

func (p *Plan) addProblemf(do, format string, args ...any) {
	p.Problems = append(p.Problems, Problem{fmt.Sprintf(format, args...), do})
}

// newPlan decides on the input. It is pure.
func newPlan(in *planInput, now time.Time, withoutRests bool) *Plan {
	p := &Plan{Pools: []string{}, Problems: []Problem{}}
	for _, manager := range in.servingManagers {
		p.addProblemf("take "+serveFlag+" off its arguments, and wait until its Pod is gone", "a manager serves the pools: %s", manager)
	}
	if i := slices.IndexFunc(in.mirrors, isMirrorServed); i >= 0 && len(in.servingManagers) == 0 && len(in.managers) > 0 {
		p.addProblemf("remove the component in-cluster-pools, restart the manager, and wait until the pool has the reason NotServed; or stop the manager",
			"a manager serves %s: %s", pools.KeyForPool(in.mirrors[i]), strings.Join(in.managers, ", "))
	}
	for _, s := range in.deletingSources {
		p.addProblemf("run a manager with "+serveFlag+" until the pool is gone: its mirror stays as a pool of its own, and the other pools can go back",
			"%s was handed over and is being deleted, so it cannot go back", s)
	}
	for _, key := range in.endedMirrors {
		p.EndedMirrors = append(p.EndedMirrors, key.String())
	}
	for _, s := range in.handedOver {
		p.Pools = append(p.Pools, s.String())
	}
	for _, mirror := range in.mirrors {
		if s, _ := sourceForMirror(mirror); !slices.Contains(p.Pools, s.String()) {
			p.Pools = append(p.Pools, s.String())
		}
		p.checkUsers(in, mirror)
		p.checkInFlightGrants(in, mirror)
		p.checkCoolingAndHeld(mirror, now, withoutRests)
	}
	slices.Sort(p.Pools)
	return p
}

// checkUsers adds the claimants and addresses under the name of a mirror: the in-cluster provider does not count them.
func (p *Plan) checkUsers(in *planInput, mirror v1alpha1.Pool) {
	key := pools.KeyForPool(mirror)
	const do = "delete it, or move its machine to a pool that the in-cluster provider does not have"
	reported := sets.New[types.NamespacedName]()
	for i := range in.addresses {
		if a := &in.addresses[i]; pools.IsDirectReference(a.Namespace, a.Spec.PoolRef, key) {
			reported.Insert(client.ObjectKeyFromObject(a))
			p.addProblemf(do, "IPAddress %s/%s has %s of %s", a.Namespace, a.Name, a.Spec.Address, key)
		}
	}
	for i := range in.claims {
		c := &in.claims[i]
		if !pools.IsDirectReference(c.Namespace, c.Spec.PoolRef, key) || reported.Has(client.ObjectKeyFromObject(c)) {
			continue
		}
		if record := c.Annotations[v1alpha1.AddressAnnotation]; record != "" && controllerutil.ContainsFinalizer(c, v1alpha1.ClaimFinalizer) {
			p.addProblemf(do, "IPAddressClaim %s/%s was given %s of %s", c.Namespace, c.Name, record, key)
		} else {
			p.Waiting = append(p.Waiting, "IPAddressClaim "+c.Namespace+"/"+c.Name)
		}
	}
	for i := range in.allocations {
		o := &in.allocations[i]
		if pools.KeyFromAllocation(o) != key {
			continue
		}
		if o.Status.StartAddress != "" || o.Annotations[v1alpha1.AddressAnnotation] != "" {
			p.addProblemf(do, "IPAllocation %s/%s has a block of %s", o.Namespace, o.Name, key)
		} else {
			p.Waiting = append(p.Waiting, "IPAllocation "+o.Namespace+"/"+o.Name)
		}
	}
}

// checkInFlightGrants adds the grants whose IPAddress a late request of the stopped manager may still create: those
// that the status of the mirror has in flight, of a claim that lives and has no IPAddress.
func (p *Plan) checkInFlightGrants(in *planInput, mirror v1alpha1.Pool) {
	if mirror.PoolStatus().Allocator == nil {
		return
	}
	waits := sets.New[types.UID]()
	for i := range in.claims {
		if c := &in.claims[i]; c.DeletionTimestamp == nil {
			waits.Insert(c.UID)
		}
	}
	for i := range in.addresses {
		for _, owner := range in.addresses[i].OwnerReferences {
			waits.Delete(owner.UID)
		}
	}
	for _, g := range mirror.PoolStatus().Allocator.InFlight {
		if waits.Has(types.UID(g.UID)) {
			p.addProblemf("start the manager with "+serveFlag+" again until the claim is Ready, or delete the claim",
				"IPAddressClaim %s/%s was granted %s of %s before the manager stopped, and its IPAddress was not written", g.Namespace, g.Name, g.First, pools.KeyForPool(mirror))
		}
	}
}

// checkCoolingAndHeld adds the addresses that rest or are held: the in-cluster provider would give them to the next
// claim.
func (p *Plan) checkCoolingAndHeld(mirror v1alpha1.Pool, now time.Time, withoutRests bool) {
	status, key := mirror.PoolStatus(), pools.KeyForPool(mirror)
	rests, last := 0, time.Time{}
	resting, err := cooling.ParseGroups(status.Cooling)
	if err != nil {
		p.addProblemf("correct the entry, or remove it", "the status of %s has an entry that cannot be parsed: %v", key, err)
	}
	for _, r := range resting {
		if r.Until.After(now) {
			rests++
			if r.Until.After(last) {
				last = r.Until
			}
		}
	}
	if rests > 0 && !withoutRests {
		p.addProblemf("wait until then, or pass --without-rests", "%d ranges of %s are in their reuse grace period until %s, and the in-cluster provider would reuse them at once",
			rests, key, last.UTC().Format(time.RFC3339))
	}
	for _, h := range status.Held {
		p.addProblemf("find out whether it is in use, and release it with kubectl butler-ipam release-held if it is not", "%s-%s of %s is held (%s), and the in-cluster provider would give it",
			h.First, h.Last, key, h.Reason)
	}
}
