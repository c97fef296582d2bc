package allocator

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
)

const (
	// maxTroubled is how many claims of a namespace may fail to be written before no more of its claims are granted
	// anything: what one namespace is refused, by a quota or a policy, holds up no other.
	maxTroubled = 16
	// firstTry and lastTry are how long a troubled namespace waits before the next of its claims is tried: the pause
	// doubles.
	firstTry, lastTry = 5 * time.Second, time.Minute
	// refusedText begins the condition of a claim whose IPAddress the API server refuses.
	refusedText = "the API server refuses"
)

// refusedForGood reports whether the answer to a write says that it was not, and will not be, carried out as it is: by
// a quota, a policy, a schema, or because it is too large for etcd, which the API server calls an internal error. A
// conflict, a lack of patience or of rights for the moment, and whatever may have been carried out all the same, is
// none.
func refusedForGood(err error) bool {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return false
	}
	switch code := status.Status().Code; code {
	case http.StatusUnauthorized, http.StatusNotFound, http.StatusRequestTimeout, http.StatusConflict, http.StatusTooManyRequests:
		return false
	case http.StatusInternalServerError:
		return strings.Contains(status.Status().Message, "request is too large")
	default:
		return code >= http.StatusBadRequest && code < http.StatusInternalServerError
	}
}

// trouble is what a pool knows of a namespace of which claims cannot be written.
type trouble struct {
	// claims are those that failed last; refusal is what the others are told.
	claims  map[types.UID]struct{}
	refusal *refusal
	// next is when another of its claims is tried; pause, how long the one after that waits.
	next  time.Time
	pause time.Duration
}

// noteTrouble notes that a claim could not be served. Of a grant that the API server refused for good nothing can land
// any more, so the next commit ends it, and the claim is granted what it remembers when it is tried again (R6).
func (p *memory) noteTrouble(c *claimant, err error, now time.Time) {
	if g := p.grants[c.owner.UID]; g != nil {
		if !refusedForGood(err) {
			g.doubtful = true
		} else if !g.doubtful && !g.inherited {
			g.confirmed = g.confirmed || g.committed
		}
	}
	t := p.troubled[c.owner.Namespace]
	if t == nil {
		t = &trouble{claims: map[types.UID]struct{}{}, pause: firstTry, refusal: failed(
			"%s the IPAddresses of other claims of namespace %s: %v; this claim is served when one of those is", refusedText, c.owner.Namespace, err)}
		p.troubled[c.owner.Namespace] = t
	}
	t.claims[c.owner.UID] = struct{}{}
	// Those of one namespace are not tried all at once.
	c.retryAt = c.retryAt.Add(time.Duration(len(t.claims)-1) * time.Second)
	if len(t.claims) == maxTroubled {
		t.next = now.Add(t.pause)
	}
}

// endTrouble notes that a claim of a namespace was served, or is gone. The others are tried again at once where one was
// served. It reports whether there are such.
func (p *memory) endTrouble(c *claimant, served bool) bool {
	t := p.troubled[c.owner.Namespace]
	if t == nil {
		return false
	}
	if delete(t.claims, c.owner.UID); !served {
		if len(t.claims) == 0 {
			delete(p.troubled, c.owner.Namespace)
		}
		return true
	}
	delete(p.troubled, c.owner.Namespace)
	for uid := range t.claims {
		if other := p.claimants[uid]; other != nil && !other.busy {
			other.failures, other.retryAt = 0, time.Time{}
		}
	}
	return true
}

// inTrouble says why a claim is not tried now: too many of its namespace fail. Now and then one of those that wait is
// tried.
func (p *memory) inTrouble(c *claimant, now time.Time) *refusal {
	t := p.troubled[c.owner.Namespace]
	if t == nil || len(t.claims) < maxTroubled {
		return nil
	}
	if _, failed := t.claims[c.owner.UID]; failed {
		return nil // it has a time of its own
	}
	if !now.Before(t.next) {
		t.pause = min(2*t.pause, lastTry)
		t.next = now.Add(t.pause)
		return nil
	}
	return t.refusal
}

// nextTrial is how long until a claim of a troubled namespace is tried, 0 if there is none.
func (p *memory) nextTrial(now time.Time) (wait time.Duration) {
	for _, t := range p.troubled {
		if len(t.claims) >= maxTroubled && p.pending.Len() > 0 {
			wait = sooner(wait, max(t.next.Sub(now), time.Millisecond))
		}
	}
	return wait
}

// refused is what the claim itself is told.
func refusedBy(err error) refusal {
	return *failed("%s to write this claim or its IPAddress: %v; it is tried again", refusedText, err)
}

// isRefused reports whether a claim was told that the API server refuses what it needs: no manager does better.
func (r refusal) isRefused() bool { return strings.HasPrefix(r.message, refusedText) }

// refusedCommit is the answer to a status of a pool that the API server refuses for good.
type refusedCommit struct{ err error }

func (r *refusedCommit) Error() string {
	return fmt.Sprintf("the API server refuses the status: %v", r.err)
}
func (r *refusedCommit) Unwrap() error { return r.err }
