package nodeipam

import (
	"context"
	"errors"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/flowcontrol"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/fence"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/metrics"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pace"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/podcidr"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/term"
)

// ClusterAllocator grants CIDRs to the Nodes of one cluster.
type ClusterAllocator struct {
	Options
	fence *fence.Fence
	// pendingCommit is the commit whose outcome is unknown. Only the reconcile uses it, as it alone uses the fence.
	pendingCommit *pendingCommit
	state         *nodeState
	nodes         *nodeClient
	blocks        *blockReconciler
	metrics       *metricsExporter
	// eventLimiter bounds the events.
	eventLimiter flowcontrol.PassiveRateLimiter
	// deletingEmitted reports whether the event was recorded that the ConfigMap is being deleted.
	deletingEmitted bool
}

// NewClusterAllocator returns an allocator that knows nothing of its cluster yet.
func NewClusterAllocator(o Options) *ClusterAllocator {
	m := newNodeState(o.ClusterKey, o.BlockGracePeriod)
	m.blocks.ignored = o.BlockClient == nil
	return newAllocatorForState(o, m)
}

func newAllocatorForState(o Options, m *nodeState) *ClusterAllocator {
	out := &ClusterAllocator{
		Options: o, fence: fence.New(o.Client, o.Live, holderForCluster(o.ManagerID, o.ClusterKey)), state: m,
		eventLimiter: newEventLimiter(),
	}
	out.metrics = &metricsExporter{Options: &out.Options}
	out.nodes = &nodeClient{Options: &out.Options, state: m}
	out.blocks = &blockReconciler{Options: &out.Options, state: m, nodes: out.nodes}
	return out
}

// holderForCluster returns the holder ID of an allocator in the ConfigMap: the ID of the process, and the cluster whose
// Nodes it serves. A cluster that manages itself has two allocators, one for the cluster and one for its Cluster
// object, often in one process: each treats the other as another manager.
func holderForCluster(id string, of ClusterKey) string { return id + "/" + of.String() }

// isPeerHolder reports whether a holder ID is that of another allocator of the same cluster than the one with the given
// key.
func isPeerHolder(holder string, of ClusterKey) bool {
	_, site, ok := strings.Cut(holder, "/")
	return ok && site != "" && site != of.String()
}

// ObserveObject records a Node as it was seen, and reports whether the cluster has to be reconciled.
func (ca *ClusterAllocator) ObserveObject(o client.Object) (ClusterKey, bool) {
	n, ok := o.(*corev1.Node)
	return ca.ClusterKey, ok && ca.nodes.observeNode(n)
}

// ForgetObject records the proof that the UID of a Node is gone, and reports whether the cluster has to be reconciled.
func (ca *ClusterAllocator) ForgetObject(o client.Object) (ClusterKey, bool) {
	return ca.ClusterKey, ca.nodes.forgetNode(o.GetUID())
}

// ObjectsNotListed returns the known Nodes that are not listed.
func (ca *ClusterAllocator) ObjectsNotListed(_ client.Object, listed map[types.UID]struct{}) []client.Object {
	m := ca.state.lock()
	defer m.Unlock()
	var out []client.Object
	for uid, n := range m.nodes.byUID {
		if _, ok := listed[uid]; !ok {
			o := &corev1.Node{}
			o.Name, o.UID = n.Name, uid
			out = append(out, o)
		}
	}
	return out
}

// SetRangeObjects sets the objects that CIDRs are granted from.
func (ca *ClusterAllocator) SetRangeObjects(objects []RangeObject) {
	m := ca.state.lock()
	defer m.Unlock()
	m.setRangeObjects(objects)
}

// SetBlocks sets the blocks that exist.
func (ca *ClusterAllocator) SetBlocks(blocks []Block) {
	m := ca.state.lock()
	defer m.Unlock()
	m.blocks.setBlocks(blocks, ca.Now())
}

// SetServiceCIDRs sets the CIDRs of Services, which are not granted to Nodes.
func (ca *ClusterAllocator) SetServiceCIDRs(services []netip.Prefix) {
	m := ca.state.lock()
	defer m.Unlock()
	m.setServiceCIDRs(services)
}

// SetReadError sets the reason why Nodes, or objects that they depend on, may not be read; nil means that they may.
// blind reports whether they were never read before, so that their number is unknown.
func (ca *ClusterAllocator) SetReadError(why error, blind bool) {
	m := ca.state.lock()
	defer m.Unlock()
	m.nodes.readErr, m.nodes.unread = why, why != nil && blind
}

// Reconcile does one reconcile of the cluster, and returns after how long it has to be called again, 0 if nothing is
// known to be due. It must not be called concurrently.
func (ca *ClusterAllocator) Reconcile(ctx context.Context) (time.Duration, error) {
	ca.setNextReconcile(time.Time{}) // until the reconcile ends, every write that fails enqueues the cluster
	wait, err := ca.reconcileAsHolder(ctx)
	switch {
	case err != nil: // the caller decides when it is called again
		ca.setNextReconcile(ca.Now())
	case wait > 0:
		ca.setNextReconcile(ca.Now().Add(wait))
	}
	return wait, err
}

func (ca *ClusterAllocator) setNextReconcile(at time.Time) {
	m := ca.state.lock()
	defer m.Unlock()
	m.writes.nextReconcile = at
}

func (ca *ClusterAllocator) reconcileAsHolder(ctx context.Context) (time.Duration, error) {
	if ca.fence.Pending() {
		if wait, err := ca.recordCommitOutcome(ca.Now(), ca.fence.ResolvePending(ctx)); err != nil || wait > 0 {
			return wait, err
		}
	}
	m := ca.state.lock()
	m.nodes.Rotate(ca.Now())
	holder := m.term.isHolder && !m.term.needsRevalidation
	if m.term.needsRevalidation {
		ca.fence.MarkStale()
	}
	m.Unlock()
	if !holder {
		may, wait, err := ca.decideTakeover(ctx)
		if err != nil || !may {
			return wait, err
		}
		if err := ca.takeOver(ctx); err != nil {
			return 0, err
		}
	}
	return ca.reconcileOnce(ctx)
}

// decideTakeover reports whether this manager becomes the holder now, or how long to wait. After its start it first
// reads whether an earlier manager has left work unfinished.
func (ca *ClusterAllocator) decideTakeover(ctx context.Context) (bool, time.Duration, error) {
	m := ca.state.lock()
	ask := m.term.needsRecordRead
	m.Unlock()
	if ask {
		if err := ca.readRecord(ctx); err != nil {
			return false, 0, err
		}
	}
	m = ca.state.lock()
	may, wait := m.takeovers.decideTakeover(ca.Now(), ca.Elected)
	only := may && m.takeovers.hasOnlyInheritedWork(ca.Now())
	m.Unlock()
	if !only || ca.Elected {
		return may, wait, nil
	}
	// Another manager may have finished that work.
	if err := ca.readRecord(ctx); err != nil {
		return false, 0, err
	}
	m = ca.state.lock()
	defer m.Unlock()
	return m.term.hasInheritedWork, 0, nil
}

// readRecord reads whether the record has grants in flight, or an open block that is unknown here.
func (ca *ClusterAllocator) readRecord(ctx context.Context) error {
	state, _, err := ca.fence.ReadState(ctx)
	if err != nil {
		ca.recordCommitError(err)
		return err
	}
	m := ca.state.lock()
	defer m.Unlock()
	m.cluster.hasPeerAllocator = m.cluster.hasPeerAllocator || isPeerHolder(state.Holder, ca.ClusterKey)
	m.term.needsRecordRead, m.term.hasInheritedWork, m.record.commitErr = false, len(state.InFlight) > 0 || m.blocks.hasUnknownOpenBlock(state), nil
	return nil
}

// takeOver makes this manager the holder: first the write, then the list, so that everything that the holder before has
// granted is listed or in flight, and its next commit fails.
func (ca *ClusterAllocator) takeOver(ctx context.Context) error {
	m := ca.state.lock()
	m.term.beginTakeover()
	m.Unlock()
	state, err := ca.fence.TakeOver(ctx, ca.Now())
	if err != nil {
		ca.recordCommitError(err)
		return err
	}
	listed := map[types.UID]*nodeEntry{}
	err = ca.nodes.listNodes(ctx, func(n *corev1.Node) {
		listed[n.UID] = newNodeEntry(nodeFromObject(n), n.ResourceVersion, ca.Now())
	})
	if err != nil {
		return err
	}
	m = ca.state.lock()
	m.cluster.hasPeerAllocator = m.cluster.hasPeerAllocator || isPeerHolder(ca.fence.PreviousHolder(), ca.ClusterKey)
	m.applyTakeover(state, listed, ca.Now())
	metrics.NodeCIDRTakeovers.WithLabelValues(ca.ClusterKey.Namespace, ca.ClusterKey.Name).Inc()
	isNew := m.adoption.adopting && state.Seq == 0 && len(state.InFlight) == 0 && !m.nodes.hasNodeCIDRs()
	inFlight := len(m.grants.byNode)
	m.Unlock()
	log.FromContext(ctx).Info("Took over the Nodes of the cluster", "cluster", ca.ClusterKey.String(), "term", state.Term, "nodes", len(listed), "inFlight", inFlight)
	if !isNew {
		return nil
	}
	// Our finalizer on an object shows that there was a manager before, whose first writes may be under way.
	before, err := ca.ObjectProtector.HasProtectedObjects(ctx)
	m = ca.state.lock()
	defer m.Unlock()
	if err != nil {
		m.term.isHolder, m.adoption.until = false, time.Time{}
		return err
	}
	if !before {
		m.adoption.until = time.Time{}
	}
	return nil
}

// reconcileOnce plans for all Nodes that wait, commits, and dispatches the writes that follow.
func (ca *ClusterAllocator) reconcileOnce(ctx context.Context) (time.Duration, error) {
	now := ca.Now()
	m := ca.state.lock()
	startsAdoption := m.adoption.adopting && m.adoption.until.IsZero()
	adopted := m.adoption.adopting && !startsAdoption && !now.Before(m.adoption.until)
	m.Unlock()
	switch {
	case startsAdoption:
		// That there was no manager before is committed before anything shows that there was one.
		if wait, err := ca.commitState(ctx); err != nil || wait > 0 {
			return wait, err
		}
	case adopted:
		// The watch may not yet show what landed during the wait.
		if err := ca.nodes.relistNodes(ctx); err != nil {
			return 0, err
		}
	}
	m = ca.state.lock()
	m.growth.updateCanGrow(now)
	protect, wait := m.planner.planGrants(now)
	growth := m.growth.planBlocks(now)
	m.blocks.nextOpen = growth.openBlocks
	protect = m.protection.checkFinalizers(append(protect, growth.toProtect...), now)
	m.Unlock()
	if ca.protectObjects(ctx, protect) {
		wait = time.Millisecond
	}
	later, err := ca.commitState(ctx)
	if err != nil {
		return 0, err
	}
	again, err := ca.dispatchWrites(ctx)
	blocksWait, failed := ca.blocks.reconcileBlocks(ctx, growth)
	return term.MinWait(term.MinWait(wait, later), term.MinWait(again, blocksWait)), errors.Join(err, failed, ca.unprotectClosed(ctx))
}

// commitState commits the next state, if there is a reason to. It returns how long until there is one.
func (ca *ClusterAllocator) commitState(ctx context.Context) (time.Duration, error) {
	m := ca.state.lock()
	next, p, wait := m.commits.prepareCommit(ca.Now())
	m.Unlock()
	if p == nil {
		return wait, nil
	}
	ca.pendingCommit = p
	again, err := ca.recordCommitOutcome(ca.Now(), ca.fence.CommitState(ctx, next))
	return term.MinWait(wait, again), err
}

// protectObjects puts our finalizer on objects before they are opened. From an object for which that fails, nothing is
// granted: other Nodes can be granted something instead then.
func (ca *ClusterAllocator) protectObjects(ctx context.Context, refs []podcidr.Ref) (again bool) {
	for _, ref := range refs {
		err := ca.ObjectProtector.ProtectObject(ctx, ref)
		m := ca.state.lock()
		if err == nil {
			delete(m.protection.blocked, ref)
			m.Unlock()
			continue
		}
		delayed, rest := pace.SplitDelayed(err)
		switch {
		case rest == nil:
			// Another writer removes our finalizer each time. That is no failure, and the Nodes wait for a moment.
			m.protection.postponeObject(ref, term.Retry{RetryAt: ca.Now().Add(delayed)}, func(*podcidr.Node) {})
			again = true
		case errors.Is(err, errClosing):
			m.protection.closeRange(ref)
		default:
			ca.nodes.logFailure(ctx, err, "Failed to protect a ClusterCIDR; its Nodes wait", "clusterCIDR", ref.Name)
			m.protection.blockObject(ref, err, ca.Now())
			again = true
		}
		m.Unlock()
	}
	return again
}

// recordCommitOutcome records the outcome of a commit, whose request was sent at the given time: the record is as old as
// that. A wait means that the cluster has to be reconciled again after it.
func (ca *ClusterAllocator) recordCommitOutcome(sentAt time.Time, err error) (time.Duration, error) {
	p := ca.pendingCommit
	if !ca.fence.Pending() {
		ca.pendingCommit = nil
	}
	m := ca.state.lock()
	defer m.Unlock()
	var refused *fence.RefusedError
	switch {
	case err == nil:
		metrics.NodeCIDRCommits.WithLabelValues("written").Inc()
		if p != nil {
			m.commits.recordCommitted(p, ca.fence.CommittedState().AdoptingSince != nil, sentAt)
		}
		return 0, nil
	case errors.Is(err, fence.ErrConflict):
		metrics.NodeCIDRCommits.WithLabelValues("conflict").Inc()
		m.cidrs.withdrawGrants(nil)
		m.blocks.setOpenRanges(ca.fence.CommittedState().OpenRanges)
		return time.Millisecond, nil
	case errors.Is(err, fence.ErrTermLost):
		metrics.NodeCIDRCommits.WithLabelValues("conflict").Inc()
		return ca.endTerm(m), nil
	case errors.As(err, &refused):
		metrics.NodeCIDRCommits.WithLabelValues("error").Inc()
		m.commits.recordRefusedCommit(refused, ca.Now())
		return m.record.nextCommitTime.Sub(ca.Now()), nil
	case !ca.fence.Pending():
		m.recordTermLost(ca.Now(), rand.N[time.Duration])
		m.record.commitErr = err
	}
	metrics.NodeCIDRCommits.WithLabelValues("error").Inc()
	return 0, err
}

// endTerm records that another manager has taken the cluster over. It returns how long this one waits before it does.
func (ca *ClusterAllocator) endTerm(m *nodeState) time.Duration {
	m.recordTermLost(ca.Now(), rand.N[time.Duration])
	return m.term.NotBefore.Sub(ca.Now())
}

// recordCommitError records why nothing is granted.
func (ca *ClusterAllocator) recordCommitError(err error) {
	var damaged *fence.DamagedError
	if !errors.As(err, &damaged) && !term.IsPermanentRefusal(err) {
		return // the error is transient
	}
	m := ca.state.lock()
	defer m.Unlock()
	m.record.commitErr = err
}

// dispatchWrites submits the writes that are due. Where their grants were last seen on record too long ago, it verifies
// the record first.
func (ca *ClusterAllocator) dispatchWrites(ctx context.Context) (time.Duration, error) {
	m := ca.state.lock()
	due, wait := m.writes.collectDueGrants(ca.Now())
	mustVerify := m.term.isHolder && len(due) > 0 && m.record.isRecordStale(ca.Now())
	m.Unlock()
	verifiedAt := ca.Now()
	if mustVerify {
		err := ca.fence.VerifyTerm(ctx)
		if errors.Is(err, fence.ErrTermLost) {
			m := ca.state.lock()
			defer m.Unlock()
			return ca.endTerm(m), nil
		}
		if err != nil {
			ca.recordCommitError(err)
			return 0, err // a failed read does not end the term; nothing is written meanwhile
		}
	}
	m = ca.state.lock()
	defer m.Unlock()
	if !m.term.isHolder {
		return 0, nil
	}
	if mustVerify {
		m.record.verifiedAt = verifiedAt
	}
	lasting := context.WithoutCancel(ctx) // a write may start after this reconcile has ended; its own timeout bounds it
	for _, g := range due {
		m.writes.beginWrite(g)
		ca.Workers.Submit(ca.ClusterKey, func() { ca.runWrite(lasting, g) })
	}
	return wait, nil
}

// runWrite writes one grant, and records the result. A grant that has waited for too long is submitted again; one of an
// earlier term is not.
func (ca *ClusterAllocator) runWrite(ctx context.Context, g *nodeGrant) {
	m := ca.state.lock()
	if m.record.isRecordStale(ca.Now()) || !m.term.isHolder || m.grants.byNode[g.Node.UID] != g {
		m.writes.endWrite(g)
		m.Unlock()
		ca.Enqueue(ca.ClusterKey)
		return
	}
	m.Unlock()
	err := ca.nodes.patchNode(ctx, g.Grant)
	if err != nil {
		ca.nodes.logFailure(ctx, err, "Writing the pod CIDRs of a Node failed; it is tried again", "node", g.Node.Name)
	}
	m = ca.state.lock()
	wake := m.writes.recordWrite(g, err, ca.Now())
	if n := m.nodes.byUID[g.Node.UID]; err == nil && n != nil && slices.Equal(n.CIDRs, g.CIDRs) && !g.inherited {
		metrics.NodeCIDRSeconds.Observe(ca.Now().Sub(g.waitingSince).Seconds())
		metrics.NodeCIDRAllocationTries.Observe(float64(g.RangesTried))
		if r := m.ranges.rangeForNode(n.Node); r != nil {
			metrics.NodeCIDRAllocations.WithLabelValues(formatRangeCIDRs(r), r.Name, ca.ClusterKey.Namespace, ca.ClusterKey.Name).Inc()
		}
	}
	m.Unlock()
	if wake {
		ca.Enqueue(ca.ClusterKey)
	}
}

// unprotectClosed marks objects as no longer in use, once they are closed on record and a list that began after that
// shows that no Node uses them.
func (ca *ClusterAllocator) unprotectClosed(ctx context.Context) error {
	m := ca.state.lock()
	closing := m.protection.objectsToUnprotect()
	m.Unlock()
	if len(closing) == 0 {
		return nil
	}
	if err := ca.nodes.relistNodes(ctx); err != nil {
		return err
	}
	var errs []error
	for _, o := range closing {
		m := ca.state.lock()
		used := len(m.usage.nodesUsing(o)) > 0
		m.Unlock()
		if !used {
			errs = append(errs, ca.ObjectProtector.UnprotectObject(ctx, o.Ref, o.EntryMark))
		}
	}
	return errors.Join(errs...)
}
