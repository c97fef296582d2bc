package grants

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/annotations"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
)

// PausedPool is what a pool says that is paused.
const PausedPool = "is paused by its annotation " + clusterv1.PausedAnnotation + ": it neither grants nor releases addresses"

// pausedMessage is what its conditions say.
func pausedMessage(pool v1alpha1.Pool) string {
	if source := pausedBy(pool); source != "" {
		return fmt.Sprintf("the pool %s; remove the annotation from %s to resume, which this pool mirrors", PausedPool, source)
	}
	return "the pool " + PausedPool + "; remove the annotation to resume"
}

// Resume is what to do to end the pause of a pool.
func Resume(pool v1alpha1.Pool) string {
	return fmt.Sprintf("remove the annotation %s from %s", clusterv1.PausedAnnotation, cmp.Or(pausedBy(pool), "the pool"))
}

// The condition Paused is Cluster API's. A claim has it while a pause keeps it from getting, or giving back, an
// address, and while it is paused itself: silence would look like a manager that does not run. One that is served, and
// wants nothing of its paused Cluster or pool, is not told, so that a pause costs nothing but for those it holds up.

// PauseOf says what pauses a claim, empty if nothing; g is the gate of its Cluster.
func (m *Memory) PauseOf(c *Claimant, g Gate) string {
	switch {
	case c.Paused:
		return fmt.Sprintf("%s has the annotation %s; remove it to resume", c.Owner.Kind, clusterv1.PausedAnnotation)
	case g == ClusterPaused:
		return fmt.Sprintf("Cluster %s is paused; resume it to go on", c.Cluster)
	case m.Base != nil && annotations.HasPaused(m.Base):
		if source := pausedBy(m.Base); source != "" {
			return fmt.Sprintf("%s is paused with %s; remove the annotation %s of the latter to resume", m.Key, source, clusterv1.PausedAnnotation)
		}
		return fmt.Sprintf("%s is paused; remove its annotation %s to resume", m.Key, clusterv1.PausedAnnotation)
	}
	return ""
}

// NotePause remembers what pauses a claim that is looked at, to tell it what it was not told. It is called with the
// pool locked.
func (m *Memory) NotePause(c *Claimant, g Gate) {
	if g == ClusterUnknown || (m.Base != nil && !m.Holder) {
		return // nobody knows, or another manager tells it
	}
	if c.Pause = m.PauseOf(c, g); c.Pause == "" || c.Pause == c.PauseTold {
		return
	}
	m.tell(c, metav1.Condition{
		Type: clusterv1.PausedCondition, Status: metav1.ConditionTrue, Reason: clusterv1.PausedReason, Message: c.Pause,
	})
}

// noteKept remembers to tell a deleted claim who keeps its IPAddress. It is called with the pool locked.
func (m *Memory) noteKept(c *Claimant) {
	if addr := m.AttachedTo(c); addr != nil {
		m.noteStays(c, fmt.Sprintf("its IPAddress is kept by the finalizer %s; ask its owner to remove it", strings.Join(addr.Others, ", ")))
	}
}

// noteOutlived remembers to tell a deleted claim that it stays as long as its Cluster. It is called with the pool locked.
func (m *Memory) noteOutlived(c *Claimant) {
	m.noteStays(c, fmt.Sprintf("its address is of Cluster %s, which owns the claim: it is released when the Cluster is gone; "+
		"to release it now, take the owner reference off the claim", c.Cluster))
}

// noteStays remembers to tell a deleted claim why it stays, if it was not told that.
func (m *Memory) noteStays(c *Claimant, why string) {
	if m.Base != nil && !m.Holder {
		return
	}
	if no := (Refusal{v1alpha1.DeletingReason, why}); c.ShownRefusal() != no {
		m.tell(c, metav1.Condition{Type: v1alpha1.ReadyCondition, Status: metav1.ConditionFalse, Reason: no.Reason, Message: no.Message})
	}
}

func (m *Memory) tell(c *Claimant, is metav1.Condition) {
	if m.ToTell == nil {
		m.ToTell = map[*Claimant]metav1.Condition{}
	}
	m.ToTell[c] = is
}

// PauseIn is what the conditions of a claim say of a pause, empty if nothing.
func PauseIn(conditions []metav1.Condition) string {
	if c := meta.FindStatusCondition(conditions, clusterv1.PausedCondition); c != nil && c.Status == metav1.ConditionTrue {
		return c.Message
	}
	return ""
}

// WithoutPause returns conditions without what was said of a pause: it is over when something else is said.
func WithoutPause(all []metav1.Condition) []metav1.Condition {
	return slices.DeleteFunc(slices.Clone(all), func(c metav1.Condition) bool { return c.Type == clusterv1.PausedCondition })
}

// Shows reports whether the status of a claim says a refusal, and nothing else.
func (c *Claimant) Shows(no Refusal) bool { return c.ShownRefusal() == no && c.PauseTold == "" }

// setPaused keeps the condition Paused of a pool, which one that was never paused does not have.
func setPaused(s *v1alpha1.NetworkPoolStatus, obj v1alpha1.Pool, now time.Time) {
	is := metav1.Condition{
		Type: clusterv1.PausedCondition, Status: metav1.ConditionTrue, Reason: clusterv1.PausedReason, Message: pausedMessage(obj),
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
