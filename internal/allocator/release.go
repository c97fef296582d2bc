package allocator

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go4.org/netipx"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/metrics"
)

// reuseGrace is how long an address rests before somebody else gets it.
func (p *pool) reuseGrace() time.Duration {
	if p.base == nil {
		return 0
	}
	return time.Duration(max(0, ptr.Deref(p.base.PoolSpec().AddressReuseGracePeriodSeconds, 0))) * time.Second
}

// releasable is what the end of a claim makes free: its IPAddress, the one that was forced away from it, or its block.
func (p *pool) releasable(c *claim) netipx.IPRange {
	if c.block != nil {
		return c.blockRange()
	}
	switch addr := p.addressOf(c); {
	case addr != nil && addr.claimUID == c.owner.UID:
		return p.unitOf(addr)
	case c.record.IsValid() && (c.hadAddress || c.lostAddress != nil):
		return p.ledger.Unit(c.record.From())
	}
	return netipx.IPRange{}
}

// unitOf is what an IPAddress has of the pool; not valid where it says no address.
func (p *pool) unitOf(addr *address) netipx.IPRange {
	if !addr.ip.IsValid() {
		return netipx.IPRange{}
	}
	return p.ledger.Unit(addr.ip)
}

// release gives up what a deleted claim has: the IPAddress first, then, when a live read shows that
// it is gone and no grant is left, our finalizer on the claim (R6).
func (a *Allocator) release(ctx context.Context, p *pool, c claim) error {
	ctx, cancel := timed(ctx)
	defer cancel()
	p.mu.Lock()
	if !p.holder && p.base != nil {
		p.mu.Unlock()
		return nil
	}
	var mine *address
	if addr := p.addrs[nameOf(c.owner)]; addr != nil && addr.claimUID == c.owner.UID {
		copied := *addr
		mine = &copied
	}
	p.mu.Unlock()
	gone := false
	if mine != nil {
		var err error
		if gone, err = a.remove(ctx, p, *mine); err != nil {
			return err
		}
	}
	if !gone {
		if err := a.noAddress(ctx, p, c); err != nil {
			return err
		}
	}
	p.mu.Lock()
	if mine != nil {
		p.forgetAddress(mine.uid, mine.key())
	}
	granted := p.endGrant(c.owner.UID)
	p.mu.Unlock()
	if granted {
		return nil
	}
	return a.removeFinalizer(ctx, p, c)
}

// isKept reports whether somebody else's finalizer alone keeps the IPAddress of a deleted claim: all of ours is done, and the watch shows when
// that is gone.
func (p *pool) isKept(c *claim) bool {
	addr := p.addressOf(c)
	return addr != nil && addr.claimUID == c.owner.UID && addr.deleting && !addr.protected && len(addr.others) > 0
}

// endGrant tells whether a deleted claim that has nothing has a grant. Nothing can be recorded of it any more,
// so it ends with the next commit, and the release goes on then.
func (p *pool) endGrant(uid types.UID) bool {
	g := p.grants[uid]
	if g != nil {
		g.confirmed = g.confirmed || g.committed
	}
	return g != nil
}

// removeFinalizer takes our finalizer off a deleted claim that has nothing any more.
func (a *Allocator) removeFinalizer(ctx context.Context, p *pool, c claim) error {
	if !c.hasFinalizer {
		return nil
	}
	next, err := a.patchClaim(ctx, c, map[string]any{"finalizers": c.others}, nil)
	if err != nil {
		return a.writeFailed(ctx, p, c, "release", err)
	}
	metrics.Releases.WithLabelValues(p.key.Kind, p.key.Namespace, p.key.Name).Inc()
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(c.others) == 0 {
		// The answer to the patch that takes the last finalizer off a deleted object is its end.
		p.forgetClaim(c.owner.UID)
	} else {
		p.observeClaim(next)
	}
	return nil
}

// noAddress returns nil when a live read shows no IPAddress of a claim's UID.
func (a *Allocator) noAddress(ctx context.Context, p *pool, c claim) error {
	live := &ipamv1.IPAddress{}
	err := a.Live.Get(ctx, nameOf(c.owner), live)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	addr := addressOf(live)
	if addr.claimUID != c.owner.UID {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.observeAddress(addr)
	return errAgain // somebody else's finalizer keeps it, or it was not seen before
}

// remove takes our finalizer off an IPAddress and deletes it as it was then. It tells whether the
// answer to the delete proves that the IPAddress is gone: nobody else's finalizer was on it.
func (a *Allocator) remove(ctx context.Context, p *pool, addr address) (gone bool, err error) {
	rv := addr.rv
	if addr.protected {
		obj, err := a.patchAddress(ctx, addr, map[string]any{"finalizers": addr.others})
		if err != nil {
			return false, a.addressChanged(ctx, p, addr, err)
		}
		if len(addr.others) == 0 && addr.deleting {
			return true, nil
		}
		p.mu.Lock()
		p.observeAddress(addressOf(obj))
		p.mu.Unlock()
		rv = obj.ResourceVersion
	}
	obj := &ipamv1.IPAddress{ObjectMeta: metav1.ObjectMeta{Namespace: addr.namespace, Name: addr.name}}
	uid := addr.uid
	err = a.Client.Delete(ctx, obj, client.Preconditions{UID: &uid, ResourceVersion: &rv})
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return false, fmt.Errorf("deleting IPAddress %s: %w", addr.key(), err)
	}
	return err == nil && len(addr.others) == 0, nil
}

// runOrphan deals with an IPAddress whose claim we do not know: with proof that the claim is gone
// the IPAddress is void and removed; at once if it stands in somebody's way, else after a while,
// since a restore may bring the claim after its address (R2).
func (a *Allocator) runOrphan(ctx context.Context, p *pool, addr *address) {
	kept, err := a.resolveOrphan(ctx, p, addr)
	p.mu.Lock()
	p.jobs--
	if s := p.orphans[addr.key()]; s != nil && s.uid == addr.uid {
		s.busy = false
		if !kept {
			s.retryAt = a.now().Add(time.Second)
		}
	}
	p.mu.Unlock()
	if err != nil && !errors.Is(err, errAgain) && ctx.Err() == nil {
		log.FromContext(ctx).Error(err, "An IPAddress without a claim could not be settled; it is tried again",
			"address", addr.key().String(), "pool", p.key.String())
	}
	a.wake(p.key)
}

// nextCheck is when an orphan is to be looked at: when its grace is over, and before that when nobody has
// looked or somebody needs what it has.
func (p *pool) nextCheck(s *orphan, grace time.Duration) time.Time {
	if end := s.since.Add(grace); !s.since.IsZero() && end.After(s.retryAt) && !p.isInTheWay(s) {
		return end
	}
	return s.retryAt
}

// inTheWay tells whether a claim has the name of an orphan, or anybody its address. The claim that
// remembers the address adopts the IPAddress.
func (p *pool) isInTheWay(s *orphan) bool {
	if c := p.byName[s.key()]; c != nil {
		return !p.adoptable(c, s.address)
	}
	return s.inTheWay || (s.ip.IsValid() && p.blocker(p.ledger.Unit(s.ip), s.owner()) != nil)
}

// requestCleanup has the pool settle at once what an earlier claim of a name has left: a claim of another
// pool needs the name.
func (a *Allocator) requestCleanup(key PoolKey, name types.NamespacedName) {
	p := a.locked(key)
	defer p.mu.Unlock()
	if s := p.orphans[name]; s != nil && !s.inTheWay {
		s.inTheWay = true
		a.wake(key)
	}
}

// resolveOrphan removes an orphan, or tells that it is kept for now.
func (a *Allocator) resolveOrphan(ctx context.Context, p *pool, addr *address) (kept bool, err error) {
	ctx, cancel := timed(ctx)
	defer cancel()
	live := &ipamv1.IPAddressClaim{}
	err = a.Live.Get(ctx, addr.key(), live)
	if err != nil && !apierrors.IsNotFound(err) {
		return false, err
	}
	p.mu.Lock()
	if err == nil {
		if key, ours := keyOfRef(live.Namespace, live.Spec.PoolRef); ours && key == p.key {
			p.observeClaim(claimOf(live))
		}
	}
	current := p.orphans[addr.key()]
	if current == nil || current.uid != addr.uid || (!p.holder && p.base != nil) {
		p.mu.Unlock()
		return false, nil
	}
	if c := p.byName[addr.key()]; c != nil && p.adoptable(c, current.address) {
		p.sort(c)
		p.mu.Unlock()
		return false, nil
	}
	if current.since.IsZero() {
		current.since = a.now()
	}
	current.inTheWay = current.inTheWay || err == nil
	inTheWay := p.isInTheWay(current)
	event := orphanGC
	if inTheWay {
		event = "VoidAddressRemoved"
	}
	kept = !inTheWay && a.now().Before(current.since.Add(a.OrphanGrace))
	current.provenOrphan = !kept
	if p.orphanNeedsCooling(current, a.now()) {
		kept = true // until the commit has noted it, which the wake of the pool makes
	}
	addr, base := current.address, p.base
	p.mu.Unlock()
	if kept {
		return true, nil
	}
	if _, err := a.remove(ctx, p, *addr); err != nil {
		return false, err
	}
	metrics.Voided.WithLabelValues(p.key.Kind, p.key.Namespace, p.key.Name).Inc()
	if base != nil {
		a.Recorder.Eventf(base, nil, corev1.EventTypeNormal, event, "Release",
			"IPAddress %s was removed: the claim it was made for is gone", addr.key())
	}
	return false, nil
}
