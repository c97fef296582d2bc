package page

import (
	"net/http"
	"strings"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/grants"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/poolutil"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/usage"
)

// pool is a line of the list of pools.
type pool struct {
	ID          string `json:"id"`
	Kind        string `json:"kind"`
	Namespace   string `json:"namespace,omitempty"`
	Name        string `json:"name"`
	Parent      string `json:"parent,omitempty"`
	Addresses   string `json:"addresses"`
	Prefixes    int    `json:"prefixes,omitempty"`
	Total       int64  `json:"total"`
	Used        int64  `json:"used"`
	Available   int64  `json:"available"`
	OutOfRange  int64  `json:"outOfRange,omitempty"`
	Owners      int64  `json:"owners"`
	LargestFree int64  `json:"largestFree"`
	Fragmented  int32  `json:"fragmented"`
	Waiting     int    `json:"waiting,omitempty"`
	Leases      int    `json:"leases,omitempty"`
	GivesLeases bool   `json:"givesLeases,omitempty"`
	LeaseQuota  *int32 `json:"leaseQuota,omitempty"`
	// Grade is how bad the pool is, Full how bad it is that so much of it is used. IsParent: others are carved from it.
	Grade        grade  `json:"grade,omitempty"`
	Full         grade  `json:"full,omitempty"`
	IsParent     bool   `json:"isParent,omitempty"`
	Holder       bool   `json:"holder"`
	Ready        string `json:"ready"`
	ReadyReason  string `json:"readyReason,omitempty"`
	ReadyMessage string `json:"readyMessage,omitempty"`
}

// idOf names a pool in a URL.
func idOf(k pools.Key) string { return k.Kind + "/" + k.Namespace + "/" + k.Name }

// pools lists all of them.
func (p *Page) pools(*http.Request) (any, error) {
	out := struct {
		Elected bool   `json:"elected"`
		Pools   []pool `json:"pools"`
	}{Elected: p.elected(), Pools: []pool{}}
	views := p.Pools.Views()
	parents := parentsAmong(views)
	for _, v := range views {
		out.Pools = append(out.Pools, lineOf(v, parents[v.Key]))
	}
	return out, nil
}

func (p *Page) elected() bool {
	select {
	case <-p.Elected:
		return true
	default:
		return false
	}
}

func lineOf(v grants.View, isParent bool) pool {
	out := pool{
		ID: idOf(v.Key), Kind: v.Key.Kind, Namespace: v.Key.Namespace, Name: v.Key.Name,
		Total: v.Counts.Total, Used: v.Counts.Allocated, Available: v.Counts.Available, OutOfRange: v.Counts.OutOfRange,
		Owners: v.Counts.Owners, LargestFree: v.Counts.LargestFree, Fragmented: v.Counts.FragmentationPercent,
		Waiting: v.Waiting, Leases: v.Leases, GivesLeases: v.GivesLeases, LeaseQuota: v.LeaseQuota, Holder: v.Holder,
		Grade: gradeOf(v, isParent), Full: fullness(v, isParent), IsParent: isParent,
		Ready: string(v.Ready.Status), ReadyReason: v.Ready.Reason, ReadyMessage: v.Ready.Message,
	}
	if v.Parent != (pools.Key{}) {
		out.Parent = idOf(v.Parent)
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

// usage is how full the pools were: of one of them everything that is known, of all of them enough for a small
// picture of each.
func (p *Page) usage(r *http.Request) (any, error) {
	type history struct {
		Since int64              `json:"since"`
		Until int64              `json:"until"`
		Pools map[string][]int64 `json:"pools"`
	}
	since, until := p.History.Span()
	out := history{Since: since.Unix(), Until: until.Unix(), Pools: map[string][]int64{}}
	if r.URL.Query().Has("pool") {
		v, err := p.view(r)
		if err != nil {
			return nil, err
		}
		out.Pools[idOf(v.Key)] = flat(p.History.Of(v.Key))
		return out, nil
	}
	for _, v := range p.Pools.Views() {
		const enough = 96
		out.Pools[idOf(v.Key)] = flat(thinned(p.History.Of(v.Key), enough))
	}
	return out, nil
}

// flat writes samples as time, used, total, time, and so on.
func flat(samples []usage.Sample) []int64 {
	out := make([]int64, 0, 3*len(samples))
	for _, s := range samples {
		out = append(out, s.At, s.Used, s.Total)
	}
	return out
}

// thinned leaves at most n samples, the last among them.
func thinned(samples []usage.Sample, n int) []usage.Sample {
	if len(samples) <= n {
		return samples
	}
	out := make([]usage.Sample, 0, n)
	for i := range n {
		out = append(out, samples[(i+1)*len(samples)/n-1])
	}
	return out
}

// view finds the pool that a request names.
func (p *Page) view(r *http.Request) (grants.View, error) {
	id := r.URL.Query().Get("pool")
	for _, v := range p.Pools.Views() {
		if idOf(v.Key) == id {
			return v, nil
		}
	}
	return grants.View{}, problem{http.StatusNotFound, "there is no such pool, or this manager does not know it"}
}
