// Package fleet has pools to show on a page, without a manager behind them.
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

// Noon is when all of it was created.
var Noon = time.Date(2026, 11, 2, 12, 0, 0, 0, time.UTC)

// Pool is a pool as the page sees it.
type Pool struct {
	grants.View
	Taken   []grants.Entry
	Waiters []grants.Waiter
	Samples []usage.Sample
}

// MakePool returns a pool that is ready. The namespace is empty for a global one.
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
		p.GivesLeases, p.LeaseQuota = true, spec.Leases.QuotaPerNamespace
	}
	p.Ready = metav1.Condition{Status: metav1.ConditionTrue, Reason: v1alpha1.ReadyReason}
	return p
}

// Take has a range taken. What is taken later must have higher addresses.
func (p *Pool) Take(text string, h grants.Entry) *Pool {
	r, err := poolutil.ParseRange(text)
	if err != nil {
		panic(err)
	}
	return p.TakeRange(r, h)
}

// TakeRange is Take of a range.
func (p *Pool) TakeRange(r netipx.IPRange, h grants.Entry) *Pool {
	h.Range = r
	if h.Kind == "" && h.Use == grants.UseClaim {
		h.Kind = "IPAddressClaim"
	}
	if h.Since.IsZero() && h.Use <= grants.UseConflict {
		h.Since = Noon
	}
	p.Taken = append(p.Taken, h)
	n := poolutil.CountPrefixes(r, min(p.UnitBits, r.From().BitLen())).Int64()
	p.Counts.Available -= n
	if h.Use <= grants.UseConflict {
		p.Counts.Allocated += n
		p.Counts.Owners++
	}
	p.lease(h.Kind)
	return p
}

func (p *Pool) lease(kind string) {
	if kind == v1alpha1.IPLeaseKind {
		p.Leases++
	}
}

// Refuse makes the pool not ready.
func (p *Pool) Refuse(reason, message string) *Pool {
	p.Ready = metav1.Condition{Status: metav1.ConditionFalse, Reason: reason, Message: message}
	return p
}

// Wait has somebody wait.
func (p *Pool) Wait(w grants.Waiter) *Pool {
	p.Waiters = append(p.Waiters, w)
	p.Waiting++
	p.lease(w.Kind)
	return p
}

// Pools are what a page shows: it implements the interfaces of package page.
type Pools []*Pool

// Views implements page.Pools.
func (ps Pools) Views() []grants.View {
	out := make([]grants.View, 0, len(ps))
	for _, p := range ps {
		out = append(out, p.View)
	}
	return out
}

func (ps Pools) pool(key pools.Key) *Pool {
	if i := slices.IndexFunc(ps, func(p *Pool) bool { return p.Key == key }); i >= 0 {
		return ps[i]
	}
	return &Pool{}
}

// Walk implements page.Pools.
func (ps Pools) Walk(key pools.Key, from netip.Addr, visit func(grants.Entry) bool) {
	taken := ps.pool(key).Taken
	i := sort.Search(len(taken), func(i int) bool { return !taken[i].Range.To().Less(from) })
	for _, h := range taken[i:] {
		if !visit(h) {
			return
		}
	}
}

// Waiting implements page.Pools.
func (ps Pools) Waiting(key pools.Key, visit func(grants.Waiter) bool) {
	for _, w := range ps.pool(key).Waiters {
		if !visit(w) {
			return
		}
	}
}

// Span implements page.History.
func (ps Pools) Span() (since, until time.Time) { return Noon.Add(-18 * time.Hour), Noon }

// Of implements page.History.
func (ps Pools) Of(key pools.Key) []usage.Sample { return ps.pool(key).Samples }

// Claim is the address of a claim.
func Claim(namespace, name string) grants.Entry {
	return grants.Entry{Use: grants.UseClaim, Namespace: namespace, Name: name}
}
