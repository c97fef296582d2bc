package allocator

import (
	"context"
	"errors"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/annotations"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/grants"
)

// tellPauses hands out a job for each claim that is to be told what pauses it.
func (a *Allocator) tellPauses(ctx context.Context, p *grants.Pool, now time.Time, admission grants.Admit) {
	m := p.Lock()
	defer m.Unlock()
	if m.Base != nil && annotations.HasPaused(m.Base) { // nothing is planned, so nobody has looked
		m.Pending.Scan(func(c *grants.Claimant) bool {
			if !admission(c).Waits {
				m.NotePause(c, grants.ClusterOpen) // what else is wrong is said when the pause is over
			}
			return ctx.Err() == nil
		})
	}
	for c := range m.ToTell {
		if m.Jobs >= grants.MaxJobs {
			break // the end of these jobs wakes the pool
		}
		if m.Claimants[c.Owner.UID] != c || c.RetryAt.After(now) {
			continue
		}
		text := c.Pause
		say := func(ctx context.Context, p *grants.Pool, c grants.Claimant) error {
			return a.tellPause(ctx, p, c, text)
		}
		a.hand(m, c.Owner.UID, say)
	}
	clear(m.ToTell)
}

// tellPause writes the condition Paused of a claim. What is written of the claim next takes it off.
func (a *Allocator) tellPause(ctx context.Context, p *grants.Pool, c grants.Claimant, text string) error {
	ctx, cancel := timed(ctx)
	defer cancel()
	// What a claim says that is served is not remembered: it is read, and written as it was then.
	live := c.Object()
	if err := a.Live.Get(ctx, grants.NameOf(c.Owner), live); err != nil || live.GetUID() != c.Owner.UID {
		return errors.Join(a.refresh(ctx, p, c), client.IgnoreNotFound(err))
	}
	setter, is := live.(conditions.Setter)
	if !is {
		return nil
	}
	c.Version = live.GetResourceVersion()
	conditions.Set(setter, metav1.Condition{
		Type: clusterv1.PausedCondition, Status: metav1.ConditionTrue, Reason: clusterv1.PausedReason, Message: text,
	})
	return a.carryOut(ctx, p, c, grants.Step{Request: grants.Request{Verb: grants.Patch, Name: "status"}, Status: map[string]any{grants.ConditionsField: setter.GetConditions()}}, &grants.Attempt{})
}
