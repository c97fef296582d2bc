package allocator_test

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"
	"sigs.k8s.io/cluster-api/util/annotations"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/cooling"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/invariants"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/poolutil"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/term"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/faults"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/sim"
)

// A world is an API server with pools and claimants, allocators, the garbage collector and users.

const (
	namespace = "ns"
	poolName  = "pool"
	// backstop is how often the controller reconciles a pool anyway.
	backstop = time.Minute
	// pause is how long nothing is written before the user's next action, or before a fault ends.
	pause = 6 * time.Second
	// rest is how long nothing is written before everything counts as being at rest: longer than the grace of an orphan
	// or a quarantine, and than the backstop.
	rest = 150 * time.Second
	// watched is how long a world at rest is watched: nothing is read or written then, and there is only an occasional
	// reconcile.
	watched = 5 * backstop
)

var poolKey = pools.Key{Kind: v1alpha1.NetworkPoolKind, Namespace: namespace, Name: poolName}

func TestMain(m *testing.M) { sim.RunTestMain(m) }

// Eventf keeps the last event of each object.
func (w *world) Eventf(of, _ runtime.Object, _, _, _, note string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.events[of.(client.Object).GetUID()] = fmt.Sprintf(note, args...)
}

// action is an action of a user.
type action = sim.Action[*world]

// world is one run.
type world struct {
	scenario
	*sim.World[*world, *manager]

	api *faults.Server
	// hasty reports whether the user acted while a call was in progress, for example one whose answer is lost.
	hasty   bool
	elected bool

	history          invariants.History
	grantedAddresses map[types.UID]string
	// stripped are the objects whose record a user has removed.
	stripped map[types.UID]bool
	ready    map[types.UID]bool
	rests    map[string]cooling.Entry
	// recordedRests are the rests that were on record since the IPAddress came, by name and address.
	recordedRests map[string]cooling.Entry
	// unavailableUntil are the addresses that no claimant may have yet.
	unavailableUntil map[netip.Addr]time.Time
	// owners are the claims that IPAddresses belonged to.
	owners map[types.UID]types.UID
	grace  bool
	// read is what the server had at a version.
	read   pools.Objects
	readAt int64
	// inheritingPool is the pool whose claims a restore brings, empty for the first one.
	inheritingPool string
	// collected is how often the garbage collector has removed an owner from each IPAddress, or deleted it.
	collected map[types.UID]int
	// domains are the failure domains of Machines, by name.
	domains sync.Map
	// hangs reports whether lookups of Machines hang.
	hangs atomic.Bool
	// pace counts what managers do.
	pace activityLog
	// lines are the lines that managers have logged since they were last counted.
	mu    sync.Mutex
	lines []string
	// events are the last ones of objects, by UID.
	events map[types.UID]string
	// listsFail is how many more lists of claims fail.
	listsFail int
	// blinded is when a user last stopped watches.
	blinded time.Time
}

// run runs a scenario to its end and returns how many writes it took.
func (s scenario) run(t *testing.T, setup func(*world)) (writes int) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := &world{
			scenario: s, api: faults.NewServer(), elected: true, grace: s.spec.AddressReuseGracePeriodSeconds != nil,
			grantedAddresses: map[types.UID]string{}, stripped: map[types.UID]bool{}, ready: map[types.UID]bool{}, unavailableUntil: map[netip.Addr]time.Time{}, rests: map[string]cooling.Entry{}, recordedRests: map[string]cooling.Entry{}, owners: map[types.UID]types.UID{},
			events: map[types.UID]string{},
		}
		w.World = sim.NewWorld(t, w, sim.Config[*manager]{
			Servers: []*faults.Server{w.api}, StartInPlaceOf: func(*manager) { w.start() },
			Pause: pause, Rest: rest, Watched: watched, MaxReconcilesAtRest: w.maxReconcilesAtRest, IdleStepDecay: 10,
			ManagerSteps: w.firstLists, OtherSteps: w.collectorSteps, Intercept: w.failList,
			BeforeStep: w.countLogLines, OnCall: w.countWrite, OnReconcile: w.countReconcile, OnAct: w.recordAct, OnIdle: w.checkSettled, OnChange: w.checkChange,
			OnWatchEvent: func(*manager, faults.Change) { w.StepsSinceChange-- }, // there are as many as there were changes
		})
		w.Script = s.script
		w.history.BlocksMayBeRemoved = s.forced
		w.create(&clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "tenant"}})
		w.create(s.pool())
		for _, a := range s.before {
			a.Do(w)
		}
		for _, c := range s.claims {
			w.create(claim(c))
		}
		setup(w)
		w.start()
		w.Play(w.examine)
		writes = w.Writes
	})
	return writes
}

func (w *world) create(o client.Object) { w.CreateObject(w.api, o) }

// maxReconcilesAtRest bounds the reconciles of a world at rest: the backstop, and the sweeps for orphans.
func (w *world) maxReconcilesAtRest() int {
	return len(w.Managers) * max(1, len(w.objects().Pools)) * int(watched/backstop+watched/(15*time.Second)+2)
}

// failList makes a list of claims fail.
func (w *world) failList(r *faults.Request) bool {
	if w.listsFail == 0 || r.Verb != "list" || !isOf(r, faults.Claims) {
		return false
	}
	w.listsFail--
	return w.Answer(r, nil, errWebhookFailed)
}

// recordAct records that a user acts.
func (w *world) recordAct() {
	w.hasty = w.hasty || w.awaitsAnswer()
	w.pace.since = time.Now()
}

// awaitsAnswer reports whether a manager waits for an answer to a call.
func (w *world) awaitsAnswer() bool { return w.HasOpenCalls(term.RequestTimeout) }

// checkSettled checks what holds soon after the last change, where nothing went wrong.
func (w *world) checkSettled() {
	if w.HasDelayedSteps() || w.Disturb != nil || w.Obstructed || w.awaitsAnswer() || time.Since(w.LastChange) < pause {
		return
	}
	o := w.objects()
	if w.prompt {
		w.served(o)
	}
	pausedClaim := slices.ContainsFunc(o.Claims, func(c ipamv1.IPAddressClaim) bool { return annotations.HasPaused(&c) })
	pausedCluster := slices.ContainsFunc(w.api.List(faults.Clusters), func(c client.Object) bool { return annotations.HasPaused(c) })
	if pausedClaim || pausedCluster {
		return // a paused claim may have only a record, or a grant
	}
	for _, text := range w.history.CheckAtRest(o) {
		if !strings.HasSuffix(text, "has no claim") { // that may take OrphanGrace
			w.Failf("%v after the last change: %s", time.Since(w.LastChange).Truncate(time.Second), text)
		}
	}
}

// checkChange checks the promise of docs/design.md after a change.
func (w *world) checkChange(users bool) {
	w.recordRests()
	for _, c := range slices.Concat(w.NewChanges(w.api, faults.Claims), w.NewChanges(w.api, faults.Allocations), w.NewChanges(w.api, faults.Leases)) {
		record := c.Object.GetAnnotations()[v1alpha1.AddressAnnotation]
		if record == "" && w.stripped[c.Object.GetUID()] {
			record = w.grantedAddresses[c.Object.GetUID()] // it must come back
		}
		if old := w.grantedAddresses[c.Object.GetUID()]; old != "" && record != old {
			w.Failf("R1: the record of %s changed from %s to %q", c.Object.GetName(), old, record)
		}
		w.grantedAddresses[c.Object.GetUID()] = record
		w.checkStaysReady(c)
		w.checkShownLease(c)
		w.checkForeignAddressRests(c, users)
		if c.Deleted && !users && w.hasAddress(c.Object.GetUID()) {
			w.Failf("I3: claim %s was released before its IPAddress was gone", c.Object.GetName())
		}
		if c.Deleted && !users && w.grace && w.ready[c.Object.GetUID()] {
			w.rests[bare(record)] = w.cooling(c.Object.GetName(), bare(record))
		}
	}
	for _, c := range w.NewChanges(w.api, faults.Addresses) {
		a, ok := c.Object.(*ipamv1.IPAddress)
		if !ok {
			continue
		}
		claim := w.claimOf(a)
		if c.Deleted && !users && w.isLive(claim) {
			w.Failf("I3: the IPAddress of claim %s is removed, and the claim lives", a.Name)
		}
		if was := w.owners[a.UID]; was != "" && was != claim && w.isLive(was) {
			w.Failf("I4: the IPAddress of claim %s is made another's, and the claim lives", a.Name)
		}
		if w.owners[a.UID] == "" {
			delete(w.recordedRests, a.Name+" "+a.Spec.Address) // the end of this one is recorded again
		}
		w.owners[a.UID] = claim
		record, exists := w.grantedAddresses[claim]
		if exists && !c.Deleted && !users && w.hasAddress(claim) && bare(record) != a.Spec.Address {
			w.Failf("R1: claim %s has IPAddress %s and the record %q", a.Name, a.Spec.Address, record)
		}
		last := w.rests[a.Spec.Address]
		switch {
		case c.Deleted && w.grace && users:
			delete(w.rests, a.Spec.Address) // its claim still has it, or a void IPAddress rests later
		case c.Deleted && w.grace:
			w.rests[a.Spec.Address] = w.cooling(a.Name, a.Spec.Address)
		case last.Claim.Name != a.Name && last.Until.After(time.Now()):
			w.Failf("I3: %s rests after %s until %v, and %s has it", a.Spec.Address, last.Claim.Name, last.Until.Sub(sim.Epoch), a.Name)
		}
	}
	for _, text := range w.history.CheckMoment(w.objects()) {
		w.Failf("%s", text)
	}
}

// checkShownLease checks that a lease keeps its address while it is shown.
func (w *world) checkShownLease(c faults.Change) {
	l, is := c.Object.(*v1alpha1.IPLease)
	if is && l.DeletionTimestamp != nil && l.Status.Address != "" && !w.stripped[l.UID] && !c.Deleted &&
		controllerutil.ContainsFinalizer(l, v1alpha1.LeaseShownFinalizer) && !controllerutil.ContainsFinalizer(l, v1alpha1.IPLeaseFinalizer) {
		w.Failf("I3: lease %s was released while its address is shown", l.Name)
	}
}

// claimOf returns the claim of an IPAddress: the one that it names, else the one that it named.
func (w *world) claimOf(address client.Object) types.UID {
	for _, ref := range address.GetOwnerReferences() {
		if ref.Kind == string(faults.Claims) {
			return ref.UID
		}
	}
	return w.owners[address.GetUID()]
}

// hasAddress reports whether a claim has an IPAddress.
func (w *world) hasAddress(claim types.UID) bool {
	return slices.ContainsFunc(w.api.List(faults.Addresses), func(o client.Object) bool { return w.claimOf(o) == claim })
}

// hasBlock reports whether an allocation has its block.
func (w *world) hasBlock(allocation string) bool {
	return slices.ContainsFunc(w.api.List(faults.Allocations), func(o client.Object) bool {
		a, is := o.(*v1alpha1.IPAllocation)
		return is && a.Name == allocation && a.Status.Phase == v1alpha1.AllocationAllocated
	})
}

// isLive reports whether a claim with this UID exists and is not being deleted.
func (w *world) isLive(claim types.UID) bool {
	return slices.ContainsFunc(w.api.List(faults.Claims), func(o client.Object) bool {
		return o.GetUID() == claim && o.GetDeletionTimestamp() == nil
	})
}

// checkStaysReady checks that a claim that was Ready stays Ready while it has its IPAddress.
func (w *world) checkStaysReady(c faults.Change) {
	claim, ok := c.Object.(*ipamv1.IPAddressClaim)
	if !ok || c.Deleted || claim.DeletionTimestamp != nil {
		return
	}
	for _, cond := range claim.Status.Conditions {
		ready := cond.Status == metav1.ConditionTrue
		if w.ready[claim.UID] && !ready && slices.ContainsFunc(w.objects().Addresses, func(a ipamv1.IPAddress) bool {
			return w.claimOf(&a) == claim.UID
		}) {
			w.Failf("I4: claim %s has its address and the reason %s", claim.Name, cond.Reason)
		}
		w.ready[claim.UID] = ready
	}
}

// recordRests records the rests that pools have on record.
func (w *world) recordRests() {
	for _, p := range w.objects().Pools {
		rests, err := cooling.ParseGroups(p.PoolStatus().Cooling)
		if err != nil {
			w.Failf("%v", err)
		}
		for _, r := range rests {
			w.recordedRests[r.Claim.Name+" "+r.Range.From().String()] = r
			for a := r.Range.From(); r.Claim.Name == "" && a != r.Range.To(); { // several were joined
				a = a.Next()
				w.recordedRests[" "+a.String()] = r
			}
		}
	}
}

// cooling returns the rest of a released address that is, or was, on record (R9).
func (w *world) cooling(name, address string) cooling.Entry {
	for _, name := range []string{name, ""} {
		if r, noted := w.recordedRests[name+" "+address]; noted {
			return r
		}
	}
	w.Failf("R9: %s was released by %s and does not rest", address, name)
	return cooling.Entry{}
}

// objects returns what the server has; callers must not change it.
func (w *world) objects() pools.Objects {
	if v := w.api.ResourceVersion(); w.readAt != v {
		w.read, w.readAt = w.readAll(), v
	}
	return w.read
}

func (w *world) readAll() pools.Objects {
	var out pools.Objects
	for _, kind := range faults.AllocatorKinds {
		for _, o := range w.api.List(kind) {
			switch o := o.(type) {
			case v1alpha1.Pool:
				out.Pools = append(out.Pools, o)
			case *ipamv1.IPAddressClaim:
				out.Claims = append(out.Claims, *o)
			case *ipamv1.IPAddress:
				out.Addresses = append(out.Addresses, *o)
			case *v1alpha1.IPAllocation:
				out.Allocations = append(out.Allocations, *o)
			case *v1alpha1.IPLease:
				out.Leases = append(out.Leases, *o)
			}
		}
	}
	return out
}

// examine checks the end: the promise of docs/design.md, and that every claim that can be served is.
func (w *world) examine() {
	o := w.objects()
	for _, text := range w.history.CheckAtRest(o) {
		w.Failf("%s", text)
	}
	served := w.served(o)
	for _, a := range o.Allocations {
		served[a.Name] = a.Status.CIDR
		if a.Spec.Type == v1alpha1.PoolAllocation {
			continue
		}
		seen := meta.IsStatusConditionTrue(a.Status.Conditions, v1alpha1.ClusterSeenCondition)
		if exists := len(w.api.List(faults.Clusters)) > 0; a.Status.Phase == v1alpha1.AllocationAllocated && seen != exists {
			w.Failf("allocation %s has %s; its Cluster exists: %v, and was seen: %v", a.Name, a.Status.CIDR, exists, seen)
		}
	}
	for _, l := range o.Leases {
		served[l.Name] = l.Status.Address
	}
	if w.isUnpredictable() || w.Obstructed || (w.starts > 0 && len(w.Managers) > w.starts) {
		return
	}
	for name, want := range w.want {
		if got := served[name]; got != want {
			w.Failf("%s has %q, not %q", name, got, want)
		}
	}
}

// isUnpredictable reports whether the scenario does not determine which claim gets which address, as the user did not
// wait.
func (w *world) isUnpredictable() bool {
	return w.ordered && (w.Anytime || w.Hurry > 0 || w.hasty || w.Obstructed)
}

// served checks that every claim that can be served is, and returns their addresses.
func (w *world) served(o pools.Objects) map[string]string {
	addresses := map[types.NamespacedName]ipamv1.IPAddress{}
	for _, a := range o.Addresses {
		addresses[client.ObjectKeyFromObject(&a)] = a
	}
	served := map[string]string{}
	for _, c := range o.Claims {
		a, has := addresses[client.ObjectKeyFromObject(&c)]
		ready := c.Status.AddressRef.Name == c.Name
		message := ""
		for _, cond := range c.Status.Conditions {
			ready = ready && cond.Status == "True"
			message = cond.Reason
		}
		keeps := has && w.claimOf(&a) == c.UID && a.Spec.Address == bare(w.grantedAddresses[c.UID])
		switch {
		case c.DeletionTimestamp != nil && w.hasLiveCluster(&c):
			if !keeps || message != v1alpha1.DeletingReason {
				w.Failf("claim %s of a Cluster that is there keeps %q of %q, and has the message %q", c.Name, a.Spec.Address, w.grantedAddresses[c.UID], message)
			}
			served[c.Name] = a.Spec.Address
		case c.DeletionTimestamp != nil:
			w.Failf("claim %s is still being deleted", c.Name)
		case ready && keeps:
			served[c.Name] = a.Spec.Address
		case ready || has:
			w.Failf("claim %s is half served: %v with record %q and address %q", c.Name, message, w.grantedAddresses[c.UID], a.Spec.Address)
		case message == "":
			w.Failf("claim %s has no reason why it waits", c.Name)
		}
	}
	if want := min(len(o.Claims), w.capacity); len(served) != want && !w.isUnpredictable() {
		w.Failf("%d claims are served, not %d: %v", len(served), want, served)
	}
	w.servedBlocks(o)
	w.servedLeases(o)
	return served
}

// hasLiveCluster reports whether the Cluster that owns a claim exists.
func (w *world) hasLiveCluster(c *ipamv1.IPAddressClaim) bool {
	return slices.ContainsFunc(w.api.List(faults.Clusters), func(o client.Object) bool {
		return len(c.OwnerReferences) > 0 && c.OwnerReferences[0].UID == o.GetUID()
	})
}

// servedLeases checks that every lease has its address, or shows why not.
func (w *world) servedLeases(o pools.Objects) {
	for _, l := range o.Leases {
		ready := meta.FindStatusCondition(l.Status.Conditions, v1alpha1.ReadyCondition)
		switch {
		case l.DeletionTimestamp != nil && slices.Contains(l.Finalizers, v1alpha1.LeaseShownFinalizer): // it is still shown
		case l.DeletionTimestamp != nil:
			w.Failf("lease %s is still being deleted", l.Name)
		case ready == nil:
			w.Failf("lease %s has no reason why it waits", l.Name)
		case (l.Status.Address != "") != (ready.Status == metav1.ConditionTrue) || l.Status.Address != w.grantedAddresses[l.UID]:
			w.Failf("lease %s has %q, remembers %q, and Ready is %s: %s", l.Name, l.Status.Address, w.grantedAddresses[l.UID], ready.Status, ready.Message)
		case ready.Reason == ipamv1.IPAddressClaimReadyPoolExhaustedReason && l.Spec.Address == "" && freeIn(o, l.Spec.PoolRef.Name) > 0:
			w.Failf("lease %s waits: %s; the pool has free addresses", l.Name, ready.Message)
		}
	}
}

// freeIn returns how many addresses a pool has available, 0 if it grants nothing.
func freeIn(o pools.Objects, pool string) int64 {
	for _, p := range o.Pools {
		if p.GetName() == pool && meta.IsStatusConditionTrue(p.GetConditions(), v1alpha1.ReadyCondition) {
			return p.PoolStatus().AvailableIPs
		}
	}
	return 0
}

// servedBlocks checks that every allocation has its block, or shows that there is none: not while a block of as many
// addresses would fit.
func (w *world) servedBlocks(o pools.Objects) {
	for _, a := range o.Allocations {
		ready := meta.FindStatusCondition(a.Status.Conditions, v1alpha1.ReadyCondition)
		switch {
		case a.DeletionTimestamp != nil && usedBlock(o, a): // it goes when nothing of it is in use
		case a.DeletionTimestamp != nil:
			w.Failf("allocation %s is still being deleted", a.Name)
		case ready == nil:
			w.Failf("allocation %s has no reason why it waits", a.Name)
		case (a.Status.Phase == v1alpha1.AllocationAllocated) != (ready.Status == metav1.ConditionTrue):
			w.Failf("allocation %s is %s and Ready is %s", a.Name, a.Status.Phase, ready.Status)
		case ready.Status == metav1.ConditionTrue && (a.Status.CIDR != w.grantedAddresses[a.UID] || (a.Spec.ChildPoolRef == nil && a.Status.AllocatedCount != int64(len(a.Status.Addresses)))):
			w.Failf("allocation %s shows %s with %d addresses and remembers %s", a.Name, a.Status.CIDR, a.Status.AllocatedCount, w.grantedAddresses[a.UID])
		case ready.Status == metav1.ConditionFalse && a.Spec.Count != nil && a.Spec.PinnedRange == nil && largestIn(o, a) >= int64(*a.Spec.Count):
			w.Failf("allocation %s waits for %d addresses: %s; the pool has %d in a row", a.Name, *a.Spec.Count, ready.Message, largestIn(o, a))
		}
	}
}

// usedBlock reports whether a carved pool has granted some of a block.
func usedBlock(o pools.Objects, a v1alpha1.IPAllocation) bool {
	r, err := poolutil.ParseRange(a.Status.CIDR)
	return err == nil && a.Spec.ChildPoolRef != nil && slices.ContainsFunc(o.Addresses, func(x ipamv1.IPAddress) bool {
		return r.Contains(netip.MustParseAddr(x.Spec.Address))
	})
}

// largestIn returns the largest number of contiguous addresses that the pool of an allocation has, 0 if it grants
// nothing.
func largestIn(o pools.Objects, a v1alpha1.IPAllocation) int64 {
	for _, p := range o.Pools {
		if p.GetName() == a.Spec.PoolRef.Name && meta.IsStatusConditionTrue(p.GetConditions(), v1alpha1.ReadyCondition) {
			return p.PoolStatus().LargestFreeBlock
		}
	}
	return 0
}

// bare returns the address of a record, which may be a prefix.
func bare(record string) string {
	text, _, _ := strings.Cut(record, "/")
	return text
}

func names[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
