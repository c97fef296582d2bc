package allocator

import (
	"context"
	"errors"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/grants"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/metrics"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"
)

// runOrphan deals with an IPAddress whose claim we do not know: with proof that the claim is gone
// the IPAddress is void and removed; at once if it stands in somebody's way, else after a while,
// since a restore may bring the claim after its address (R2).
func (a *Allocator) runOrphan(ctx context.Context, p *grants.Pool, addr *grants.Attached) {
	kept, err := a.resolveOrphan(ctx, p, addr)
	m := p.Lock()
	var again time.Time
	news := true
	if s := m.Orphans[addr.Key()]; s != nil && s.UID == addr.UID {
		s.Busy = false
		if !kept {
			s.NoteTry(err, a.now())
			again, news = s.RetryAt, false
		}
	}
	wake := m.EndJob(again) || news
	m.Unlock()
	if err != nil && !errors.Is(err, errAgain) && ctx.Err() == nil {
		a.complain(ctx, p.Key, err, "An IPAddress without a claim could not be settled; it is tried again", "address", addr.Key().String())
	}
	if wake {
		a.wake(p.Key)
	}
}

// requestCleanup has the pool settle at once what an earlier claim of a name has left: a claim of another
// pool needs the name.
func (a *Allocator) requestCleanup(key pools.Key, name types.NamespacedName) {
	m := a.locked(key)
	defer m.Unlock()
	if s := m.Orphans[name]; s != nil && !s.InTheWay {
		s.InTheWay = true
		a.wake(key)
	}
}

// resolveOrphan removes an orphan, or tells that it is kept for now.
func (a *Allocator) resolveOrphan(ctx context.Context, p *grants.Pool, addr *grants.Attached) (kept bool, err error) {
	ctx, cancel := timed(ctx)
	defer cancel()
	live := grants.Named(addr.Kind.Object(), addr.Namespace, addr.Name)
	err = a.Live.Get(ctx, addr.Key(), live)
	if err != nil && !apierrors.IsNotFound(err) {
		return false, err
	}
	arrives := a.mayArrive(ctx, p, addr.Namespace)
	m := p.Lock()
	if err == nil {
		if key, _ := addr.Kind.PoolOf(live); key == p.Key {
			m.Observe(addr.Kind.Of(live))
		}
	}
	current := m.Orphans[addr.Key()]
	if current == nil || current.UID != addr.UID || (!m.Holder && m.Base != nil) {
		m.Unlock()
		return false, nil
	}
	if c := m.ByName[addr.Key()]; m.StaysByHand(current) || (c != nil && m.Adoptable(c, current.Attached)) {
		if c != nil {
			m.Sort(c)
		}
		m.Unlock()
		return false, nil
	}
	if current.Since.IsZero() || m.InQuarantine(a.now()) || arrives {
		current.Since = a.now() // its claim may still arrive
	}
	current.InTheWay = current.InTheWay || err == nil
	inTheWay := m.IsInTheWay(current)
	event := orphanGC
	if inTheWay {
		event = "VoidAddressRemoved"
	}
	kept = !inTheWay && a.now().Before(current.Since.Add(a.OrphanGrace))
	current.ProvenOrphan = !kept
	if m.OrphanNeedsCooling(current, a.now()) {
		kept = true // until the commit has noted it, which the wake of the pool makes
	}
	addr, base := current.Attached, m.Base
	m.Unlock()
	if kept {
		return true, nil
	}
	if err := a.detach(ctx, p, addr); err != nil {
		return false, err
	}
	if addr.ByHand { // a user has deleted it, and needs no event
		return false, nil
	}
	metrics.Voided.WithLabelValues(p.Key.Kind, p.Key.Namespace, p.Key.Name).Inc()
	if base != nil {
		a.Recorder.Eventf(base, nil, corev1.EventTypeNormal, event, "Release",
			"%s was removed: the claim it was made for is gone", addr.Text())
	}
	return false, nil
}

// mayArrive reports whether a restore may still bring the pool of an IPAddress, with its claim: the pool is not there, and a Cluster of
// the namespace is paused, or it is not known whether one is (R10).
func (a *Allocator) mayArrive(ctx context.Context, p *grants.Pool, namespace string) bool {
	m := p.Lock()
	exists := m.Base != nil
	m.Unlock()
	if exists {
		return false
	}
	around := a.findPaused(ctx)(namespace)
	return around == grants.Paused || around == grants.Unlooked
}

// endMove takes our finalizers off a claimant that clusterctl has moved.
func (a *Allocator) endMove(ctx context.Context, p *grants.Pool, c grants.Claimant) error {
	if a.isAnothers(&c) {
		return nil
	}
	return a.run(ctx, p, c, func(m *grants.Memory, c *grants.Claimant, _ *grants.Attempt) (grants.Step, bool) {
		if (!m.Holder && m.Base != nil) || !m.IsEndOfMove(c) {
			return grants.Step{}, false
		}
		return grants.EndOfMove(c), true
	})
}

// endMoveOf takes our finalizer off an IPAddress that clusterctl has moved.
func (a *Allocator) endMoveOf(ctx context.Context, p *grants.Pool, o *grants.Attached) {
	ctx, cancel := timed(ctx)
	defer cancel()
	t := &grants.Attempt{}
	err := a.patchAttached(ctx, p, grants.Removal(o, t), t)
	m := p.Lock()
	again := m.NoteEndOfMove(o.UID, err, a.now())
	wake := m.EndJob(again) || again.IsZero()
	m.Unlock()
	if err != nil && !errors.Is(err, errAgain) && ctx.Err() == nil {
		a.complain(ctx, p.Key, err, "The move of an IPAddress could not be ended; it is tried again", "address", o.Key().String())
	}
	if wake {
		a.wake(p.Key)
	}
}
