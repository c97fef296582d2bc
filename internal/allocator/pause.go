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

// tellHeld hands out a job for each claim that is to be told what holds it up.
func (a *Allocator) tellHeld(ctx context.Context, p *grants.Pool, admission grants.Admit) {
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
	for c, is := range m.ToTell {
		if m.Jobs >= grants.MaxJobs {
			break // the end of these jobs wakes the pool
		}
		if m.Claimants[c.Owner.UID] != c {
			continue
		}
		say := func(ctx context.Context, p *grants.Pool, c grants.Claimant) error {
			return a.tellHold(ctx, p, c, is)
		}
		a.hand(m, c.Owner.UID, telling, say)
	}
	clear(m.ToTell)
}

// tellHold writes a condition of a claim, of what holds it up. What is written of the claim next takes Paused off.
func (a *Allocator) tellHold(ctx context.Context, p *grants.Pool, c grants.Claimant, is metav1.Condition) error {
	ctx, cancel := timed(ctx)
	defer cancel()
	// What a claim says that is served is not remembered: it is read, and written as it was then.
	live := c.Object()
	if err := a.Live.Get(ctx, grants.NameOf(c.Owner), live); err != nil || live.GetUID() != c.Owner.UID {
		return errors.Join(a.refresh(ctx, p, c), client.IgnoreNotFound(err))
	}
	setter, ok := live.(conditions.Setter)
	if !ok {
		return nil
	}
	c.Version = live.GetResourceVersion()
	conditions.Set(setter, is)
	step := grants.Step{Request: grants.Request{Verb: grants.Patch, Name: "status"}, Status: map[string]any{grants.ConditionsField: setter.GetConditions()}}
	if err := a.carryOut(ctx, p, c, step, &grants.Attempt{}); err != nil {
		return err
	}
	told, known := a.claimSnapshot(p, c.Owner.UID)
	if known && !showsHold(&told, is) {
		return &grants.UndoneError{What: "the status of " + c.Owner.Kind + " " + grants.NameOf(c.Owner).String()}
	}
	return nil
}

// showsHold reports whether the status of a claimant says what tellHold has written.
func showsHold(c *grants.Claimant, is metav1.Condition) bool {
	return c.PauseTold == is.Message || c.ShownRefusal().Message == is.Message || (is.Status == metav1.ConditionUnknown && c.Told == grants.Paused)
}
