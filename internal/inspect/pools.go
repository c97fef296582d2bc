package inspect

import (
	"cmp"
	"slices"

	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"
)

// PoolRow is the row of a pool in a table.
type PoolRow struct {
	Kind      string `json:"kind"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name"`
	// Parent is the pool that it is carved from; Level counts its ancestors among the rows.
	Parent    string   `json:"parent,omitempty"`
	Level     int      `json:"-"`
	Addresses []string `json:"addresses"`
	// Total, Used, Free and LargestFree are those of the status. They count addresses, or prefixes.
	Total       int64 `json:"total"`
	Used        int64 `json:"used"`
	Free        int64 `json:"free"`
	LargestFree int64 `json:"largestFreeBlock"`
	UsedPercent int   `json:"usedPercent"`
	// Ready is the status of the condition Ready; Unknown where no manager has reconciled the pool.
	Ready   string `json:"ready"`
	Reason  string `json:"reason,omitempty"`
	Message string `json:"message,omitempty"`
}

// DescribePools returns a row for each pool, sorted by namespace and name, global pools last, and carved pools below
// their parent.
func DescribePools(all []v1alpha1.Pool) []PoolRow {
	out := make([]PoolRow, 0, len(all))
	for _, obj := range all {
		out = append(out, newPoolRow(obj))
	}
	slices.SortFunc(out, func(a, b PoolRow) int {
		global := func(p PoolRow) int { return min(len(p.Namespace), 1) }
		return cmp.Or(global(b)-global(a), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	return nestChildPools(out)
}

// nestChildPools moves carved pools below their parents. A pool whose parent is not in the list keeps its place.
func nestChildPools(all []PoolRow) []PoolRow {
	below, known := map[string][]PoolRow{}, map[string]bool{}
	for _, p := range all {
		known[p.key()] = true
		below[p.Parent] = append(below[p.Parent], p)
	}
	out := make([]PoolRow, 0, len(all))
	var add func(p PoolRow, level int)
	add = func(p PoolRow, level int) {
		p.Level = level
		out = append(out, p)
		for _, child := range below[p.key()] {
			add(child, level+1)
		}
	}
	for _, p := range all {
		if !known[p.Parent] {
			add(p, 0)
		}
	}
	return append(out, unlistedPools(all, out)...) // pools that are carved from each other, in a cycle
}

// unlistedPools returns the pools of all that are not in shown.
func unlistedPools(all, shown []PoolRow) (out []PoolRow) {
	for _, p := range all {
		if !slices.ContainsFunc(shown, func(s PoolRow) bool { return s.key() == p.key() }) {
			out = append(out, p)
		}
	}
	return out
}

func (p PoolRow) key() string {
	return pools.Key{Kind: p.Kind, Namespace: p.Namespace, Name: p.Name}.String()
}

func newPoolRow(obj v1alpha1.Pool) PoolRow {
	key, spec, s := pools.KeyForPool(obj), obj.PoolSpec(), obj.PoolStatus()
	p := PoolRow{
		Kind: key.Kind, Namespace: key.Namespace, Name: key.Name, Addresses: []string{},
		Total: s.TotalIPs, Used: s.AllocatedIPs, Free: s.AvailableIPs, LargestFree: s.LargestFreeBlock,
		UsedPercent: usedPercent(s.AllocatedIPs, s.TotalIPs), Ready: "Unknown",
	}
	if spec.CIDR != "" {
		p.Addresses = append(p.Addresses, spec.CIDR)
	}
	p.Addresses = append(p.Addresses, spec.Addresses...)
	if parent, carved := pools.ParentPoolKey(obj); carved {
		p.Parent = parent.String()
	}
	for _, b := range s.Blocks {
		p.Addresses = append(p.Addresses, b.Range)
	}
	if c := meta.FindStatusCondition(s.Conditions, v1alpha1.ReadyCondition); c != nil {
		p.Ready, p.Reason, p.Message = string(c.Status), c.Reason, c.Message
	}
	return p
}

// usedPercent returns a share in percent. A share above 0 is at least 1, and one below the whole is at most 99.
func usedPercent(part, whole int64) int {
	switch {
	case whole <= 0 || part <= 0:
		return 0
	case part >= whole:
		return 100
	}
	return min(max(int(100*(float64(part)/float64(whole))), 1), 99)
}
