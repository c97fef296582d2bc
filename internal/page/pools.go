package page

import (
	"net/http"
	"strings"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/grants"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/poolutil"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/usage"
)

// poolRow is a row of the list of pools.
type poolRow struct {
	ID                   string `json:"id"`
	Kind                 string `json:"kind"`
	Namespace            string `json:"namespace,omitempty"`
	Name                 string `json:"name"`
	Parent               string `json:"parent,omitempty"`
	Addresses            string `json:"addresses"`
	Prefixes             int    `json:"prefixes,omitempty"`
	Total                int64  `json:"total"`
	Used                 int64  `json:"used"`
	Available            int64  `json:"available"`
	OutOfRange           int64  `json:"outOfRange,omitempty"`
	Owners               int64  `json:"owners"`
	LargestFree          int64  `json:"largestFree"`
	FragmentationPercent int32  `json:"fragmented"`
	Waiting              int    `json:"waiting,omitempty"`
	Leases               int    `json:"leases,omitempty"`
	GivesLeases          bool   `json:"givesLeases,omitempty"`
	LeaseQuota           *int32 `json:"leaseQuota,omitempty"`
	// Severity is the severity of the pool's problems, UsageSeverity that of its usage. IsParent reports whether others
	// are carved from it.
	Severity      severity `json:"grade,omitempty"`
	UsageSeverity severity `json:"full,omitempty"`
	IsParent      bool     `json:"isParent,omitempty"`
	IsHolder      bool     `json:"holder"`
	Ready         string   `json:"ready"`
	ReadyReason   string   `json:"readyReason,omitempty"`
	ReadyMessage  string   `json:"readyMessage,omitempty"`
}

// poolID identifies a pool in a URL.
func poolID(k pools.Key) string { return k.Kind + "/" + k.Namespace + "/" + k.Name }

// handlePools returns all pools.
func (p *Page) handlePools(*http.Request) (any, error) {
	out := struct {
		Elected bool      `json:"elected"`
		Pools   []poolRow `json:"pools"`
	}{Elected: p.isElected(), Pools: []poolRow{}}
	views := p.Pools.PoolViews()
	parents := parentPools(views)
	for _, v := range views {
		out.Pools = append(out.Pools, newPoolRow(v, parents[v.Key]))
	}
	return out, nil
}

func (p *Page) isElected() bool {
	select {
	case <-p.Elected:
		return true
	default:
		return false
	}
}

func newPoolRow(v grants.PoolView, isParent bool) poolRow {
	out := poolRow{
		ID: poolID(v.Key), Kind: v.Key.Kind, Namespace: v.Key.Namespace, Name: v.Key.Name,
		Total: v.Counts.Total, Used: v.Counts.Allocated, Available: v.Counts.Available, OutOfRange: v.Counts.OutOfRange,
		Owners: v.Counts.Owners, LargestFree: v.Counts.LargestFree, FragmentationPercent: v.Counts.FragmentationPercent,
		Waiting: v.WaitingCount, Leases: v.LeaseCount, GivesLeases: v.LeasesEnabled, LeaseQuota: v.LeaseQuota, IsHolder: v.Holder,
		Severity: poolSeverity(v, isParent), UsageSeverity: usageSeverity(v, isParent), IsParent: isParent,
		Ready: string(v.ReadyCondition.Status), ReadyReason: v.ReadyCondition.Reason, ReadyMessage: v.ReadyCondition.Message,
	}
	if v.ParentKey != (pools.Key{}) {
		out.Parent = poolID(v.ParentKey)
	}
	if v.Declared == nil {
		return out
	}
	const shown = 3
	var texts []string
	ranges := v.Declared.Ranges()
	for i, r := range ranges {
		if i == shown && len(ranges) > shown+1 {
			texts = append(texts, "…")
			break
		}
		texts = append(texts, poolutil.ShowRange(r))
	}
	out.Addresses = strings.Join(texts, ", ")
	if len(ranges) > 0 && v.UnitBits < ranges[0].From().BitLen() {
		out.Prefixes = v.UnitBits
	}
	return out
}

// handleUsage returns the past usage of the pools: of a single pool all samples, of all pools as many as a small chart
// of each needs.
func (p *Page) handleUsage(r *http.Request) (any, error) {
	type history struct {
		Since int64              `json:"since"`
		Until int64              `json:"until"`
		Pools map[string][]int64 `json:"pools"`
	}
	since, until := p.History.TimeSpan()
	out := history{Since: since.Unix(), Until: until.Unix(), Pools: map[string][]int64{}}
	if r.URL.Query().Has("pool") {
		v, err := p.viewFromRequest(r)
		if err != nil {
			return nil, err
		}
		out.Pools[poolID(v.Key)] = flattenSamples(p.History.SamplesForPool(v.Key))
		return out, nil
	}
	for _, v := range p.Pools.PoolViews() {
		const enough = 96
		out.Pools[poolID(v.Key)] = flattenSamples(thinSamples(p.History.SamplesForPool(v.Key), enough))
	}
	return out, nil
}

// flattenSamples encodes samples as time, used, total, time, and so on.
func flattenSamples(samples []usage.Sample) []int64 {
	out := make([]int64, 0, 3*len(samples))
	for _, s := range samples {
		out = append(out, s.UnixSeconds, s.Used, s.Total)
	}
	return out
}

// thinSamples returns at most n of the samples, including the last.
func thinSamples(samples []usage.Sample, n int) []usage.Sample {
	if len(samples) <= n {
		return samples
	}
	out := make([]usage.Sample, 0, n)
	for i := range n {
		out = append(out, samples[(i+1)*len(samples)/n-1])
	}
	return out
}

// viewFromRequest returns the pool that a request names.
func (p *Page) viewFromRequest(r *http.Request) (grants.PoolView, error) {
	id := r.URL.Query().Get("pool")
	for _, v := range p.Pools.PoolViews() {
		if poolID(v.Key) == id {
			return v, nil
		}
	}
	return grants.PoolView{}, requestError{http.StatusNotFound, "there is no such pool, or this manager does not know it"}
}
