package nodeipam

import (
	"context"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/carve"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/fence"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/podcidr"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/term"
)

// BlockClient reads and writes the IPAllocations that a Cluster has for the pod CIDRs of its Nodes.
type BlockClient interface {
	// GetBlock reads a block live; false means that there is none.
	GetBlock(ctx context.Context, name string) (Block, bool, error)
	// CreateBlock creates a block, either to replace an open one that is lost or, if lost is the zero value, with any
	// addresses. It returns the block that exists now; false means that something else has the name.
	CreateBlock(ctx context.Context, name string, of podcidr.Ref, from BlockSource, lost fence.OpenRange) (Block, bool, error)
	// AddFinalizer puts our finalizer on a block, RemoveFinalizer takes it off one that is being deleted, and
	// DeleteBlock deletes a block.
	AddFinalizer(ctx context.Context, b Block) error
	RemoveFinalizer(ctx context.Context, b Block) error
	DeleteBlock(ctx context.Context, b Block) error
}

// blockReconciler makes the requests for the blocks of a cluster, one after the other, and records their results.
type blockReconciler struct {
	*Options
	state *nodeState
	nodes *nodeClient
}

// reconcileBlocks makes the requests for blocks that were decided on together with the commit. It returns how long
// until there is more to do. A failed request is retried after a while, and blocks no other.
func (br *blockReconciler) reconcileBlocks(ctx context.Context, g blockPlan) (time.Duration, error) {
	m := br.state.lock()
	holder, again := m.term.isHolder, m.blocks.openChanged
	m.blocks.openChanged = false
	m.Unlock()
	if again {
		g.requeueAfter = time.Millisecond // the commit has consequences for blocks
	}
	if !holder || len(g.requests) == 0 {
		return g.requeueAfter, nil
	}
	listed := false
	for _, e := range g.requests {
		m := br.state.lock()
		wait, early := m.requests.Progress(e.key()).RetryAt.Sub(br.Now()), e.verb == carve.RemoveBlockFinalizer && !m.blocks.closedInTerm[e.block.UID]
		m.Unlock()
		if wait > 0 {
			g.requeueAfter = term.MinWait(g.requeueAfter, wait)
			continue
		}
		if early {
			continue // no commit shows yet that it is closed, so a list of all Nodes is of no use
		}
		if e.verb == carve.RemoveBlockFinalizer && !listed {
			if err := br.nodes.relistNodes(ctx); err != nil {
				return 0, err
			}
			listed = true
		}
		changed, err := br.runBlockRequest(ctx, e)
		if err != nil {
			br.nodes.logFailure(ctx, err, "Failed to process a request for a block of pod CIDRs; retrying later", "block", e.name)
		}
		g.requeueAfter = term.MinWait(g.requeueAfter, br.recordRequestResult(e, err))
		if changed {
			g.requeueAfter = time.Millisecond
		}
	}
	return g.requeueAfter, nil
}

// recordRequestResult records the result of a request, and returns after how long it is made again, if it failed.
func (br *blockReconciler) recordRequestResult(e blockRequest, err error) time.Duration {
	m := br.state.lock()
	defer m.Unlock()
	return m.requests.recordResult(e, err, br.Now())
}

// runBlockRequest makes one request. It reports whether that has shown something new.
func (br *blockReconciler) runBlockRequest(ctx context.Context, e blockRequest) (changed bool, err error) {
	switch e.verb {
	case carve.GetBlock:
		return br.getLiveBlock(ctx, e.name)
	case carve.AddBlockFinalizer:
		return false, br.BlockClient.AddFinalizer(ctx, e.block)
	case carve.DeleteBlock:
		return br.deleteBlock(ctx, e.block)
	case carve.RemoveBlockFinalizer:
		m := br.state.lock()
		free := m.term.isHolder && m.blocks.closedInTerm[e.block.UID] && m.blocks.countBlockUsers(e.block) == 0
		m.Unlock()
		if !free {
			return false, nil
		}
		return false, br.BlockClient.RemoveFinalizer(ctx, e.block)
	case carve.CreateBlock:
		err := br.createBlock(ctx, e)
		return err == nil, err
	}
	return false, fmt.Errorf("block %s: unknown request %q", e.name, e.verb)
}

// deleteBlock deletes a block as it was when that was decided. A block that has changed since is read, and decided on
// again.
func (br *blockReconciler) deleteBlock(ctx context.Context, b Block) (changed bool, err error) {
	err = br.BlockClient.DeleteBlock(ctx, b)
	if !apierrors.IsConflict(err) {
		return false, err
	}
	if blockChanged, err := br.getLiveBlock(ctx, b.Name); !blockChanged || err != nil {
		return false, err
	}
	m := br.state.lock()
	defer m.Unlock()
	if m.blocks.byName[b.Name].ResourceVersion == b.ResourceVersion {
		return false, err // the delete is refused although the block is unchanged, so it waits
	}
	return true, nil
}

// getLiveBlock reads a block again. It reports whether that has shown something new.
func (br *blockReconciler) getLiveBlock(ctx context.Context, name string) (changed bool, err error) {
	b, ok, err := br.BlockClient.GetBlock(ctx, name)
	if err != nil {
		return false, err
	}
	m := br.state.lock()
	defer m.Unlock()
	if !ok {
		changed = !m.blocks.missingNames[name]
		m.blocks.missingNames[name] = true
		return changed, nil
	}
	m.blocks.recordLiveBlock(b, br.Now())
	return true, nil
}

// createBlock creates a block.
func (br *blockReconciler) createBlock(ctx context.Context, e blockRequest) error {
	m := br.state.lock()
	blocked := m.protection.blocked[e.rangeObject.Ref].RetryAt.After(br.Now()) || m.ranges.closedByLiveRead[e.rangeObject.Ref]
	m.Unlock()
	if blocked {
		return nil // nothing would protect its ClusterCIDR
	}
	b, ok, err := br.BlockClient.CreateBlock(ctx, e.name, e.rangeObject.Ref, *e.blockSource, e.lostBlock)
	if err != nil {
		return err
	}
	m = br.state.lock()
	defer m.Unlock()
	if ok {
		m.blocks.recordLiveBlock(b, br.Now())
	} else {
		m.requests.MarkNameTaken(e.name, br.Now()) // the next request has another name
	}
	return nil
}
