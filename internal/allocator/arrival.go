package allocator

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/annotations"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/grants"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/term"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/text"
)

// arrivalChecker opens a pool that was moved or restored when everything that came along with it has arrived (R10).
type arrivalChecker struct {
	*Options
	status   *statusWriter
	metadata *poolMetadata
}

// checkArrival checks whether everything that came, or comes, along with a pool has arrived (R10). clusterctl creates
// Clusters paused, and unpauses them when everything else is there; a restore is expected to do the same. So the proof
// is a Cluster that was with the pool before and is not paused, while no other Cluster of the namespace is paused. The
// proof is read live, and what is in use is listed after that. The pool needs that list from the first missing proof
// until a list has succeeded: the proof may be on record by then, by this manager or by hand. A write that the API
// server refuses for good leaves the pool closed, and the rest of the reconcile goes on.
func (ac *arrivalChecker) checkArrival(ctx context.Context, p *grants.Pool) error {
	now := ac.now()
	m := p.Lock()
	m.Quarantine.BeginQuarantine(now, ac.Quarantine)
	m.Quarantine.ExtendQuarantine(now, ac.Quarantine)
	quiet := !m.Quarantine.Until.After(now)
	base, came := m.Base.Pool, m.Quarantine.HasOtherManagementCluster()
	needsProof := m.Quarantine.Arrival.NeedsListing || m.Quarantine.Arrival.MissingProof != ""
	arrives := m.Quarantine.IsArriving() && (came || !m.Quarantine.Arrival.OpenedManually) && base.GetDeletionTimestamp() == nil
	rests := m.Quarantine.Arrival.RetryAfter.After(now)
	m.Unlock()
	if base.GetNamespace() == "" || rests {
		return nil // a person decides on a pool without a namespace
	}
	missing := ""
	if arrives {
		missing = missingArrivalProof(ctx, ac.Client, base, came)
	}
	needsProof = needsProof || missing != "" || (arrives && came)
	proven := needsProof && missing == "" && (quiet || !came)
	if proven && arrives {
		timedCtx, cancel := withRequestTimeout(ctx)
		missing = missingArrivalProof(timedCtx, ac.Live, base, came)
		cancel()
	}
	m = p.Lock()
	m.Quarantine.SetArrivalProof(missing, needsProof)
	m.Unlock()
	if !proven || missing != "" {
		return nil
	}
	err := ac.openPool(ctx, p, base, came)
	if !term.IsPermanentRefusal(err) {
		return err
	}
	m = p.Lock()
	defer m.Unlock()
	m.Quarantine.RecordOpeningRefused(text.SanitizeMessage(fmt.Sprintf("all is here that came along with the pool, and the API server refuses what opens it: %v; "+
		"change the quota, policy or right that refuses it", err)), now.Add(openRetryDelay))
	return nil
}

// missingArrivalProof returns what is missing as a proof that everything that came along with a pool has arrived; empty
// means nothing.
func missingArrivalProof(ctx context.Context, from client.Reader, pool v1alpha1.Pool, came bool) string {
	const open = "; if all is here, remove the annotation " + v1alpha1.ManagementClusterAnnotation + " from the pool to open it"
	clusters := &clusterv1.ClusterList{}
	if err := from.List(ctx, clusters, client.InNamespace(pool.GetNamespace())); err != nil {
		return fmt.Sprintf("the pool was moved or restored, and the Clusters of its namespace, which would show that all has arrived, cannot be read: %v", err)
	}
	named := clustersFromAnnotation(pool)
	here := len(named) == 0 && !came
	slices.SortFunc(clusters.Items, func(a, b clusterv1.Cluster) int { return cmp.Compare(a.Name, b.Name) })
	for i := range clusters.Items {
		c := &clusters.Items[i]
		if annotations.IsPaused(c, c) {
			return fmt.Sprintf("the pool was moved or restored, and what has its addresses may still arrive while Cluster %s is paused; end the move, which unpauses it, or unpause it when the restore is over", c.Name) + open
		}
		here = here || slices.Contains(named, c.Name)
	}
	switch {
	case here:
		return ""
	case len(named) == 0:
		return "the pool came from another management cluster, and names no Cluster that would show that all has arrived" + open
	}
	return fmt.Sprintf("the pool was moved or restored, and no Cluster that was with it (%s) is here: what has its addresses may still arrive; resume the move or the restore", strings.Join(named, ", ")) + open
}

// openRetryDelay is how long a pool waits after the API server refused the write that opens it.
const openRetryDelay = time.Minute

// openPool records that everything that came along with a pool has arrived, and lists what is in use: the list begins
// after the proof.
func (ac *arrivalChecker) openPool(ctx context.Context, p *grants.Pool, base v1alpha1.Pool, came bool) error {
	if came {
		if err := ac.metadata.recordArrival(ctx, p, base); err != nil {
			return err
		}
	}
	return ac.status.takeOverPool(ctx, p)
}
