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
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/grants"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/text"
)

// admission returns the rules that decide on a claim before any address is looked at, and notes what they find. What it
// reads comes from caches, once per cluster and namespace.
func (a *Allocator) admission(ctx context.Context, m *grants.Memory, now time.Time) grants.Admit {
	return m.Noting(a.rules(ctx, m, now))
}

// releases returns the rules that decide on the release of a deleted claimant, and notes what they find.
func (a *Allocator) releases(ctx context.Context, m *grants.Memory) grants.Admit {
	return m.Noting(func(c *grants.Claimant) grants.Ruling { return a.admitRelease(ctx, m, c) })
}

// rules are those of admission. They change nothing.
func (a *Allocator) rules(ctx context.Context, m *grants.Memory, now time.Time) grants.Admit {
	clusters := map[types.NamespacedName]grants.Gate{}
	namespaces := map[string]*grants.Refusal{}
	direct, indirect := m.Direct(), m.Indirect()
	return func(c *grants.Claimant) grants.Ruling {
		if a.leavesAlone(c) {
			return grants.Ruling{Waits: true, Silent: a.isAnothers(c)}
		}
		var out grants.Ruling
		if c.Cluster.Name != "" {
			key := c.Cluster
			g, known := clusters[key]
			if !known {
				g = a.gateOf(ctx, key)
				clusters[key] = g
			}
			out.Gate = g
			switch g {
			case grants.ClusterOpen:
			case grants.ClusterPaused, grants.ClusterUnknown:
				out.Waits = true
				return out
			case grants.ClusterAbsent:
				// A platform may ask for the blocks of a Cluster before it makes the Cluster.
				if c.Kind.Traits().NeedsCluster {
					out.Refused = grants.Failed("waiting for Cluster %s, which does not exist; create the Cluster, or correct spec.clusterName or the label cluster.x-k8s.io/cluster-name of the claim", key)
					return out
				}
			}
		}
		if m.Base == nil {
			return out
		}
		if annotations.HasPaused(m.Base) {
			out.Waits = true
			return out
		}
		if reason, message := m.Closed(now); reason != "" && (!c.HasRecord() || m.Layout == nil) {
			switch reason {
			case v1alpha1.DeletingReason:
				message = deletedMessage(m.Base) // whom it waits for changes with every release
			case v1alpha1.AdoptingReason: // since when nothing has arrived changes with every arrival
				message = "others may have addresses of it that is not known yet; its condition Ready says what ends that, or when"
			case v1alpha1.PoolExhaustedReason: // as the contract calls it, whatever it comes of
				out.Refused = &grants.Refusal{Reason: ipamv1.IPAddressClaimReadyPoolExhaustedReason, Message: text.Message(fmt.Sprintf("%s has no free address: %s", m.Key, message))}
				return out
			}
			out.Refused = grants.NotReady("%s grants nothing now (%s): %s", m.Key, reason, message)
			return out
		}
		if direct != nil && !c.Mirrored && !c.HasRecord() {
			out.Refused = direct
			return out
		}
		if c.Child != nil {
			if out.Refused = a.mayCarve(m, c); out.Refused != nil {
				return out
			}
		}
		if indirect != nil && c.Mirrored && !c.HasRecord() {
			out.Refused = indirect
			return out
		}
		if c.Child != nil && c.Child.Kind == v1alpha1.GlobalNetworkPoolKind && c.Owner.Namespace == a.BlockNamespace {
			return out // who may make a global pool is no tenant
		}
		if global, ok := m.Base.(*v1alpha1.GlobalNetworkPool); ok {
			no, known := namespaces[c.Owner.Namespace]
			if !known {
				no = a.selects(ctx, global, c.Owner.Namespace)
				namespaces[c.Owner.Namespace] = no
			}
			out.Refused = no
		}
		if out.Refused == nil {
			return a.onMachine(m, c, out)
		}
		return out
	}
}

// deletedMessage is what claims of a pool that is being deleted are told.
func deletedMessage(pool v1alpha1.Pool) string {
	if source := grants.MirroredPool(pool); source != "" {
		return fmt.Sprintf("the pool is being deleted, and is made again for %s when all of its addresses are released; use another pool until then", source)
	}
	return "the pool is being deleted; use another pool"
}

// leavesAlone reports whether nothing is done for a claim: it is paused, or another manager's.
func (a *Allocator) leavesAlone(c *grants.Claimant) bool { return c.Paused || a.isAnothers(c) }

// isAnothers reports whether a claim is another manager's: by its label, or because this one serves no leases.
func (a *Allocator) isAnothers(c *grants.Claimant) bool {
	return (a.WatchFilter != "" && c.WatchLabel != a.WatchFilter) || (a.WithoutLeases && c.Owner.Kind == v1alpha1.IPLeaseKind)
}

// gateOf looks at a Cluster: spec.paused and the annotation both pause it, as Cluster API's [IPAM provider contract]
// asks.
//
// [IPAM provider contract]: https://cluster-api.sigs.k8s.io/developer/providers/contracts/ipam
func (a *Allocator) gateOf(ctx context.Context, key types.NamespacedName) grants.Gate {
	if a.Namespace != "" && key.Namespace != a.Namespace {
		return grants.ClusterOpen // not ours to see: a block may be for a Cluster of any namespace
	}
	cluster := &clusterv1.Cluster{}
	err := a.Client.Get(ctx, key, cluster)
	switch {
	case apierrors.IsNotFound(err):
		return grants.ClusterAbsent
	case err != nil:
		return grants.ClusterUnknown
	case annotations.IsPaused(cluster, cluster):
		return grants.ClusterPaused
	}
	return grants.ClusterOpen
}

// selects tells why a global pool does not serve a namespace; nil: it does.
func (a *Allocator) selects(ctx context.Context, pool *v1alpha1.GlobalNetworkPool, namespace string) *grants.Refusal {
	if pool.Spec.NamespaceSelector == nil {
		return nil
	}
	selector, err := metav1.LabelSelectorAsSelector(pool.Spec.NamespaceSelector)
	if err != nil {
		return grants.NotReady("spec.namespaceSelector of GlobalNetworkPool %s is invalid: %v", pool.Name, err)
	}
	ns := &metav1.PartialObjectMetadata{}
	ns.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Namespace"))
	if err := a.Client.Get(ctx, types.NamespacedName{Name: namespace}, ns); err != nil {
		return grants.Failed("the labels of namespace %s cannot be read: %v", namespace, err)
	}
	if !selector.Matches(labels.Set(ns.Labels)) {
		return grants.Failed("GlobalNetworkPool %s does not serve namespace %s; label the namespace to match %s",
			pool.Name, namespace, selector)
	}
	return nil
}

// admitRelease decides whether a deleted claimant may be released now: neither it nor its pool nor its Cluster is
// paused, and no consumer uses the address still. A Cluster that is gone does not hold it.
func (a *Allocator) admitRelease(ctx context.Context, m *grants.Memory, c *grants.Claimant) grants.Ruling {
	if c.InUse && !m.OnlyGranted(c) {
		return grants.Ruling{Waits: true, Silent: true} // a consumer's finalizer says that, and the end of it is an event
	}
	if m.IsKept(c) {
		return grants.Ruling{Waits: true, Silent: a.leavesAlone(c), Kept: true} // the end of it is an event, too
	}
	if a.leavesAlone(c) || (m.Base != nil && annotations.HasPaused(m.Base)) {
		return grants.Ruling{Waits: true, Silent: a.isAnothers(c)}
	}
	if c.Cluster.Name == "" {
		return grants.Ruling{}
	}
	if g := a.gateOf(ctx, c.Cluster); g == grants.ClusterPaused || g == grants.ClusterUnknown {
		return grants.Ruling{Waits: true, Gate: g}
	}
	if m.Base != nil && m.Releasable(c).IsValid() && a.isOutlived(ctx, c) {
		return grants.Ruling{Waits: true, Outlived: true}
	}
	return grants.Ruling{}
}

// isOutlived reports whether a claim that is deleted is of a Cluster that is there, whose machines use its address: be it
// that somebody deleted the claim, or the Cluster in the foreground. By itself the garbage collector deletes the claim when
// the Cluster is gone.
func (a *Allocator) isOutlived(ctx context.Context, c *grants.Claimant) bool {
	owner := c.OwnerCluster()
	if owner == "" || c.Moved {
		return false
	}
	cluster := &clusterv1.Cluster{}
	return a.Client.Get(ctx, c.Cluster, cluster) == nil && cluster.UID == owner
}
