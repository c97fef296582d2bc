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
)

// Claim has the site taken over once, as if a Node waited: the caller has something to do that only one manager should.
// Who loses the site meanwhile does not claim it again for that: two managers that want different things would take turns.
func (s *Site) Claim() {
	m := s.lock()
	defer m.Unlock()
	m.claimed = true
}

// Difference is between what a status says and what a manager knows: in what it differs, without messages, and all that the
// status says.
type Difference struct{ In, Says string }

// outdated are the statuses that differ from what a manager knows, which is not the holder.
type outdated struct {
	statuses map[string]Difference
	since    time.Time
	// claims are those that the site was claimed for since all statuses were right.
	claims map[[2]string]claim
}

// claim is when the site was claimed for a status, and how long it is not claimed for the same.
type claim struct {
	at    time.Time
	pause time.Duration
}

// claimPauses is by how much the pauses grow: two managers that see different things, as those of two versions may, would else take
// turns.
const claimPauses = 8

// ClaimOutdated claims the site when its holder does not write statuses: it is gone, and no Node that waits has another manager
// take over. statuses are those that differ from what this manager knows, by name. They have to stay as they are for a time, so
// that a holder that lags behind is not taken for one that is gone. It returns when to ask again, 0 if there is no need to.
func (s *Site) ClaimOutdated(statuses map[string]Difference, within time.Duration) time.Duration {
	m := s.lock()
	defer m.Unlock()
	o, now := &m.outdated, s.Now()
	switch {
	case len(statuses) == 0:
		*o = outdated{}
		m.takeAsTold()
		return 0
	case !m.workSince.IsZero() || now.Before(m.NotBefore):
		o.statuses = nil // there is something else to take it over for, or another manager has just done so
		return within
	case !maps.Equal(o.statuses, statuses):
		o.statuses, o.since = statuses, now
		return within
	}
	if left := within - now.Sub(o.since); left > 0 {
		return left
	}
	if left := o.due(now); left > 0 {
		return left
	}
	o.claim(now, within)
	m.claimed = true
	return time.Millisecond // the next call of Reconcile takes it over
}

// due is how long until the site may be claimed for one of the statuses.
func (o *outdated) due(now time.Time) (wait time.Duration) {
	for name, d := range o.statuses {
		c, claimed := o.claims[[2]string{name, d.In}]
		left := c.at.Add(c.pause).Sub(now)
		if !claimed || left <= 0 {
			return 0
		}
		wait = sooner(wait, left)
	}
	return wait
}

// claim notes that the site is claimed for all of the statuses.
func (o *outdated) claim(now time.Time, within time.Duration) {
	if o.claims == nil {
		o.claims = map[[2]string]claim{}
	}
	for name, d := range o.statuses {
		of := [2]string{name, d.In}
		o.claims[of] = claim{now, min(max(within, o.claims[of].pause)*claimPauses, longestPause)}
	}
}

// longestPause is how long the site is not claimed for the same at most.
const longestPause = 24 * time.Hour

// DifferenceIn compares the status of a ClusterCIDR with what it is to be; false: it is that.
func DifferenceIn(was, next *v1alpha1.ClusterCIDRStatus) (Difference, bool) {
	var in []string
	numbers := func(s *v1alpha1.ClusterCIDRStatus) string {
		text := fmt.Sprint(s.ObservedGeneration, s.Capacity, s.Allocated, s.Free)
		for _, e := range s.Clusters {
			text += fmt.Sprint(" ", e.Namespace, "/", e.Name, " ", e.Nodes, e.Free)
		}
		return text
	}
	says := numbers(was)
	if says != numbers(next) {
		in = append(in, says)
	}
	for _, c := range next.Conditions {
		is := ptr.Deref(meta.FindStatusCondition(was.Conditions, c.Type), metav1.Condition{})
		says += SaidBy(is)
		if SaidBy(is) != SaidBy(c) {
			in = append(in, fmt.Sprint(c.Type, is.Status, is.Reason))
		}
	}
	return Difference{In: strings.Join(in, ", "), Says: says}, len(in) > 0
}

// SaidBy is what a condition says.
func SaidBy(c metav1.Condition) string {
	return fmt.Sprintf(" %s=%s/%s %q", c.Type, c.Status, c.Reason, c.Message)
}

// Beside is what a manager that may not be the holder can say of a range, beside a status: which blocks are open, of a range that
// has some, only the holder knows. What follows from that is taken as it is shown.
func (u Usage) Beside(capacity, free int64, shown []metav1.Condition) Usage {
	if !u.Elastic {
		return u
	}
	u.Capacity, u.Free, u.Conditions = capacity, free, slices.Clone(u.Conditions)
	for i, c := range u.Conditions {
		was := meta.FindStatusCondition(shown, c.Type)
		switch {
		case was == nil:
		case c.Type == v1alpha1.ReadyCondition && (was.Status != metav1.ConditionTrue || c.Status != metav1.ConditionTrue):
		case c.Type == v1alpha1.ExhaustedCondition && u.Waiting == 0 && (was.Reason == v1alpha1.PoolExhaustedReason || was.Reason == v1alpha1.QuotaReachedReason):
			// that is said only while a Node waits
		case c.Type == v1alpha1.ReadyCondition || c.Type == v1alpha1.ExhaustedCondition:
			u.Conditions[i] = *was
		}
	}
	return u
}

// Holds reports whether this manager is the holder, as far as it knows.
func (s *Site) Holds() bool {
	m := s.lock()
	defer m.Unlock()
	return m.holder && !m.suspect
}
