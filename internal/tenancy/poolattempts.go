package tenancy

import (
	"cmp"
	"encoding/json"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
)

// PoolAttempt is a request to a pool, for a block of a Cluster or for a lease, that the pool did not satisfy. It is an
// entry of the tried-pools annotation of the Cluster or the IPLease.
type PoolAttempt struct {
	// Pool is the pool that was asked.
	Pool v1alpha1.PoolReference `json:"pool"`
	// Count is the number of addresses that it was asked for. An initial block ignores attempts with another count.
	Count int32 `json:"count,omitempty"`
	// Reason is the reason of the Ready condition of the allocation that failed.
	Reason string `json:"reason,omitempty"`
	// Fingerprint is the state of the pool at that time, for a lease.
	Fingerprint string `json:"was,omitempty"`
}

// UnmarshalJSON accepts entries of leases of earlier releases too, which have the kind and the name of the pool inline.
func (a *PoolAttempt) UnmarshalJSON(text []byte) error {
	type attempt PoolAttempt
	var parsed struct {
		v1alpha1.PoolReference
		attempt
	}
	err := json.Unmarshal(text, &parsed)
	*a = PoolAttempt(parsed.attempt)
	a.Pool = withDefaultKind(cmp.Or(a.Pool, parsed.PoolReference))
	return err
}

// isRefusal reports whether the pool refused for a reason other than a lack of room. Such a pool is not asked again
// when it has room.
func (a PoolAttempt) isRefusal() bool { return a.Reason == v1alpha1.AllocationFailedReason }

// FormatAttempts returns the value of the tried-pools annotation, empty for no attempts. A Cluster has them because the
// allocation that failed is gone before the next one can use its name; a lease has those of the leases it replaces.
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

// WithAttempt returns a copy of tried with the attempt added, or replacing an earlier one at the same pool.
func WithAttempt(tried []PoolAttempt, a PoolAttempt) []PoolAttempt {
	out := slices.Clone(tried)
	if i := slices.IndexFunc(out, func(b PoolAttempt) bool { return b.Pool == a.Pool }); i >= 0 {
		out[i] = a
		return out
	}
	return append(out, a)
}
