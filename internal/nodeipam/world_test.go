package nodeipam_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/fence"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/nodeipam"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pace"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/podcidr"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/workers"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/faults"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/sim"
)

// A world is an API server with Nodes and ClusterCIDRs, allocators of Node CIDRs, the pool of their blocks, and users.

const (
	// backstop is how often the controller reconciles a cluster anyway.
	backstop = time.Minute
	// pause is how long nothing changes before the user does the next thing, or a fault ends.
	pause = 6 * time.Second
	// grace is how long a block stays that no Node uses.
	grace = 20 * time.Second
	// rest is how long nothing changes before the world counts as being at rest: longer than a pause, and an adoption
	// after it.
	rest = 150 * time.Second
	// watched is how long a world at rest is watched.
	watched = 5 * backstop
	// patience is how often a user tries an action that is not possible.
	patience = 100
)

func TestMain(m *testing.M) { sim.RunTestMain(m) }

// action is an action of a user.
type action = sim.Action[*world]

// kinds are the kinds that a manager watches.
var kinds = []faults.Kind{faults.Clusters, faults.ClusterCIDRs, faults.Allocations, faults.ServiceCIDRs, faults.Nodes}

// scenario is the objects that exist when the first manager starts, and what users do then, each action when the world
// is at rest.
type scenario struct {
	name   string
	before []client.Object
	script []action
	// served is how many Nodes have CIDRs at the end, where the user waits; -1 means that it is not known.
	served int
	// managers is how many managers there are; 0 means one. Several are not elected.
	managers int
	// fleet reports whether the Nodes are those of a Cluster, prod, and ClusterCIDRs select Clusters. One server has
	// both.
	fleet bool
	// managesItself reports whether the cluster manages itself: the allocator of its own Nodes, with the ClusterCIDRs
	// without a clusterSelector, runs beside that of the Cluster.
	managesItself bool
	// clocks are how far the clocks of the managers are ahead, in the order of their starts; the clocks of later ones
	// are right.
	clocks []time.Duration
	// pool are the blocks that the pool has.
	pool []string
	// refuses is a name prefix: the API server refuses every patch of the Nodes that have it.
	refuses string
}

type world struct {
	scenario
	*sim.World[*world, *manager]

	api     *faults.Server
	elected bool
	// foreign are the UIDs of Nodes whose CIDRs a user has set.
	foreign map[types.UID]bool
	// state is the last content of the ConfigMap.
	state         fence.State
	lostConfigMap bool
	// deletingAt has, by manager and ClusterCIDR, whether the ClusterCIDR was being deleted, or gone, when the manager
	// last read it.
	deletingAt map[[2]string]bool
	// entries has in which ClusterCIDRs the Cluster has an entry.
	entries map[types.UID]bool
	// logs receives what the managers log; events are the events that they record.
	logs   func(string)
	events []string
	// until is when a wait of the user is over.
	until time.Time
	// learnKind makes a kind known to a manager that starts; nil means that it knows all kinds at once.
	learnKind func(*manager, faults.Kind)
	// saved is an earlier ConfigMap.
	saved *corev1.ConfigMap
}

// manager is an allocator, the watches that feed it and the queue that runs it.
type manager struct {
	*sim.Process

	site   *nodeipam.ClusterAllocator
	queue  *sim.Queue
	feed   faults.Feed
	ranges nodeipam.ClusterCIDRProtector
	// unread are the kinds without a list so far: nothing is reconciled before that, as controllers wait for their
	// caches.
	unread   map[faults.Kind]bool
	cached   map[string]*v1alpha1.ClusterCIDR
	blocks   map[string]nodeipam.Block
	services map[string]networkingv1.ServiceCIDR
	// fleet reports whether the allocator is that of a Cluster, which has these labels.
	fleet  bool
	labels map[string]string
	logs   func(string)
}

// eventSink records events in the world.
type eventSink struct{ *world }

func (w eventSink) Eventf(of, _ runtime.Object, _, reason, _, note string, args ...any) {
	w.events = append(w.events, fmt.Sprintf("%T %s: %s", of, reason, fmt.Sprintf(note, args...)))
}

// run runs a scenario to its end and returns how many writes it took.
func (s scenario) run(t *testing.T, setup func(*world)) (writes int) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := &world{scenario: s, api: faults.NewServer(), elected: s.managers < 2, foreign: map[types.UID]bool{}, deletingAt: map[[2]string]bool{}, entries: map[types.UID]bool{}}
		config := sim.Config[*manager]{
			Servers: []*faults.Server{w.api}, StartInPlaceOf: func(m *manager) { w.startSite(m.fleet) },
			Pause: pause, Rest: rest, Watched: watched, IdleStepDecay: 10,
			OtherSteps: w.answerBlocks, Intercept: w.refusesNode, Execute: w.execute, OnChange: w.checkChange,
		}
		if s.refuses == "" {
			config.MaxReconcilesAtRest = func() int { return len(w.Managers) * int(watched/backstop+2) }
		}
		w.World = sim.NewWorld(t, w, config)
		if w.Script = s.script; s.served < 0 {
			w.UserPatience = patience // a fault may make an action impossible
		}
		for _, o := range s.before {
			w.CreateObject(w.api, o)
		}
		if s.pool != nil { // no block is requested again from a pool that does not exist
			w.CreateObject(w.api, &v1alpha1.GlobalNetworkPool{ObjectMeta: object("pods")})
		}
		setup(w)
		for range max(s.managers, 1) {
			w.start()
		}
		if s.managesItself {
			w.startSite(false)
		}
		w.Play(w.examine)
		writes = w.Writes
	})
	return writes
}

// start starts another manager.
func (w *world) start() *manager { return w.startSite(w.fleet) }

// startSite starts a manager with the allocator of the Cluster, or of the cluster's own Nodes.
func (w *world) startSite(fleet bool) *manager {
	m := &manager{
		Process: w.NewProcess(), cached: map[string]*v1alpha1.ClusterCIDR{}, blocks: map[string]nodeipam.Block{},
		unread: map[faults.Kind]bool{}, services: map[string]networkingv1.ServiceCIDR{},
	}
	m.queue = &sim.Queue{Name: "the site", MaxBackoff: backstop, Reconcile: m.reconcile}
	m.AddWatches(w.api, kinds...)
	if w.logs != nil {
		m.logs = w.logs
		m.Context = sim.WithLog(m.Context, func(text string, _ bool) { w.logs(text) })
	}
	client := w.api.NewClient(m.Name)
	direct, live := client.LiveClient(), client.LiveReader()
	now := time.Now
	if n := len(w.Managers); n < len(w.clocks) {
		now = func() time.Time { return time.Now().Add(w.clocks[n]) }
	}
	kept := (&pace.WritePacer{Clock: clock.RealClock{}, MaxDelay: pace.MinDelay}).WrapClient(direct)
	m.fleet, m.ranges = fleet, nodeipam.ClusterCIDRProtector{Client: kept, Live: live}
	var objects nodeipam.ObjectProtector = m.ranges
	var key nodeipam.ClusterKey
	var blocks nodeipam.BlockClient
	if m.fleet {
		blocks = nodeipam.IPAllocationClient{
			Client: kept, Live: live, ClusterKey: prod,
			SetLabels: func(*v1alpha1.IPAllocation) {}, AddClusterFinalizer: func(context.Context) error { return nil },
		}
		key, objects = prod, nodeipam.EntryProtector{ClusterCIDRProtector: m.ranges, ClusterKey: prod}
	}
	m.site = nodeipam.NewClusterAllocator(nodeipam.Options{
		ClusterKey: key, Client: direct, Live: live, Lister: client.Lister(), ObjectProtector: objects, BlockClient: blocks, BlockGracePeriod: grace,
		ManagerID: m.Name, Elected: w.elected, Workers: workers.New[nodeipam.ClusterKey](4), Enqueue: func(nodeipam.ClusterKey) { m.queue.Wake() }, Recorder: eventSink{w}, Now: now,
	})
	m.feed = faults.NewFeed(m.Context, &corev1.Node{}, live, m.site, func(nodeipam.ClusterKey) { m.queue.Wake() })
	w.AddManager(m)
	for _, kind := range kinds {
		m.unread[kind] = true
	}
	for _, kind := range kinds {
		if w.learnKind != nil {
			w.learnKind(m, kind)
		} else {
			w.relist(m, kind, 0)
		}
	}
	m.queue.Wake()
	return m
}

// Queues implements sim.Manager.
func (m *manager) Queues() []*sim.Queue { return []*sim.Queue{m.queue} }

// reconcile runs one reconcile, as a worker of the controller does.
func (m *manager) reconcile() (reconcile.Result, error) {
	var objects []nodeipam.RangeObject
	var ends []podcidr.Ref
	for _, name := range names(m.cached) {
		c := m.cached[name]
		switch o, concerns := nodeipam.RangeObjectForCluster(c, prod, m.labels); {
		case !m.fleet && nodeipam.IsLocal(c):
			objects = append(objects, nodeipam.RangeObjectFromClusterCIDR(c))
		case !m.fleet:
		case concerns:
			objects = append(objects, o)
		}
		if m.fleet && !nodeipam.IsLocal(c) && c.DeletionTimestamp != nil && len(c.Status.Clusters) == 0 && nodeipam.RangeObjectFromClusterCIDR(c).HasFinalizer {
			ends = append(ends, nodeipam.RefForClusterCIDR(c))
		}
	}
	var blocks []nodeipam.Block
	for _, name := range names(m.blocks) {
		blocks = append(blocks, m.blocks[name])
	}
	m.site.SetRangeObjects(objects)
	m.site.SetServiceCIDRs(nodeipam.ServiceCIDRPrefixes(slices.Collect(maps.Values(m.services))))
	if m.fleet { // the controller of the manager's own cluster has no blocks
		m.site.SetBlocks(blocks)
	}
	wait, err := m.site.Reconcile(m.Context)
	for _, ref := range ends {
		err = errors.Join(err, m.ranges.UnprotectObject(m.Context, ref, ""))
	}
	if wait == 0 || wait > backstop {
		wait = backstop
	}
	m.site.BuildReport()
	if m.site.EmitEvents() {
		wait = time.Second
	}
	if err != nil && m.logs != nil {
		m.logs("Reconciler error")
	}
	return reconcile.Result{RequeueAfter: wait}, err
}

// ShowChange implements sim.Manager.
func (m *manager) ShowChange(c faults.Change) {
	switch o := c.Object.(type) {
	case *corev1.Node:
		m.feed.ShowChange(c)
		return
	case *clusterv1.Cluster:
		m.labels = o.Labels
	case *v1alpha1.IPAllocation:
		b, is := nodeipam.BlockFromAllocation(o)
		if is = is && o.Spec.TenantClusterRef.NamespacedName() == prod && !c.Deleted; is {
			m.blocks[o.Name] = b
		} else {
			delete(m.blocks, o.Name)
		}
	case *networkingv1.ServiceCIDR:
		if m.services[o.Name] = *o; c.Deleted {
			delete(m.services, o.Name)
		}
	case *v1alpha1.ClusterCIDR:
		if m.cached[o.Name] = o.DeepCopy(); c.Deleted {
			delete(m.cached, o.Name)
		}
	}
	m.queue.Wake()
}

// ReplaceKind implements sim.Manager.
func (m *manager) ReplaceKind(kind faults.Kind, listed []client.Object) {
	delete(m.unread, kind)
	m.Synced = len(m.unread) == 0
	if kind == faults.Nodes {
		m.feed.ReplaceAll(listed)
		return
	}
	maps.DeleteFunc(m.cached, func(string, *v1alpha1.ClusterCIDR) bool { return kind == faults.ClusterCIDRs })
	maps.DeleteFunc(m.blocks, func(string, nodeipam.Block) bool { return kind == faults.Allocations })
	maps.DeleteFunc(m.services, func(string, networkingv1.ServiceCIDR) bool { return kind == faults.ServiceCIDRs })
	for _, o := range listed {
		m.ShowChange(faults.Change{Object: o})
	}
	m.queue.Wake()
}

// relist breaks a watch: it shows nothing until a list arrives that is taken now.
func (w *world) relist(m *manager, kind faults.Kind, delay time.Duration) {
	writes := 3
	if kind == faults.Clusters || kind == faults.Allocations {
		writes = 0 // what it shows matters after other managers have acted without it
	}
	w.Relist(m, kind, writes, delay)
}

// answerBlocks returns the next step of the pool.
func (w *world) answerBlocks() []sim.Step {
	a, block, gives := w.nextBlock()
	if !gives {
		return nil
	}
	return []sim.Step{{Class: sim.WatchEvent, Text: "the pool answers " + a.Name, Run: func() { w.answerAllocation(a, block) }}}
}

// refusesNode refuses a write of a Node that the API server refuses.
func (w *world) refusesNode(r *faults.Request) bool {
	return w.refuses != "" && r.Ref.Kind == faults.Nodes && r.IsWrite() && strings.HasPrefix(r.Ref.Name, w.refuses) && w.Answer(r, nil, forbidden(r))
}

// execute executes a call, and records what managers read of ClusterCIDRs.
func (w *world) execute(r *faults.Request) (any, error) {
	value, err := w.api.ExecuteRequest(r)
	if r.Ref.Kind == faults.ClusterCIDRs && r.Verb == "get" {
		o, is := value.(client.Object)
		w.deletingAt[[2]string{r.Client, r.Ref.Name}] = !is || o.GetDeletionTimestamp() != nil
	}
	return value, err
}

// checkChange checks the promise after a change.
func (w *world) checkChange(users bool) {
	for _, c := range w.NewChanges(w.api, faults.ConfigMaps) {
		w.checkCommit(c, users)
	}
	for _, c := range w.NewChanges(w.api, faults.ClusterCIDRs) {
		o := c.Object.(*v1alpha1.ClusterCIDR)
		held := controllerutil.ContainsFinalizer(o, v1alpha1.ClusterCIDRFinalizer)
		had := w.entries[o.UID]
		w.entries[o.UID] = nodeipam.EntryForCluster(o, prod) != nil
		if users {
			continue
		}
		if (o.DeletionTimestamp != nil && (c.Deleted || !held)) || (had && !w.entries[o.UID]) {
			w.checkFinalizerRemoval(o)
		}
	}
	for _, c := range w.NewChanges(w.api, faults.Allocations) {
		a := c.Object.(*v1alpha1.IPAllocation)
		if b, _ := nodeipam.BlockFromAllocation(a); b.GrantedPrefix().IsValid() && (c.Deleted || !b.HasFinalizer) && !users {
			w.checkBlockReleased(b)
		}
	}
	nodes := w.nodes()
	for _, c := range w.NewChanges(w.api, faults.Nodes) {
		n := c.Object.(*corev1.Node)
		if users && len(n.Spec.PodCIDRs) > 0 && n.Annotations[v1alpha1.ClusterCIDRAnnotation] == "" {
			w.foreign[n.UID] = true
		}
	}
	for i, a := range nodes {
		for _, b := range nodes[i+1:] {
			if !w.foreign[a.UID] && !w.foreign[b.UID] && overlapCondition(prefixes(a.Spec.PodCIDRs), prefixes(b.Spec.PodCIDRs)) {
				w.Failf("I1: Nodes %s (%v) and %s (%v) overlap", a.Name, a.Spec.PodCIDRs, b.Name, b.Spec.PodCIDRs)
			}
		}
	}
}

// checkCommit checks that a commit only adds grants from objects that are open and protected.
func (w *world) checkCommit(c faults.Change, users bool) {
	var next fence.State
	if err := json.Unmarshal([]byte(c.Object.(*corev1.ConfigMap).Data["state"]), &next); err != nil || c.Deleted || users {
		if w.state = next; c.Deleted {
			w.state = fence.State{}
		}
		w.lostConfigMap = w.lostConfigMap || users
		return
	}
	by, _, _ := strings.Cut(next.Holder, "/")
	for _, o := range next.OpenRanges {
		if was := slices.ContainsFunc(w.state.OpenRanges, func(was fence.OpenRange) bool { return was.UID == o.UID }); !was && w.deletingAt[[2]string{by, o.Name}] {
			w.Failf("K41: %s is opened, though a live read has shown that it is being deleted", o.Name)
		}
	}
	for _, g := range next.InFlight {
		if slices.ContainsFunc(w.state.InFlight, func(was fence.Grant) bool { return was.NodeUID == g.NodeUID }) {
			continue
		}
		if !slices.ContainsFunc(next.OpenRanges, func(o fence.OpenRange) bool { return o.Name == g.ClusterCIDRName }) {
			w.Failf("K41: a grant to %s from %s, which is not open", g.NodeName, g.ClusterCIDRName)
		}
		if !slices.ContainsFunc(w.api.List(faults.ClusterCIDRs), func(o client.Object) bool {
			return o.GetName() == g.ClusterCIDRName && slices.Contains(o.GetFinalizers(), v1alpha1.ClusterCIDRFinalizer) && w.entries[o.GetUID()] != nodeipam.IsLocal(o.(*v1alpha1.ClusterCIDR))
		}) {
			w.Failf("K16: a grant to %s from %s, which is gone, or may go at any time", g.NodeName, g.ClusterCIDRName)
		}
		w.checkGrantFromBlock(g, next.OpenRanges)
		if overlapCondition(g.CIDRs, w.services()) {
			w.Failf("K23: %s is granted %v, some of which is for Services", g.NodeName, g.CIDRs)
		}
		for _, other := range next.InFlight {
			if other.NodeUID != g.NodeUID && w.isLive(other.NodeUID) && overlapCondition(g.CIDRs, other.CIDRs) {
				w.Failf("I1: %s and %s are granted %v and %v", g.NodeName, other.NodeName, g.CIDRs, other.CIDRs)
			}
		}
		for _, n := range w.nodes() {
			if n.UID != g.NodeUID && !w.foreign[n.UID] && overlapCondition(g.CIDRs, prefixes(n.Spec.PodCIDRs)) {
				w.Failf("I1: %s is granted %v, and Node %s has %v", g.NodeName, g.CIDRs, n.Name, n.Spec.PodCIDRs)
			}
		}
	}
	w.state = next
}

// checkFinalizerRemoval checks that no Node has anything of a ClusterCIDR whose finalizer, or whose entry of the
// Cluster, is removed.
func (w *world) checkFinalizerRemoval(o *v1alpha1.ClusterCIDR) {
	for _, n := range w.nodes() {
		if n.Annotations[v1alpha1.ClusterCIDRAnnotation] == o.Name && len(n.Spec.PodCIDRs) > 0 && !w.foreign[n.UID] {
			w.Failf("K17: ClusterCIDR %s goes, and Node %s has %v of it", o.Name, n.Name, n.Spec.PodCIDRs)
		}
	}
	for _, g := range w.state.InFlight {
		if alive := slices.ContainsFunc(w.nodes(), func(n *corev1.Node) bool { return n.UID == g.NodeUID && len(n.Spec.PodCIDRs) == 0 }); alive && g.ClusterCIDRName == o.Name {
			w.Failf("K17: ClusterCIDR %s goes, and a grant of it to %s is in flight", o.Name, g.NodeName)
		}
	}
}

// isLive reports whether a Node with the UID exists: no write lands on one that is gone.
func (w *world) isLive(uid types.UID) bool {
	return slices.ContainsFunc(w.nodes(), func(n *corev1.Node) bool { return n.UID == uid })
}

func (w *world) nodes() []*corev1.Node { return faults.ListObjects[*corev1.Node](w.api) }

// services returns the CIDRs of Services.
func (w *world) services() (out []netip.Prefix) {
	for _, o := range faults.ListObjects[*networkingv1.ServiceCIDR](w.api) {
		out = append(out, nodeipam.ParsePrefixes(o.Spec.CIDRs)...)
	}
	return out
}

// examine checks the end: every Node that can be served is, nothing is in flight, and nothing is left that was deleted.
func (w *world) examine() {
	served := 0
	for _, n := range w.nodes() {
		if len(n.Spec.PodCIDRs) > 0 {
			served++
		}
	}
	if w.served >= 0 && served != w.served && !w.lostConfigMap {
		w.Failf("%d Nodes have pod CIDRs, not %d", served, w.served)
	}
	w.checkNoNodeWaits()
	w.checkBlocksAtRest()
	if len(w.state.InFlight) > 0 {
		w.Failf("in flight at rest: %v", w.state.InFlight)
	}
	for _, o := range faults.ListObjects[*v1alpha1.ClusterCIDR](w.api) {
		used := slices.ContainsFunc(w.nodes(), func(n *corev1.Node) bool {
			if o.Spec.IPv4Pool != nil {
				return n.Annotations[v1alpha1.ClusterCIDRAnnotation] == o.GetName()
			}
			return overlapCondition(prefixes(n.Spec.PodCIDRs), prefixes([]string{o.Spec.IPv4}))
		})
		if o.GetDeletionTimestamp() != nil && !used && !isKeptByForeign(o, v1alpha1.ClusterCIDRFinalizer) {
			w.Failf("ClusterCIDR %s is still being deleted, and no Node uses it", o.GetName())
		}
		if !w.selected() && w.entries[o.GetUID()] && !used {
			w.Failf("ClusterCIDR %s still says that the Cluster uses it, and it is not for that, nor used", o.GetName())
		}
	}
}

// selected reports whether the Nodes should get CIDRs; in a fleet, they should as long as their Cluster has the label.
func (w *world) selected() bool {
	if !w.fleet {
		return true
	}
	for _, o := range w.api.List(faults.Clusters) {
		if o.GetLabels() != nil {
			return true
		}
	}
	return false
}

func prefixes(texts []string) []netip.Prefix {
	var out []netip.Prefix
	for _, text := range texts {
		if p, err := netip.ParsePrefix(text); err == nil {
			out = append(out, p)
		}
	}
	return out
}

func overlapCondition(a, b []netip.Prefix) bool {
	return slices.ContainsFunc(a, func(p netip.Prefix) bool { return slices.ContainsFunc(b, p.Overlaps) })
}

func names[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

func object(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Name: name} }

// checkNoNodeWaits checks that no Node waits for CIDRs that it can have, by the objects of the API server.
func (w *world) checkNoNodeWaits() {
	if w.refuses != "" || !w.selected() {
		return
	}
	taken := w.services()
	for _, n := range w.nodes() {
		taken = append(taken, prefixes(n.Spec.PodCIDRs)...)
	}
	room := func(text string, bits int) bool {
		if text == "" {
			return true
		}
		p := netip.MustParsePrefix(text)
		for sub := netip.PrefixFrom(p.Addr(), bits); p.Contains(sub.Addr()); {
			if !overlapCondition([]netip.Prefix{sub}, taken) {
				return true
			}
			last := sub.Addr()
			for sub.Contains(last) {
				last = last.Next()
			}
			sub = netip.PrefixFrom(last, bits)
		}
		return false
	}
	for _, n := range w.nodes() {
		if len(n.Spec.PodCIDRs) > 0 || n.DeletionTimestamp != nil {
			continue
		}
		for _, c := range faults.ListObjects[*v1alpha1.ClusterCIDR](w.api) {
			matches := c.Spec.NodeSelector == nil || n.Labels["size"] == "big"
			has := func(ipv6 bool, text string, bits int) bool {
				if pool := poolOf(c.Spec, ipv6); pool != nil {
					return (len(w.freeBlocks(ipv6)) > 0 && pool.MaxBlocks == nil) || w.blockWithRoom(taken, ipv6)
				}
				return room(text, bits-int(c.Spec.PerNodeHostBits))
			}
			if c.DeletionTimestamp == nil && matches && has(false, c.Spec.IPv4, 32) && has(true, c.Spec.IPv6, 128) {
				w.Failf("Node %s waits, and ClusterCIDR %s has room for it, or can get some", n.Name, c.Name)
			}
		}
	}
}
