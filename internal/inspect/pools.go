package inspect

import (
	"cmp"
	"slices"

	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"
)

// Pool is what a table of pools says of one.
type Pool struct {
	Kind      string `json:"kind"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name"`
	// Parent is the pool that it is carved from, Level how many pools it is below of those that are shown.
	Parent    string   `json:"parent,omitempty"`
	Level     int      `json:"-"`
	Addresses []string `json:"addresses"`
	// Total, Used, Free and LargestFree are those of the status: of addresses, or of prefixes.
	Total       int64 `json:"total"`
	Used        int64 `json:"used"`
	Free        int64 `json:"free"`
	LargestFree int64 `json:"largestFreeBlock"`
	UsedPercent int   `json:"usedPercent"`
	// Ready is the status of the condition, Unknown where no manager has looked at the pool.
	Ready   string `json:"ready"`
	Reason  string `json:"reason,omitempty"`
	Message string `json:"message,omitempty"`
}

// Pools describes pools: by namespace, global ones last, then by name, and those that are carved from one below it.
func Pools(all []v1alpha1.Pool) []Pool {
	out := make([]Pool, 0, len(all))
	for _, obj := range all {
		out = append(out, poolOf(obj))
	}
	slices.SortFunc(out, func(a, b Pool) int {
		global := func(p Pool) int { return min(len(p.Namespace), 1) }
		return cmp.Or(global(b)-global(a), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	return tree(out)
}

// tree puts carved pools below those that they are carved from. A pool whose parent is not there stays where it is.
func tree(all []Pool) []Pool {
	below, known := map[string][]Pool{}, map[string]bool{}
	for _, p := range all {
		known[p.key()] = true
		below[p.Parent] = append(below[p.Parent], p)
	}
	out := make([]Pool, 0, len(all))
	var add func(p Pool, level int)
	add = func(p Pool, level int) {
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
	return append(out, missing(all, out)...) // those that are carved from each other, in a circle
}

// missing are the pools that are not shown yet.
func missing(all, shown []Pool) (out []Pool) {
	for _, p := range all {
		if !slices.ContainsFunc(shown, func(s Pool) bool { return s.key() == p.key() }) {
			out = append(out, p)
		}
	}
	return out
}

func (p Pool) key() string {
	return pools.Key{Kind: p.Kind, Namespace: p.Namespace, Name: p.Name}.String()
}

func poolOf(obj v1alpha1.Pool) Pool {
	key, spec, s := pools.KeyOf(obj), obj.PoolSpec(), obj.PoolStatus()
	p := Pool{
		Kind: key.Kind, Namespace: key.Namespace, Name: key.Name, Addresses: []string{},
		Total: s.TotalIPs, Used: s.AllocatedIPs, Free: s.AvailableIPs, LargestFree: s.LargestFreeBlock,
		UsedPercent: percent(s.AllocatedIPs, s.TotalIPs), Ready: "Unknown",
	}
	if spec.CIDR != "" {
		p.Addresses = append(p.Addresses, spec.CIDR)
	}
	p.Addresses = append(p.Addresses, spec.Addresses...)
	if parent, carved := pools.ParentOf(obj); carved {
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

// percent is a share in percent, never 0 of something and never 100 of less than all.
func percent(part, whole int64) int {
	switch {
	case whole <= 0 || part <= 0:
		return 0
	case part >= whole:
		return 100
	}
	return min(max(int(100*(float64(part)/float64(whole))), 1), 99)
}
