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
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/exact"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/grants"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"
)

// carver is the kind of objects of which some are blocks of carved pools.
var carver = func() grants.Carver {
	for _, r := range resources {
		if c, is := r.(grants.Carver); is {
			return c
		}
	}
	return nil
}()

// blockOf returns what is remembered of an object that is a block of a carved pool, and that pool; nil: it is none. Those
// of a GlobalNetworkPool are made in one namespace, where tenants make no objects.
func (a *Allocator) blockOf(o client.Object) (*grants.Block, pools.Key) {
	b, child := carver.BlockOf(o)
	if b != nil {
		b.Abroad = child.Kind == v1alpha1.GlobalNetworkPoolKind && b.Namespace != a.BlockNamespace
	}
	return b, child
}

// observeBlock feeds the pool that an object is a block for.
func (a *Allocator) observeBlock(o client.Object) {
	b, child := a.blockOf(o)
	if b == nil {
		return
	}
	m := a.locked(child)
	wake := m.ObserveBlock(b)
	m.Unlock()
	if wake {
		a.wake(child)
	}
}

// forgetBlock feeds the proof that a block is gone. It returns what the pool has open of blocks that are gone.
func (a *Allocator) forgetBlock(child pools.Key, uid types.UID, name string) []netipx.IPRange {
	m := a.locked(child)
	m.ForgetBlock(uid, name)
	lost := m.LostBlocks()
	m.Unlock()
	a.wake(child)
	return lost
}

// parentOf returns what a carved pool knows of its parent.
func (a *Allocator) parentOf(obj v1alpha1.Pool) grants.Parent {
	if obj.PoolSpec().Carve == nil {
		return grants.Parent{}
	}
	ancestors, problem := a.overlaps.lineage(pools.KeyOf(obj))
	out := grants.Parent{Problem: problem}
	if len(ancestors) == 0 {
		return out
	}
	if p := a.find(ancestors[0]); p != nil {
		m := p.Lock()
		layout := m.Layout
		m.Unlock()
		if layout != nil && len(layout.Declared().Ranges()) > 0 {
			out.Bits, out.Network = 32, layout.Network
			if layout.Is6() {
				out.Bits = 128
			}
		}
	}
	return out
}

// tellChildren wakes the pools that are carved from a pool when its addresses or their networks have changed.
func (a *Allocator) tellChildren(m *grants.Memory) {
	if m.Carved.Told == m.Layout {
		return
	}
	m.Carved.Told = m.Layout
	for _, child := range a.overlaps.children(m.Key) {
		a.wake(child)
	}
}

// tellParent wakes the pool that another one is carved from when that has closed a block: if it was lost, what it had is
// kept apart no more.
func (a *Allocator) tellParent(before, after v1alpha1.Pool) {
	if parent, carved := pools.ParentOf(after); carved && len(after.PoolStatus().Blocks) < len(before.PoolStatus().Blocks) {
		a.wake(parent)
	}
}

// mayCarve tells why a block for a pool is not given; nil: it may be. The kind decides what is to be decided on the
// parent alone.
func (a *Allocator) mayCarve(m *grants.Memory, c *grants.Claimant) *grants.Refusal {
	child := *c.Child
	is := a.overlaps.declared(child)
	switch {
	case c.HadAddress, c.HasRecord() && c.SaysAfter(c.Found) == grants.Paused:
		return nil // it has its block, also where its pool may have been moved
	case child.Kind == v1alpha1.GlobalNetworkPoolKind && c.Owner.Namespace != a.BlockNamespace:
		return grants.Failed("the blocks of %s are in namespace %s, where the manager runs; the spec is immutable, so create the allocation there", child, a.BlockNamespace)
	case is.uid == "":
		return grants.NotReady("%s, which this block is for, does not exist", child)
	case is.parent != m.Key:
		return grants.Failed("%s, which this block is for, is not carved from %s; create the allocation again with the right pools", child, m.Key)
	}
	if _, problem := a.overlaps.lineage(child); problem != "" {
		return grants.NotReady("%s, which this block is for, cannot be served: %s", child, problem)
	}
	return nil
}

// blockRetry is how long a request for a block waits that has failed so many times.
func blockRetry(failures int) time.Duration {
	return min(time.Second<<min(failures, 6), time.Minute)
}

// dispatchBlocks hands out the requests for the blocks of a carved pool. It returns how long until one is that has to
// wait.
func (a *Allocator) dispatchBlocks(p *grants.Pool, now time.Time) time.Duration {
	m := p.Lock()
	defer m.Unlock()
	todo, wait := m.BlockRequests(now, a.Quarantine)
	for _, r := range todo {
		if m.Jobs >= grants.MaxJobs {
			break // the end of these jobs wakes the pool
		}
		m.BeginBlock(r)
		m.Jobs++
		a.do(p.Key, func(ctx context.Context) { a.runBlock(ctx, p, r) })
	}
	return wait
}

// runBlock runs one request for a block, and notes how it went.
func (a *Allocator) runBlock(ctx context.Context, p *grants.Pool, r grants.BlockRequest) {
	err := a.requestBlock(ctx, p, r)
	m := p.Lock()
	again := m.EndBlock(r, err, a.now(), blockRetry)
	wake := m.EndJob(again) || again.IsZero()
	m.Unlock()
	if err != nil && !errors.Is(err, errAgain) && ctx.Err() == nil {
		a.complain(ctx, p.Key, err, "A request for a block of a carved pool failed; it is tried again", "block", r.Name)
	}
	if wake {
		a.wake(p.Key)
	}
}

// requestBlock carries out one request for a block. What it lists first may take longer than a request.
func (a *Allocator) requestBlock(ctx context.Context, p *grants.Pool, r grants.BlockRequest) error {
	if r.Verb == grants.ReleaseBlock {
		if err := a.mayRelease(ctx, p, r); err != nil {
			return err
		}
	}
	ctx, cancel := timed(ctx)
	defer cancel()
	switch r.Verb {
	case grants.AskForBlock:
		return a.askForBlock(ctx, p, r)
	case grants.LookAtBlock:
		return a.lookAtBlock(ctx, p, r.Block)
	case grants.ProtectBlock:
		return a.setFinalizers(ctx, p, r, slices.Concat(r.Block.Others, []string{v1alpha1.CarvedPoolFinalizer}))
	case grants.ReleaseBlock:
		return a.setFinalizers(ctx, p, r, slices.Concat([]string{}, r.Block.Others))
	case grants.DeleteBlock:
	}
	obj := exact.As(grants.Named(carver.Object(), r.Block.Namespace, r.Name), r.Block.UID, r.Block.Version)
	err := exact.Delete(ctx, a.Client, obj)
	if err != nil && !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) {
		return fmt.Errorf("%s %s: %w", r.Verb, client.ObjectKeyFromObject(obj), err)
	}
	return a.lookAtBlock(ctx, p, r.Block)
}

// setFinalizers writes the finalizers of a block, if it is as it was when that was decided.
func (a *Allocator) setFinalizers(ctx context.Context, p *grants.Pool, r grants.BlockRequest, finalizers []string) error {
	obj := grants.Named(carver.Object(), r.Block.Namespace, r.Name)
	err := a.patch(ctx, obj, r.Block.UID, r.Block.Version, map[string]any{"finalizers": finalizers}, nil)
	switch {
	case apierrors.IsConflict(err), apierrors.IsNotFound(err):
		return a.lookAtBlock(ctx, p, r.Block)
	case err != nil:
		return fmt.Errorf("%s %s: %w", r.Verb, client.ObjectKeyFromObject(obj), err)
	}
	next, _ := a.blockOf(obj)
	m := p.Lock()
	defer m.Unlock()
	if len(finalizers)+len(obj.GetFinalizers()) == 0 {
		m.ForgetBlock(r.Block.UID, r.Name) // the answer to the patch that takes the last finalizer off a deleted object is its end
	} else if next != nil {
		m.ObserveBlock(next)
	}
	if r.Verb == grants.ProtectBlock && (next == nil || !next.Protected) {
		return &grants.UndoneError{What: "IPAllocation " + client.ObjectKeyFromObject(obj).String()}
	}
	return nil
}

// askForBlock asks the parent for one more block. The object has our finalizer from the first moment on. One that is
// there under its name is taken for it, if it is for this pool.
func (a *Allocator) askForBlock(ctx context.Context, p *grants.Pool, r grants.BlockRequest) error {
	m := p.Lock()
	if !m.Holder || m.Base == nil || m.Base.PoolSpec().Carve == nil {
		m.Unlock()
		return nil
	}
	namespace, term := p.Key.Namespace, m.InTerm()
	if namespace == "" {
		namespace = a.BlockNamespace
	}
	obj := carver.NewBlock(p.Key, namespace, r.Name, m.Base.PoolSpec().Carve, r.Pinned)
	m.Unlock()
	if a.WatchFilter != "" { // or this manager leaves it alone
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
	b, child := a.blockOf(obj)
	m = p.Lock()
	defer m.Unlock()
	if b == nil || child != p.Key {
		m.TakenBlock(r.Name, a.now())
		return nil
	}
	m.ObserveBlock(b)
	m.Verify(b.UID, b.Name, term)
	return nil
}

// lookAtBlock reads a block live. What is read in this term has not been closed since: only the holder closes.
func (a *Allocator) lookAtBlock(ctx context.Context, p *grants.Pool, b *grants.Block) error {
	m := p.Lock()
	term := m.InTerm()
	m.Unlock()
	live := grants.Named(carver.Object(), b.Namespace, b.Name)
	err := a.Live.Get(ctx, client.ObjectKeyFromObject(live), live)
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("reading the block %s/%s: %w", b.Namespace, b.Name, err)
	}
	is, child := a.blockOf(live)
	m = p.Lock()
	defer m.Unlock()
	if err != nil || live.GetUID() != b.UID {
		m.ForgetBlock(b.UID, b.Name)
	}
	if err == nil && is != nil && child == p.Key {
		m.ObserveBlock(is)
		m.Verify(is.UID, is.Name, term)
	}
	return nil
}

// mayRelease returns nil if a block may go back to the parent: a live read of the pool shows that this manager is still
// in the term in which that was decided, and that the block is not open; nothing of it is in flight; and a list that began
// after the read shows that nothing of it is in use.
func (a *Allocator) mayRelease(ctx context.Context, p *grants.Pool, r grants.BlockRequest) error {
	b := r.Block
	getCtx, cancel := timed(ctx)
	defer cancel()
	live, err := p.Key.Get(getCtx, a.Live)
	if client.IgnoreNotFound(err) != nil {
		return err
	}
	m := p.Lock()
	may := m.Base == nil // no manager opens a block of a pool that has ended
	if err == nil && !pools.HasEnded(live) {
		state := live.PoolStatus().Allocator
		same := m.Base != nil && live.GetUID() == m.Base.GetUID() && state != nil && state.Holder == a.ID && state.Term == m.Term
		m.TermSuspect = m.TermSuspect || !same
		may = same && m.Holder && m.Term == r.Term && !b.IsOpenIn(live.PoolStatus())
	}
	may = may && m.UsedOf(b) == 0
	m.Unlock()
	switch {
	case !may:
		return errAgain
	case len(b.Had) == 0:
		return nil // it never had anything, or the patch is refused
	}
	found, err := a.lists.list(ctx, p.Key)
	if err != nil {
		return fmt.Errorf("listing what is in use of the block %s/%s: %w", b.Namespace, b.Name, err)
	}
	m = p.Lock()
	defer m.Unlock()
	m.ObserveAll(found)
	if used := m.UsedOf(b); used > 0 {
		return fmt.Errorf("%d addresses of the block %s/%s, which is closed, are in use", used, b.Namespace, b.Name)
	}
	return nil
}
