package nodeipam

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/flowcontrol"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/fence"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/metrics"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pace"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/podcidr"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/term"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/workers"
)

// listTimeout bounds a list of all Nodes: as long as an API server works on one.
const listTimeout = time.Minute

// Key names a site: the Cluster of its Nodes. The empty one is the manager's own cluster.
type Key = types.NamespacedName

// Lister lists with consistent reads: what it shows existed at some moment after the call.
type Lister interface {
	List(ctx context.Context, of client.Object, namespace string, visit func(client.Object)) (version string, err error)
}

// Options are what a site needs.
type Options struct {
	Key Key
	// Client writes, Live reads what the API server has, and Lister lists it: all in the cluster of the Nodes.
	Client client.Client
	Live   client.Reader
	Lister Lister
	// Objects are what CIDRs are given from. Blocks are those that some of them have from pools; nil: none has.
	Objects Objects
	Blocks  Blocks
	// BlockGrace is how long a block stays that no Node uses.
	BlockGrace time.Duration
	// ID is that of the process, and of nobody before it.
	ID string
	// Elected reports whether the manager works only while it is the leader.
	Elected bool
	// Workers run the writes, with those of other sites.
	Workers *workers.Workers[Key]
	// Wake queues the site.
	Wake     func(Key)
	Recorder events.EventRecorder
	Now      func() time.Time
}

// Site is a cluster whose Nodes get CIDRs.
type Site struct {
	Options
	fence *fence.Fence
	// sent is the commit of which it is not known what became of it. It is the reconcile's, as the fence is.
	sent   *pending
	memory *memory
	// limit bounds the events.
	limit flowcontrol.PassiveRateLimiter
	// saidDeleting: it was said that the ConfigMap is being deleted.
	saidDeleting bool
	// shown are the CIDRs and names of the ranges that metrics show.
	shown map[[2]string]bool
	lines lines
}

// NewSite returns a site of which nothing is known.
func NewSite(o Options) *Site {
	m := newMemory(o.Key, o.BlockGrace)
	m.leavesBlocks = o.Blocks == nil
	return &Site{Options: o, fence: fence.New(o.Client, o.Live, holderOf(o.ID, o.Key)), memory: m, limit: newLimit()}
}

// holderOf is the id of a site as the ConfigMap has it: that of the process, and which cluster's Nodes it is for. A cluster
// that manages itself has two sites, its own and that of its Cluster, often in one process: they are strangers to each other.
func holderOf(id string, of Key) string { return id + "/" + of.String() }

// isNeighbour reports whether a holder is another site of the cluster than that of a key.
func isNeighbour(holder string, of Key) bool {
	_, site, is := strings.Cut(holder, "/")
	return is && site != "" && site != of.String()
}

func (s *Site) lock() *memory {
	s.memory.mu.Lock()
	return s.memory
}

// Unlock ends the use of a memory.
func (m *memory) Unlock() { m.mu.Unlock() }

// Observe takes a Node as it was seen.
func (s *Site) Observe(o client.Object) (Key, bool) {
	n, is := o.(*corev1.Node)
	if !is {
		return s.Key, false
	}
	m := s.lock()
	defer m.Unlock()
	wake := m.observe(nodeOf(n), n.ResourceVersion, s.Now())
	m.noteLabels(n.UID, n.ResourceVersion, n.Labels)
	return s.Key, wake
}

// Forget takes the proof that the UID of a Node is gone.
func (s *Site) Forget(o client.Object) (Key, bool) {
	m := s.lock()
	defer m.Unlock()
	if n := m.nodes[o.GetUID()]; n != nil && len(n.CIDRs) > 0 {
		if r := m.rangeOf(n.Node); r != nil {
			metrics.NodeCIDRReleases.WithLabelValues(cidrsText(r), r.Name, s.Key.Namespace, s.Key.Name).Inc()
		}
	}
	return s.Key, m.forget(o.GetUID(), s.Now())
}

// Beyond returns the Nodes that are remembered and not listed.
func (s *Site) Beyond(_ client.Object, listed map[types.UID]struct{}) []client.Object {
	m := s.lock()
	defer m.Unlock()
	var out []client.Object
	for uid, n := range m.nodes {
		if _, is := listed[uid]; !is {
			o := &corev1.Node{}
			o.Name, o.UID = n.Name, uid
			out = append(out, o)
		}
	}
	return out
}

// SetObjects takes what CIDRs are given from, SetServices the CIDRs of Services, which are not for Nodes.
func (s *Site) SetObjects(objects []Object) {
	m := s.lock()
	defer m.Unlock()
	m.setObjects(objects)
}

// SetBlocks takes the blocks that there are.
func (s *Site) SetBlocks(blocks []Block) {
	m := s.lock()
	defer m.Unlock()
	m.setBlocks(blocks, s.Now())
}

// SetServices takes the CIDRs of Services.
func (s *Site) SetServices(services []netip.Prefix) {
	m := s.lock()
	defer m.Unlock()
	m.setServices(services)
}

// SetRefusal takes why Nodes, or what they depend on, may not be read; nil: they may. blind: they were not read before, so that
// no number of them is known.
func (s *Site) SetRefusal(why error, blind bool) {
	m := s.lock()
	defer m.Unlock()
	m.refusal, m.blind = why, why != nil && blind
}

// Reconcile brings the site forward, and returns when it is to be called again, 0 if nothing is known that would be due.
// One call at a time.
func (s *Site) Reconcile(ctx context.Context) (time.Duration, error) {
	s.noteNextLook(time.Time{}) // until this is over, a write that fails wakes the site
	wait, err := s.reconcile(ctx)
	switch {
	case err != nil: // when it is called again is up to its caller
		s.noteNextLook(s.Now())
	case wait > 0:
		s.noteNextLook(s.Now().Add(wait))
	}
	return wait, err
}

func (s *Site) noteNextLook(at time.Time) {
	m := s.lock()
	defer m.Unlock()
	m.nextLook = at
}

func (s *Site) reconcile(ctx context.Context) (time.Duration, error) {
	if s.fence.Unanswered() {
		if wait, err := s.outcome(s.fence.Settle(ctx)); err != nil || wait > 0 {
			return wait, err
		}
	}
	m := s.lock()
	m.RotateGone(s.Now())
	holder := m.holder && !m.suspect
	if m.suspect {
		s.fence.Distrust()
	}
	m.Unlock()
	if !holder {
		may, wait, err := s.mayTakeOver(ctx)
		if err != nil || !may {
			return wait, err
		}
		if err := s.takeOver(ctx); err != nil {
			return 0, err
		}
	}
	return s.turn(ctx)
}

// mayTakeOver reports whether this manager should become the holder now, or how long to wait. At its start it looks for
// what one before it has left unfinished.
func (s *Site) mayTakeOver(ctx context.Context) (bool, time.Duration, error) {
	m := s.lock()
	ask := m.unread
	m.Unlock()
	if ask {
		if err := s.readLeft(ctx); err != nil {
			return false, 0, err
		}
	}
	m = s.lock()
	may, wait := m.mayTakeOver(s.Now(), s.Elected)
	only := may && m.onlyLeft(s.Now())
	m.Unlock()
	if !only || s.Elected {
		return may, wait, nil
	}
	// Another manager may have finished that.
	if err := s.readLeft(ctx); err != nil {
		return false, 0, err
	}
	m = s.lock()
	defer m.Unlock()
	return m.left, 0, nil
}

// readLeft reads whether grants are in flight on record.
func (s *Site) readLeft(ctx context.Context) error {
	state, _, err := s.fence.Read(ctx)
	if err != nil {
		s.note(err)
		return err
	}
	m := s.lock()
	defer m.Unlock()
	m.neighbour = m.neighbour || isNeighbour(state.Holder, s.Key)
	m.unread, m.left, m.commitErr = false, len(state.InFlight) > 0 || m.lacksBlock(state), nil
	return nil
}

// takeOver makes this manager the holder: first the write, then the list, so that whatever the one before has granted is
// in the list or in flight, and its next commit fails.
func (s *Site) takeOver(ctx context.Context) error {
	m := s.lock()
	m.holder, m.unread = false, true // the write may land without an answer
	m.takeovers++
	m.Unlock()
	state, err := s.fence.TakeOver(ctx, s.Now())
	if err != nil {
		s.note(err)
		return err
	}
	listed := map[types.UID]*node{}
	err = s.visit(ctx, func(n *corev1.Node) {
		listed[n.UID] = seen(nodeOf(n), n.ResourceVersion, s.Now())
	})
	if err != nil {
		return err
	}
	m = s.lock()
	m.neighbour = m.neighbour || isNeighbour(s.fence.Before(), s.Key)
	m.tookOver(state, listed, s.Now())
	metrics.NodeCIDRTakeovers.WithLabelValues(s.Key.Namespace, s.Key.Name).Inc()
	isNew := m.adopting && state.Seq == 0 && len(state.InFlight) == 0 && !m.anyCIDRs()
	inFlight := len(m.grants)
	m.Unlock()
	log.FromContext(ctx).Info("Took the Nodes of the cluster over", "cluster", s.Key.String(), "term", state.Term, "nodes", len(listed), "inFlight", inFlight)
	if !isNew {
		return nil
	}
	// Our finalizer on an object shows that there was a manager, whose first writes may be on their way.
	before, err := s.Objects.AnyProtected(ctx)
	m = s.lock()
	defer m.Unlock()
	if err != nil {
		m.holder, m.adoptUntil = false, time.Time{}
		return err
	}
	if !before {
		m.adoptUntil = time.Time{}
	}
	return nil
}

// turn plans for all that wait, commits, and hands out the writes that follow.
func (s *Site) turn(ctx context.Context) (time.Duration, error) {
	now := s.Now()
	m := s.lock()
	nobody := m.adopting && m.adoptUntil.IsZero()
	adopted := m.adopting && !nobody && !now.Before(m.adoptUntil)
	m.Unlock()
	switch {
	case nobody:
		// That nobody was here before goes on record before anything shows that somebody was.
		if wait, err := s.commit(ctx); err != nil || wait > 0 {
			return wait, err
		}
	case adopted:
		// What landed during the wait, the watch may not have shown.
		if err := s.list(ctx); err != nil {
			return 0, err
		}
	}
	m = s.lock()
	m.setGrows(now)
	protect, wait := m.plan(now)
	growth := m.decideBlocks(now)
	m.listed = growth.next
	protect = m.unheld(append(protect, growth.of...), now)
	m.Unlock()
	if s.protect(ctx, protect) {
		wait = time.Millisecond
	}
	later, err := s.commit(ctx)
	if err != nil {
		return 0, err
	}
	again, err := s.dispatch(ctx)
	tended, failed := s.tend(ctx, growth)
	return sooner(sooner(wait, later), sooner(again, tended)), errors.Join(err, failed, s.closeObjects(ctx))
}

// commit commits what there is to commit. It returns how long until there is more.
func (s *Site) commit(ctx context.Context) (time.Duration, error) {
	m := s.lock()
	next, p, wait := m.next(s.Now())
	m.Unlock()
	if p == nil {
		return wait, nil
	}
	s.sent = p
	again, err := s.outcome(s.fence.Commit(ctx, next))
	return sooner(wait, again), err
}

// protect puts our finalizer on objects before they are opened. Of one for which that fails nothing is granted: there are
// places for others then.
func (s *Site) protect(ctx context.Context, refs []podcidr.Ref) (again bool) {
	for _, ref := range refs {
		err := s.Objects.Protect(ctx, ref)
		m := s.lock()
		if err == nil {
			delete(m.blocked, ref)
			m.Unlock()
			continue
		}
		delayed, rest := pace.Split(err)
		switch {
		case rest == nil:
			// Another writer removes our finalizer each time: that is no failure, and the Nodes wait for a moment.
			m.postpone(ref, blocked{until: s.Now().Add(delayed)}, func(*podcidr.Node) {})
			again = true
		case errors.Is(err, errClosing):
			m.close(ref)
		default:
			s.failed(ctx, err, "A ClusterCIDR cannot be protected; its Nodes wait", "clusterCIDR", ref.Name)
			m.block(ref, err, s.Now())
			again = true
		}
		m.Unlock()
	}
	return again
}

// outcome notes what became of a commit. A wait says that the site is to be looked at again after it.
func (s *Site) outcome(err error) (time.Duration, error) {
	p := s.sent
	if !s.fence.Unanswered() {
		s.sent = nil
	}
	m := s.lock()
	defer m.Unlock()
	var refused *fence.RefusedError
	switch {
	case err == nil:
		metrics.NodeCIDRCommits.WithLabelValues("written").Inc()
		if p != nil {
			m.landed(p, s.fence.State().Adopting != nil, s.Now())
		}
		return 0, nil
	case errors.Is(err, fence.ErrMoved):
		metrics.NodeCIDRCommits.WithLabelValues("conflict").Inc()
		m.withdraw(nil)
		m.setOpen(s.fence.State().Open)
		return time.Millisecond, nil
	case errors.Is(err, fence.ErrLost):
		metrics.NodeCIDRCommits.WithLabelValues("conflict").Inc()
		m.lose(s.Now(), rand.N[time.Duration])
		return m.NotBefore.Sub(s.Now()), nil
	case errors.As(err, &refused):
		metrics.NodeCIDRCommits.WithLabelValues("error").Inc()
		m.refusedCommit(refused, s.Now())
		return m.commitAfter.Sub(s.Now()), nil
	case !s.fence.Unanswered():
		m.lose(s.Now(), rand.N[time.Duration])
		m.commitErr = err
	}
	metrics.NodeCIDRCommits.WithLabelValues("error").Inc()
	return 0, err
}

// note notes why nothing is granted.
func (s *Site) note(err error) {
	var damaged *fence.DamagedError
	if !errors.As(err, &damaged) && !term.RefusedForGood(err) {
		return // it passes
	}
	m := s.lock()
	defer m.Unlock()
	m.commitErr = err
}

// dispatch hands out the writes that are due. Where it is long ago that their grants were seen on record, it looks first.
func (s *Site) dispatch(ctx context.Context) (time.Duration, error) {
	m := s.lock()
	due, wait := m.due(s.Now())
	look := m.holder && len(due) > 0 && m.stale(s.Now())
	m.Unlock()
	if look {
		err := s.fence.Check(ctx)
		if errors.Is(err, fence.ErrLost) {
			return s.outcome(err)
		}
		if err != nil {
			s.note(err)
			return 0, err // the term is not over because a read failed; nothing is written meanwhile
		}
	}
	m = s.lock()
	defer m.Unlock()
	if !m.holder {
		return 0, nil
	}
	if look {
		m.recordedAt = s.Now()
	}
	lasting := context.WithoutCancel(ctx) // a write may wait for its place for longer than the turn that hands it out; its own time bounds it
	for _, g := range due {
		m.begin(g)
		s.Workers.Do(s.Key, func() { s.run(lasting, g) })
	}
	return wait, nil
}

// run writes for one grant, and notes how that went. One that has waited for long is handed out
// again, one of an earlier term is not.
func (s *Site) run(ctx context.Context, g *grant) {
	m := s.lock()
	if m.stale(s.Now()) || !m.holder || m.grants[g.Node.UID] != g {
		m.end(g)
		m.Unlock()
		s.Wake(s.Key)
		return
	}
	m.Unlock()
	err := s.write(ctx, g.Grant)
	if err != nil {
		s.failed(ctx, err, "Writing the pod CIDRs of a Node failed; it is tried again", "node", g.Node.Name)
	}
	m = s.lock()
	wake := m.wrote(g, err, s.Now())
	if n := m.nodes[g.Node.UID]; err == nil && n != nil && slices.Equal(n.CIDRs, g.CIDRs) && !g.inherited {
		metrics.NodeCIDRSeconds.Observe(s.Now().Sub(g.since).Seconds())
		metrics.NodeCIDRTries.Observe(float64(g.Tries))
		if r := m.rangeOf(n.Node); r != nil {
			metrics.NodeCIDRAllocations.WithLabelValues(cidrsText(r), r.Name, s.Key.Namespace, s.Key.Name).Inc()
		}
	}
	m.Unlock()
	if wake {
		s.Wake(s.Key)
	}
}

// write gives a Node its CIDRs, once that is on record. The patch names the UID of the Node and not its resource version:
// podCIDRs are written once, so it may be repeated, and land at any time. What is refused is looked at.
func (s *Site) write(ctx context.Context, g podcidr.Grant) error {
	texts := make([]string, len(g.CIDRs))
	for i, p := range g.CIDRs {
		texts[i] = p.String()
	}
	meta := map[string]any{"uid": g.Node.UID}
	if g.From.Name != "" {
		meta["annotations"] = map[string]string{v1alpha1.ClusterCIDRAnnotation: g.From.Name}
	}
	body, err := json.Marshal(map[string]any{"metadata": meta, "spec": map[string]any{"podCIDR": texts[0], "podCIDRs": texts}})
	if err != nil {
		return err
	}
	timed, cancel := context.WithTimeout(ctx, term.RequestTimeout)
	defer cancel()
	o := &corev1.Node{}
	o.Name = g.Node.Name
	err = s.Client.Patch(timed, o, client.RawPatch(types.MergePatchType, body))
	if err == nil && len(cidrsOf(o)) == 0 {
		return fmt.Errorf("the API server takes the pod CIDRs %v of Node %s, and does not show them: something changes what is written", texts, g.Node.Name)
	}
	if err == nil {
		s.Observe(o)
		return nil
	}
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) || apierrors.IsInvalid(err) {
		settled, readErr := s.look(ctx, g)
		if readErr != nil || settled {
			return readErr
		}
	}
	return fmt.Errorf("setting the pod CIDRs of Node %s to %v: %w", g.Node.Name, texts, err)
}

// look reads a Node live, and reports whether it is gone, or has CIDRs.
func (s *Site) look(ctx context.Context, g podcidr.Grant) (settled bool, err error) {
	n := g.Node
	ctx, cancel := context.WithTimeout(ctx, term.RequestTimeout)
	defer cancel()
	live := &corev1.Node{}
	err = s.Live.Get(ctx, client.ObjectKey{Name: n.Name}, live)
	if client.IgnoreNotFound(err) != nil {
		return false, err
	}
	if err != nil || live.UID != n.UID {
		gone := &corev1.Node{}
		gone.UID = n.UID
		s.Forget(gone)
		settled = true
	}
	if err == nil {
		s.Observe(live)
	}
	if has := cidrsOf(live); !settled && len(has) > 0 {
		settled = true
		m := s.lock()
		if !slices.Equal(has, g.CIDRs) {
			m.notef(n, PodCIDRSetByOther, "somebody else has set its pod CIDRs to %v, where %v were granted: run kube-controller-manager with --allocate-node-cidrs=false, and one allocator only", has, g.CIDRs)
		}
		m.Unlock()
	}
	return settled, nil
}

// closeObjects says of objects that they are not in use any more, once they are closed on record and a list that began
// after that shows that no Node uses them.
func (s *Site) closeObjects(ctx context.Context) error {
	m := s.lock()
	closing := m.ending()
	m.Unlock()
	if len(closing) == 0 {
		return nil
	}
	if err := s.list(ctx); err != nil {
		return err
	}
	var errs []error
	for _, o := range closing {
		m := s.lock()
		used := len(m.users(o)) > 0
		m.Unlock()
		if !used {
			errs = append(errs, s.Objects.Release(ctx, o.Ref, o.Mark))
		}
	}
	return errors.Join(errs...)
}

// list reads what all Nodes have.
func (s *Site) list(ctx context.Context) error {
	return s.visit(ctx, func(n *corev1.Node) { s.Observe(n) })
}

// visit lists all Nodes. A server that does not come to an end of that keeps nobody else waiting.
func (s *Site) visit(ctx context.Context, each func(*corev1.Node)) error {
	ctx, cancel := context.WithTimeout(ctx, listTimeout)
	defer cancel()
	_, err := s.Lister.List(ctx, &corev1.Node{}, "", func(o client.Object) {
		if n, is := o.(*corev1.Node); is {
			each(n)
		}
	})
	if err != nil {
		return fmt.Errorf("listing Nodes: %w", err)
	}
	return nil
}

// ending are the objects that were closed by a commit of this term, and that no Node is known to use. While what was before is adopted, not all is known.
func (m *memory) ending() []Object {
	if !m.holder || m.adopting {
		return nil
	}
	var out []Object
	for _, o := range m.objects {
		if o.Closing && o.Held && m.isClosed(o) && len(m.users(o)) == 0 && !m.hasBlocks(o) {
			out = append(out, o)
		}
	}
	return out
}
