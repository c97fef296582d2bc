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

// bothReady sets the status of a served claim, in both generations of conditions.
func bothReady(c *ipamv1.IPAddressClaim) {
	c.Status.AddressRef.Name = c.Name
	c.Status.Conditions = []metav1.Condition{{Type: ipamv1.IPAddressClaimReadyCondition, Status: metav1.ConditionTrue, Reason: "Allocated"}}
	c.SetV1Beta1Conditions(clusterv1.Conditions{{Type: clusterv1.ReadyV1Beta1Condition, Status: "True"}})
}

// TestServedClaimsNeedNoJob checks that a claim that has everything needs no job, whichever pool it names: one that
// names the pool of the in-cluster provider has that pool among the owners of its IPAddress, if the pool has a mirror.
func TestServedClaimsNeedNoJob(t *testing.T) {
	inCluster := ipamv1.IPPoolReference{APIGroup: "ipam.cluster.x-k8s.io", Kind: "InClusterIPPool", Name: "pool"}
	inClusterOwner := metav1.OwnerReference{APIVersion: "ipam.cluster.x-k8s.io/v1alpha2", Kind: "InClusterIPPool", Name: "pool", UID: "in-cluster-uid"}
	ours := metav1.OwnerReference{APIVersion: v1alpha1.GroupVersion.String(), Kind: testKey.Kind, Name: "pool", UID: "pool-uid"}
	another := metav1.OwnerReference{APIVersion: "example.com/v1", Kind: testKey.Kind, Name: "pool", UID: "pool-uid"}
	for name, tc := range map[string]struct {
		claim, address ipamv1.IPPoolReference // what each names
		byHand         bool                   // only we know the pool as a mirror
		owner          metav1.OwnerReference  // of the IPAddress
		done           bool
	}{
		"NetworkPool":        {claim: testKey.PoolReference(), address: testKey.PoolReference(), owner: ours, done: true},
		"Mirrored":           {claim: inCluster, address: inCluster, owner: inClusterOwner, done: true},
		"OfTheWrongOwner":    {claim: inCluster, address: inCluster, owner: ours},
		"OfAnotherGroup":     {claim: testKey.PoolReference(), address: testKey.PoolReference(), owner: another},
		"MirrorMadeByHand":   {claim: inCluster, address: inCluster, byHand: true, owner: ours, done: true},
		"AdoptedByTheMirror": {claim: testKey.PoolReference(), address: inCluster, owner: ours, done: true},
		"AdoptedFromIt":      {claim: inCluster, address: testKey.PoolReference(), owner: inClusterOwner, done: true},
	} {
		t.Run(name, func(t *testing.T) {
			p := newTestPool(t, "10.0.0.1-10.0.0.9", func(o *v1alpha1.NetworkPool) {
				if mirrored := inClusterOwner; !tc.byHand {
					mirrored.Controller = ptr.To(true)
					o.Name, o.OwnerReferences = "pool.in-cluster", []metav1.OwnerReference{mirrored}
				}
			})
			addr := &ipamv1.IPAddress{ObjectMeta: metav1.ObjectMeta{
				Namespace: "ns", Name: "c", UID: "address-c", ResourceVersion: "2", Finalizers: []string{v1alpha1.AddressFinalizer},
				OwnerReferences: []metav1.OwnerReference{{Kind: claims.IPAddressClaimKind, Name: "c", UID: "uid-c"}, tc.owner},
			}}
			addr.Spec = ipamv1.IPAddressSpec{ClaimRef: ipamv1.IPAddressClaimReference{Name: "c"}, PoolRef: tc.address, Address: "10.0.0.1"}
			p.ObserveAddress(claims.NewAddress(addr))
			observeClaim(p, "c", 0, withRecordedAddress("10.0.0.1"), bothReady, func(c *ipamv1.IPAddressClaim) { c.Spec.PoolRef = tc.claim })
			if done := len(p.Queues.ToWrite)+p.Queues.Waiting.Len() == 0; done != tc.done {
				t.Errorf("done %v: %d to do", done, len(p.Queues.ToWrite))
			}
		})
	}
}

// TestDeletedAddressIsNotAdopted checks that an IPAddress that is being deleted cannot become another claim's: it is
// removed, and the record brings the address back.
func TestDeletedAddressIsNotAdopted(t *testing.T) {
	p := newTestPool(t, "10.0.0.1-10.0.0.9")
	c := observeClaim(p, "a", 0, withRecordedAddress("10.0.0.2"))
	observeAddress(p, "a", "10.0.0.2", "uid-before")
	addr := *p.Addresses.ByName[grants.NamespacedNameFromOwner(c.Owner)]
	if !p.Inventory.IsAdoptable(c, &addr) {
		t.Fatal("one that stays is adopted")
	}
	addr.Deleting = true
	if p.Inventory.IsAdoptable(c, &addr) {
		t.Error("it is adopted")
	}
}

// TestRefusalIsWrittenOnce checks that the refusal of a full pool is not written again when a number in it changes.
func TestRefusalIsWrittenOnce(t *testing.T) {
	p := newTestPool(t, "10.0.0.1-10.0.0.9", func(o *v1alpha1.NetworkPool) { o.Spec.AddressReuseGracePeriodSeconds = ptr.To[int64](600) })
	for i := range 9 {
		name := fmt.Sprint("has-", i)
		observeClaim(p, name, 0, withRecordedAddress(fmt.Sprintf("10.0.0.%d", i+1)), bothReady)
		observeAddress(p, name, fmt.Sprintf("10.0.0.%d", i+1), types.UID("uid-"+name))
	}
	for i := range 100 {
		observeClaim(p, fmt.Sprint("waits-", i), 1)
	}
	publishRefusals := func() (count int) {
		_, refused := p.Planner.PlanGrants(noon, maxGrantsPerCommit, admitAll)
		for c, refusal := range refused {
			c.Status = &grants.PublishedStatus{Refusal: *refusal}
			count++
		}
		return count
	}
	if first, again := publishRefusals(), publishRefusals(); first != 100 || again != 0 {
		t.Fatalf("%d, then %d get a refusal", first, again)
	}
	c := p.Claimants.ByUID["uid-has-3"]
	p.Releases.StartCooling(p.Inventory.ReleaseFor(c), noon)
	p.ForgetAddress("address-has-3", grants.NamespacedNameFromOwner(c.Owner))
	p.ForgetClaimant(c.Owner.UID)
	if count := publishRefusals(); count > 0 {
		t.Errorf("an address of a full pool begins to rest, and %d claims are written", count)
	}
}

// TestAnnotationMemoryIsBounded checks that an annotation that a user writes costs bounded memory.
func TestAnnotationMemoryIsBounded(t *testing.T) {
	p := newTestPool(t, "10.0.0.1-10.0.0.9")
	c := observeClaim(p, "huge", 0, withRequestedAddress(strings.Repeat("x", 250_000)), withRecordedAddress(strings.Repeat("y", 250_000)))
	b := observeAllocation(p, "block", 1, func(o *v1alpha1.IPAllocation) {
		o.Annotations = map[string]string{v1alpha1.AddressAnnotation: strings.Repeat("z", 250_000)}
	})
	if n := len(claims.ClaimDataFor(c).RequestedAddress) + len(c.RecordAnnotation) + len(b.RecordAnnotation); n > 3*grants.MaxAnnotationLength {
		t.Errorf("%d bytes are remembered of annotations that can be addresses only", n)
	}
}

// TestMovedClaims checks that the annotation of clusterctl counts where clusterctl deletes what was served here.
func TestMovedClaims(t *testing.T) {
	marked := func(c *ipamv1.IPAddressClaim) { c.Annotations[v1alpha1.DeleteForMoveAnnotation] = "" }
	for name, tc := range map[string]struct {
		reason  string
		changes []func(*ipamv1.IPAddressClaim)
		closes  bool
	}{
		"Marked":            {reason: "any user may write it, and a move that fails leaves it", changes: []func(*ipamv1.IPAddressClaim){withRecordedAddress("10.0.0.1"), bothReady, marked}},
		"ARecordOfAUsers":   {reason: "it was never given anything", changes: []func(*ipamv1.IPAddressClaim){withRecordedAddress("192.0.2.1"), marked, withDeletionTimestamp, noFinalizer}},
		"DeletedAndMarked":  {reason: "it is being moved", changes: []func(*ipamv1.IPAddressClaim){withRecordedAddress("10.0.0.1"), bothReady, marked, withDeletionTimestamp}, closes: true},
		"DeletedUnlikeThat": {reason: "it is released", changes: []func(*ipamv1.IPAddressClaim){withRecordedAddress("10.0.0.1"), bothReady, withDeletionTimestamp}},
	} {
		t.Run(name, func(t *testing.T) {
			p := newTestPool(t, "10.0.0.1-10.0.0.9")
			observeClaim(p, "c", 0, tc.changes...)
			reason, message := p.Status.ClosedReason(noon)
			if (reason == v1alpha1.MovedReason) != tc.closes {
				t.Errorf("%s: closed by %q", tc.reason, reason)
			}
			if tc.closes && !strings.Contains(message, "ns/c") {
				t.Errorf("it does not say which claim: %s", message)
			}
			p.ForgetClaimant("uid-c")
			status := p.Base.Pool.PoolStatus().DeepCopy()
			p.LoadCoolingAndHeld(status) // an operator has removed the entries
			if reason, _ := p.Status.ClosedReason(noon); reason != "" {
				t.Errorf("it stays closed: %s", reason)
			}
		})
	}
}

func noFinalizer(c *ipamv1.IPAddressClaim) { c.Finalizers = nil }

// TestReleaseWaitsForConsumers checks that a consumer's finalizer keeps a deleted claim, and with it the IPAddress that
// it uses, and that the finalizers of the garbage collector do not.
func TestReleaseWaitsForConsumers(t *testing.T) {
	a := New(Options{ManagerID: "me", Clock: clocktesting.NewFakeClock(noon)})
	for finalizer, may := range map[string]bool{
		"vspherevm.infrastructure.cluster.x-k8s.io/ip-claim-protection": false,
		metav1.FinalizerDeleteDependents:                                true, metav1.FinalizerOrphanDependents: true,
	} {
		p := newTestPool(t, "10.0.0.1-10.0.0.9")
		c := observeClaim(p, "c", 0, withRecordedAddress("10.0.0.1"), bothReady, withDeletionTimestamp, func(c *ipamv1.IPAddressClaim) { c.Finalizers = append(c.Finalizers, finalizer) })
		if got := !a.admission.admitRelease(p, c, a.lookups.newClusterLookup(t.Context())).Wait; got != may {
			t.Errorf("%s: may be released %v", finalizer, got)
		}
	}
}

// TestIsPermanentRefusal checks which errors prove that a write was not carried out and will not be.
func TestIsPermanentRefusal(t *testing.T) {
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
		if got := term.IsPermanentRefusal(tc.err); got != tc.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// TestRefusedCommit checks that a status that the API server refuses for good is not sent again as it is: the commit is
// dropped, and the waiting claims get a refusal.
func TestRefusedCommit(t *testing.T) {
	p := newTestPool(t, "10.0.0.1-10.0.0.9", func(o *v1alpha1.NetworkPool) { o.Finalizers = []string{v1alpha1.PoolFinalizer} })
	clock := clocktesting.NewFakeClock(noon)
	api := &singleWriteAPI{err: apierrors.NewForbidden(schema.GroupResource{Resource: "networkpools"}, "pool", errors.New("a policy says no"))}
	a := New(Options{Client: api, Live: api, Recorder: noopRecorder{}, ManagerID: "me", Clock: clock})
	api.live = func(*v1alpha1.NetworkPool) *v1alpha1.NetworkPool { return p.Base.Pool.(*v1alpha1.NetworkPool) }
	a.pools.byKey[testKey] = grants.NewPool(p)
	p.Quotas.Shared = a.pools.quota
	observeClaim(p, "a", 0)
	for range 5 {
		if _, err := a.Reconcile(t.Context(), testKey, p.Base.Pool); err != nil {
			t.Fatal(err)
		}
	}
	if api.writes != 1 || p.Term.PendingCommit != nil || len(p.Grants.ByClaimant) > 0 {
		t.Errorf("it was sent %d times; attempt %v, %d grants", api.writes, p.Term.PendingCommit, len(p.Grants.ByClaimant))
	}
	if p.Term.WriteRefusal == nil || !strings.Contains(p.Term.WriteRefusal.Message, "a policy says no") {
		t.Errorf("the refusals of claims are %v", p.Term.WriteRefusal)
	}
	clock.Step(term.MaxRetryPause)
	api.err = nil
	if _, err := a.Reconcile(t.Context(), testKey, p.Base.Pool); err != nil || api.writes != 2 || p.Term.WriteRefusal != nil {
		t.Errorf("it does not recover: %v, %d writes, %v", err, api.writes, p.Term.WriteRefusal)
	}
}

// TestFailingNamespace checks that the failures of one namespace delay no other namespace, and their own not for ever.
func TestFailingNamespace(t *testing.T) {
	p := newTestPool(t, "10.0.0.1-10.0.0.200")
	refused := apierrors.NewForbidden(schema.GroupResource{Resource: "ipaddresses"}, "a", errors.New("exceeded quota"))
	for i := range term.SerialRetryThreshold {
		c := observeClaim(p, fmt.Sprint("q", i), 0)
		p.Planner.PlanGrants(noon, 1, admitAll)
		g := p.Grants.ByClaimant[c.Owner.UID]
		g.Committed, g.JobStarted = true, true
		p.Failures.RecordFailure(c, refused, noon)
		if !g.Confirmed {
			t.Fatal("a grant of which nothing can land is still in flight")
		}
	}
	waits := observeClaim(p, "waits", 0)
	other := observeClaim(p, "other", 0, func(c *ipamv1.IPAddressClaim) { c.Namespace = "other" })
	_, refusals := p.Planner.PlanGrants(noon, 9, admitAll)
	if refusal := refusals[waits]; refusal == nil || !strings.Contains(refusal.Message, "exceeded quota") || p.Grants.ByClaimant[waits.Owner.UID] != nil {
		t.Errorf("the refusal of the next one of the namespace is %v", refusal)
	}
	if p.Grants.ByClaimant[other.Owner.UID] == nil {
		t.Error("another namespace is not served")
	}
	p.Planner.PlanGrants(noon.Add(term.MinRetryPause), 9, admitAll)
	if p.Grants.ByClaimant[waits.Owner.UID] == nil {
		t.Error("it is never tried")
	}
	served := p.Claimants.ByUID["uid-q3"]
	if !p.Failures.ClearFailure(served, true) || p.Planner.FailingNamespaceRefusal(waits, noon) != nil {
		t.Error("one was served, and the others wait on")
	}
}

// TestTrialIsOfServableClaim checks that a trial is of a claim that can be granted something. A claim that cannot
// be granted anything does not use the trial up, so that the other claims of its namespace are tried, and does not
// alternate between two refusals: why it gets nothing, and why the others fail.
func TestTrialIsOfServableClaim(t *testing.T) {
	refused := apierrors.NewForbidden(schema.GroupResource{Resource: "ipaddresses"}, "a", errors.New("exceeded quota"))
	bounded := types.NamespacedName{Namespace: "ns", Name: "bounded"}
	for name, tc := range map[string]struct {
		change func(*ipamv1.IPAddressClaim)
		reason string
	}{
		"an address that is held":         {change: withRequestedAddress("10.0.0.1"), reason: ipamv1.IPAddressClaimReadyAllocationFailedReason},
		"an address that is not its pool": {change: withRequestedAddress("10.9.9.9"), reason: ipamv1.IPAddressClaimReadyAllocationFailedReason},
		"a record that another claim has": {change: withRecordedAddress("10.0.0.1"), reason: ipamv1.IPAddressClaimReadyAllocationFailedReason},
		"more than a quota":               {change: ofCluster("bounded"), reason: v1alpha1.QuotaExceededReason},
	} {
		t.Run(name, func(t *testing.T) {
			woken := 0
			p := newTestPool(t, "10.0.0.1-10.0.0.200")
			p.Quotas.Shared = grants.NewQuota(func(pools.Key) { woken++ })
			p.Quotas.Limit = func(c types.NamespacedName) (int64, bool) { return 1, c == bounded }
			observeClaim(p, "has", 0, withRecordedAddress("10.0.0.1"), ofCluster("bounded"))
			for i := range term.SerialRetryThreshold {
				p.Failures.RecordFailure(observeClaim(p, fmt.Sprint("q", i), 0), refused, noon)
			}
			unserved := observeClaim(p, "vain", 1, tc.change)
			healthy, next := observeClaim(p, "healthy", 2), observeClaim(p, "next", 3)
			refusalReason := func(at time.Time) string {
				t.Helper()
				_, refused := p.Planner.PlanGrants(at, 99, func(c *grants.Claimant) grants.AdmissionResult {
					return grants.AdmissionResult{Wait: c != unserved && c != healthy && c != next}
				})
				if refused[unserved] == nil {
					t.Fatal("it has no refusal")
				}
				return refused[unserved].Reason
			}
			if got := refusalReason(noon); got != tc.reason || p.Grants.ByClaimant[healthy.Owner.UID] != nil {
				t.Errorf("before the trial its refusal is %q", got)
			}
			if got := refusalReason(noon.Add(term.MinRetryPause)); got != tc.reason {
				t.Errorf("at the trial its refusal is %q", got)
			}
			if p.Grants.ByClaimant[healthy.Owner.UID] == nil || p.Grants.ByClaimant[next.Owner.UID] != nil {
				t.Error("the trial is not of the oldest to which something can be granted, and of that alone")
			}
			if got := refusalReason(noon.Add(term.MinRetryPause)); got != tc.reason {
				t.Errorf("after the trial its refusal is %q", got)
			}
			if p.ForgetClaimant("uid-has"); (woken > 0) != (tc.reason == v1alpha1.QuotaExceededReason) {
				t.Errorf("the pool is woken %d times as there is room in the quota", woken)
			}
		})
	}
}

// TestTrialWithoutFreeAddressIsReported checks that a trial that can be granted nothing is reported, so that a carved
// pool or a user may add addresses: the claim is checked when its time has come, and not again before something
// changes.
func TestTrialWithoutFreeAddressIsReported(t *testing.T) {
	p := newTestPool(t, "10.0.0.1-10.0.0.1")
	observeClaim(p, "has", 0, withRecordedAddress("10.0.0.1"))
	for i := range term.SerialRetryThreshold {
		p.Failures.RecordFailure(observeClaim(p, fmt.Sprint("q", i), 0), context.DeadlineExceeded, noon)
	}
	waits := observeClaim(p, "waits", 1)
	reconcile := func(at time.Time) (time.Duration, *grants.Refusal) {
		p.BeginReconcile()
		_, refused := p.Planner.PlanGrants(at, 99, func(c *grants.Claimant) grants.AdmissionResult { return grants.AdmissionResult{Wait: c != waits} })
		return p.EndReconcile(at, 0), refused[waits]
	}
	for at, want := range map[time.Duration]time.Duration{0: term.MinRetryPause, term.MinRetryPause: 0, time.Minute: 0} {
		if wait, refusal := reconcile(noon.Add(at)); wait != want || refusal == nil || refusal.Reason != ipamv1.IPAddressClaimReadyPoolExhaustedReason {
			t.Errorf("after %v it is reconciled again in %v, not in %v, and the refusal of the claim is %v", at, wait, want, refusal)
		}
	}
}

// TestTrialOnlyForWaitingClaims checks that the pool is not reconciled for a trial where all waiting claims of a
// namespace have failed, and have a retry time of their own. Nor is it for claims of another namespace, or for those
// that are paused.
func TestTrialOnlyForWaitingClaims(t *testing.T) {
	p := newTestPool(t, "10.0.0.1-10.0.0.200")
	refused := apierrors.NewForbidden(schema.GroupResource{Resource: "ipaddresses"}, "a", errors.New("exceeded quota"))
	for i := range term.SerialRetryThreshold {
		p.Failures.RecordFailure(observeClaim(p, fmt.Sprint("q", i), 0), refused, noon)
	}
	reconcile := func(at time.Time, admission grants.AdmissionFunc) time.Duration {
		p.BeginReconcile()
		p.Planner.PlanGrants(at, 99, admission)
		return p.EndReconcile(at, 0)
	}
	late := noon.Add(term.MinRetryPause / 2)
	if wait := reconcile(late, admitAll); wait != 0 {
		t.Errorf("all have failed, and the pool is reconciled again in %v", wait)
	}
	waits := observeClaim(p, "waits", 0)
	if wait := reconcile(late, admitAll); wait <= 0 || wait > term.MinRetryPause {
		t.Errorf("one waits for the others, and is tried in %v", wait)
	}
	paused := func(c *grants.Claimant) grants.AdmissionResult { return grants.AdmissionResult{Wait: c == waits} }
	if wait := reconcile(late, paused); wait != 0 {
		t.Errorf("the one that waits is paused, and the pool is reconciled again in %v", wait)
	}
	if wait := reconcile(noon.Add(time.Hour), admitAll); wait != 0 || p.Grants.ByClaimant[waits.Owner.UID] == nil {
		t.Errorf("the time of the trial is past, and the pool is reconciled again in %v", wait)
	}
}

// TestFailuresOfNamespaceAreReportedAsTheyAre checks that other claims of a namespace get the error with which the API
// server refuses for good, and not the first failure; the message is written again only when it differs.
func TestFailuresOfNamespaceAreReportedAsTheyAre(t *testing.T) {
	p := newTestPool(t, "10.0.0.1-10.0.0.200")
	next := observeClaim(p, "next", 30)
	quota := func(used int) error {
		return apierrors.NewForbidden(schema.GroupResource{Resource: "ipaddresses"}, fmt.Sprint("c-", used), fmt.Errorf("exceeded quota, used: %d", used))
	}
	note := func(err error, at time.Time) string {
		for i := range term.SerialRetryThreshold {
			p.Failures.RecordFailure(observeClaim(p, fmt.Sprint("c-", i), i), err, at)
		}
		refusal := p.Planner.FailingNamespaceRefusal(next, noon)
		if refusal == nil || refusal.Reason != v1alpha1.WriteFailedReason {
			t.Fatalf("the refusal is %v", refusal)
		}
		return refusal.Message
	}
	if got := note(context.DeadlineExceeded, noon); strings.Contains(got, "refuses") {
		t.Errorf("after a timeout the refusal is %q", got)
	}
	message := note(quota(1), noon)
	if !strings.Contains(message, "refuses") || !strings.Contains(message, "exceeded quota") {
		t.Errorf("where a quota refuses, the refusal is %q", message)
	}
	for _, err := range []error{context.DeadlineExceeded, quota(7)} {
		if got := note(err, noon.Add(time.Hour)); got != message {
			t.Errorf("the refusal is %q, and then %q", message, got)
		}
	}
}

// TestGrantWithUnknownOutcomeStays checks that the grant of a write with an unknown outcome, which may land yet, stays
// in flight.
func TestGrantWithUnknownOutcomeStays(t *testing.T) {
	p := newTestPool(t, "10.0.0.1-10.0.0.200")
	c := observeClaim(p, "a", 0)
	p.Planner.PlanGrants(noon, 1, admitAll)
	g := p.Grants.ByClaimant[c.Owner.UID]
	g.Committed, g.JobStarted = true, true
	p.Failures.RecordFailure(c, context.DeadlineExceeded, noon)
	p.Failures.RecordFailure(c, apierrors.NewForbidden(schema.GroupResource{}, "a", errors.New("no")), noon)
	if g.Confirmed {
		t.Error("the first write may land, and its address is given to another")
	}
}

// TestPausedGrantsDoNotBlockOthers checks that grants of claims that may not be served delay no other claim: the
// addresses of those that were not begun are free again.
func TestPausedGrantsDoNotBlockOthers(t *testing.T) {
	p := newTestPool(t, "10.0.0.1-10.0.0.200")
	for i := range 5 {
		observeClaim(p, fmt.Sprint("c", i), 0)
	}
	p.Planner.PlanGrants(noon, 9, admitAll)
	for uid, g := range p.Grants.ByClaimant {
		g.Committed, g.JobStarted = true, uid == "uid-c0"
	}
	p.Grants.EndBlockedGrants(func(*grants.Claimant) grants.AdmissionResult { return grants.AdmissionResult{Wait: true} })
	if n := p.Grants.UnconfirmedGrantCount(); n != 1 || p.Grants.ActiveGrantCount() != 0 {
		t.Errorf("%d are in flight, %d hold up others", n, p.Grants.ActiveGrantCount())
	}
}

// TestUnservedPoolKeepsConditionsOfOthers checks that a manager that does not serve a pool does not overwrite the
// conditions of its claims.
func TestUnservedPoolKeepsConditionsOfOthers(t *testing.T) {
	a := New(Options{ManagerID: "me", Namespace: "ns", Clock: clocktesting.NewFakeClock(noon)})
	key := pools.Key{Kind: v1alpha1.GlobalNetworkPoolKind, Name: "pool"}
	p := stateOfPool(a.pools.getOrCreatePool(key))
	c := observeClaim(p, "c", 0)
	obj := &v1alpha1.GlobalNetworkPool{ObjectMeta: metav1.ObjectMeta{Name: "pool", UID: "u", ResourceVersion: "1", Generation: 1}, Spec: v1alpha1.GlobalNetworkPoolSpec{NetworkPoolSpec: v1alpha1.NetworkPoolSpec{CIDR: "10.0.0.0/24"}}}
	jobs := func() int {
		c.Busy, p.Queues.ActiveJobs = false, 0
		a.unserved.observeUnservedPool(t.Context(), grants.NewPool(p), obj, a.scope.refusalIfUnserved(key, nil))
		return p.Queues.ActiveJobs
	}
	c.Status = &grants.PublishedStatus{Refusal: grants.Refusal{Reason: "PoolExhausted", Message: "by the manager that serves it"}}
	if jobs() != 0 {
		t.Error("it writes over what the other manager says")
	}
	if a.relations.overlaps.declarationFor(key).uid != "u" {
		t.Error("its spec does not count for overlaps")
	}
}

// TestOutdatedPoolIsWork checks whether the last holder has reconciled the current spec, and the current neighbours.
func TestOutdatedPoolIsWork(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*grants.PoolState)
		want   bool
	}{
		"NoNews":      {change: func(*grants.PoolState) {}},
		"AnEdit":      {change: func(p *grants.PoolState) { p.Base.Pool.SetGeneration(2) }, want: true},
		"ANeighbour":  {change: func(p *grants.PoolState) { p.Overlap.Message = "NetworkPool ns/other has 10.0.0.1 too" }, want: true},
		"AnOlderPool": {change: func(p *grants.PoolState) { p.Overlap.YieldPending = true }, want: true},
	} {
		p := newTestPool(t, "10.0.0.1-10.0.0.9", func(o *v1alpha1.NetworkPool) { o.Status.Allocator.Holder = "gone" })
		p.Term.Holder = false
		tc.change(p)
		p.Term.WorkPendingSince = noon.Add(-time.Hour)
		if may, _ := p.MayTakeOver(noon, false, time.Hour, admitAll, admitAll); may != tc.want {
			t.Errorf("%s: may take over %v", name, may)
		}
	}
}
