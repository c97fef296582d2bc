package inspect

import (
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/annotations"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/grants"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"
)

// ExplainPool says whether a pool grants addresses, and why it does not.
func ExplainPool(pool v1alpha1.Pool) Explanation {
	e := Explanation{Subject: pools.KeyOf(pool).String()}
	ready := meta.FindStatusCondition(pool.GetConditions(), v1alpha1.ReadyCondition)
	add := func(what, do string) { e.Findings = append(e.Findings, Finding{what, do}) }
	switch {
	case annotations.HasPaused(pool):
		e.Verdict = "grants nothing"
		add("it "+grants.PausedPool, "remove the annotation "+clusterv1.PausedAnnotation+" from the pool")
	case ready == nil || pool.PoolStatus().Allocator == nil:
		e.Verdict = "grants nothing yet"
		add("no manager has looked at it", "is the manager running, and does its flag --namespace include the pool?")
	case ready.Status != metav1.ConditionTrue:
		e.Verdict = "grants nothing"
		add(ready.Reason+": "+ready.Message, adviceOnPool[ready.Reason])
	default:
		e.Served, e.Verdict = true, "grants addresses: "+ready.Message
	}
	if o := meta.FindStatusCondition(pool.GetConditions(), v1alpha1.OverlapCondition); o != nil && o.Status == metav1.ConditionTrue && e.Served {
		add(o.Message, "give one of the two pools other addresses or another spec.network, or set spec.allowOverlap of the younger one")
	}
	return e
}
