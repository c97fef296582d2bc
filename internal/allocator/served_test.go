package allocator

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/grants"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/kinds/claims"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/term"
)

// bothReady is what the status of a served claim says, in both generations of conditions.
func bothReady(c *ipamv1.IPAddressClaim) {
	c.Status.AddressRef.Name = c.Name
	c.Status.Conditions = []metav1.Condition{{Type: ipamv1.IPAddressClaimReadyCondition, Status: metav1.ConditionTrue, Reason: "Allocated"}}
	c.SetV1Beta1Conditions(clusterv1.Conditions{{Type: clusterv1.ReadyV1Beta1Condition, Status: "True"}})
}

// A claim that has all it wants is nobody's work, whichever pool it names: one that names the pool of the in-cluster
// provider has that among the owners of its IPAddress, if that has a mirror.
func TestServedClaimsAreNoWork(t *testing.T) {
	inCluster := ipamv1.IPPoolReference{APIGroup: "ipam.cluster.x-k8s.io", Kind: "InClusterIPPool", Name: "pool"}
	theirs := metav1.OwnerReference{APIVersion: "ipam.cluster.x-k8s.io/v1alpha2", Kind: "InClusterIPPool", Name: "pool", UID: "in-cluster-uid"}
	ours := metav1.OwnerReference{APIVersion: v1alpha1.GroupVersion.String(), Kind: testKey.Kind, Name: "pool", UID: "pool-uid"}
	another := metav1.OwnerReference{APIVersion: "nobody/v1", Kind: testKey.Kind, Name: "pool", UID: "pool-uid"}
	for name, tc := range map[string]struct {
		claim, address ipamv1.IPPoolReference // what each names
		byHand         bool                   // nobody but us knows the pool as a mirror
		owner          metav1.OwnerReference  // of the IPAddress
		done           bool
	}{
		"NetworkPool":        {claim: testKey.Ref(), address: testKey.Ref(), owner: ours, done: true},
		"Mirrored":           {claim: inCluster, address: inCluster, owner: theirs, done: true},
		"OfTheWrongOwner":    {claim: inCluster, address: inCluster, owner: ours},
		"OfAnotherGroup":     {claim: testKey.Ref(), address: testKey.Ref(), owner: another},
		"MirrorMadeByHand":   {claim: inCluster, address: inCluster, byHand: true, owner: ours, done: true},
		"AdoptedByTheMirror": {claim: testKey.Ref(), address: inCluster, owner: ours, done: true},
		"AdoptedFromIt":      {claim: inCluster, address: testKey.Ref(), owner: theirs, done: true},
	} {
		t.Run(name, func(t *testing.T) {
			p := aPool(t, "10.0.0.1-10.0.0.9", func(o *v1alpha1.NetworkPool) {
				if mirrored := theirs; !tc.byHand {
					mirrored.Controller = ptr.To(true)
					o.Name, o.OwnerReferences = "pool.in-cluster", []metav1.OwnerReference{mirrored}
				}
			})
			addr := &ipamv1.IPAddress{ObjectMeta: metav1.ObjectMeta{
				Namespace: "ns", Name: "c", UID: "address-c", ResourceVersion: "2", Finalizers: []string{v1alpha1.AddressFinalizer},
				OwnerReferences: []metav1.OwnerReference{{Kind: claims.Name, Name: "c", UID: "uid-c"}, tc.owner},
			}}
			addr.Spec = ipamv1.IPAddressSpec{ClaimRef: ipamv1.IPAddressClaimReference{Name: "c"}, PoolRef: tc.address, Address: "10.0.0.1"}
			p.ObserveAttached(claims.AddressOf(addr))
			see(p, "c", 0, remembers("10.0.0.1"), bothReady, func(c *ipamv1.IPAddressClaim) { c.Spec.PoolRef = tc.claim })
			if done := len(p.Todo)+p.Pending.Len() == 0; done != tc.done {
				t.Errorf("done %v: %d to do", done, len(p.Todo))
			}
		})
	}
}

// An IPAddress that is being deleted cannot become another claim's: it is removed, and the record brings the address
// back.
func TestDeletedAddressIsNotAdopted(t *testing.T) {
	p := aPool(t, "10.0.0.1-10.0.0.9")
	c := see(p, "a", 0, remembers("10.0.0.2"))
	seeAddress(p, "a", "10.0.0.2", "uid-before")
	addr := *p.Attached[grants.NameOf(c.Owner)]
	if !p.Adoptable(c, &addr) {
		t.Fatal("one that stays is adopted")
	}
	addr.Deleting = true
	if p.Adoptable(c, &addr) {
		t.Error("it is adopted")
	}
}

// Nobody is told anew that a pool is full when a number in it changes.
func TestWaitingClaimsAreToldOnce(t *testing.T) {
	p := aPool(t, "10.0.0.1-10.0.0.9", func(o *v1alpha1.NetworkPool) { o.Spec.AddressReuseGracePeriodSeconds = ptr.To[int64](600) })
	for i := range 9 {
		name := fmt.Sprint("has-", i)
		see(p, name, 0, remembers(fmt.Sprintf("10.0.0.%d", i+1)), bothReady)
		seeAddress(p, name, fmt.Sprintf("10.0.0.%d", i+1), types.UID("uid-"+name))
	}
	for i := range 100 {
		see(p, fmt.Sprint("waits-", i), 1)
	}
	tell := func() (told int) {
		_, refused := p.Plan(noon, maxBatch, anyone)
		for c, no := range refused {
			c.Status = &grants.ShownStatus{Refusal: *no}
			told++
		}
		return told
	}
	if first, again := tell(), tell(); first != 100 || again != 0 {
		t.Fatalf("%d, then %d are told", first, again)
	}
	c := p.Claimants["uid-has-3"]
	p.StartCooling(p.EndingOf(c), noon)
	p.ForgetAttached("address-has-3", grants.NameOf(c.Owner))
	p.Forget(c.Owner.UID)
	if told := tell(); told > 0 {
		t.Errorf("an address of a full pool begins to rest, and %d claims are written", told)
	}
}

// What a user writes into an annotation costs bounded memory.
func TestHugeAnnotations(t *testing.T) {
	p := aPool(t, "10.0.0.1-10.0.0.9")
	c := see(p, "huge", 0, asks(strings.Repeat("x", 250_000)), remembers(strings.Repeat("y", 250_000)))
	b := seeBlock(p, "block", 1, func(o *v1alpha1.IPAllocation) {
		o.Annotations = map[string]string{v1alpha1.AddressAnnotation: strings.Repeat("z", 250_000)}
	})
	if n := len(claims.FactsOf(c).Requested) + len(c.RecordText) + len(b.RecordText); n > 3*grants.MaxAnnotation {
		t.Errorf("%d bytes are remembered of annotations that can be addresses only", n)
	}
}

// The annotation of clusterctl counts where clusterctl deletes what was served here.
func TestMovedClaims(t *testing.T) {
	marked := func(c *ipamv1.IPAddressClaim) { c.Annotations[v1alpha1.DeleteForMoveAnnotation] = "" }
	for name, tc := range map[string]struct {
		reason string
		is     []func(*ipamv1.IPAddressClaim)
		closes bool
	}{
		"Marked":            {reason: "anybody may write it, and a move that fails leaves it", is: []func(*ipamv1.IPAddressClaim){remembers("10.0.0.1"), bothReady, marked}},
		"ARecordOfAUsers":   {reason: "it was never given anything", is: []func(*ipamv1.IPAddressClaim){remembers("192.0.2.1"), marked, ends, noFinalizer}},
		"DeletedAndMarked":  {reason: "it is being moved", is: []func(*ipamv1.IPAddressClaim){remembers("10.0.0.1"), bothReady, marked, ends}, closes: true},
		"DeletedUnlikeThat": {reason: "it is released", is: []func(*ipamv1.IPAddressClaim){remembers("10.0.0.1"), bothReady, ends}},
	} {
		t.Run(name, func(t *testing.T) {
			p := aPool(t, "10.0.0.1-10.0.0.9")
			see(p, "c", 0, tc.is...)
			reason, message := p.Closed(noon)
			if (reason == v1alpha1.MovedReason) != tc.closes {
				t.Errorf("%s: closed by %q", tc.reason, reason)
			}
			if tc.closes && !strings.Contains(message, "ns/c") {
				t.Errorf("it does not say which claim: %s", message)
			}
			p.Forget("uid-c")
			status := p.Base.PoolStatus().DeepCopy()
			p.LoadCooling(status) // an operator has removed the entries
			if reason, _ := p.Closed(noon); reason != "" {
				t.Errorf("it stays closed: %s", reason)
			}
		})
	}
}

func noFinalizer(c *ipamv1.IPAddressClaim) { c.Finalizers = nil }

// A consumer's finalizer keeps a deleted claim, and with it the IPAddress that it uses; those of the garbage collector
// do not.
func TestReleaseWaitsForConsumers(t *testing.T) {
	a := New(Options{ID: "me", Clock: clocktesting.NewFakeClock(noon)})
	for finalizer, may := range map[string]bool{
		"vspherevm.infrastructure.cluster.x-k8s.io/ip-claim-protection": false,
		metav1.FinalizerDeleteDependents:                                true, metav1.FinalizerOrphanDependents: true,
	} {
		p := aPool(t, "10.0.0.1-10.0.0.9")
		c := see(p, "c", 0, remembers("10.0.0.1"), bothReady, ends, func(c *ipamv1.IPAddressClaim) { c.Finalizers = append(c.Finalizers, finalizer) })
		if got := !a.admitRelease(p, c, a.lookAtClusters(t.Context())).Waits; got != may {
			t.Errorf("%s: may be released %v", finalizer, got)
		}
	}
}

// Which answers say that a write was not carried out and will not be.
func TestRefusedForGood(t *testing.T) {
	resource := schema.GroupResource{Resource: "ipaddresses"}
	for name, tc := range map[string]struct {
		err  error
		want bool
	}{
		"Quota":      {apierrors.NewForbidden(resource, "a", errors.New("exceeded quota")), true},
		"Invalid":    {apierrors.NewInvalid(schema.GroupKind{Kind: "IPAddress"}, "a", nil), true},
		"TooLarge":   {apierrors.NewRequestEntityTooLargeError("limit"), true},
		"Etcd":       {apierrors.NewInternalError(errors.New("etcdserver: request is too large")), true},
		"Wrapped":    {fmt.Errorf("creating: %w", apierrors.NewForbidden(resource, "a", errors.New("no"))), true},
		"Conflict":   {apierrors.NewConflict(resource, "a", errors.New("old")), false},
		"Gone":       {apierrors.NewNotFound(resource, "a"), false},
		"Busy":       {apierrors.NewTooManyRequests("later", 1), false},
		"Timeout":    {apierrors.NewTimeoutError("lost", 1), false},
		"Webhook":    {apierrors.NewInternalError(errors.New("failed calling webhook")), false},
		"Connection": {context.DeadlineExceeded, false},
		"None":       {nil, false},
	} {
		if got := term.RefusedForGood(tc.err); got != tc.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// A status that the API server refuses for good is not sent again as it is: the commit is dropped, and those who wait
// are told.
func TestRefusedCommit(t *testing.T) {
	p := aPool(t, "10.0.0.1-10.0.0.9", func(o *v1alpha1.NetworkPool) { o.Finalizers = []string{v1alpha1.PoolFinalizer} })
	clock := clocktesting.NewFakeClock(noon)
	api := &oneWrite{err: apierrors.NewForbidden(schema.GroupResource{Resource: "networkpools"}, "pool", errors.New("a policy says no"))}
	a := New(Options{Client: api, Live: api, Recorder: silent{}, ID: "me", Clock: clock})
	api.live = func(*v1alpha1.NetworkPool) *v1alpha1.NetworkPool { return p.Base.(*v1alpha1.NetworkPool) }
	a.pools[testKey] = grants.PoolOf(p)
	p.Quota = a.quota
	see(p, "a", 0)
	for range 5 {
		if _, err := a.Reconcile(t.Context(), testKey, p.Base); err != nil {
			t.Fatal(err)
		}
	}
	if api.writes != 1 || p.Unanswered != nil || len(p.Grants) > 0 {
		t.Errorf("it was sent %d times; attempt %v, %d grants", api.writes, p.Unanswered, len(p.Grants))
	}
	if p.Refusal == nil || !strings.Contains(p.Refusal.Message, "a policy says no") {
		t.Errorf("claims are told %v", p.Refusal)
	}
	clock.Step(term.LastTry)
	api.err = nil
	if _, err := a.Reconcile(t.Context(), testKey, p.Base); err != nil || api.writes != 2 || p.Refusal != nil {
		t.Errorf("it does not recover: %v, %d writes, %v", err, api.writes, p.Refusal)
	}
}

// What one namespace is refused holds up no other, and not its own for ever.
func TestTroubledNamespace(t *testing.T) {
	p := aPool(t, "10.0.0.1-10.0.0.200")
	refused := apierrors.NewForbidden(schema.GroupResource{Resource: "ipaddresses"}, "a", errors.New("exceeded quota"))
	for i := range term.MaxTroubled {
		c := see(p, fmt.Sprint("q", i), 0)
		p.Plan(noon, 1, anyone)
		g := p.Grants[c.Owner.UID]
		g.Committed, g.Begun = true, true
		p.NoteTrouble(c, refused, noon)
		if !g.Confirmed {
			t.Fatal("a grant of which nothing can land is still in flight")
		}
	}
	waits := see(p, "waits", 0)
	other := see(p, "other", 0, func(c *ipamv1.IPAddressClaim) { c.Namespace = "other" })
	_, told := p.Plan(noon, 9, anyone)
	if no := told[waits]; no == nil || !strings.Contains(no.Message, "exceeded quota") || p.Grants[waits.Owner.UID] != nil {
		t.Errorf("the next of the namespace is told %v", no)
	}
	if p.Grants[other.Owner.UID] == nil {
		t.Error("another namespace is not served")
	}
	p.Plan(noon.Add(term.FirstTry), 9, anyone)
	if p.Grants[waits.Owner.UID] == nil {
		t.Error("it is never tried")
	}
	served := p.Claimants["uid-q3"]
	if !p.EndTrouble(served, true) || p.InTrouble(waits, noon) != nil {
		t.Error("one was served, and the others wait on")
	}
}

// A trial is of a claim to which something can be granted. One that can be given nothing neither uses it up, so that none of the
// others of its namespace is ever tried, nor is it told in turns why it gets nothing and why the others fail.
func TestTrialIsOfOneThatCanBeServed(t *testing.T) {
	refused := apierrors.NewForbidden(schema.GroupResource{Resource: "ipaddresses"}, "a", errors.New("exceeded quota"))
	bounded := types.NamespacedName{Namespace: "ns", Name: "bounded"}
	for name, tc := range map[string]struct {
		vain   func(*ipamv1.IPAddressClaim)
		reason string
	}{
		"an address that is held":         {vain: asks("10.0.0.1"), reason: ipamv1.IPAddressClaimReadyAllocationFailedReason},
		"an address that is not its pool": {vain: asks("10.9.9.9"), reason: ipamv1.IPAddressClaimReadyAllocationFailedReason},
		"a record that another claim has": {vain: remembers("10.0.0.1"), reason: ipamv1.IPAddressClaimReadyAllocationFailedReason},
		"more than a quota":               {vain: ofCluster("bounded"), reason: v1alpha1.QuotaExceededReason},
	} {
		t.Run(name, func(t *testing.T) {
			woken := 0
			p := aPool(t, "10.0.0.1-10.0.0.200")
			p.Quota = grants.NewQuota(func(pools.Key) { woken++ })
			p.Limits = func(c types.NamespacedName) (int64, bool) { return 1, c == bounded }
			see(p, "has", 0, remembers("10.0.0.1"), ofCluster("bounded"))
			for i := range term.MaxTroubled {
				p.NoteTrouble(see(p, fmt.Sprint("q", i), 0), refused, noon)
			}
			vain := see(p, "vain", 1, tc.vain)
			healthy, next := see(p, "healthy", 2), see(p, "next", 3)
			told := func(at time.Time) string {
				t.Helper()
				_, no := p.Plan(at, 99, func(c *grants.Claimant) grants.Ruling {
					return grants.Ruling{Waits: c != vain && c != healthy && c != next}
				})
				if no[vain] == nil {
					t.Fatal("it is told nothing")
				}
				return no[vain].Reason
			}
			if got := told(noon); got != tc.reason || p.Grants[healthy.Owner.UID] != nil {
				t.Errorf("before the trial it is told %q", got)
			}
			if got := told(noon.Add(term.FirstTry)); got != tc.reason {
				t.Errorf("at the trial it is told %q", got)
			}
			if p.Grants[healthy.Owner.UID] == nil || p.Grants[next.Owner.UID] != nil {
				t.Error("the trial is not of the oldest to which something can be granted, and of that alone")
			}
			if got := told(noon.Add(term.FirstTry)); got != tc.reason {
				t.Errorf("after the trial it is told %q", got)
			}
			if p.Forget("uid-has"); (woken > 0) != (tc.reason == v1alpha1.QuotaExceededReason) {
				t.Errorf("the pool is woken %d times as there is room in the quota", woken)
			}
		})
	}
}

// A trial to which nothing can be granted has a carved pool, or who adds addresses, hear of it: it is looked at when its time has
// come, and not again before something changes.
func TestTrialThatFindsNothingFree(t *testing.T) {
	p := aPool(t, "10.0.0.1-10.0.0.1")
	see(p, "has", 0, remembers("10.0.0.1"))
	for i := range term.MaxTroubled {
		p.NoteTrouble(see(p, fmt.Sprint("q", i), 0), context.DeadlineExceeded, noon)
	}
	waits := see(p, "waits", 1)
	look := func(at time.Time) (time.Duration, *grants.Refusal) {
		p.BeginTurn()
		_, no := p.Plan(at, 99, func(c *grants.Claimant) grants.Ruling { return grants.Ruling{Waits: c != waits} })
		return p.ComeBack(at, 0), no[waits]
	}
	for at, want := range map[time.Duration]time.Duration{0: term.FirstTry, term.FirstTry: 0, time.Minute: 0} {
		if wait, no := look(noon.Add(at)); wait != want || no == nil || no.Reason != ipamv1.IPAddressClaimReadyPoolExhaustedReason {
			t.Errorf("after %v it is looked at again in %v, not in %v, and the claim is told %v", at, wait, want, no)
		}
	}
}

// Where all claims of a namespace that wait have failed, and have a time of their own, none is to be tried: the pool is not
// looked at for that. Nor is it for claims of another namespace, or for those that are paused.
func TestTrialOnlyForThoseThatWait(t *testing.T) {
	p := aPool(t, "10.0.0.1-10.0.0.200")
	refused := apierrors.NewForbidden(schema.GroupResource{Resource: "ipaddresses"}, "a", errors.New("exceeded quota"))
	for i := range term.MaxTroubled {
		p.NoteTrouble(see(p, fmt.Sprint("q", i), 0), refused, noon)
	}
	look := func(at time.Time, admission grants.Admit) time.Duration {
		p.BeginTurn()
		p.Plan(at, 99, admission)
		return p.ComeBack(at, 0)
	}
	late := noon.Add(term.FirstTry / 2)
	if wait := look(late, anyone); wait != 0 {
		t.Errorf("all have failed, and the pool is looked at again in %v", wait)
	}
	waits := see(p, "waits", 0)
	if wait := look(late, anyone); wait <= 0 || wait > term.FirstTry {
		t.Errorf("one waits for the others, and is tried in %v", wait)
	}
	paused := func(c *grants.Claimant) grants.Ruling { return grants.Ruling{Waits: c == waits} }
	if wait := look(late, paused); wait != 0 {
		t.Errorf("the one that waits is paused, and the pool is looked at again in %v", wait)
	}
	if wait := look(noon.Add(time.Hour), anyone); wait != 0 || p.Grants[waits.Owner.UID] == nil {
		t.Errorf("the time of the trial is past, and the pool is looked at again in %v", wait)
	}
}

// What other claims of a namespace are told is what the API server refuses for good, and not what went wrong first; it is
// told anew only when it says something else.
func TestTroubleIsToldAsItIs(t *testing.T) {
	p := aPool(t, "10.0.0.1-10.0.0.200")
	next := see(p, "next", 30)
	quota := func(used int) error {
		return apierrors.NewForbidden(schema.GroupResource{Resource: "ipaddresses"}, fmt.Sprint("c-", used), fmt.Errorf("exceeded quota, used: %d", used))
	}
	note := func(err error, at time.Time) string {
		for i := range term.MaxTroubled {
			p.NoteTrouble(see(p, fmt.Sprint("c-", i), i), err, at)
		}
		no := p.InTrouble(next, noon)
		if no == nil || no.Reason != v1alpha1.WriteFailedReason {
			t.Fatalf("it is told %v", no)
		}
		return no.Message
	}
	if got := note(context.DeadlineExceeded, noon); strings.Contains(got, "refuses") {
		t.Errorf("of a timeout it is told %q", got)
	}
	told := note(quota(1), noon)
	if !strings.Contains(told, "refuses") || !strings.Contains(told, "exceeded quota") {
		t.Errorf("of a quota it is told %q", told)
	}
	for _, err := range []error{context.DeadlineExceeded, quota(7)} {
		if got := note(err, noon.Add(time.Hour)); got != told {
			t.Errorf("it is told %q, and then %q", told, got)
		}
	}
}

// A doubtful write may land yet: its grant stays in flight.
func TestDoubtfulGrantStays(t *testing.T) {
	p := aPool(t, "10.0.0.1-10.0.0.200")
	c := see(p, "a", 0)
	p.Plan(noon, 1, anyone)
	g := p.Grants[c.Owner.UID]
	g.Committed, g.Begun = true, true
	p.NoteTrouble(c, context.DeadlineExceeded, noon)
	p.NoteTrouble(c, apierrors.NewForbidden(schema.GroupResource{}, "a", errors.New("no")), noon)
	if g.Confirmed {
		t.Error("the first write may land, and its address is given to another")
	}
}

// Grants of claims that may not be served hold up nobody: of those that were not begun the addresses are free again.
func TestPausedGrantsHoldUpNobody(t *testing.T) {
	p := aPool(t, "10.0.0.1-10.0.0.200")
	for i := range 5 {
		see(p, fmt.Sprint("c", i), 0)
	}
	p.Plan(noon, 9, anyone)
	for uid, g := range p.Grants {
		g.Committed, g.Begun = true, uid == "uid-c0"
	}
	p.GiveBack(func(*grants.Claimant) grants.Ruling { return grants.Ruling{Waits: true} })
	if n := p.Unfinished(); n != 1 || p.Working() != 0 {
		t.Errorf("%d are in flight, %d hold up others", n, p.Working())
	}
}

// A manager that does not serve a pool has not the last word on its claims.
func TestUnservedPoolTellsOnce(t *testing.T) {
	a := New(Options{ID: "me", Namespace: "ns", Clock: clocktesting.NewFakeClock(noon)})
	key := pools.Key{Kind: v1alpha1.GlobalNetworkPoolKind, Name: "pool"}
	p := unlocked(a.pool(key))
	c := see(p, "c", 0)
	obj := &v1alpha1.GlobalNetworkPool{ObjectMeta: metav1.ObjectMeta{Name: "pool", UID: "u", ResourceVersion: "1", Generation: 1}, Spec: v1alpha1.GlobalNetworkPoolSpec{NetworkPoolSpec: v1alpha1.NetworkPoolSpec{CIDR: "10.0.0.0/24"}}}
	jobs := func() int {
		c.Busy, p.Jobs = false, 0
		a.notOurs(t.Context(), grants.PoolOf(p), obj, a.unserved(key, nil))
		return p.Jobs
	}
	c.Status = &grants.ShownStatus{Refusal: grants.Refusal{Reason: "PoolExhausted", Message: "by the manager that serves it"}}
	if jobs() != 0 {
		t.Error("it writes over what the other manager says")
	}
	if a.overlaps.declared(key).uid != "u" {
		t.Error("its spec does not count for overlaps")
	}
}

// Whether the last holder has looked at the spec that there is now, and at the neighbours.
func TestOutdatedPoolIsWork(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*grants.Memory)
		want   bool
	}{
		"NoNews":      {change: func(*grants.Memory) {}},
		"AnEdit":      {change: func(p *grants.Memory) { p.Base.SetGeneration(2) }, want: true},
		"ANeighbour":  {change: func(p *grants.Memory) { p.Overlap = "NetworkPool ns/other has 10.0.0.1 too" }, want: true},
		"AnOlderPool": {change: func(p *grants.Memory) { p.Owes = true }, want: true},
	} {
		p := aPool(t, "10.0.0.1-10.0.0.9", func(o *v1alpha1.NetworkPool) { o.Status.Allocator.Holder = "gone" })
		p.Holder = false
		tc.change(p)
		p.WorkSince = noon.Add(-time.Hour)
		if may, _ := p.MayTakeOver(noon, false, time.Hour, anyone, anyone); may != tc.want {
			t.Errorf("%s: may take over %v", name, may)
		}
	}
}
