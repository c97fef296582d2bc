package inspect

import (
	"cmp"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/grants"
)

func notReadyCondition(pool v1alpha1.Pool) *metav1.Condition {
	c := meta.FindStatusCondition(pool.GetConditions(), v1alpha1.ReadyCondition)
	if c == nil || c.Status != metav1.ConditionFalse {
		return nil
	}
	return c
}

// editablePoolName names the pool whose spec users edit: for a mirror, that is the mirrored pool.
func editablePoolName(pool v1alpha1.Pool) string {
	return cmp.Or(grants.MirroredPoolName(pool), "the pool")
}

// adviseOnPoolReason returns the advice for a reason of the condition Ready of a pool.
func adviseOnPoolReason(pool v1alpha1.Pool, reason string) string {
	if source := grants.MirroredPoolName(pool); source != "" {
		switch reason {
		case v1alpha1.ValidationFailedReason:
			return "change " + source + " so that the message is true no more"
		case v1alpha1.PoolExhaustedReason:
			return "add addresses to " + source + ", or exclude fewer"
		case v1alpha1.OverlapReason:
			return "change spec.addresses of " + source + ", or have its claims name the other pool, unless these are different networks"
		case v1alpha1.DeletingReason:
			return "have new machines name another InClusterIPPool: " + source + " is served again when all of its addresses are released"
		}
	}
	return poolAdvice[reason]
}
