package allocator

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/carve"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/exact"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/grants"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"
)

// blockRequests runs the requests for the blocks of carved pools. A block goes back to the parent only when a list
// shows that nothing of it is in use.
type blockRequests struct {
	*Options
	scope  *servedScope
	queue  *workQueue
	lister *sharedPoolLister
	writer *objectWriter
}

// dispatchBlockRequests dispatches the due requests for the blocks of a carved pool. It returns how long until the next
// one that has to wait is due.
func (br *blockRequests) dispatchBlockRequests(p *grants.Pool, now time.Time) time.Duration {
	m := p.Lock()
	defer m.Unlock()
	todo, wait := m.Growth.DueBlockRequests(now, br.Quarantine)
	for _, r := range todo {
		if m.Queues.ActiveJobs >= grants.MaxJobs {
			break // the end of these jobs enqueues the pool
		}
		m.Carved.BeginBlockRequest(r)
		m.Queues.BeginJob()
		br.queue.submitJob(p.Key, func(ctx context.Context) { br.runBlockRequest(ctx, p, r) })
	}
	return wait
}

// runBlockRequest runs one request for a block, and records its result.
func (br *blockRequests) runBlockRequest(ctx context.Context, p *grants.Pool, r grants.BlockRequest) {
	err := br.executeBlockRequest(ctx, p, r)
	m := p.Lock()
	again := m.Carved.EndBlockRequest(r, err, br.now())
	wake := m.Queues.EndJob(again) || again.IsZero()
	m.Unlock()
	if err != nil && !errors.Is(err, errStateChanged) && ctx.Err() == nil {
		br.queue.logFailure(ctx, p.Key, err, "Failed to execute a request for a block of a carved pool; retrying", "block", r.Name)
	}
	if wake {
		br.queue.enqueuePool(p.Key)
	}
}

// executeBlockRequest executes one request for a block. The list before it may take longer than a request.
func (br *blockRequests) executeBlockRequest(ctx context.Context, p *grants.Pool, r grants.BlockRequest) error {
	if r.Verb == carve.RemoveBlockFinalizer {
		if err := br.verifyBlockReleasable(ctx, p, r); err != nil {
			return err
		}
	}
	ctx, cancel := withRequestTimeout(ctx)
	defer cancel()
	switch r.Verb {
	case carve.CreateBlock:
		return br.createBlock(ctx, p, r)
	case carve.GetBlock:
		return br.refreshBlock(ctx, p, r.Block)
	case carve.AddBlockFinalizer:
		return br.patchBlockFinalizers(ctx, p, r, slices.Concat(r.Block.OtherFinalizers, []string{v1alpha1.CarvedPoolFinalizer}))
	case carve.RemoveBlockFinalizer:
		return br.patchBlockFinalizers(ctx, p, r, slices.Concat([]string{}, r.Block.OtherFinalizers))
	case carve.DeleteBlock:
	}
	obj := exact.WithUIDAndVersion(grants.WithName(blockKind.NewObject(), r.Block.Namespace, r.Name), r.Block.UID, r.Block.ResourceVersion)
	err := exact.DeleteWithPreconditions(ctx, br.Client, obj)
	if err != nil && !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) {
		return fmt.Errorf("%s %s: %w", r.Verb, client.ObjectKeyFromObject(obj), err)
	}
	return br.refreshBlock(ctx, p, r.Block)
}

// patchBlockFinalizers writes the finalizers of a block, if the block is unchanged since that was decided.
func (br *blockRequests) patchBlockFinalizers(ctx context.Context, p *grants.Pool, r grants.BlockRequest, finalizers []string) error {
	obj := grants.WithName(blockKind.NewObject(), r.Block.Namespace, r.Name)
	err := br.writer.patchObject(ctx, obj, r.Block.UID, r.Block.ResourceVersion, map[string]any{"finalizers": finalizers}, nil)
	switch {
	case apierrors.IsConflict(err), apierrors.IsNotFound(err):
		return br.refreshBlock(ctx, p, r.Block)
	case err != nil:
		return fmt.Errorf("%s %s: %w", r.Verb, client.ObjectKeyFromObject(obj), err)
	}
	next, _ := br.scope.blockFromObject(obj)
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
func (br *blockRequests) createBlock(ctx context.Context, p *grants.Pool, r grants.BlockRequest) error {
	m := p.Lock()
	if !m.Term.Holder || m.Base.Pool == nil || m.Base.Pool.PoolSpec().Carve == nil {
		m.Unlock()
		return nil
	}
	namespace, term := p.Key.Namespace, m.Term.CurrentTerm()
	if namespace == "" {
		namespace = br.BlockNamespace
	}
	obj := blockKind.NewBlockObject(p.Key, namespace, r.Name, m.Base.Pool.PoolSpec().Carve, r.PinnedPrefix)
	m.Unlock()
	if br.WatchFilter != "" { // otherwise this manager ignores it
		labels := obj.GetLabels()
		labels[clusterv1.WatchLabel] = br.WatchFilter
		obj.SetLabels(labels)
	}
	err := br.Client.Create(ctx, obj)
	if apierrors.IsAlreadyExists(err) {
		err = br.Live.Get(ctx, client.ObjectKeyFromObject(obj), obj)
	}
	if err != nil {
		return fmt.Errorf("asking for the block %s/%s: %w", namespace, r.Name, err)
	}
	b, child := br.scope.blockFromObject(obj)
	m = p.Lock()
	defer m.Unlock()
	if b == nil || child != p.Key {
		m.Carved.Requests.MarkNameTaken(r.Name, br.now())
		return nil
	}
	m.ObserveBlock(b)
	m.Carved.VerifyBlock(b.UID, b.Name, term)
	return nil
}

// refreshBlock reads a block live. A block that is read in this term has not been closed since: only the holder closes
// blocks.
func (br *blockRequests) refreshBlock(ctx context.Context, p *grants.Pool, b *grants.Block) error {
	m := p.Lock()
	term := m.Term.CurrentTerm()
	m.Unlock()
	live := grants.WithName(blockKind.NewObject(), b.Namespace, b.Name)
	err := br.Live.Get(ctx, client.ObjectKeyFromObject(live), live)
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("reading the block %s/%s: %w", b.Namespace, b.Name, err)
	}
	block, child := br.scope.blockFromObject(live)
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
func (br *blockRequests) verifyBlockReleasable(ctx context.Context, p *grants.Pool, r grants.BlockRequest) error {
	b := r.Block
	getCtx, cancel := withRequestTimeout(ctx)
	defer cancel()
	live, err := p.Key.GetPool(getCtx, br.Live)
	if client.IgnoreNotFound(err) != nil {
		return err
	}
	m := p.Lock()
	may := m.Base.Pool == nil // no manager opens a block of a pool that has ended
	if err == nil && !pools.HasEnded(live) {
		state := live.PoolStatus().Allocator
		same := m.Base.Pool != nil && live.GetUID() == m.Base.Pool.GetUID() && state != nil && state.Holder == br.ManagerID && state.Term == m.Term.Number
		if !same {
			m.Term.RequestRevalidation()
		}
		may = same && m.Term.Holder && m.Term.Number == r.Term && !b.IsOpenInStatus(live.PoolStatus())
	}
	may = may && m.Space.UsedInBlock(b) == 0
	m.Unlock()
	switch {
	case !may:
		return errStateChanged
	case len(b.RecordedRanges) == 0:
		return nil // it never had addresses, or the API server refuses the patch
	}
	found, err := br.lister.listPool(ctx, p.Key)
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
