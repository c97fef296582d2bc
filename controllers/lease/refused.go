package lease

import (
	"context"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/grants"
)

// refusalRetention is how long an address that MetalLB refused is not added to its pools again, while none of them
// changes.
const refusalRetention = 10 * time.Minute

// addressRefusals are the addresses that MetalLB's webhook has refused, by namespace: mostly because another pool has
// them.
type addressRefusals struct {
	mu          sync.Mutex
	byNamespace map[string]map[netip.Addr]addressRefusal
}

type addressRefusal struct {
	message string
	since   time.Time
}

func (r *addressRefusals) addRefusal(namespace string, a netip.Addr, refusal addressRefusal) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.byNamespace == nil {
		r.byNamespace = map[string]map[netip.Addr]addressRefusal{}
	}
	if r.byNamespace[namespace] == nil {
		r.byNamespace[namespace] = map[netip.Addr]addressRefusal{}
	}
	r.byNamespace[namespace][a] = refusal
}

// findRefusal returns why an address is not added to a pool of MetalLB now, and for how long; empty if it is.
func (r *addressRefusals) findRefusal(namespace string, a netip.Addr, now time.Time) (text string, left time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	refusal, refused := r.byNamespace[namespace][a]
	if left = refusalRetention - now.Sub(refusal.since); !refused || left <= 0 {
		return "", 0
	}
	return refusal.message, left
}

// retainAddresses forgets the refusals of a namespace for addresses that are not wanted any more.
func (r *addressRefusals) retainAddresses(namespace string, wanted map[netip.Addr]bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for a := range r.byNamespace[namespace] {
		if !wanted[a] {
			delete(r.byNamespace[namespace], a)
		}
	}
	if len(r.byNamespace[namespace]) == 0 {
		delete(r.byNamespace, namespace)
	}
}

// forgetAll forgets all refusals, and returns the namespaces to reconcile again.
func (r *addressRefusals) forgetAll() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []string
	for namespace := range r.byNamespace {
		out = append(out, namespace)
	}
	r.byNamespace = nil
	return out
}

// addToPool adds addresses to an IPAddressPool. If MetalLB's webhook refuses them, it tries one after another: only an
// address that is refused by itself stays out.
func (l *scope) addToPool(ctx context.Context, w *desiredPool) (changed bool, err error) {
	p := l.addressPools[w.pool.Name()]
	var known, more []netip.Addr
	for a := range w.addresses {
		held := l.poolsByAddress[a]
		switch text, left := l.refusals.findRefusal(l.namespace, a, l.now); {
		case held != nil && held == p:
			known = append(known, a)
		case held != nil: // another pool has it until MetalLB has counted
		case text != "":
			l.requeueAfter = grants.MinWait(l.requeueAfter, left)
		default:
			more = append(more, a)
		}
	}
	if len(known)+len(more) == 0 {
		return false, nil // what had to be removed is removed
	}
	changed, err = l.applyLeasePool(ctx, w.pool, slices.Concat(known, more), p)
	if !isWebhookRefusal(err) || len(more) == 0 {
		return changed, err
	}
	for _, a := range slices.SortedFunc(slices.Values(more), netip.Addr.Compare) {
		changed, err = l.applyLeasePool(ctx, w.pool, append(slices.Clone(known), a), p)
		if !isWebhookRefusal(err) {
			return changed, err
		}
		l.refusals.addRefusal(l.namespace, a, addressRefusal{err.Error(), l.now})
		l.requeueAfter = grants.MinWait(l.requeueAfter, refusalRetention)
	}
	return false, nil
}

// isWebhookRefusal reports whether an error is the refusal of an admission webhook, MetalLB's, or of an admission
// policy. A missing permission is not one.
func isWebhookRefusal(err error) bool {
	return err != nil && (apierrors.IsForbidden(err) || apierrors.IsInvalid(err) || apierrors.IsBadRequest(err)) &&
		(strings.Contains(err.Error(), "denied the request") || strings.Contains(err.Error(), "denied request"))
}
