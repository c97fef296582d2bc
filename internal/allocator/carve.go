package allocator

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"go4.org/netipx"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/carve"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/exact"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/grants"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"
)

// blockKind is the kind whose objects may be blocks of carved pools.
var blockKind = func() grants.BlockKind {
	for _, r := range resourceKinds {
		if c, ok := r.(grants.BlockKind); ok {
			return c
		}
	}
	return nil
}()

// blockFromObject returns what is remembered of an object that is a block of a carved pool, and that pool; nil means
// that it is none. Blocks of a GlobalNetworkPool are created in one namespace, where tenants create no objects.
func (a *Allocator) blockFromObject(o client.Object) (*grants.Block, pools.Key) {
	b, child := blockKind.BlockFromObject(o)
	if b != nil {
		b.InOtherNamespace = child.Kind == v1alpha1.GlobalNetworkPoolKind && b.Namespace != a.BlockNamespace
	}
	return b, child
}

// observeBlock feeds an object to the pool that it is a block for.
func (a *Allocator) observeBlock(o client.Object) {
	b, child := a.blockFromObject(o)
	if b == nil {
		return
	}
	m := a.lockPool(child)
	wake := m.ObserveBlock(b)
	m.Unlock()
	if wake {
		a.enqueuePool(child)
	}
}

// forgetBlock feeds the proof that a block is gone. It returns the ranges that the pool has open of blocks that are
// gone.
func (a *Allocator) forgetBlock(child pools.Key, uid types.UID, name string) []netipx.IPRange {
	m := a.lockPool(child)
	m.Carved.ForgetBlock(uid, name)
	lost := m.Observed.LostBlockRanges()
	m.Unlock()
	a.enqueuePool(child)
	return lost
}

// parentForPool returns what a carved pool needs of its parent.
func (a *Allocator) parentForPool(obj v1alpha1.Pool) grants.ParentPool {
	if obj.PoolSpec().Carve == nil {
		return grants.ParentPool{}
	}
	ancestors, problem := a.overlaps.ancestors(pools.KeyForPool(obj))
	out := grants.ParentPool{Problem: problem}
	if len(ancestors) == 0 {
		return out
	}
	if p := a.findPool(ancestors[0]); p != nil {
		m := p.Lock()
		layout := m.Space.Layout
		m.Unlock()
		if layout != nil && len(layout.Declared().Ranges()) > 0 {
			out.AddressBits, out.NetworkFor = 32, layout.NetworkForAddress
			if layout.Is6() {
				out.AddressBits = 128
			}
		}
	}
	return out
}

// enqueueChildren enqueues the pools that are carved from a pool when its addresses or their networks have changed.
func (a *Allocator) enqueueChildren(m *grants.PoolState) {
	if m.Carved.LastEnqueuedLayout == m.Space.Layout {
		return
	}
	m.Carved.LastEnqueuedLayout = m.Space.Layout
	for _, child := range a.overlaps.children(m.Base.Key) {
		a.enqueuePool(child)
	}
}

// enqueueParent enqueues the parent of a pool that has closed a block: if the block was lost, the parent no longer
// excludes its addresses.
func (a *Allocator) enqueueParent(before, after v1alpha1.Pool) {
	if parent, carved := pools.ParentPoolKey(after); carved && len(after.PoolStatus().Blocks) < len(before.PoolStatus().Blocks) {
		a.enqueuePool(parent)
	}
}

// refusalForBlock returns why a block for a pool is refused; nil means that it may be granted. The kind applies the
// rules that depend on the parent alone.
func (a *Allocator) refusalForBlock(m *grants.PoolState, c *grants.Claimant) *grants.Refusal {
	child := *c.ChildPool
	declaration := a.overlaps.declarationFor(child)
	switch {
	case c.StatusHasAddress, c.HasRecord() && c.NextOwnerSeen(c.ObservedOwnerSeen) == grants.OwnerSeenPaused:
		return nil // it has its block, also where its pool may have been moved
	case child.Kind == v1alpha1.GlobalNetworkPoolKind && c.Owner.Namespace != a.BlockNamespace:
		return grants.AllocationFailed("the blocks of %s are in namespace %s, where the manager runs; the spec is immutable, so create the allocation there", child, a.BlockNamespace)
	case declaration.uid == "":
		return grants.PoolNotReady("%s, which this block is for, does not exist", child)
	case declaration.parent != m.Base.Key:
		return grants.AllocationFailed("%s, which this block is for, is not carved from %s; create the allocation again with the right pools", child, m.Base.Key)
	}
	if _, problem := a.overlaps.ancestors(child); problem != "" {
		return grants.PoolNotReady("%s, which this block is for, cannot be served: %s", child, problem)
	}
	return nil
}

// dispatchBlockRequests dispatches the due requests for the blocks of a carved pool. It returns how long until the next
// one that has to wait is due.
func (a *Allocator) dispatchBlockRequests(p *grants.Pool, now time.Time) time.Duration {
	m := p.Lock()
	defer m.Unlock()
	todo, wait := m.Growth.DueBlockRequests(now, a.Quarantine)
	for _, r := range todo {
		if m.Queues.ActiveJobs >= grants.MaxJobs {
			break // the end of these jobs enqueues the pool
		}
		m.Carved.BeginBlockRequest(r)
		m.Queues.ActiveJobs++
		a.submitJob(p.Key, func(ctx context.Context) { a.runBlockRequest(ctx, p, r) })
	}
	return wait
}

// runBlockRequest runs one request for a block, and records its result.
func (a *Allocator) runBlockRequest(ctx context.Context, p *grants.Pool, r grants.BlockRequest) {
	err := a.executeBlockRequest(ctx, p, r)
	m := p.Lock()
	again := m.Carved.EndBlockRequest(r, err, a.now())
	wake := m.Queues.EndJob(again) || again.IsZero()
	m.Unlock()
	if err != nil && !errors.Is(err, errStateChanged) && ctx.Err() == nil {
		a.logFailure(ctx, p.Key, err, "Failed to execute a request for a block of a carved pool; retrying", "block", r.Name)
	}
	if wake {
		a.enqueuePool(p.Key)
	}
}

// executeBlockRequest executes one request for a block. The list before it may take longer than a request.
func (a *Allocator) executeBlockRequest(ctx context.Context, p *grants.Pool, r grants.BlockRequest) error {
	if r.Verb == carve.RemoveBlockFinalizer {
		if err := a.verifyBlockReleasable(ctx, p, r); err != nil {
			return err
		}
	}
	ctx, cancel := withRequestTimeout(ctx)
	defer cancel()
	switch r.Verb {
	case carve.CreateBlock:
		return a.createBlock(ctx, p, r)
	case carve.GetBlock:
		return a.refreshBlock(ctx, p, r.Block)
	case carve.AddBlockFinalizer:
		return a.patchBlockFinalizers(ctx, p, r, slices.Concat(r.Block.OtherFinalizers, []string{v1alpha1.CarvedPoolFinalizer}))
	case carve.RemoveBlockFinalizer:
		return a.patchBlockFinalizers(ctx, p, r, slices.Concat([]string{}, r.Block.OtherFinalizers))
	case carve.DeleteBlock:
	}
	obj := exact.WithUIDAndVersion(grants.WithName(blockKind.NewObject(), r.Block.Namespace, r.Name), r.Block.UID, r.Block.ResourceVersion)
	err := exact.DeleteWithPreconditions(ctx, a.Client, obj)
	if err != nil && !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) {
		return fmt.Errorf("%s %s: %w", r.Verb, client.ObjectKeyFromObject(obj), err)
	}
	return a.refreshBlock(ctx, p, r.Block)
}

// patchBlockFinalizers writes the finalizers of a block, if the block is unchanged since that was decided.
func (a *Allocator) patchBlockFinalizers(ctx context.Context, p *grants.Pool, r grants.BlockRequest, finalizers []string) error {
	obj := grants.WithName(blockKind.NewObject(), r.Block.Namespace, r.Name)
	err := a.patchObject(ctx, obj, r.Block.UID, r.Block.ResourceVersion, map[string]any{"finalizers": finalizers}, nil)
	switch {
	case apierrors.IsConflict(err), apierrors.IsNotFound(err):
		return a.refreshBlock(ctx, p, r.Block)
	case err != nil:
		return fmt.Errorf("%s %s: %w", r.Verb, client.ObjectKeyFromObject(obj), err)
	}
	next, _ := a.blockFromObject(obj)
	m := p.Lock()
	defer m.Unlock()
	if len(finalizers)+len(obj.GetFinalizers()) == 0 {
		m.Carved.ForgetBlock(r.Block.UID, r.Name) // the answer to the removal of a deleted object's last finalizer is its end
	} else if next != nil {
		m.ObserveBlock(next)
	}
	if r.Verb == carve.AddBlockFinalizer && (next == nil || !next.HasFinalizer) {
		return &grants.WriteRevertedError{ObjectName: "IPAllocation " + client.ObjectKeyFromObject(obj).String()}
	}
	return nil
}

// createBlock requests one more block from the parent. The object has our finalizer from its creation on. An existing
// object of its name is used instead, if it is for this pool.
func (a *Allocator) createBlock(ctx context.Context, p *grants.Pool, r grants.BlockRequest) error {
	m := p.Lock()
	if !m.Record.Holder || m.Base.Pool == nil || m.Base.Pool.PoolSpec().Carve == nil {
		m.Unlock()
		return nil
	}
	namespace, term := p.Key.Namespace, m.Record.CurrentTerm()
	if namespace == "" {
		namespace = a.BlockNamespace
	}
	obj := blockKind.NewBlockObject(p.Key, namespace, r.Name, m.Base.Pool.PoolSpec().Carve, r.PinnedPrefix)
	m.Unlock()
	if a.WatchFilter != "" { // otherwise this manager ignores it
		labels := obj.GetLabels()
		labels[clusterv1.WatchLabel] = a.WatchFilter
		obj.SetLabels(labels)
	}
	err := a.Client.Create(ctx, obj)
	if apierrors.IsAlreadyExists(err) {
		err = a.Live.Get(ctx, client.ObjectKeyFromObject(obj), obj)
	}
	if err != nil {
		return fmt.Errorf("asking for the block %s/%s: %w", namespace, r.Name, err)
	}
	b, child := a.blockFromObject(obj)
	m = p.Lock()
	defer m.Unlock()
	if b == nil || child != p.Key {
		m.Carved.Requests.MarkNameTaken(r.Name, a.now())
		return nil
	}
	m.ObserveBlock(b)
	m.Carved.VerifyBlock(b.UID, b.Name, term)
	return nil
}

// refreshBlock reads a block live. A block that is read in this term has not been closed since: only the holder closes
// blocks.
func (a *Allocator) refreshBlock(ctx context.Context, p *grants.Pool, b *grants.Block) error {
	m := p.Lock()
	term := m.Record.CurrentTerm()
	m.Unlock()
	live := grants.WithName(blockKind.NewObject(), b.Namespace, b.Name)
	err := a.Live.Get(ctx, client.ObjectKeyFromObject(live), live)
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("reading the block %s/%s: %w", b.Namespace, b.Name, err)
	}
	block, child := a.blockFromObject(live)
	m = p.Lock()
	defer m.Unlock()
	if err != nil || live.GetUID() != b.UID {
		m.Carved.ForgetBlock(b.UID, b.Name)
	}
	if err == nil && block != nil && child == p.Key {
		m.ObserveBlock(block)
		m.Carved.VerifyBlock(block.UID, block.Name, term)
	}
	return nil
}

// verifyBlockReleasable returns nil if a block may go back to the parent: a live read of the pool shows that this
// manager is still in the term in which that was decided, and that the block is not open; nothing of it is in flight;
// and a list that began after the read shows that nothing of it is in use.
func (a *Allocator) verifyBlockReleasable(ctx context.Context, p *grants.Pool, r grants.BlockRequest) error {
	b := r.Block
	getCtx, cancel := withRequestTimeout(ctx)
	defer cancel()
	live, err := p.Key.GetPool(getCtx, a.Live)
	if client.IgnoreNotFound(err) != nil {
		return err
	}
	m := p.Lock()
	may := m.Base.Pool == nil // no manager opens a block of a pool that has ended
	if err == nil && !pools.HasEnded(live) {
		state := live.PoolStatus().Allocator
		same := m.Base.Pool != nil && live.GetUID() == m.Base.Pool.GetUID() && state != nil && state.Holder == a.ManagerID && state.Term == m.Record.Term
		m.Record.NeedsRevalidation = m.Record.NeedsRevalidation || !same
		may = same && m.Record.Holder && m.Record.Term == r.Term && !b.IsOpenInStatus(live.PoolStatus())
	}
	may = may && m.Space.UsedInBlock(b) == 0
	m.Unlock()
	switch {
	case !may:
		return errStateChanged
	case len(b.RecordedRanges) == 0:
		return nil // it never had addresses, or the API server refuses the patch
	}
	found, err := a.poolLister.listPool(ctx, p.Key)
	if err != nil {
		return fmt.Errorf("listing the addresses in use of block %s/%s: %w", b.Namespace, b.Name, err)
	}
	m = p.Lock()
	defer m.Unlock()
	m.ObserveListed(found)
	if used := m.Space.UsedInBlock(b); used > 0 {
		return fmt.Errorf("%d addresses of the block %s/%s, which is closed, are in use", used, b.Namespace, b.Name)
	}
	return nil
}
