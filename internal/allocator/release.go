package allocator

import (
	"context"
	"errors"
	"time"

	"go4.org/netipx"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/metrics"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"
)

// reuseGrace is how long an address rests before somebody else gets it.
func (p *memory) reuseGrace() time.Duration {
	if p.base == nil {
		return 0
	}
	return time.Duration(max(0, ptr.Deref(p.base.PoolSpec().AddressReuseGracePeriodSeconds, 0))) * time.Second
}

// releasable is what the end of a claimant makes free.
func (p *memory) releasable(c *claimant) netipx.IPRange { return c.kind.releasable(p, c) }

// unitOf is what an IPAddress has of the pool; not valid where it says no address.
func (p *memory) unitOf(addr *attached) netipx.IPRange {
	if !addr.ip.IsValid() {
		return netipx.IPRange{}
	}
	return p.ledger.Unit(addr.ip)
}

// isKept reports whether somebody else's finalizer alone keeps the IPAddress of a deleted claim: all of ours is done,
// and the watch shows when that is gone.
func (p *memory) isKept(c *claimant) bool {
	addr := p.attachedTo(c)
	return addr != nil && addr.claimantUID == c.owner.UID && addr.deleting && !addr.protected && len(addr.others) > 0
}

// endGrant ends the grant of a deleted claimant that has nothing. Nothing can be recorded of it any more, so it ends
// with the next commit, and the release goes on then.
func (p *memory) endGrant(uid types.UID) {
	if g := p.grants[uid]; g != nil {
		g.confirmed = g.confirmed || g.committed
	}
}

// runOrphan deals with an IPAddress whose claim we do not know: with proof that the claim is gone
// the IPAddress is void and removed; at once if it stands in somebody's way, else after a while,
// since a restore may bring the claim after its address (R2).
func (a *Allocator) runOrphan(ctx context.Context, p *pool, addr *attached) {
	kept, err := a.resolveOrphan(ctx, p, addr)
	m := p.lock()
	m.jobs--
	if s := m.orphans[addr.key()]; s != nil && s.uid == addr.uid {
		s.busy = false
		if !kept {
			s.retryAt = a.now().Add(time.Second)
		}
	}
	m.unlock()
	if err != nil && !errors.Is(err, errAgain) && ctx.Err() == nil {
		log.FromContext(ctx).Error(err, "An IPAddress without a claim could not be settled; it is tried again",
			"address", addr.key().String(), "pool", p.key.String())
	}
	a.wake(p.key)
}

// nextCheck is when an orphan is to be looked at: when its grace is over, and before that when nobody has
// looked or somebody needs what it has.
func (p *memory) nextCheck(s *orphan, grace time.Duration) time.Time {
	if end := s.since.Add(grace); !s.since.IsZero() && end.After(s.retryAt) && !p.isInTheWay(s) {
		return end
	}
	return s.retryAt
}

// inTheWay reports whether a claim has the name of an orphan, or anybody its address. The claim that
// remembers the address adopts the IPAddress.
func (p *memory) isInTheWay(s *orphan) bool {
	if c := p.byName[s.key()]; c != nil {
		return !p.adoptable(c, s.attached)
	}
	return s.inTheWay || (s.ip.IsValid() && p.blocker(p.ledger.Unit(s.ip), s.owner()) != nil)
}

// requestCleanup has the pool settle at once what an earlier claim of a name has left: a claim of another
// pool needs the name.
func (a *Allocator) requestCleanup(key pools.Key, name types.NamespacedName) {
	m := a.locked(key)
	defer m.unlock()
	if s := m.orphans[name]; s != nil && !s.inTheWay {
		s.inTheWay = true
		a.wake(key)
	}
}

// resolveOrphan removes an orphan, or tells that it is kept for now.
func (a *Allocator) resolveOrphan(ctx context.Context, p *pool, addr *attached) (kept bool, err error) {
	ctx, cancel := timed(ctx)
	defer cancel()
	live := named(addr.kind.object(), addr.namespace, addr.name)
	err = a.Live.Get(ctx, addr.key(), live)
	if err != nil && !apierrors.IsNotFound(err) {
		return false, err
	}
	m := p.lock()
	if err == nil {
		if key, _ := addr.kind.poolOf(live); key == p.key {
			m.observe(addr.kind.of(live))
		}
	}
	current := m.orphans[addr.key()]
	if current == nil || current.uid != addr.uid || (!m.holder && m.base != nil) {
		m.unlock()
		return false, nil
	}
	if c := m.byName[addr.key()]; c != nil && m.adoptable(c, current.attached) {
		m.sort(c)
		m.unlock()
		return false, nil
	}
	if current.since.IsZero() {
		current.since = a.now()
	}
	current.inTheWay = current.inTheWay || err == nil
	inTheWay := m.isInTheWay(current)
	event := orphanGC
	if inTheWay {
		event = "VoidAddressRemoved"
	}
	kept = !inTheWay && a.now().Before(current.since.Add(a.OrphanGrace))
	current.provenOrphan = !kept
	if m.orphanNeedsCooling(current, a.now()) {
		kept = true // until the commit has noted it, which the wake of the pool makes
	}
	addr, base := current.attached, m.base
	m.unlock()
	if kept {
		return true, nil
	}
	if err := a.detach(ctx, p, addr); err != nil {
		return false, err
	}
	metrics.Voided.WithLabelValues(p.key.Kind, p.key.Namespace, p.key.Name).Inc()
	if base != nil {
		a.Recorder.Eventf(base, nil, corev1.EventTypeNormal, event, "Release",
			"%s was removed: the claim it was made for is gone", addr.text())
	}
	return false, nil
}
