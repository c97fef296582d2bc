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

// Snapshot is a pool as the objects of one moment show it: the allocator's state and rules without its writes, for
// tools that show the current state and the results of a plan. It is not safe for concurrent use.
type Snapshot struct{ state *grants.PoolState }

// PlannedGrant is the answer of the allocator to a claim, or an IPAllocation, that has nothing yet.
type PlannedGrant struct {
	// Range is the range that it would be granted; invalid if none.
	Range netipx.IPRange
	// Reason and Message are why it is refused. If both are empty and there is no Range, it waits without a message.
	Reason, Message string
}

// Snapshots are all pools as the objects of one moment show them. Addresses that one pool has in use and another one
// may grant are excluded, as by a manager.
type Snapshots struct{ allocator *Allocator }

// NewSnapshots builds the state of pools from them and the objects that name them.
func NewSnapshots(o *pools.Objects) *Snapshots {
	a := New(Options{Live: emptyReader{}, Lister: emptyLister{}})
	found := listedByPool{}
	for _, obj := range o.Pools {
		found[pools.KeyForPool(obj)] = &grants.ListedObjects{}
	}
	for obj := range o.PoolReferrers() {
		for _, r := range resourceKinds {
			found.addObject(r, obj)
		}
		if b, child := blockKind.BlockFromObject(obj); b != nil && found[child] != nil {
			found[child].AddBlock(b)
		}
	}
	for _, obj := range o.Pools {
		next := obj.DeepCopyObject().(v1alpha1.Pool)
		a.relations.publishDeclaration(next)
		m := a.pools.getOrCreatePool(pools.KeyForPool(obj)).Lock()
		if m.SetBasePool(next); m.Space.Layout == nil {
			m.Space.CompileLayout() // a pool from a file has no generation
		}
		m.Quarantine.UpdateAdopting()
		m.RebuildLedger(found[m.Base.Key])
		m.Unlock()
	}
	return &Snapshots{a}
}

// ForPool returns the snapshot of one of the pools.
func (s *Snapshots) ForPool(key pools.Key) *Snapshot {
	p := s.allocator.pools.getOrCreatePool(key)
	s.allocator.exclusions.excludeSharedRanges(context.Background(), p) // everything is read already: nothing is waited for
	m := p.Lock()
	defer m.Unlock() // no other function uses it
	return &Snapshot{m}
}

// emptyReader is an API server that has no more than what was read already.
type emptyReader struct{ client.Reader }

// Get implements client.Reader.
func (emptyReader) Get(_ context.Context, key client.ObjectKey, _ client.Object, _ ...client.GetOption) error {
	return apierrors.NewNotFound(schema.GroupResource{}, key.Name)
}

// emptyLister lists nothing: everything was read already.
type emptyLister struct{}

// List implements Lister.
func (emptyLister) List(context.Context, client.Object, string, func(client.Object)) (string, error) {
	return "", nil
}

// Layout returns the compiled spec; nil where it cannot be served.
func (s *Snapshot) Layout() *poolspec.Layout { return s.state.Space.Layout }

// Counts returns the counts that a manager would write into the status.
func (s *Snapshot) Counts() ledger.Counts { return s.state.Space.Ledger.Counts() }

// FactsFor returns the facts that keep an address, or the prefix it lies in, or any part of a larger prefix, from being
// free.
func (s *Snapshot) FactsFor(a netip.Prefix) []*ledger.Fact {
	if a.IsSingleIP() {
		return s.state.Space.Ledger.OverlappingFacts(s.state.Space.Ledger.UnitRange(a.Addr()))
	}
	return s.state.Space.Ledger.OverlappingFacts(netipx.RangeOfPrefix(a))
}

// IsAllocatable reports whether an address is among those that the pool grants.
func (s *Snapshot) IsAllocatable(a netip.Addr) bool {
	return s.state.Space.Ledger.IsInSpace(s.state.Space.Ledger.UnitRange(a))
}

// FreeRanges yields the free ranges, ascending.
func (s *Snapshot) FreeRanges() iter.Seq[netipx.IPRange] { return s.state.Space.Ledger.FreeRanges() }

// CoolingGroups returns the ranges that rest after a release, by the time at which the rest ends.
func (s *Snapshot) CoolingGroups() []v1alpha1.CoolingGroup { return s.state.Cooling.Periods.Groups() }

// FindPlacement returns where an IPAllocation of n addresses would be placed, or one claim for n = 1; false means
// nowhere. It takes nothing.
func (s *Snapshot) FindPlacement(n int64) (netipx.IPRange, bool) {
	take := func() (netipx.IPRange, bool) { return s.state.Space.Ledger.TakeBlock(uint64(n)) }
	switch {
	case n < 1:
		return netipx.IPRange{}, false
	case n == 1:
		take = s.state.Space.Ledger.TakeUnit
	}
	r, ok := take()
	if ok {
		s.state.Space.Ledger.UndoTake(r)
	}
	return r, ok
}

// FreeByFailureDomain returns the failure domains that subnets of the pool serve, each with how much is free for it;
// none, where no subnet names one. The first entry has no name: it counts what is free for all others.
func (s *Snapshot) FreeByFailureDomain() (out []FailureDomainFree) {
	if !s.state.Space.HasZones() {
		return nil
	}
	for _, domain := range append([]string{""}, s.state.Space.Layout.FailureDomains()...) {
		zones, _ := s.state.Space.Layout.ZonesForFailureDomain(domain)
		in := FailureDomainFree{FailureDomain: domain}
		for _, z := range zones {
			in.Free += s.state.Space.Ledger.FreeCountInZone(z)
		}
		out = append(out, in)
	}
	return out
}

// FailureDomainFree is how many addresses, or prefixes, are free for a failure domain.
type FailureDomainFree struct {
	FailureDomain string `json:"failureDomain,omitempty"`
	Free          int64  `json:"free"`
}

// WaitingCount returns the number of claims and IPAllocations that wait for a grant.
func (s *Snapshot) WaitingCount() int { return s.state.Queues.Waiting.Len() }

// WaitingClaimants returns the claims and IPAllocations that wait for a grant, in the order of the allocator.
func (s *Snapshot) WaitingClaimants() (out []string) {
	s.state.Queues.Waiting.Scan(func(c *grants.Claimant) bool {
		out = append(out, fmt.Sprintf("%s %s", c.Owner.Kind, grants.NamespacedNameFromOwner(c.Owner)))
		return true
	})
	return out
}

// PlanGrants returns what each waiting claim and IPAllocation would get now, in the order of the allocator. Granted
// ranges are taken out of the Snapshot. Clusters, Namespaces and the owners that lead to Machines are read from a
// client. The quota of Clusters is not checked: it covers all pools.
func (s *Snapshot) PlanGrants(ctx context.Context, from client.Client, now time.Time) map[types.UID]PlannedGrant {
	waiting := map[types.UID]*grants.Claimant{}
	s.state.Queues.Waiting.Scan(func(c *grants.Claimant) bool {
		waiting[c.Owner.UID] = c
		return true
	})
	a := New(Options{Client: from, FindMachine: (&failuredomain.Finder{Live: from}).FindMachine})
	for range len(waiting)/grants.MaxMachineLookups + 1 {
		a.machines.findMachinesAndWait(ctx, grants.NewPool(s.state), now)
	}
	_, refused := s.state.Planner.PlanGrants(now, len(waiting), a.admission.admissionRules(ctx, s.state, now))
	out := map[types.UID]PlannedGrant{}
	for uid, c := range waiting {
		answer := PlannedGrant{Reason: c.PublishedRefusal().Reason, Message: c.PublishedRefusal().Message}
		if refusal := refused[c]; refusal != nil {
			answer = PlannedGrant{Reason: refusal.Reason, Message: refusal.Message}
		}
		if g := s.state.Grants.ByClaimant[uid]; g != nil {
			answer = PlannedGrant{Range: g.Range}
		}
		out[uid] = answer
	}
	return out
}
