// Package fleet provides pools to show on a page, without a manager behind them.
package fleet

import (
	"net/netip"
	"slices"
	"sort"
	"time"

	"go4.org/netipx"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/grants"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/poolspec"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/poolutil"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/usage"
)

// Noon is the time of the latest state, and the default creation time of objects.
var Noon = time.Date(2026, 11, 2, 12, 0, 0, 0, time.UTC)

// Pool is a pool as the page reads it.
type Pool struct {
	grants.PoolView
	Entries []grants.TakenRange
	Waiters []grants.WaitingClaimant
	Samples []usage.Sample
}

// MakePool returns a pool that is ready. The namespace of a GlobalNetworkPool is empty.
func MakePool(namespace, name string, spec v1alpha1.NetworkPoolSpec) *Pool {
	layout, errs := poolspec.Compile(&spec)
	if len(errs) > 0 {
		panic(errs.ToAggregate())
	}
	p := &Pool{}
	p.Key = pools.Key{Kind: v1alpha1.NetworkPoolKind, Namespace: namespace, Name: name}
	if namespace == "" {
		p.Key.Kind = v1alpha1.GlobalNetworkPoolKind
	}
	p.Declared, p.Allocatable, p.UnitBits, p.Gateways = layout.Declared(), layout.Allocatable(), layout.UnitBits(), layout.Gateways()
	for _, r := range p.Allocatable.Ranges() {
		p.Counts.Total += poolutil.CountPrefixes(r, p.UnitBits).Int64()
	}
	p.Counts.Available, p.Counts.LargestFree = p.Counts.Total, p.Counts.Total
	p.Holder = true
	if spec.Leases != nil {
		p.LeasesEnabled, p.LeaseQuota = true, spec.Leases.QuotaPerNamespace
	}
	p.ReadyCondition = metav1.Condition{Status: metav1.ConditionTrue, Reason: v1alpha1.ReadyReason}
	return p
}

// AddEntry adds a taken range, given as text. Ranges must be added in the order of their addresses.
func (p *Pool) AddEntry(text string, h grants.TakenRange) *Pool {
	r, err := poolutil.ParseRange(text)
	if err != nil {
		panic(err)
	}
	return p.AddRangeEntry(r, h)
}

// AddRangeEntry is AddEntry for a parsed range.
func (p *Pool) AddRangeEntry(r netipx.IPRange, h grants.TakenRange) *Pool {
	h.Range = r
	if h.Kind == "" && h.Use == grants.UseClaim {
		h.Kind = "IPAddressClaim"
	}
	if h.Since.IsZero() && h.Use <= grants.UseConflict {
		h.Since = Noon
	}
	p.Entries = append(p.Entries, h)
	n := poolutil.CountPrefixes(r, min(p.UnitBits, r.From().BitLen())).Int64()
	p.Counts.Available -= n
	if h.Use <= grants.UseConflict {
		p.Counts.Allocated += n
		p.Counts.Owners++
	}
	p.countLease(h.Kind)
	return p
}

func (p *Pool) countLease(kind string) {
	if kind == v1alpha1.IPLeaseKind {
		p.LeaseCount++
	}
}

// MarkNotReady sets the condition Ready of the pool to False.
func (p *Pool) MarkNotReady(reason, message string) *Pool {
	p.ReadyCondition = metav1.Condition{Status: metav1.ConditionFalse, Reason: reason, Message: message}
	return p
}

// AddWaiter adds a claimant that waits.
func (p *Pool) AddWaiter(w grants.WaitingClaimant) *Pool {
	p.Waiters = append(p.Waiters, w)
	p.WaitingCount++
	p.countLease(w.Kind)
	return p
}

// Pools is a set of pools to show: it implements the interfaces of package page.
type Pools []*Pool

// PoolViews implements page.Pools.
func (ps Pools) PoolViews() []grants.PoolView {
	out := make([]grants.PoolView, 0, len(ps))
	for _, p := range ps {
		out = append(out, p.PoolView)
	}
	return out
}

func (ps Pools) findPool(key pools.Key) *Pool {
	if i := slices.IndexFunc(ps, func(p *Pool) bool { return p.Key == key }); i >= 0 {
		return ps[i]
	}
	return &Pool{}
}

// WalkEntries implements page.Pools.
func (ps Pools) WalkEntries(key pools.Key, from netip.Addr, visit func(grants.TakenRange) bool) {
	taken := ps.findPool(key).Entries
	i := sort.Search(len(taken), func(i int) bool { return !taken[i].Range.To().Less(from) })
	for _, h := range taken[i:] {
		if !visit(h) {
			return
		}
	}
}

// WalkWaiters implements page.Pools.
func (ps Pools) WalkWaiters(key pools.Key, visit func(grants.WaitingClaimant) bool) {
	for _, w := range ps.findPool(key).Waiters {
		if !visit(w) {
			return
		}
	}
}

// TimeSpan implements page.History.
func (ps Pools) TimeSpan() (since, until time.Time) { return Noon.Add(-18 * time.Hour), Noon }

// SamplesForPool implements page.History.
func (ps Pools) SamplesForPool(key pools.Key) []usage.Sample { return ps.findPool(key).Samples }

// ClaimEntry returns the entry of an address that a claim has.
func ClaimEntry(namespace, name string) grants.TakenRange {
	return grants.TakenRange{Use: grants.UseClaim, Namespace: namespace, Name: name}
}
