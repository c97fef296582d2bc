package inspect

import (
	"cmp"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"
)

// WaitingClaimant is a claimant without a grant.
type WaitingClaimant struct {
	Kind      string `json:"kind"`
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// Pool is the pool that it names, as in "NetworkPool ns/p".
	Pool string `json:"pool"`
	// Since is the creation time.
	Since time.Time `json:"since"`
	// Reason and Message are those of its condition; empty where no manager has written one.
	Reason  string `json:"reason,omitempty"`
	Message string `json:"message,omitempty"`
}

// ListWaiting lists the claimants that wait for a pool of this provider, the oldest first.
func ListWaiting(o pools.Objects) []WaitingClaimant {
	out := []WaitingClaimant{}
	add := func(kind string, obj metav1.Object, pool pools.Key, conditions []metav1.Condition) {
		ready := meta.FindStatusCondition(conditions, v1alpha1.ReadyCondition)
		if obj.GetDeletionTimestamp() != nil || ready != nil && ready.Status == metav1.ConditionTrue {
			return
		}
		w := WaitingClaimant{Kind: kind, Namespace: obj.GetNamespace(), Name: obj.GetName(), Pool: pool.String(), Since: obj.GetCreationTimestamp().Time}
		if paused := meta.FindStatusCondition(conditions, clusterv1.PausedCondition); paused != nil && paused.Status == metav1.ConditionTrue {
			ready = paused
		}
		if ready != nil {
			w.Reason, w.Message = ready.Reason, ready.Message
		}
		out = append(out, w)
	}
	there := map[pools.Key]bool{}
	for _, pool := range o.Pools {
		there[pools.KeyForPool(pool)] = true
	}
	for i := range o.Claims {
		claim := &o.Claims[i]
		key, ok := pools.KeyFromIPPoolReference(claim.Namespace, claim.Spec.PoolRef)
		switch {
		case claim.Spec.PoolRef.APIGroup == v1alpha1.GroupVersion.Group && !ok: // a kind that does not exist
			key = pools.Key{Kind: claim.Spec.PoolRef.Kind, Namespace: claim.Namespace, Name: claim.Spec.PoolRef.Name}
		case claim.Spec.PoolRef.APIGroup != v1alpha1.GroupVersion.Group && !there[key]:
			continue // another provider's, and no mirror serves it
		}
		add("IPAddressClaim", claim, key, claim.Status.Conditions)
	}
	for i := range o.Allocations {
		a := &o.Allocations[i]
		add(v1alpha1.IPAllocationKind, a, pools.KeyFromPoolReference(a.Namespace, a.Spec.PoolRef), a.Status.Conditions)
	}
	for i := range o.Leases {
		l := &o.Leases[i]
		add(v1alpha1.IPLeaseKind, l, pools.KeyFromPoolReference(l.Namespace, l.Spec.PoolRef), l.Status.Conditions)
	}
	slices.SortFunc(out, func(a, b WaitingClaimant) int {
		return cmp.Or(a.Since.Compare(b.Since), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	return out
}
