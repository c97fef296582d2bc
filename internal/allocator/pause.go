package allocator

import (
	"context"
	"errors"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/cluster-api/util/annotations"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/grants"
)

// dispatchPendingConditions dispatches a job for each claim whose condition should show what delays it.
func (a *Allocator) dispatchPendingConditions(ctx context.Context, p *grants.Pool, admission grants.AdmissionFunc) {
	m := p.Lock()
	defer m.Unlock()
	if m.Base.Pool != nil && annotations.HasPaused(m.Base.Pool) { // nothing is planned, so admission has not run
		m.Queues.Waiting.Scan(func(c *grants.Claimant) bool {
			if !admission(c).Wait {
				m.Conditions.RecordPause(c, grants.ClusterReady) // other problems are reported when the pause is over
			}
			return ctx.Err() == nil
		})
	}
	for c, condition := range m.Conditions.Unpublished {
		if m.Queues.ActiveJobs >= grants.MaxJobs {
			break // the end of these jobs enqueues the pool
		}
		if m.Claimants.ByUID[c.Owner.UID] != c {
			continue
		}
		setCondition := func(ctx context.Context, p *grants.Pool, c grants.Claimant) error {
			return a.setClaimantCondition(ctx, p, c, condition)
		}
		a.startClaimantJob(m, c.Owner.UID, conditionJob, setCondition)
	}
	clear(m.Conditions.Unpublished)
}

// setClaimantCondition writes a condition that shows what delays a claim. The next write of the claim's status removes
// Paused.
func (a *Allocator) setClaimantCondition(ctx context.Context, p *grants.Pool, c grants.Claimant, condition metav1.Condition) error {
	ctx, cancel := withRequestTimeout(ctx)
	defer cancel()
	// The conditions of a claim that is served are not remembered: read them, and write them with the resourceVersion
	// of that read.
	live := c.NewObject()
	if err := a.Live.Get(ctx, grants.NamespacedNameFromOwner(c.Owner), live); err != nil || live.GetUID() != c.Owner.UID {
		return errors.Join(a.refreshClaimant(ctx, p, c), client.IgnoreNotFound(err))
	}
	setter, ok := live.(conditions.Setter)
	if !ok {
		return nil
	}
	c.ResourceVersion = live.GetResourceVersion()
	conditions.Set(setter, condition)
	step := grants.Step{Call: grants.Call{Verb: grants.PatchObject, Purpose: "status"}, StatusPatch: map[string]any{grants.ConditionsField: setter.GetConditions()}}
	if err := a.executeStep(ctx, p, c, step, &grants.Attempt{}); err != nil {
		return err
	}
	latest, known := claimantSnapshot(p, c.Owner.UID)
	if known && !showsCondition(&latest, condition) {
		return &grants.WriteRevertedError{ObjectName: "the status of " + c.Owner.Kind + " " + grants.NamespacedNameFromOwner(c.Owner).String()}
	}
	return nil
}

// showsCondition reports whether the status of a claimant shows the condition that setClaimantCondition wrote.
func showsCondition(c *grants.Claimant, condition metav1.Condition) bool {
	return c.PublishedPauseMessage == condition.Message || c.PublishedRefusal().Message == condition.Message || (condition.Status == metav1.ConditionUnknown && c.PublishedOwnerSeen == grants.OwnerSeenPaused)
}
