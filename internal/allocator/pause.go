package allocator

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/annotations"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
)

// PausedPool is what a pool says that is paused.
const PausedPool = "is paused by its annotation " + clusterv1.PausedAnnotation + ": neither grants nor releases"

// The condition Paused is Cluster API's. A claim has it while a pause keeps it from getting, or giving back, an
// address, and while it is paused itself: silence would look like a manager that does not run. One that is served, and
// wants nothing of its paused Cluster or pool, is not told, so that a pause costs nothing but for those it holds up.

// pauseOf says what pauses a claim, empty if nothing; g is the gate of its Cluster.
func (p *memory) pauseOf(c *claimant, g gate) string {
	switch {
	case c.paused:
		return fmt.Sprintf("%s has the annotation %s", c.owner.Kind, clusterv1.PausedAnnotation)
	case g == paused:
		return fmt.Sprintf("Cluster %s is paused", c.cluster)
	case p.base != nil && annotations.HasPaused(p.base):
		return fmt.Sprintf("%s is paused", p.key)
	}
	return ""
}

// notePause remembers what pauses a claim that is looked at, to tell it what it was not told. It is called with the
// pool locked.
func (p *memory) notePause(c *claimant, g gate) {
	if g == unknown || (p.base != nil && !p.holder) {
		return // nobody knows, or another manager tells it
	}
	if c.pause = p.pauseOf(c, g); c.pause == "" || c.pause == c.pauseTold {
		return
	}
	if p.toTell == nil {
		p.toTell = map[*claimant]struct{}{}
	}
	p.toTell[c] = struct{}{}
}

// tellPauses hands out a job for each claim that is to be told what pauses it.
func (a *Allocator) tellPauses(ctx context.Context, p *pool, now time.Time, admission admit) {
	m := p.lock()
	defer m.unlock()
	if m.base != nil && annotations.HasPaused(m.base) { // nothing is planned, so nobody has looked
		m.pending.Scan(func(c *claimant) bool {
			if !admission(c).waits {
				m.notePause(c, open) // what else is wrong is said when the pause is over
			}
			return ctx.Err() == nil
		})
	}
	for c := range m.toTell {
		if m.jobs >= maxJobs {
			break // the end of these jobs wakes the pool
		}
		if m.claimants[c.owner.UID] != c || c.retryAt.After(now) {
			continue
		}
		text := c.pause
		say := func(ctx context.Context, p *pool, c claimant) error { return a.tellPause(ctx, p, c, text) }
		a.hand(m, c.owner.UID, say)
	}
	clear(m.toTell)
}

// tellPause writes the condition Paused of a claim. What is written of the claim next takes it off.
func (a *Allocator) tellPause(ctx context.Context, p *pool, c claimant, text string) error {
	ctx, cancel := timed(ctx)
	defer cancel()
	// What a claim says that is served is not remembered: it is read, and written as it was then.
	live := c.object()
	if err := a.Live.Get(ctx, nameOf(c.owner), live); err != nil || live.GetUID() != c.owner.UID {
		return errors.Join(a.refresh(ctx, p, c), client.IgnoreNotFound(err))
	}
	setter, is := live.(conditions.Setter)
	if !is {
		return nil
	}
	c.rv = live.GetResourceVersion()
	conditions.Set(setter, metav1.Condition{
		Type: clusterv1.PausedCondition, Status: metav1.ConditionTrue, Reason: clusterv1.PausedReason, Message: text,
	})
	return a.carryOut(ctx, p, c, step{request: request{verb: patch, name: "status"}, status: map[string]any{conditionsField: setter.GetConditions()}}, &attempt{})
}

// pauseIn is what the conditions of a claim say of a pause, empty if nothing.
func pauseIn(conditions []metav1.Condition) string {
	if c := meta.FindStatusCondition(conditions, clusterv1.PausedCondition); c != nil && c.Status == metav1.ConditionTrue {
		return c.Message
	}
	return ""
}

// withoutPause returns conditions without what was said of a pause: it is over when something else is said.
func withoutPause(all []metav1.Condition) []metav1.Condition {
	return slices.DeleteFunc(slices.Clone(all), func(c metav1.Condition) bool { return c.Type == clusterv1.PausedCondition })
}

// pauseShown reports whether the status says of a pause what there is to say by itself, without looking at others.
func (c *claimant) pauseShown() bool { return c.pauseTold == "" && !c.paused }

// shows reports whether the status of a claim says a refusal, and nothing else.
func (c *claimant) shows(no refusal) bool { return c.shownRefusal() == no && c.pauseTold == "" }

// setPaused keeps the condition Paused of a pool, which one that was never paused does not have.
func setPaused(s *v1alpha1.NetworkPoolStatus, obj v1alpha1.Pool, now time.Time) {
	is := metav1.Condition{
		Type: clusterv1.PausedCondition, Status: metav1.ConditionTrue, Reason: clusterv1.PausedReason, Message: PausedPool,
		ObservedGeneration: obj.GetGeneration(), LastTransitionTime: metav1.NewTime(now),
	}
	if !annotations.HasPaused(obj) {
		if meta.FindStatusCondition(s.Conditions, clusterv1.PausedCondition) == nil {
			return
		}
		is.Status, is.Reason, is.Message = metav1.ConditionFalse, clusterv1.NotPausedReason, "the pool is not paused any more"
	}
	meta.SetStatusCondition(&s.Conditions, is)
}
