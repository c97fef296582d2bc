package allocator

import (
	"context"
	"fmt"
	"iter"
	"net/netip"
	"time"

	"go4.org/netipx"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/failuredomain"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/grants"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/ledger"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/poolspec"
)

// Snapshot is a pool as the objects of one moment show it: the allocator's memory and its rules without its
// writes, for tools that say what is and what would be. It is not safe for concurrent use.
type Snapshot struct{ p *grants.Memory }

// Answer is what the allocator would tell a claim, or an IPAllocation, that has nothing yet.
type Answer struct {
	// Range is what it would be given; invalid if nothing.
	Range netipx.IPRange
	// Reason and Message say why it is refused. Both empty and no Range: it is left to wait in silence.
	Reason, Message string
}

// Snapshots are all pools as the objects of one moment show them: what one has in use that another one may grant is kept
// apart as a manager does it.
type Snapshots struct{ a *Allocator }

// SnapshotsOf looks at pools, with the objects that name them.
func SnapshotsOf(o *pools.Objects) *Snapshots {
	a := New(Options{Live: nothing{}, Lists: empty{}})
	found := byPool{}
	for _, obj := range o.Pools {
		found[pools.KeyOf(obj)] = &grants.Listed{}
	}
	for obj := range o.OfPools() {
		for _, r := range resources {
			found.add(r, obj)
		}
		if b, child := carver.BlockOf(obj); b != nil && found[child] != nil {
			found[child].AddBlock(b)
		}
	}
	for _, obj := range o.Pools {
		next := obj.DeepCopyObject().(v1alpha1.Pool)
		a.publish(next)
		m := a.pool(pools.KeyOf(obj)).Lock()
		if m.SetBase(next); m.Layout == nil {
			m.Compile() // of a file, which has no generation
		}
		m.Adopting = m.WasAdopting() != nil
		m.Rebuild(found[m.Key])
		m.Unlock()
	}
	return &Snapshots{a}
}

// Of looks at one of the pools.
func (s *Snapshots) Of(key pools.Key) *Snapshot {
	p := s.a.pool(key)
	s.a.keepApart(context.Background(), p) // everything is read by now: nothing is waited for
	m := p.Lock()
	defer m.Unlock() // no other function has it
	return &Snapshot{m}
}

// nothing is an API server that has no more than what was read already.
type nothing struct{ client.Reader }

// Get implements client.Reader.
func (nothing) Get(_ context.Context, key client.ObjectKey, _ client.Object, _ ...client.GetOption) error {
	return apierrors.NewNotFound(schema.GroupResource{}, key.Name)
}

// empty are the lists of what was read already.
type empty struct{}

// List implements Lister.
func (empty) List(context.Context, client.Object, string, func(client.Object)) (string, error) {
	return "", nil
}

// Layout is what the spec means; nil where it cannot be served.
func (s *Snapshot) Layout() *poolspec.Layout { return s.p.Layout }

// Counts are those that a manager would write into the status.
func (s *Snapshot) Counts() ledger.Counts { return s.p.Ledger.Counts() }

// Holds returns what keeps an address, or the prefix it lies in, or any of a larger prefix, from being free.
func (s *Snapshot) Holds(a netip.Prefix) []*ledger.Fact {
	if a.IsSingleIP() {
		return s.p.Ledger.Overlapping(s.p.Ledger.Unit(a.Addr()))
	}
	return s.p.Ledger.Overlapping(netipx.RangeOfPrefix(a))
}

// HandsOut reports whether an address is among those that the pool hands out.
func (s *Snapshot) HandsOut(a netip.Addr) bool { return s.p.Ledger.InSpace(s.p.Ledger.Unit(a)) }

// Free yields the free ranges, ascending.
func (s *Snapshot) Free() iter.Seq[netipx.IPRange] { return s.p.Ledger.Free() }

// Resting are the ranges that rest after a release, by the time at which that ends.
func (s *Snapshot) Resting() []v1alpha1.CoolingGroup { return s.p.Cooling.Groups() }

// Place tells where an IPAllocation of n addresses would be placed, or one claim for n = 1; false: nowhere.
func (s *Snapshot) Place(n int64) (netipx.IPRange, bool) {
	take := func() (netipx.IPRange, bool) { return s.p.Ledger.TakeBlock(uint64(n)) }
	switch {
	case n < 1:
		return netipx.IPRange{}, false
	case n == 1:
		take = s.p.Ledger.TakeOne
	}
	r, ok := take()
	if ok {
		s.p.Ledger.Untake(r)
	}
	return r, ok
}

// FailureDomains are those that subnets of the pool serve, each with how much is free for it; none, where no subnet names one.
// The first one has no name: it is what is free for all others.
func (s *Snapshot) FailureDomains() (out []FreeIn) {
	if !s.p.HasZones() {
		return nil
	}
	for _, domain := range append([]string{""}, s.p.Layout.FailureDomains()...) {
		zones, _ := s.p.Layout.ZonesOf(domain)
		in := FreeIn{FailureDomain: domain}
		for _, z := range zones {
			in.Free += s.p.Ledger.FreeInZone(z)
		}
		out = append(out, in)
	}
	return out
}

// FreeIn is how many addresses, or prefixes, are free for a failure domain.
type FreeIn struct {
	FailureDomain string `json:"failureDomain,omitempty"`
	Free          int64  `json:"free"`
}

// Waiting is the number of claims and IPAllocations that want a grant.
func (s *Snapshot) Waiting() int { return s.p.Pending.Len() }

// Waiters are the claims and IPAllocations that want a grant, in the order of the allocator.
func (s *Snapshot) Waiters() (out []string) {
	s.p.Pending.Scan(func(c *grants.Claimant) bool {
		out = append(out, fmt.Sprintf("%s %s", c.Owner.Kind, grants.NameOf(c.Owner)))
		return true
	})
	return out
}

// Plan tells what each waiting claim and IPAllocation would be told now, in the order of the allocator. What
// it gives is taken out of the Snapshot. Clusters, Namespaces and what leads to Machines are read from a reader. The quota of Clusters is
// not looked at: it goes over all pools.
func (s *Snapshot) Plan(ctx context.Context, from client.Client, now time.Time) map[types.UID]Answer {
	waiting := map[types.UID]*grants.Claimant{}
	s.p.Pending.Scan(func(c *grants.Claimant) bool {
		waiting[c.Owner.UID] = c
		return true
	})
	a := New(Options{Client: from, MachineOf: (&failuredomain.Finder{Live: from}).Of})
	for range len(waiting)/grants.MaxLookups + 1 {
		a.findMachines(ctx, grants.PoolOf(s.p), now)
	}
	_, refused := s.p.Plan(now, len(waiting), a.rules(ctx, s.p, now))
	out := map[types.UID]Answer{}
	for uid, c := range waiting {
		answer := Answer{Reason: c.ShownRefusal().Reason, Message: c.ShownRefusal().Message}
		if no := refused[c]; no != nil {
			answer = Answer{Reason: no.Reason, Message: no.Message}
		}
		if g := s.p.Grants[uid]; g != nil {
			answer = Answer{Range: g.Range}
		}
		out[uid] = answer
	}
	return out
}
