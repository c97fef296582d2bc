package tenancy

import (
	"encoding/json"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
)

// Attempt is a pool that was asked for a Cluster's block and did not have it.
type Attempt struct {
	// Pool that was asked.
	Pool v1alpha1.PoolReference `json:"pool"`
	// Count of addresses it was asked for. What it said of another count is worth nothing.
	Count int32 `json:"count"`
	// Reason of the Ready condition of the allocation that failed.
	Reason string `json:"reason"`
}

// refused reports whether the pool said no for another reason than want of room: that it has room is
// no reason to ask it again.
func (a Attempt) refused() bool { return a.Reason == v1alpha1.AllocationFailedReason }

// FormatTried is the value of the tried-pools annotation of a Cluster; empty where nothing was tried. It is
// kept on the Cluster because the allocation that failed is gone before the next one can have its name.
func FormatTried(tried []Attempt) string {
	if len(tried) == 0 {
		return ""
	}
	text, err := json.Marshal(tried)
	if err != nil {
		panic(err) // Plain text always marshals.
	}
	return string(text)
}

// ParseTried reads the tried-pools annotation. What cannot be read counts as nothing tried: then pools are
// asked once more than needed, which costs nobody an address.
func ParseTried(text string) []Attempt {
	var tried []Attempt
	if json.Unmarshal([]byte(text), &tried) != nil {
		return nil
	}
	for i := range tried {
		tried[i].Pool = withKind(tried[i].Pool)
	}
	return tried
}

// SetTried sets an annotation of a Cluster to the pools that had nothing for it. It reports whether that is new.
func SetTried(cluster metav1.Object, annotation string, tried []Attempt) bool {
	text, all := FormatTried(tried), cluster.GetAnnotations()
	if all[annotation] == text {
		return false
	}
	if all == nil {
		all = map[string]string{}
	}
	if all[annotation] = text; text == "" {
		delete(all, annotation)
	}
	cluster.SetAnnotations(all)
	return true
}

// record adds an attempt, or puts it in the place of an earlier one of the same pool.
func record(tried []Attempt, a Attempt) []Attempt {
	out := slices.Clone(tried)
	if i := slices.IndexFunc(out, func(b Attempt) bool { return b.Pool == a.Pool }); i >= 0 {
		out[i] = a
		return out
	}
	return append(out, a)
}
