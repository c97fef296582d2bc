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

// ExplainPool says whether a pool grants addresses, and why it does not. Who waits for it is named where it is full.
func ExplainPool(pool v1alpha1.Pool, waiting []string) Explanation {
	e := Explanation{Subject: pools.KeyOf(pool).String()}
	ready := meta.FindStatusCondition(pool.GetConditions(), v1alpha1.ReadyCondition)
	add := func(what, do string) { e.Findings = append(e.Findings, Finding{what, do}) }
	switch {
	case annotations.HasPaused(pool):
		e.Verdict = "grants nothing"
		add("it "+grants.PausedPool, grants.Resume(pool))
	case ready == nil || isUnseen(pool):
		e.Verdict = "grants nothing yet"
		add("no manager has looked at it", "is the manager running, and does its flag --namespace include the pool?")
	case pool.PoolStatus().ObservedGeneration < pool.GetGeneration() && ready.Reason != v1alpha1.NotServedReason:
		e.Verdict = "has a spec that no manager has acted on yet"
		add("the manager has not seen this spec yet: its status is of the spec before", "wait a moment; if it stays so, check that a manager is running, and its log")
	case ready.Status != metav1.ConditionTrue:
		e.Verdict = "grants nothing"
		do := adviceFor(pool, ready.Reason)
		if ready.Reason == v1alpha1.DeletingReason {
			do = "delete the Machines of those claims, and what was made by hand (docs/gitops.md#pruning-a-pool-in-use)"
		}
		add(ready.Reason+": "+ready.Message, do)
	case IsFull(pool):
		e.full(pool, ready.Message, waiting)
	default:
		e.Served, e.Verdict = true, "grants addresses: "+ready.Message
	}
	if o := meta.FindStatusCondition(pool.GetConditions(), v1alpha1.OverlapCondition); o != nil && o.Status == metav1.ConditionTrue && e.Served {
		add(o.Message, adviceOnOverlap(pool))
	}
	return e
}

// adviceOnOverlap is what to do about a pool that grants addresses which another one has, too.
func adviceOnOverlap(pool v1alpha1.Pool) string {
	if grants.MirroredPool(pool) != "" {
		return adviceFor(pool, v1alpha1.OverlapReason)
	}
	return "give one of the two pools other addresses or another spec.network, unless both are to give the same addresses (spec.allowOverlap of the younger one)"
}

// isUnseen reports whether no manager has looked at a pool: one that leaves it alone says so.
func isUnseen(pool v1alpha1.Pool) bool {
	ready := meta.FindStatusCondition(pool.GetConditions(), v1alpha1.ReadyCondition)
	return pool.PoolStatus().Allocator == nil && (ready == nil || ready.Reason != v1alpha1.NotServedReason)
}

// IsFull reports whether a pool has nothing free. One that is carved from another grows first, or says that it cannot.
func IsFull(pool v1alpha1.Pool) bool {
	s := pool.PoolStatus()
	return s.TotalIPs > 0 && s.AvailableIPs == 0 && pool.PoolSpec().Carve == nil
}

func (e *Explanation) full(pool v1alpha1.Pool, counts string, waiting []string) {
	s, wait := pool.PoolStatus(), fmt.Sprintf("%d wait", len(waiting))
	switch len(waiting) {
	case 0:
		wait = "nobody waits"
	case 1:
		wait = "1 waits"
	}
	e.Verdict = fmt.Sprintf("is full: 0 of %d free, %s", s.TotalIPs, wait)
	e.Findings = append(e.Findings, Finding{counts, "add addresses to " + edited(pool) + ", or delete machines or claims that are not needed"})
	if len(waiting) > 0 {
		e.Details = append(e.Details, Detail{"waits", waiting})
	}
	e.Details = append(e.Details, resting(s.Cooling)...)
}

// resting are the addresses that become free by themselves, and when.
func resting(groups []v1alpha1.CoolingGroup) []Detail {
	d := Detail{What: "rests"}
	for _, g := range groups {
		d.Is = append(d.Is, fmt.Sprintf("until %s: %s", g.Until.UTC().Format(time.RFC3339), g.Addresses))
	}
	if len(d.Is) == 0 {
		return nil
	}
	return []Detail{d}
}
