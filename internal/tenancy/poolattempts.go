package tenancy

import (
	"encoding/json"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
)

// PoolAttempt is a request to a pool for a block of a Cluster that the pool did not satisfy.
type PoolAttempt struct {
	// Pool is the pool that was asked.
	Pool v1alpha1.PoolReference `json:"pool"`
	// Count is the number of addresses that it was asked for. An initial block ignores attempts with another count.
	Count int32 `json:"count"`
	// Reason is the reason of the Ready condition of the allocation that failed.
	Reason string `json:"reason"`
}

// isRefusal reports whether the pool refused for a reason other than a lack of room. Such a pool is not asked again
// when it has room.
func (a PoolAttempt) isRefusal() bool { return a.Reason == v1alpha1.AllocationFailedReason }

// FormatAttempts returns the value of the tried-pools annotation of a Cluster, empty for no attempts. The attempts
// are kept on the Cluster because the allocation that failed is gone before the next one can use its name.
func FormatAttempts(tried []PoolAttempt) string {
	if len(tried) == 0 {
		return ""
	}
	text, err := json.Marshal(tried)
	if err != nil {
		panic(err) // Marshaling plain strings and numbers does not fail.
	}
	return string(text)
}

// ParseAttempts parses the tried-pools annotation. A value that cannot be parsed counts as no attempts: pools are
// then asked once more than needed, which costs no addresses.
func ParseAttempts(text string) []PoolAttempt {
	var tried []PoolAttempt
	if json.Unmarshal([]byte(text), &tried) != nil {
		return nil
	}
	for i := range tried {
		tried[i].Pool = withDefaultKind(tried[i].Pool)
	}
	return tried
}

// SetAttemptsAnnotation sets an annotation of a Cluster to the failed attempts, and reports whether that changed the
// object.
func SetAttemptsAnnotation(cluster metav1.Object, annotation string, tried []PoolAttempt) bool {
	text, all := FormatAttempts(tried), cluster.GetAnnotations()
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

// withAttempt returns a copy of tried with the attempt added, or replacing an earlier one at the same pool.
func withAttempt(tried []PoolAttempt, a PoolAttempt) []PoolAttempt {
	out := slices.Clone(tried)
	if i := slices.IndexFunc(out, func(b PoolAttempt) bool { return b.Pool == a.Pool }); i >= 0 {
		out[i] = a
		return out
	}
	return append(out, a)
}
