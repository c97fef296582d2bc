package lease

import (
	"net/netip"
	"sync"
	"time"
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
