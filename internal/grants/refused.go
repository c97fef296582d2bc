package grants

import (
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/term"
)

// refusedText begins the condition of a claim whose IPAddress the API server refuses.
const refusedText = "the API server refuses"

// trouble is what a pool knows of a namespace of which claims cannot be written.
type trouble struct {
	// claims are those that failed last; refusal is what the others are told.
	claims  map[types.UID]struct{}
	refusal *Refusal
	// next is when another of its claims is tried; pause, how long the one after that waits.
	next  time.Time
	pause time.Duration
}

// NoteTrouble notes that a claim could not be served. Of a grant that the API server refused for good nothing can land
// any more, so the next commit ends it, and the claim is granted what it remembers when it is tried again (R6).
func (m *Memory) NoteTrouble(c *Claimant, err error, now time.Time) {
	if g := m.Grants[c.Owner.UID]; g != nil {
		if !term.RefusedForGood(err) {
			g.doubtful = true
		} else if !g.doubtful && !g.Inherited {
			g.Confirmed = g.Confirmed || g.Committed
		}
	}
	t := m.troubled[c.Owner.Namespace]
	if t == nil {
		t = &trouble{claims: map[types.UID]struct{}{}, pause: term.FirstTry, refusal: Failed(
			"%s the IPAddresses of other claims in namespace %s: %v; change what refuses them: this claim is tried when one of those is served", refusedText, c.Owner.Namespace, err)}
		m.troubled[c.Owner.Namespace] = t
	}
	t.claims[c.Owner.UID] = struct{}{}
	// Those of one namespace are not tried all at once.
	c.RetryAt = c.RetryAt.Add(time.Duration(len(t.claims)-1) * time.Second)
	if len(t.claims) == term.MaxTroubled {
		t.next = now.Add(t.pause)
	}
}

// EndTrouble notes that a claim of a namespace was served, or is gone. The others are tried again at once where one was
// served. It reports whether there are such.
func (m *Memory) EndTrouble(c *Claimant, served bool) bool {
	t := m.troubled[c.Owner.Namespace]
	if t == nil {
		return false
	}
	if delete(t.claims, c.Owner.UID); !served {
		if len(t.claims) == 0 {
			delete(m.troubled, c.Owner.Namespace)
		}
		return true
	}
	delete(m.troubled, c.Owner.Namespace)
	for uid := range t.claims {
		if other := m.Claimants[uid]; other != nil && !other.Busy {
			other.Failures, other.RetryAt = 0, time.Time{}
		}
	}
	return true
}

// InTrouble says why a claim is not tried now: too many of its namespace fail. Now and then one of those that wait is
// tried.
func (m *Memory) InTrouble(c *Claimant, now time.Time) *Refusal {
	t := m.troubled[c.Owner.Namespace]
	if t == nil || len(t.claims) < term.MaxTroubled {
		return nil
	}
	if _, failed := t.claims[c.Owner.UID]; failed {
		return nil // it has a time of its own
	}
	if !now.Before(t.next) {
		t.pause = term.NextPause(t.pause)
		t.next = now.Add(t.pause)
		return nil
	}
	return t.refusal
}

// NextTrial is how long until a claim of a troubled namespace is tried, 0 if there is none.
func (m *Memory) NextTrial(now time.Time) (wait time.Duration) {
	for _, t := range m.troubled {
		if len(t.claims) >= term.MaxTroubled && m.Pending.Len() > 0 {
			wait = Sooner(wait, max(t.next.Sub(now), time.Millisecond))
		}
	}
	return wait
}

// RefusedBy is what the claim itself is told.
func RefusedBy(err error) Refusal {
	do := "change the quota, policy or schema that refuses it"
	if lacksRight(err) {
		do = "apply the manifests of the manager's release again, which give it this right"
	}
	return *Failed("%s a write of this claim or its IPAddress: %v; %s, and the manager tries again", refusedText, err, do)
}

// lacksRight reports whether RBAC refuses a write, by the words of the API server: quotas and policies are forbidden too.
func lacksRight(err error) bool {
	return apierrors.IsForbidden(err) && strings.Contains(err.Error(), `is forbidden: User "`)
}

// isRefused reports whether a claim was told that the API server refuses what it needs: no manager does better.
func (r Refusal) isRefused() bool { return strings.HasPrefix(r.Message, refusedText) }
