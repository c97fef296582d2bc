package nodeipam

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/term"
)

// RequestTakeover requests one takeover of the cluster, as if a Node waited: the caller has work that only one manager
// should do. A manager that loses the cluster meanwhile does not take it over again for that: two managers that want
// different things would take turns.
func (ca *ClusterAllocator) RequestTakeover() {
	m := ca.state.lock()
	defer m.Unlock()
	m.term.takeoverRequested = true
}

// StatusDifference is the difference between a published status and what a manager knows: the fields that differ,
// without messages, and all that is published.
type StatusDifference struct{ DifferingFields, PublishedStatus string }

// outdatedStatuses are the statuses that differ from what a manager knows that is not the holder.
type outdatedStatuses struct {
	differences    map[string]StatusDifference
	unchangedSince time.Time
	// takeovers are the takeovers that were requested since all statuses were last right.
	takeovers map[[2]string]statusTakeover
}

// statusTakeover is when a takeover was requested for a status, and for how long none is requested for the same status.
type statusTakeover struct {
	requestedAt time.Time
	retryPause  time.Duration
}

// takeoverPauseFactor is the factor by which the pauses grow: otherwise two managers that see different things, for
// example of two versions, would take turns.
const takeoverPauseFactor = 8

// TakeOverIfOutdated requests a takeover when the holder of the cluster does not write statuses: it is gone, and no
// waiting Node makes another manager take over. statuses are those that differ from what this manager knows, by name.
// They have to stay unchanged for the duration within, so that a holder that lags behind does not count as gone.
// TakeOverIfOutdated returns after how long to call it again, 0 if there is no need to.
func (ca *ClusterAllocator) TakeOverIfOutdated(statuses map[string]StatusDifference, within time.Duration) time.Duration {
	m := ca.state.lock()
	defer m.Unlock()
	o, now := &m.takeovers.outdatedStatuses, ca.Now()
	switch {
	case len(statuses) == 0:
		*o = outdatedStatuses{}
		m.reports.dropPublishedRefusals()
		return 0
	case !m.takeovers.workSince.IsZero() || now.Before(m.term.NotBefore):
		o.differences = nil // there is another reason to take it over, or another manager has just done so
		return within
	case !maps.Equal(o.differences, statuses):
		o.differences, o.unchangedSince = statuses, now
		return within
	}
	if left := within - now.Sub(o.unchangedSince); left > 0 {
		return left
	}
	if left := o.timeToTakeover(now); left > 0 {
		return left
	}
	o.recordTakeover(now, within)
	m.term.takeoverRequested = true
	return time.Millisecond // the next Reconcile takes it over
}

// timeToTakeover returns how long until a takeover may be requested for one of the statuses.
func (o *outdatedStatuses) timeToTakeover(now time.Time) (wait time.Duration) {
	for name, d := range o.differences {
		c, claimed := o.takeovers[[2]string{name, d.DifferingFields}]
		left := c.requestedAt.Add(c.retryPause).Sub(now)
		if !claimed || left <= 0 {
			return 0
		}
		wait = term.MinWait(wait, left)
	}
	return wait
}

// recordTakeover records that a takeover is requested for all of the statuses.
func (o *outdatedStatuses) recordTakeover(now time.Time, within time.Duration) {
	if o.takeovers == nil {
		o.takeovers = map[[2]string]statusTakeover{}
	}
	for name, d := range o.differences {
		of := [2]string{name, d.DifferingFields}
		o.takeovers[of] = statusTakeover{now, min(max(within, o.takeovers[of].retryPause)*takeoverPauseFactor, maxTakeoverPause)}
	}
}

// maxTakeoverPause bounds how long no takeover is requested for the same status.
const maxTakeoverPause = 24 * time.Hour

// CompareStatuses returns how the status of a ClusterCIDR differs from the one that it should have; false means that it
// does not.
func CompareStatuses(old, next *v1alpha1.ClusterCIDRStatus) (StatusDifference, bool) {
	var in []string
	numbers := func(s *v1alpha1.ClusterCIDRStatus) string {
		text := fmt.Sprint(s.ObservedGeneration, s.Capacity, s.Allocated, s.Free)
		for _, e := range s.Clusters {
			text += fmt.Sprint(" ", e.Namespace, "/", e.Name, " ", e.Nodes, e.Free)
		}
		return text
	}
	published := numbers(old)
	if published != numbers(next) {
		in = append(in, published)
	}
	for _, c := range next.Conditions {
		current := ptr.Deref(meta.FindStatusCondition(old.Conditions, c.Type), metav1.Condition{})
		published += FormatCondition(current)
		if FormatCondition(current) != FormatCondition(c) {
			in = append(in, fmt.Sprint(c.Type, current.Status, current.Reason))
		}
	}
	return StatusDifference{DifferingFields: strings.Join(in, ", "), PublishedStatus: published}, len(in) > 0
}

// FormatCondition returns a condition as text.
func FormatCondition(c metav1.Condition) string {
	return fmt.Sprintf(" %s=%s/%s %q", c.Type, c.Status, c.Reason, c.Message)
}

// WithPublishedStatus returns the usage that a manager can compare with a published status although it may not be the
// holder: of a range with blocks, only the holder knows which are open. What depends on that is taken from the
// published status.
func (u Usage) WithPublishedStatus(capacity, free int64, shown []metav1.Condition) Usage {
	if !u.Elastic {
		return u
	}
	u.Capacity, u.Free, u.Conditions = capacity, free, slices.Clone(u.Conditions)
	for i, c := range u.Conditions {
		old := meta.FindStatusCondition(shown, c.Type)
		switch {
		case old == nil:
		case c.Type == v1alpha1.ReadyCondition && (old.Status != metav1.ConditionTrue || c.Status != metav1.ConditionTrue):
		case c.Type == v1alpha1.ExhaustedCondition && u.WaitingNodes == 0 && (old.Reason == v1alpha1.PoolExhaustedReason || old.Reason == v1alpha1.QuotaReachedReason):
			// this is published only while a Node waits
		case c.Type == v1alpha1.ReadyCondition || c.Type == v1alpha1.ExhaustedCondition:
			u.Conditions[i] = *old
		}
	}
	return u
}

// IsHolder reports whether this manager is the holder, as far as it knows.
func (ca *ClusterAllocator) IsHolder() bool {
	m := ca.state.lock()
	defer m.Unlock()
	return m.term.isHolder && !m.term.needsRevalidation
}
