package allocator

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"
	"sigs.k8s.io/cluster-api/util/annotations"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/text"
)

// ruling is what is decided on a claimant before any address is looked at.
type ruling struct {
	// waits: nothing is done for it now, and nothing is said but what pauses it. silent: nor is that said here.
	waits, silent bool
	// refused is why it gets nothing; nil: an address is looked for.
	refused *refusal
	// gate is how its Cluster was found, open where nobody looked. It is looked at again when a Cluster changes that
	// was not open.
	gate gate
}

// admit decides on a claimant.
type admit func(c *claimant) ruling

// note remembers what a ruling has to be told for, and which Cluster it waits for.
func (p *memory) note(c *claimant, r ruling) {
	if r.gate != open {
		p.waitingClusters[c.cluster] = struct{}{}
	}
	if r.waits && !r.silent {
		p.notePause(c, r.gate)
	}
}

// noting is admit, and notes what it finds.
func (p *memory) noting(admit admit) admit {
	return func(c *claimant) ruling {
		r := admit(c)
		p.note(c, r)
		return r
	}
}

// admission returns the rules that decide on a claim before any address is looked at, and notes what they find. What it
// reads comes from caches, once per cluster and namespace. It is called with the pool locked.
func (a *Allocator) admission(ctx context.Context, m *memory, now time.Time) admit {
	return m.noting(a.rules(ctx, m, now))
}

// releases returns the rules that decide on the release of a deleted claimant, and notes what they find.
func (a *Allocator) releases(ctx context.Context, m *memory) admit {
	return m.noting(func(c *claimant) ruling { return a.admitRelease(ctx, m, c) })
}

// rules are those of admission. They change nothing.
func (a *Allocator) rules(ctx context.Context, m *memory, now time.Time) admit {
	clusters := map[types.NamespacedName]gate{}
	namespaces := map[string]*refusal{}
	direct := m.direct()
	return func(c *claimant) ruling {
		if a.leavesAlone(c) {
			return ruling{waits: true, silent: a.isAnothers(c)}
		}
		var out ruling
		if c.cluster.Name != "" {
			key := c.cluster
			g, known := clusters[key]
			if !known {
				g = a.gateOf(ctx, key)
				clusters[key] = g
			}
			out.gate = g
			switch g {
			case open:
			case paused, unknown:
				out.waits = true
				return out
			case absent:
				// A platform may ask for the blocks of a Cluster before it makes the Cluster.
				if c.kind.traits().needsCluster {
					out.refused = failed("waiting for Cluster %s, which does not exist", key)
					return out
				}
			}
		}
		if m.base == nil {
			return out
		}
		if annotations.HasPaused(m.base) {
			out.waits = true
			return out
		}
		if reason, message := m.closed(now); reason != "" && (!c.hasRecord() || m.layout == nil) {
			switch reason {
			case v1alpha1.DeletingReason:
				message = "the pool is being deleted; use another pool" // whom it waits for changes with every release
			case v1alpha1.PoolExhaustedReason: // as the contract calls it, whatever it comes of
				out.refused = &refusal{reason: ipamv1.IPAddressClaimReadyPoolExhaustedReason, message: text.Message(fmt.Sprintf("%s has no free address: %s", m.key, message))}
				return out
			}
			out.refused = notReady("%s grants nothing now (%s): %s", m.key, reason, message)
			return out
		}
		if direct != nil && !c.mirrored && !c.hasRecord() {
			out.refused = direct
			return out
		}
		if global, ok := m.base.(*v1alpha1.GlobalNetworkPool); ok {
			no, known := namespaces[c.owner.Namespace]
			if !known {
				no = a.selects(ctx, global, c.owner.Namespace)
				namespaces[c.owner.Namespace] = no
			}
			out.refused = no
		}
		return out
	}
}

// leavesAlone reports whether nothing is done for a claim: it is paused, or another manager's by its label.
func (a *Allocator) leavesAlone(c *claimant) bool { return c.paused || a.isAnothers(c) }

// isAnothers reports whether a claim is another manager's by its label.
func (a *Allocator) isAnothers(c *claimant) bool {
	return a.WatchFilter != "" && c.watchLabel != a.WatchFilter
}

// gate says whether the Cluster of a claim lets it be served.
type gate int

const (
	open gate = iota
	paused
	absent
	unknown
)

// gateOf looks at a Cluster: spec.paused and the annotation both pause it, as Cluster API's [IPAM provider contract]
// asks.
//
// [IPAM provider contract]: https://cluster-api.sigs.k8s.io/developer/providers/contracts/ipam
func (a *Allocator) gateOf(ctx context.Context, key types.NamespacedName) gate {
	if a.Namespace != "" && key.Namespace != a.Namespace {
		return open // not ours to see: a block may be for a Cluster of any namespace
	}
	cluster := &clusterv1.Cluster{}
	err := a.Client.Get(ctx, key, cluster)
	switch {
	case apierrors.IsNotFound(err):
		return absent
	case err != nil:
		return unknown
	case annotations.IsPaused(cluster, cluster):
		return paused
	}
	return open
}

// selects tells why a global pool does not serve a namespace; nil: it does.
func (a *Allocator) selects(ctx context.Context, pool *v1alpha1.GlobalNetworkPool, namespace string) *refusal {
	if pool.Spec.NamespaceSelector == nil {
		return nil
	}
	selector, err := metav1.LabelSelectorAsSelector(pool.Spec.NamespaceSelector)
	if err != nil {
		return notReady("spec.namespaceSelector of GlobalNetworkPool %s is invalid: %v", pool.Name, err)
	}
	ns := &metav1.PartialObjectMetadata{}
	ns.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Namespace"))
	if err := a.Client.Get(ctx, types.NamespacedName{Name: namespace}, ns); err != nil {
		return failed("the labels of namespace %s cannot be read: %v", namespace, err)
	}
	if !selector.Matches(labels.Set(ns.Labels)) {
		return failed("GlobalNetworkPool %s does not serve namespace %s; label the namespace to match %s",
			pool.Name, namespace, selector)
	}
	return nil
}

// admitRelease decides whether a deleted claimant may be released now: neither it nor its pool nor its Cluster is
// paused, and no consumer uses the address still. A Cluster that is gone does not hold it.
func (a *Allocator) admitRelease(ctx context.Context, m *memory, c *claimant) ruling {
	if c.inUse || m.isKept(c) {
		return ruling{waits: true, silent: true} // a consumer's finalizer says that, and the end of it is an event
	}
	if a.leavesAlone(c) || (m.base != nil && annotations.HasPaused(m.base)) {
		return ruling{waits: true, silent: a.isAnothers(c)}
	}
	if c.cluster.Name == "" {
		return ruling{}
	}
	if g := a.gateOf(ctx, c.cluster); g == paused || g == unknown {
		return ruling{waits: true, gate: g}
	}
	return ruling{}
}
