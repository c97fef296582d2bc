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

// Plan is what a hand-back would do.
type Plan struct {
	// Pools are given back to the in-cluster provider.
	Pools []string `json:"pools"`
	// Waiting have nothing and name a mirror: they wait for ever then.
	Waiting []string `json:"waiting,omitempty"`
	// Ended are pools that were mirrors, and stay: there is nothing any more to which they could go back.
	Ended []string `json:"ended,omitempty"`
	// Problems stand in the way of all of it.
	Problems []Problem `json:"problems"`
}

// Problem stands in the way.
type Problem struct {
	What string `json:"what"`
	Do   string `json:"do"`
}

func (p *Plan) problemf(do, format string, args ...any) {
	p.Problems = append(p.Problems, Problem{fmt.Sprintf(format, args...), do})
}

// plan decides on what was found. It is pure.
func plan(in *found, now time.Time, withoutRests bool) *Plan {
	p := &Plan{Pools: []string{}, Problems: []Problem{}}
	for _, who := range in.running {
		p.problemf("take "+flag+" off its arguments, and wait until its Pod is gone", "a manager serves the pools: %s", who)
	}
	if i := slices.IndexFunc(in.mirrors, saysServed); i >= 0 && len(in.running) == 0 && len(in.managers) > 0 {
		p.problemf("remove the component in-cluster-pools, restart the manager, and wait until the pool says NotServed; or stop the manager",
			"a manager serves %s: %s", pools.KeyOf(in.mirrors[i]), strings.Join(in.managers, ", "))
	}
	for _, s := range in.deleting {
		p.problemf("run a manager with "+flag+" until the pool is gone: its mirror stays as a pool of its own, and the other pools can go back",
			"%s was handed over and is being deleted, so it cannot go back", s)
	}
	for _, key := range in.ended {
		p.Ended = append(p.Ended, key.String())
	}
	for _, s := range in.given {
		p.Pools = append(p.Pools, s.String())
	}
	for _, mirror := range in.mirrors {
		if s, _ := sourceOf(mirror); !slices.Contains(p.Pools, s.String()) {
			p.Pools = append(p.Pools, s.String())
		}
		p.users(in, mirror)
		p.unfinished(in, mirror)
		p.kept(mirror, now, withoutRests)
	}
	slices.Sort(p.Pools)
	return p
}

// users finds who has something under the name of a mirror: the in-cluster provider does not count it.
func (p *Plan) users(in *found, mirror v1alpha1.Pool) {
	key := pools.KeyOf(mirror)
	const do = "delete it, or move its machine to a pool that the in-cluster provider does not have"
	told := sets.New[types.NamespacedName]()
	for i := range in.addresses {
		if a := &in.addresses[i]; pools.Names(a.Namespace, a.Spec.PoolRef, key) {
			told.Insert(client.ObjectKeyFromObject(a))
			p.problemf(do, "IPAddress %s/%s has %s of %s", a.Namespace, a.Name, a.Spec.Address, key)
		}
	}
	for i := range in.claims {
		c := &in.claims[i]
		if !pools.Names(c.Namespace, c.Spec.PoolRef, key) || told.Has(client.ObjectKeyFromObject(c)) {
			continue
		}
		if record := c.Annotations[v1alpha1.AddressAnnotation]; record != "" && controllerutil.ContainsFinalizer(c, v1alpha1.ClaimFinalizer) {
			p.problemf(do, "IPAddressClaim %s/%s was given %s of %s", c.Namespace, c.Name, record, key)
		} else {
			p.Waiting = append(p.Waiting, "IPAddressClaim "+c.Namespace+"/"+c.Name)
		}
	}
	for i := range in.allocations {
		o := &in.allocations[i]
		if pools.KeyOfAllocation(o) != key {
			continue
		}
		if o.Status.StartAddress != "" || o.Annotations[v1alpha1.AddressAnnotation] != "" {
			p.problemf(do, "IPAllocation %s/%s has a block of %s", o.Namespace, o.Name, key)
		} else {
			p.Waiting = append(p.Waiting, "IPAllocation "+o.Namespace+"/"+o.Name)
		}
	}
}

// unfinished finds grants whose IPAddress may still be written by a request of the manager that is gone: one that is
// noted, of a claim that lives and has none.
func (p *Plan) unfinished(in *found, mirror v1alpha1.Pool) {
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
			p.problemf("start the manager with "+flag+" again until the claim is Ready, or delete the claim",
				"IPAddressClaim %s/%s was granted %s of %s before the manager stopped, and its IPAddress was not written", g.Namespace, g.Name, g.First, pools.KeyOf(mirror))
		}
	}
}

// kept finds what nobody has and nobody is to have yet: the in-cluster provider gives it to the next claim.
func (p *Plan) kept(mirror v1alpha1.Pool, now time.Time, withoutRests bool) {
	status, key := mirror.PoolStatus(), pools.KeyOf(mirror)
	rests, last := 0, time.Time{}
	resting, err := cooling.Parse(status.Cooling)
	if err != nil {
		p.problemf("correct the entry, or remove it", "the status of %s has an entry that cannot be parsed: %v", key, err)
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
		p.problemf("wait until then, or pass --without-rests", "%d ranges of %s are in their reuse grace period until %s, and the in-cluster provider would reuse them at once",
			rests, key, last.UTC().Format(time.RFC3339))
	}
	for _, h := range status.Held {
		p.problemf("find out who has it, and release it with kubectl butler-ipam release-held if nobody does", "%s-%s of %s is held (%s), and the in-cluster provider would give it",
			h.First, h.Last, key, h.Reason)
	}
}
