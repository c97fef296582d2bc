package inspect

import (
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/cluster-api/util/annotations"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/grants"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"
)

// ExplainPool explains whether a pool grants addresses, and why not. For a full pool, it lists the waiting claimants.
func ExplainPool(pool v1alpha1.Pool, waiting []string) Explanation {
	e := Explanation{Subject: pools.KeyForPool(pool).String()}
	ready := meta.FindStatusCondition(pool.GetConditions(), v1alpha1.ReadyCondition)
	add := func(finding, do string) { e.Findings = append(e.Findings, Finding{finding, do}) }
	switch {
	case annotations.HasPaused(pool):
		e.Summary = "grants nothing"
		add("it "+grants.PausedPoolText, grants.ResumeAdvice(pool))
	case ready == nil || isUnobserved(pool):
		e.Summary = "grants nothing yet"
		add("no manager has reconciled it", "is the manager running, and does its flag --namespace include the pool?")
	case pool.PoolStatus().ObservedGeneration < pool.GetGeneration() && ready.Reason != v1alpha1.NotServedReason:
		e.Summary = "has a spec that no manager has acted on yet"
		add("the manager has not seen this spec yet: its status is of the spec before", "wait a moment; if it stays so, check that a manager is running, and its log")
	case ready.Status != metav1.ConditionTrue:
		e.Summary = "grants nothing"
		do := adviseOnPoolReason(pool, ready.Reason)
		if ready.Reason == v1alpha1.DeletingReason {
			do = "delete the Machines of those claims, and what was made by hand (docs/gitops.md#pruning-a-pool-in-use)"
		}
		add(ready.Reason+": "+ready.Message, do)
	case IsPoolFull(pool):
		e.explainFullPool(pool, ready.Message, waiting)
	default:
		e.Served, e.Summary = true, "grants addresses: "+ready.Message
	}
	if o := meta.FindStatusCondition(pool.GetConditions(), v1alpha1.OverlapCondition); o != nil && o.Status == metav1.ConditionTrue && e.Served {
		add(o.Message, adviseOnOverlap(pool))
	}
	return e
}

// adviseOnOverlap returns the advice for a pool that grants addresses which another pool has, too.
func adviseOnOverlap(pool v1alpha1.Pool) string {
	if grants.MirroredPoolName(pool) != "" {
		return adviseOnPoolReason(pool, v1alpha1.OverlapReason)
	}
	return "give one of the two pools other addresses or another spec.network, unless both are to give the same addresses (spec.allowOverlap of the younger one)"
}

// isUnobserved reports whether no manager has reconciled a pool. A manager that does not serve a pool records that as a
// reason.
func isUnobserved(pool v1alpha1.Pool) bool {
	ready := meta.FindStatusCondition(pool.GetConditions(), v1alpha1.ReadyCondition)
	return pool.PoolStatus().Allocator == nil && (ready == nil || ready.Reason != v1alpha1.NotServedReason)
}

// IsPoolFull reports whether a pool has no free address. A carved pool is never full: it grows first, or reports why it
// cannot.
func IsPoolFull(pool v1alpha1.Pool) bool {
	s := pool.PoolStatus()
	return s.TotalIPs > 0 && s.AvailableIPs == 0 && pool.PoolSpec().Carve == nil
}

func (e *Explanation) explainFullPool(pool v1alpha1.Pool, counts string, waiting []string) {
	s, wait := pool.PoolStatus(), fmt.Sprintf("%d wait", len(waiting))
	switch len(waiting) {
	case 0:
		wait = "none waits"
	case 1:
		wait = "1 waits"
	}
	e.Summary = fmt.Sprintf("is full: 0 of %d free, %s", s.TotalIPs, wait)
	e.Findings = append(e.Findings, Finding{counts, "add addresses to " + editablePoolName(pool) + ", or delete machines or claims that are not needed"})
	if len(waiting) > 0 {
		e.Details = append(e.Details, Detail{"waits", waiting})
	}
	e.Details = append(e.Details, coolingDetails(s.Cooling)...)
}

// coolingDetails lists the addresses that become free by themselves, and when.
func coolingDetails(groups []v1alpha1.CoolingGroup) []Detail {
	d := Detail{Label: "rests"}
	for _, g := range groups {
		d.Lines = append(d.Lines, fmt.Sprintf("until %s: %s", g.Until.UTC().Format(time.RFC3339), g.Addresses))
	}
	if len(d.Lines) == 0 {
		return nil
	}
	return []Detail{d}
}
