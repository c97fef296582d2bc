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
	Kind      string   `json:"kind"`
	Namespace string   `json:"namespace,omitempty"`
	Name      string   `json:"name"`
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

// Pools describes pools: by namespace, global ones last, then by name.
func Pools(all []v1alpha1.Pool) []Pool {
	out := make([]Pool, 0, len(all))
	for _, obj := range all {
		out = append(out, poolOf(obj))
	}
	slices.SortFunc(out, func(a, b Pool) int {
		global := func(p Pool) int { return min(len(p.Namespace), 1) }
		return cmp.Or(global(b)-global(a), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	return out
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
