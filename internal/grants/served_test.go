package grants_test

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
	"k8s.io/utils/ptr"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/grants"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/kinds/claims"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/term"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/grantstest"
)

// TestServedClaimsNeedNoJob checks that a claim that has everything needs no job, whichever pool it names: one that
// names the pool of the in-cluster provider has that pool among the owners of its IPAddress, if the pool has a mirror.
func TestServedClaimsNeedNoJob(t *testing.T) {
	inCluster := ipamv1.IPPoolReference{APIGroup: "ipam.cluster.x-k8s.io", Kind: "InClusterIPPool", Name: "pool"}
	inClusterOwner := metav1.OwnerReference{APIVersion: "ipam.cluster.x-k8s.io/v1alpha2", Kind: "InClusterIPPool", Name: "pool", UID: "in-cluster-uid"}
	ours := metav1.OwnerReference{APIVersion: v1alpha1.GroupVersion.String(), Kind: grantstest.PoolKey.Kind, Name: "pool", UID: "pool-uid"}
	another := metav1.OwnerReference{APIVersion: "example.com/v1", Kind: grantstest.PoolKey.Kind, Name: "pool", UID: "pool-uid"}
	for name, tc := range map[string]struct {
		claim, address ipamv1.IPPoolReference // what each names
		byHand         bool                   // only we know the pool as a mirror
		owner          metav1.OwnerReference  // of the IPAddress
		done           bool
	}{
		"NetworkPool":        {claim: grantstest.PoolKey.PoolReference(), address: grantstest.PoolKey.PoolReference(), owner: ours, done: true},
		"Mirrored":           {claim: inCluster, address: inCluster, owner: inClusterOwner, done: true},
		"OfTheWrongOwner":    {claim: inCluster, address: inCluster, owner: ours},
		"OfAnotherGroup":     {claim: grantstest.PoolKey.PoolReference(), address: grantstest.PoolKey.PoolReference(), owner: another},
		"MirrorMadeByHand":   {claim: inCluster, address: inCluster, byHand: true, owner: ours, done: true},
		"AdoptedByTheMirror": {claim: grantstest.PoolKey.PoolReference(), address: inCluster, owner: ours, done: true},
		"AdoptedFromIt":      {claim: inCluster, address: grantstest.PoolKey.PoolReference(), owner: inClusterOwner, done: true},
	} {
		t.Run(name, func(t *testing.T) {
			p := grantstest.NewPool(t, "10.0.0.1-10.0.0.9", func(o *v1alpha1.NetworkPool) {
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
			grantstest.ObserveClaim(p, "c", 0, grantstest.WithRecordedAddress("10.0.0.1"), grantstest.WithReadyStatus, func(c *ipamv1.IPAddressClaim) { c.Spec.PoolRef = tc.claim })
			if done := len(p.Queues.ToWrite)+p.Queues.Waiting.Len() == 0; done != tc.done {
				t.Errorf("done %v: %d to do", done, len(p.Queues.ToWrite))
			}
		})
	}
}

// TestDeletedAddressIsNotAdopted checks that an IPAddress that is being deleted cannot become another claim's: it is
// removed, and the record brings the address back.
func TestDeletedAddressIsNotAdopted(t *testing.T) {
	p := grantstest.NewPool(t, "10.0.0.1-10.0.0.9")
	c := grantstest.ObserveClaim(p, "a", 0, grantstest.WithRecordedAddress("10.0.0.2"))
	grantstest.ObserveAddress(p, "a", "10.0.0.2", "uid-before")
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
	p := grantstest.NewPool(t, "10.0.0.1-10.0.0.9", func(o *v1alpha1.NetworkPool) { o.Spec.AddressReuseGracePeriodSeconds = ptr.To[int64](600) })
	for i := range 9 {
		name := fmt.Sprint("has-", i)
		grantstest.ObserveClaim(p, name, 0, grantstest.WithRecordedAddress(fmt.Sprintf("10.0.0.%d", i+1)), grantstest.WithReadyStatus)
		grantstest.ObserveAddress(p, name, fmt.Sprintf("10.0.0.%d", i+1), types.UID("uid-"+name))
	}
	for i := range 100 {
		grantstest.ObserveClaim(p, fmt.Sprint("waits-", i), 1)
	}
	publishRefusals := func() (count int) {
		_, refused := p.Planner.PlanGrants(grantstest.Noon, maxGrantsPerCommit, grantstest.AdmitAll)
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
	p.Releases.StartCooling(p.Inventory.ReleaseFor(c), grantstest.Noon)
	p.ForgetAddress("address-has-3", grants.NamespacedNameFromOwner(c.Owner))
	p.ForgetClaimant(c.Owner.UID)
	if count := publishRefusals(); count > 0 {
		t.Errorf("an address of a full pool begins to rest, and %d claims are written", count)
	}
}

// TestAnnotationMemoryIsBounded checks that an annotation that a user writes costs bounded memory.
func TestAnnotationMemoryIsBounded(t *testing.T) {
	p := grantstest.NewPool(t, "10.0.0.1-10.0.0.9")
	c := grantstest.ObserveClaim(p, "huge", 0, grantstest.WithRequestedAddress(strings.Repeat("x", 250_000)), grantstest.WithRecordedAddress(strings.Repeat("y", 250_000)))
	b := grantstest.ObserveAllocation(p, "block", 1, func(o *v1alpha1.IPAllocation) {
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
		"Marked":            {reason: "any user may write it, and a move that fails leaves it", changes: []func(*ipamv1.IPAddressClaim){grantstest.WithRecordedAddress("10.0.0.1"), grantstest.WithReadyStatus, marked}},
		"ARecordOfAUsers":   {reason: "it was never given anything", changes: []func(*ipamv1.IPAddressClaim){grantstest.WithRecordedAddress("192.0.2.1"), marked, grantstest.WithDeletionTimestamp, noFinalizer}},
		"DeletedAndMarked":  {reason: "it is being moved", changes: []func(*ipamv1.IPAddressClaim){grantstest.WithRecordedAddress("10.0.0.1"), grantstest.WithReadyStatus, marked, grantstest.WithDeletionTimestamp}, closes: true},
		"DeletedUnlikeThat": {reason: "it is released", changes: []func(*ipamv1.IPAddressClaim){grantstest.WithRecordedAddress("10.0.0.1"), grantstest.WithReadyStatus, grantstest.WithDeletionTimestamp}},
	} {
		t.Run(name, func(t *testing.T) {
			p := grantstest.NewPool(t, "10.0.0.1-10.0.0.9")
			grantstest.ObserveClaim(p, "c", 0, tc.changes...)
			reason, message := p.Status.ClosedReason(grantstest.Noon)
			if (reason == v1alpha1.MovedReason) != tc.closes {
				t.Errorf("%s: closed by %q", tc.reason, reason)
			}
			if tc.closes && !strings.Contains(message, "ns/c") {
				t.Errorf("it does not say which claim: %s", message)
			}
			p.ForgetClaimant("uid-c")
			status := p.Base.Pool.PoolStatus().DeepCopy()
			p.LoadCoolingAndHeld(status) // an operator has removed the entries
			if reason, _ := p.Status.ClosedReason(grantstest.Noon); reason != "" {
				t.Errorf("it stays closed: %s", reason)
			}
		})
	}
}

func noFinalizer(c *ipamv1.IPAddressClaim) { c.Finalizers = nil }

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

// TestFailingNamespace checks that the failures of one namespace delay no other namespace, and their own not for ever.
func TestFailingNamespace(t *testing.T) {
	p := grantstest.NewPool(t, "10.0.0.1-10.0.0.200")
	refused := apierrors.NewForbidden(schema.GroupResource{Resource: "ipaddresses"}, "a", errors.New("exceeded quota"))
	for i := range term.SerialRetryThreshold {
		c := grantstest.ObserveClaim(p, fmt.Sprint("q", i), 0)
		p.Planner.PlanGrants(grantstest.Noon, 1, grantstest.AdmitAll)
		g := p.Grants.ByClaimant[c.Owner.UID]
		g.Committed, g.JobStarted = true, true
		p.Failures.RecordFailure(c, refused, grantstest.Noon)
		if !g.Confirmed {
			t.Fatal("a grant of which nothing can land is still in flight")
		}
	}
	waits := grantstest.ObserveClaim(p, "waits", 0)
	other := grantstest.ObserveClaim(p, "other", 0, func(c *ipamv1.IPAddressClaim) { c.Namespace = "other" })
	_, refusals := p.Planner.PlanGrants(grantstest.Noon, 9, grantstest.AdmitAll)
	if refusal := refusals[waits]; refusal == nil || !strings.Contains(refusal.Message, "exceeded quota") || p.Grants.ByClaimant[waits.Owner.UID] != nil {
		t.Errorf("the refusal of the next one of the namespace is %v", refusal)
	}
	if p.Grants.ByClaimant[other.Owner.UID] == nil {
		t.Error("another namespace is not served")
	}
	p.Planner.PlanGrants(grantstest.Noon.Add(term.MinRetryPause), 9, grantstest.AdmitAll)
	if p.Grants.ByClaimant[waits.Owner.UID] == nil {
		t.Error("it is never tried")
	}
	served := p.Claimants.ByUID["uid-q3"]
	if !p.Failures.ClearFailure(served, true) || p.Planner.FailingNamespaceRefusal(waits, grantstest.Noon) != nil {
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
		"an address that is held":         {change: grantstest.WithRequestedAddress("10.0.0.1"), reason: ipamv1.IPAddressClaimReadyAllocationFailedReason},
		"an address that is not its pool": {change: grantstest.WithRequestedAddress("10.9.9.9"), reason: ipamv1.IPAddressClaimReadyAllocationFailedReason},
		"a record that another claim has": {change: grantstest.WithRecordedAddress("10.0.0.1"), reason: ipamv1.IPAddressClaimReadyAllocationFailedReason},
		"more than a quota":               {change: grantstest.OfCluster("bounded"), reason: v1alpha1.QuotaExceededReason},
	} {
		t.Run(name, func(t *testing.T) {
			woken := 0
			p := grantstest.NewPool(t, "10.0.0.1-10.0.0.200")
			p.Quotas.Shared = grants.NewQuota(func(pools.Key) { woken++ })
			p.Quotas.Limit = func(c types.NamespacedName) (int64, bool) { return 1, c == bounded }
			grantstest.ObserveClaim(p, "has", 0, grantstest.WithRecordedAddress("10.0.0.1"), grantstest.OfCluster("bounded"))
			for i := range term.SerialRetryThreshold {
				p.Failures.RecordFailure(grantstest.ObserveClaim(p, fmt.Sprint("q", i), 0), refused, grantstest.Noon)
			}
			unserved := grantstest.ObserveClaim(p, "vain", 1, tc.change)
			healthy, next := grantstest.ObserveClaim(p, "healthy", 2), grantstest.ObserveClaim(p, "next", 3)
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
			if got := refusalReason(grantstest.Noon); got != tc.reason || p.Grants.ByClaimant[healthy.Owner.UID] != nil {
				t.Errorf("before the trial its refusal is %q", got)
			}
			if got := refusalReason(grantstest.Noon.Add(term.MinRetryPause)); got != tc.reason {
				t.Errorf("at the trial its refusal is %q", got)
			}
			if p.Grants.ByClaimant[healthy.Owner.UID] == nil || p.Grants.ByClaimant[next.Owner.UID] != nil {
				t.Error("the trial is not of the oldest to which something can be granted, and of that alone")
			}
			if got := refusalReason(grantstest.Noon.Add(term.MinRetryPause)); got != tc.reason {
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
	p := grantstest.NewPool(t, "10.0.0.1-10.0.0.1")
	grantstest.ObserveClaim(p, "has", 0, grantstest.WithRecordedAddress("10.0.0.1"))
	for i := range term.SerialRetryThreshold {
		p.Failures.RecordFailure(grantstest.ObserveClaim(p, fmt.Sprint("q", i), 0), context.DeadlineExceeded, grantstest.Noon)
	}
	waits := grantstest.ObserveClaim(p, "waits", 1)
	reconcile := func(at time.Time) (time.Duration, *grants.Refusal) {
		p.BeginReconcile()
		_, refused := p.Planner.PlanGrants(at, 99, func(c *grants.Claimant) grants.AdmissionResult { return grants.AdmissionResult{Wait: c != waits} })
		return p.EndReconcile(at, 0), refused[waits]
	}
	for at, want := range map[time.Duration]time.Duration{0: term.MinRetryPause, term.MinRetryPause: 0, time.Minute: 0} {
		if wait, refusal := reconcile(grantstest.Noon.Add(at)); wait != want || refusal == nil || refusal.Reason != ipamv1.IPAddressClaimReadyPoolExhaustedReason {
			t.Errorf("after %v it is reconciled again in %v, not in %v, and the refusal of the claim is %v", at, wait, want, refusal)
		}
	}
}

// TestTrialOnlyForWaitingClaims checks that the pool is not reconciled for a trial where all waiting claims of a
// namespace have failed, and have a retry time of their own. Nor is it for claims of another namespace, or for those
// that are paused.
func TestTrialOnlyForWaitingClaims(t *testing.T) {
	p := grantstest.NewPool(t, "10.0.0.1-10.0.0.200")
	refused := apierrors.NewForbidden(schema.GroupResource{Resource: "ipaddresses"}, "a", errors.New("exceeded quota"))
	for i := range term.SerialRetryThreshold {
		p.Failures.RecordFailure(grantstest.ObserveClaim(p, fmt.Sprint("q", i), 0), refused, grantstest.Noon)
	}
	reconcile := func(at time.Time, admission grants.AdmissionFunc) time.Duration {
		p.BeginReconcile()
		p.Planner.PlanGrants(at, 99, admission)
		return p.EndReconcile(at, 0)
	}
	late := grantstest.Noon.Add(term.MinRetryPause / 2)
	if wait := reconcile(late, grantstest.AdmitAll); wait != 0 {
		t.Errorf("all have failed, and the pool is reconciled again in %v", wait)
	}
	waits := grantstest.ObserveClaim(p, "waits", 0)
	if wait := reconcile(late, grantstest.AdmitAll); wait <= 0 || wait > term.MinRetryPause {
		t.Errorf("one waits for the others, and is tried in %v", wait)
	}
	paused := func(c *grants.Claimant) grants.AdmissionResult { return grants.AdmissionResult{Wait: c == waits} }
	if wait := reconcile(late, paused); wait != 0 {
		t.Errorf("the one that waits is paused, and the pool is reconciled again in %v", wait)
	}
	if wait := reconcile(grantstest.Noon.Add(time.Hour), grantstest.AdmitAll); wait != 0 || p.Grants.ByClaimant[waits.Owner.UID] == nil {
		t.Errorf("the time of the trial is past, and the pool is reconciled again in %v", wait)
	}
}

// TestFailuresOfNamespaceAreReportedAsTheyAre checks that other claims of a namespace get the error with which the API
// server refuses for good, and not the first failure; the message is written again only when it differs.
func TestFailuresOfNamespaceAreReportedAsTheyAre(t *testing.T) {
	p := grantstest.NewPool(t, "10.0.0.1-10.0.0.200")
	next := grantstest.ObserveClaim(p, "next", 30)
	quota := func(used int) error {
		return apierrors.NewForbidden(schema.GroupResource{Resource: "ipaddresses"}, fmt.Sprint("c-", used), fmt.Errorf("exceeded quota, used: %d", used))
	}
	note := func(err error, at time.Time) string {
		for i := range term.SerialRetryThreshold {
			p.Failures.RecordFailure(grantstest.ObserveClaim(p, fmt.Sprint("c-", i), i), err, at)
		}
		refusal := p.Planner.FailingNamespaceRefusal(next, grantstest.Noon)
		if refusal == nil || refusal.Reason != v1alpha1.WriteFailedReason {
			t.Fatalf("the refusal is %v", refusal)
		}
		return refusal.Message
	}
	if got := note(context.DeadlineExceeded, grantstest.Noon); strings.Contains(got, "refuses") {
		t.Errorf("after a timeout the refusal is %q", got)
	}
	message := note(quota(1), grantstest.Noon)
	if !strings.Contains(message, "refuses") || !strings.Contains(message, "exceeded quota") {
		t.Errorf("where a quota refuses, the refusal is %q", message)
	}
	for _, err := range []error{context.DeadlineExceeded, quota(7)} {
		if got := note(err, grantstest.Noon.Add(time.Hour)); got != message {
			t.Errorf("the refusal is %q, and then %q", message, got)
		}
	}
}

// TestGrantWithUnknownOutcomeStays checks that the grant of a write with an unknown outcome, which may land yet, stays
// in flight.
func TestGrantWithUnknownOutcomeStays(t *testing.T) {
	p := grantstest.NewPool(t, "10.0.0.1-10.0.0.200")
	c := grantstest.ObserveClaim(p, "a", 0)
	p.Planner.PlanGrants(grantstest.Noon, 1, grantstest.AdmitAll)
	g := p.Grants.ByClaimant[c.Owner.UID]
	g.Committed, g.JobStarted = true, true
	p.Failures.RecordFailure(c, context.DeadlineExceeded, grantstest.Noon)
	p.Failures.RecordFailure(c, apierrors.NewForbidden(schema.GroupResource{}, "a", errors.New("no")), grantstest.Noon)
	if g.Confirmed {
		t.Error("the first write may land, and its address is given to another")
	}
}

// TestPausedGrantsDoNotBlockOthers checks that grants of claims that may not be served delay no other claim: the
// addresses of those that were not begun are free again.
func TestPausedGrantsDoNotBlockOthers(t *testing.T) {
	p := grantstest.NewPool(t, "10.0.0.1-10.0.0.200")
	for i := range 5 {
		grantstest.ObserveClaim(p, fmt.Sprint("c", i), 0)
	}
	p.Planner.PlanGrants(grantstest.Noon, 9, grantstest.AdmitAll)
	for uid, g := range p.Grants.ByClaimant {
		g.Committed, g.JobStarted = true, uid == "uid-c0"
	}
	p.Grants.EndBlockedGrants(func(*grants.Claimant) grants.AdmissionResult { return grants.AdmissionResult{Wait: true} })
	if n := p.Grants.UnconfirmedGrantCount(); n != 1 || p.Grants.ActiveGrantCount() != 0 {
		t.Errorf("%d are in flight, %d hold up others", n, p.Grants.ActiveGrantCount())
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
		p := grantstest.NewPool(t, "10.0.0.1-10.0.0.9", func(o *v1alpha1.NetworkPool) { o.Status.Allocator.Holder = "gone" })
		p.Term.Holder = false
		tc.change(p)
		p.Term.WorkPendingSince = grantstest.Noon.Add(-time.Hour)
		if may, _ := p.MayTakeOver(grantstest.Noon, false, time.Hour, grantstest.AdmitAll, grantstest.AdmitAll); may != tc.want {
			t.Errorf("%s: may take over %v", name, may)
		}
	}
}
