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

// refusedFor is how long an address is not shown to MetalLB again that it refused, while none of its pools changes.
const refusedFor = 10 * time.Minute

// refusals are the addresses that MetalLB's webhook has refused, by namespace: mostly since another pool has them.
type refusals struct {
	mu sync.Mutex
	of map[string]map[netip.Addr]refusal
}

type refusal struct {
	text  string
	since time.Time
}

func (r *refusals) note(namespace string, a netip.Addr, is refusal) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.of == nil {
		r.of = map[string]map[netip.Addr]refusal{}
	}
	if r.of[namespace] == nil {
		r.of[namespace] = map[netip.Addr]refusal{}
	}
	r.of[namespace][a] = is
}

// find returns why an address is not shown to MetalLB now, and for how long; empty: it is.
func (r *refusals) find(namespace string, a netip.Addr, now time.Time) (text string, left time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	is, refused := r.of[namespace][a]
	if left = refusedFor - now.Sub(is.since); !refused || left <= 0 {
		return "", 0
	}
	return is.text, left
}

// keep forgets of a namespace what is not wanted any more.
func (r *refusals) keep(namespace string, wanted map[netip.Addr]bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for a := range r.of[namespace] {
		if !wanted[a] {
			delete(r.of[namespace], a)
		}
	}
	if len(r.of[namespace]) == 0 {
		delete(r.of, namespace)
	}
}

// forget forgets all, and returns the namespaces that are to be looked at again.
func (r *refusals) forget() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []string
	for namespace := range r.of {
		out = append(out, namespace)
	}
	r.of = nil
	return out
}

// add adds addresses to an IPAddressPool. Where MetalLB's webhook refuses them, one after another is tried: only what it
// refuses by itself stays out.
func (l *look) add(ctx context.Context, w *wanted) (changed bool, err error) {
	p := l.pools[w.pool.Name()]
	var has, more []netip.Addr
	for a := range w.has {
		held := l.shownIn[a]
		switch text, left := l.refusals.find(l.namespace, a, l.now); {
		case held != nil && held == p:
			has = append(has, a)
		case held != nil: // another one has it, until MetalLB has counted
		case text != "":
			l.wait = grants.Sooner(l.wait, left)
		default:
			more = append(more, a)
		}
	}
	if len(has)+len(more) == 0 {
		return false, nil // what there was to be taken away is
	}
	changed, err = l.showLeases(ctx, w.pool, slices.Concat(has, more), p)
	if !refuses(err) || len(more) == 0 {
		return changed, err
	}
	for _, a := range slices.SortedFunc(slices.Values(more), netip.Addr.Compare) {
		changed, err = l.showLeases(ctx, w.pool, append(slices.Clone(has), a), p)
		if !refuses(err) {
			return changed, err
		}
		l.refusals.note(l.namespace, a, refusal{err.Error(), l.now})
		l.wait = grants.Sooner(l.wait, refusedFor)
	}
	return false, nil
}

// refuses reports whether an error is the word of an admission webhook, MetalLB's, or of an admission policy. That a right is
// missing is none.
func refuses(err error) bool {
	return err != nil && (apierrors.IsForbidden(err) || apierrors.IsInvalid(err) || apierrors.IsBadRequest(err)) &&
		(strings.Contains(err.Error(), "denied the request") || strings.Contains(err.Error(), "denied request"))
}
