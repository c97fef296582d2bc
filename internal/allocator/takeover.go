package allocator

import (
	"context"
	"fmt"
	"slices"
	"time"

	"go4.org/netipx"
	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/cooling"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/ledger"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/metrics"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/poolutil"
)

// patience is how long work waits before a manager that was not elected takes a pool over (R5).
const patience = 3 * time.Second

// mayTakeOver reports whether this manager should become the pool's holder now, or how long to wait
// (R5). Only the amount of work depends on the answer, never its safety.
func (p *memory) mayTakeOver(now time.Time, elected bool, admission, releasable admit) (bool, time.Duration) {
	if now.Before(p.notBefore) {
		return false, p.notBefore.Sub(now)
	}
	state := p.base.PoolStatus().Allocator
	if state == nil || !p.triedOnce || (elected && p.backoff == 0) {
		return true, 0
	}
	room := p.restEnds(now)
	if room > 0 {
		releasable = func(*claimant) ruling { return ruling{waits: true, silent: true} } // no live holder would
	}
	if !p.hasWork(state, admission, releasable) {
		p.workSince = time.Time{}
		return false, room
	}
	if p.workSince.IsZero() {
		p.workSince = now
	}
	since := p.workSince
	if p.changed.After(since) {
		since = p.changed
	}
	if wait := patience - now.Sub(since); wait > 0 {
		return false, wait
	}
	return true, 0
}

// hasWork reports whether the pool has something that a live holder would have done by now. What is
// paused, or another manager's by its label, is none.
func (p *memory) hasWork(state *v1alpha1.AllocatorStatus, admission, releasable admit) bool {
	work := p.base.GetDeletionTimestamp() != nil || p.outdated()
	wants := func(c *claimant) bool {
		rule := admission
		if c.deleting {
			rule = releasable
		}
		return !rule(c).waits
	}
	for _, g := range state.InFlight {
		c := p.claimants[types.UID(g.UID)]
		work = work || c == nil || wants(c)
	}
	for _, c := range p.todo {
		work = work || wants(c)
	}
	if work {
		return true
	}
	p.pending.Scan(func(c *claimant) bool {
		ruled := admission(c)
		switch {
		case ruled.waits:
		case ruled.refused != nil:
			work = !c.shows(*ruled.refused)
		case c.shownRefusal().isRefused():
		default:
			_, no := p.available(c)
			work = c.shownRefusal() == (refusal{}) || (no == nil && p.withinQuota(c))
		}
		return !work
	})
	return work
}

// outdated reports whether the status on record speaks of an older spec, or of other neighbours, than the pool has now.
func (p *memory) outdated() bool {
	overlaps := meta.IsStatusConditionTrue(p.base.GetConditions(), v1alpha1.OverlapCondition)
	return p.base.PoolStatus().ObservedGeneration != p.base.GetGeneration() || overlaps != (p.overlap != "") || p.owes
}

// loseTerm is called when another manager has written the pool: what we planned on is void. The
// wait grows while two managers meet again and again (R5).
func (p *memory) loseTerm(now time.Time) {
	p.holder, p.unanswered = false, nil
	p.roomToRest()
	for uid, g := range p.grants {
		p.ledger.Remove(ledger.Key{Source: ledger.Grant, UID: uid})
		delete(p.grants, uid)
		if c := p.claimants[g.owner.UID]; c != nil {
			p.sort(c)
		}
	}
	p.backoff = min(max(2*p.backoff, p.listTook, 100*time.Millisecond), time.Minute)
	p.notBefore = now.Add(p.backoff + p.jitter(2*p.backoff))
	p.changed, p.workSince = now, time.Time{}
}

// loseTerm ends the term of a pool, and counts that.
func (a *Allocator) loseTerm(m *memory) {
	m.loseTerm(a.now())
	countLostTerm(m.key)
}

func countLostTerm(key pools.Key) {
	metrics.LostTerms.WithLabelValues(key.Kind, key.Namespace, key.Name).Inc()
}

// Fence makes this manager the holder of pools. It must be called before the lists with which the
// watches of claims and IPAddresses begin: whatever the holders before have granted is then in those
// lists or in flight, and a takeover needs none of its own. Pools for which the write fails are left
// to their takeover.
func (a *Allocator) Fence(ctx context.Context, all []v1alpha1.Pool) {
	var g errgroup.Group
	g.SetLimit(a.Writers)
	for _, obj := range all {
		key := pools.KeyOf(obj)
		a.publishSpec(obj)
		if a.unserved(key) != nil || obj.GetDeletionTimestamp() != nil {
			continue
		}
		if !a.serves(key) {
			a.observeOnly(a.pool(key), obj, a.now())
			continue
		}
		g.Go(func() error {
			p := a.pool(key)
			m := p.lock()
			m.setBase(obj)
			m.unlock()
			term, err := a.fence(ctx, p)
			if err != nil {
				log.FromContext(ctx).V(1).Info("A pool is taken over later", "pool", key.String(), "because", err.Error())
				return nil
			}
			m = p.lock()
			defer m.unlock()
			m.fencedTerm = term
			return nil
		})
	}
	_ = g.Wait()
}

// fence writes this manager into the pool as its holder, and returns its term.
func (a *Allocator) fence(ctx context.Context, p *pool) (term int64, err error) {
	m := p.lock()
	base := m.base
	m.unlock()
	old := base.PoolStatus().Allocator
	if old != nil && old.Holder == a.ID {
		return old.Term, nil
	}
	next := base.DeepCopyObject().(v1alpha1.Pool)
	state := &v1alpha1.AllocatorStatus{Holder: a.ID, Term: 1}
	if old != nil {
		state.Term, state.InFlight = old.Term+1, old.InFlight
	}
	next.PoolStatus().Allocator = state
	unserved := wasUnserved(next)
	if old == nil || unserved {
		// Whoever comes after us must know, should we die before the first commit. Our finalizer shows that there was
		// an allocator: a move or a restore brings a pool before what was given from it.
		ready := metav1.Condition{
			Type: v1alpha1.ReadyCondition, Status: metav1.ConditionUnknown, Reason: v1alpha1.AdoptingReason,
			Message: "looking for what exists already", ObservedGeneration: next.GetGeneration(), LastTransitionTime: metav1.NewTime(a.now()),
		}
		if unserved || controllerutil.ContainsFinalizer(next, v1alpha1.PoolFinalizer) {
			ready.Status = metav1.ConditionFalse
		}
		meta.SetStatusCondition(&next.PoolStatus().Conditions, ready)
	}
	if err := a.updateStatus(ctx, next); err != nil {
		return 0, fmt.Errorf("taking over %s: %w", p.key, err)
	}
	m = p.lock()
	defer m.unlock()
	m.setBase(next)
	return state.Term, nil
}

// takeOver makes this manager the pool's holder: first the write, then the list, so that whatever
// the old holder granted is in the list or in flight, and its next commit fails.
func (a *Allocator) takeOver(ctx context.Context, p *pool) error {
	m := p.lock()
	is, done, took := m.base.PoolStatus().Allocator, m.fencedTerm, m.listTook
	m.fencedTerm = 0
	m.unlock()
	found := &listed{}
	if done == 0 || is == nil || is.Holder != a.ID || is.Term != done {
		var err error
		if done, err = a.fence(ctx, p); err != nil {
			return err
		}
		start := a.now()
		if found, err = a.lists.list(ctx, p.key); err != nil {
			return fmt.Errorf("listing what %s has given: %w", p.key, err)
		}
		took = a.now().Sub(start)
	}
	m = p.lock()
	defer m.unlock()
	m.listTook = took
	m.adopting = m.wasAdopting() != nil
	m.rebuild(found)
	m.holder, m.triedOnce, m.term = true, true, done
	m.quarantine(a.Quarantine)
	m.quarantineAfterOther(a.now(), a.Quarantine)
	metrics.Takeovers.WithLabelValues(p.key.Kind, p.key.Namespace, p.key.Name).Inc()
	log.FromContext(ctx).Info("Took the pool over", "pool", p.key.String(), "term", m.term,
		"claims", len(m.claimants), "addresses", len(m.attached), "inFlight", len(m.grants))
	return nil
}

// rebuild makes the ledger from the list, what the watches know beyond it, and what is in flight.
func (p *memory) rebuild(found *listed) {
	status := p.base.PoolStatus()
	space, unit := p.space()
	p.ledger = ledger.New(space, unit)
	p.apart = map[netipx.IPRange]pools.Key{}
	p.addPins()
	for uid := range p.grants {
		delete(p.grants, uid)
	}
	p.observeAll(found)
	for _, c := range p.claimants {
		p.state(c)
	}
	for _, addr := range p.attached {
		if addr.ip.IsValid() {
			p.ledger.Add(ledger.Hold{Key: ledger.Key{Source: ledger.Object, UID: addr.uid}, Owner: addr.owner(), Range: p.ledger.Unit(addr.ip)})
		}
	}
	for _, g := range inFlightOf(status) {
		r, err := poolutil.ParseRange(g.First + "-" + g.Last)
		if err != nil {
			continue
		}
		owner := ledger.Owner{Kind: p.kindOf(g.Kind).traits().name, Namespace: g.Namespace, Name: g.Name, UID: types.UID(g.UID)}
		if c := p.claimants[owner.UID]; c != nil && c.mayGetAnother() && p.addressed(r, owner) {
			continue
		}
		p.grants[owner.UID] = &grant{owner: owner, rng: r, committed: true, inherited: true}
		p.confirm(owner.UID) // the list began after the fence: what it shows is proof (R6)
		p.ledger.Add(ledger.Hold{Key: ledger.Key{Source: ledger.Grant, UID: owner.UID}, Owner: owner, Range: r})
	}
	p.loadCooling(status)
	for _, c := range p.claimants {
		p.sort(c)
	}
	for _, addr := range p.attached {
		p.sortAttached(addr)
	}
	if len(p.orphans) == 0 {
		p.orphans = map[types.NamespacedName]*orphan{} // before the claims came, all were orphans: a map does not shrink
	}
}

// addressed reports whether an IPAddress of somebody else has some of a range.
func (p *memory) addressed(r netipx.IPRange, o ledger.Owner) bool {
	return slices.ContainsFunc(p.ledger.Overlapping(r), func(h *ledger.Hold) bool {
		return h.Source == ledger.Object && p.blocks(h, o)
	})
}

// loadCooling takes what rests from the pool's status: an operator may have taken an entry out.
func (p *memory) loadCooling(status *v1alpha1.NetworkPoolStatus) {
	for _, rest := range p.cooling.All() {
		p.cooling.Remove(rest.Range)
	}
	for r := range p.held {
		p.dropHeld(r)
	}
	rests, _ := cooling.Parse(status.Cooling) // what cannot be read, nobody has written who knew what rests
	for _, rest := range rests {
		p.cooling.Put(rest)
	}
	p.roomToRest()
	for _, h := range status.Held {
		if r, err := poolutil.ParseRange(h.First + "-" + h.Last); err == nil {
			p.addHeld(r, h)
		}
	}
	for _, c := range p.claimants {
		p.keepMoved(c)
	}
	for _, a := range p.attached {
		if a.moved && a.ip.IsValid() {
			p.holdMoved(a.owner(), p.ledger.Unit(a.ip))
		}
	}
}

// quarantine holds new grants back where no allocator is on record, but addresses exist or there was an allocator
// (R10). It survives a restart in the Ready condition.
func (p *memory) quarantine(length time.Duration) {
	if c := p.wasAdopting(); c != nil && (c.Status == metav1.ConditionFalse || p.ledger.Counts().Owners > 0) {
		p.quarantineUntil = c.LastTransitionTime.Add(length)
	}
}

// wasAdopting returns the condition that a quarantine which is not over has left, if one has.
func (p *memory) wasAdopting() *metav1.Condition {
	c := meta.FindStatusCondition(p.base.GetConditions(), v1alpha1.ReadyCondition)
	if c == nil || c.Reason != v1alpha1.AdoptingReason {
		return nil
	}
	return c
}

func inFlightOf(status *v1alpha1.NetworkPoolStatus) []v1alpha1.Grant {
	if status.Allocator == nil {
		return nil
	}
	return status.Allocator.InFlight
}
