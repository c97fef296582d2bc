package allocator

import (
	"context"
	"fmt"
	"sync"
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
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/ending"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/grants"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/text"
)

// admission returns the rules that decide on a claim before any address is looked at, and notes what they find. What it
// reads comes from caches, once per cluster and namespace.
func (a *Allocator) admission(ctx context.Context, m *grants.Memory, now time.Time) grants.Admit {
	return m.Noting(a.rules(ctx, m, now))
}

// releases returns the rules that decide on the release of a deleted claimant, and notes what they find. Each Cluster is
// looked at once, however many claimants it has.
func (a *Allocator) releases(ctx context.Context, m *grants.Memory) grants.Admit {
	clusters := a.lookAtClusters(ctx)
	return m.Noting(func(c *grants.Claimant) grants.Ruling { return a.admitRelease(m, c, clusters) })
}

// rules are those of admission. They change nothing. What is the same for all claimants is found out once, when the first
// one asks.
func (a *Allocator) rules(ctx context.Context, m *grants.Memory, now time.Time) grants.Admit {
	clusters := a.lookAtClusters(ctx)
	namespaces := map[string]*grants.Refusal{}
	direct, indirect := m.Direct(), m.Indirect()
	closed := sync.OnceValue(func() *grants.Refusal { return closedTo(m, now) })
	return func(c *grants.Claimant) grants.Ruling {
		if a.leavesAlone(c) {
			return grants.Ruling{Waits: true, Silent: a.isAnothers(c)}
		}
		var out grants.Ruling
		if c.Cluster.Name != "" {
			out.Gate = clusters(c.Cluster).gate
			switch out.Gate {
			case grants.ClusterOpen:
			case grants.ClusterPaused, grants.ClusterUnknown:
				out.Waits = true
				return out
			case grants.ClusterAbsent:
				// A platform may ask for the blocks of a Cluster before it makes the Cluster.
				if c.Kind.Traits().NeedsCluster {
					out.Refused = grants.Failed("waiting for Cluster %s, which does not exist; create the Cluster, or correct spec.clusterName or the label cluster.x-k8s.io/cluster-name of the claim", c.Cluster)
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
		if !c.HasRecord() || m.Layout == nil {
			if out.Refused = closed(); out.Refused != nil {
				return out
			}
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

// closedTo is what all those are told that the pool grants nothing new to, nil if it does grant.
func closedTo(m *grants.Memory, now time.Time) *grants.Refusal {
	reason, message := m.Closed(now)
	switch reason {
	case "":
		return nil
	case v1alpha1.DeletingReason:
		message = deletedMessage(m.Base) // whom it waits for changes with every release
	case v1alpha1.AdoptingReason: // since when nothing has arrived changes with every arrival
		message = "others may have addresses of it that is not known yet; its condition Ready says what ends that, or when"
	case v1alpha1.PoolExhaustedReason: // as the contract calls it, whatever it comes of
		return &grants.Refusal{Reason: ipamv1.IPAddressClaimReadyPoolExhaustedReason, Message: text.Message(fmt.Sprintf("%s has no free address: %s", m.Key, message))}
	}
	return grants.NotReady("%s grants nothing now (%s): %s", m.Key, reason, message)
}

// leavesAlone reports whether nothing is done for a claim: it is paused, or another manager's.
func (a *Allocator) leavesAlone(c *grants.Claimant) bool { return c.Paused || a.isAnothers(c) }

// isAnothers reports whether a claim is another manager's: by its label, or because this one serves no leases.
func (a *Allocator) isAnothers(c *grants.Claimant) bool {
	return (a.WatchFilter != "" && c.WatchLabel != a.WatchFilter) || (a.WithoutLeases && c.Owner.Kind == v1alpha1.IPLeaseKind)
}

// aCluster is what one look at a Cluster found.
type aCluster struct {
	gate grants.Gate
	// uid is that of the Cluster while it keeps what it owns; empty: it is gone, or was not seen.
	uid types.UID
	// seen is what is found of it.
	seen grants.Sighting
}

// lookAt finds out about a Cluster.
type lookAt func(types.NamespacedName) aCluster

// lookAtClusters returns what finds out about Clusters, and reads each of them once.
func (a *Allocator) lookAtClusters(ctx context.Context) lookAt {
	seen := map[types.NamespacedName]aCluster{}
	return func(key types.NamespacedName) aCluster {
		c, is := seen[key]
		if !is {
			c = a.lookAtCluster(ctx, key)
			seen[key] = c
		}
		return c
	}
}

// lookAtCluster looks at a Cluster: spec.paused and the annotation both pause it, as Cluster API's [IPAM provider contract]
// asks.
//
// [IPAM provider contract]: https://cluster-api.sigs.k8s.io/developer/providers/contracts/ipam
func (a *Allocator) lookAtCluster(ctx context.Context, key types.NamespacedName) aCluster {
	if a.Namespace != "" && key.Namespace != a.Namespace {
		return aCluster{gate: grants.ClusterOpen} // not ours to see: a block may be for a Cluster of any namespace
	}
	cluster := &clusterv1.Cluster{}
	err := a.Client.Get(ctx, key, cluster)
	switch {
	case apierrors.IsNotFound(err):
		return aCluster{gate: grants.ClusterAbsent, seen: grants.Unseen}
	case err != nil:
		return aCluster{gate: grants.ClusterUnknown}
	}
	out := aCluster{gate: grants.ClusterOpen, uid: cluster.UID, seen: sightingOf(cluster, false)}
	if annotations.IsPaused(cluster, cluster) {
		out.gate = grants.ClusterPaused
	}
	if ending.IsLeft(cluster, v1alpha1.TenantNetworkFinalizer) {
		out.uid = "" // its machines are gone, and the garbage collector waits for what it owns
	}
	return out
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
func (a *Allocator) admitRelease(m *grants.Memory, c *grants.Claimant, clusters lookAt) grants.Ruling {
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
	cluster := clusters(c.Cluster)
	if g := cluster.gate; g == grants.ClusterPaused || g == grants.ClusterUnknown {
		return grants.Ruling{Waits: true, Gate: g}
	}
	if m.Base != nil && m.Releasable(c).IsValid() && cluster.outlives(c) {
		return grants.Ruling{Waits: true, Outlived: true}
	}
	return grants.Ruling{}
}

// outlives reports whether a claim that is deleted is of a Cluster that is there, whose machines use its address: be it
// that somebody deleted the claim, or the Cluster in the foreground. By itself the garbage collector deletes the claim when
// the Cluster is gone.
func (k aCluster) outlives(c *grants.Claimant) bool {
	owner := c.OwnerCluster()
	return owner != "" && !c.Moved && owner == k.uid
}
