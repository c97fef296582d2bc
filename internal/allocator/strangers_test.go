package allocator

import (
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	clocktesting "k8s.io/utils/clock/testing"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/grants"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/incluster"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/kinds/claims"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/grantstest"
)

// TestForeignAddresses checks that an IPAddress that the in-cluster provider writes while a manager serves its pool is
// reported (U87). An IPAddress that existed before, or that a user, a restore, a move or the manager itself has
// written, is not.
func TestForeignAddresses(t *testing.T) {
	const settled = 75 * time.Second
	paused := func(c *ipamv1.IPAddressClaim) {
		c.Status.Conditions = []metav1.Condition{{Type: clusterv1.PausedCondition, Status: metav1.ConditionTrue, Reason: clusterv1.PausedReason, Message: "Cluster ns/c is paused"}}
	}
	for name, c := range map[string]struct {
		after     time.Duration // since the takeover
		claim     func(*ipamv1.IPAddressClaim)
		addr      func(*ipamv1.IPAddress)
		wantEvent bool
	}{
		"long after the takeover":           {after: time.Hour, wantEvent: true},
		"another address than was recorded": {after: time.Hour, claim: grantstest.WithRecordedAddress("10.0.0.12"), wantEvent: true},
		"the one that was recorded":         {after: time.Hour, claim: grantstest.WithRecordedAddress("10.0.0.11")},
		"before it":                         {after: -time.Hour},
		"by a request of before it":         {after: settled},
		"after all those":                   {after: settled + time.Second, wantEvent: true},
		"by hand":                           {after: time.Hour, addr: func(a *ipamv1.IPAddress) { a.OwnerReferences = nil }},
		"by a restore":                      {after: time.Hour, addr: func(a *ipamv1.IPAddress) { a.OwnerReferences[0].UID = "of the claim before" }},
		"by a move, of a paused Cluster":    {after: time.Hour, claim: paused},
		"of the mirror itself":              {after: time.Hour, addr: func(a *ipamv1.IPAddress) { a.Spec.PoolRef = grantstest.MirrorKey.PoolReference() }},
	} {
		t.Run(name, func(t *testing.T) {
			p := grantstest.NewMirrorPool(t, "10.0.0.10-10.0.0.20")
			p.Quarantine.SoleWriterSince = grantstest.Noon.Add(settled)
			claim := grantstest.NewClaim("c", 0, grantstest.WithPoolRef(grantstest.MirroredPoolRef))
			if c.claim != nil {
				c.claim(claim)
			}
			p.ObserveClaimant(claims.NewClaimant(claim))
			a := &ipamv1.IPAddress{
				ObjectMeta: metav1.ObjectMeta{
					Namespace: "ns", Name: "c", UID: "a", ResourceVersion: "1", CreationTimestamp: metav1.NewTime(grantstest.Noon.Add(c.after)),
					OwnerReferences: []metav1.OwnerReference{
						{APIVersion: ipamv1.GroupVersion.String(), Kind: claims.IPAddressClaimKind, Name: "c", UID: "uid-c"},
						{APIVersion: incluster.GroupVersion.String(), Kind: incluster.IPPoolKind, Name: "p", UID: "uid-p"},
					},
				},
				Spec: ipamv1.IPAddressSpec{ClaimRef: ipamv1.IPAddressClaimReference{Name: "c"}, PoolRef: grantstest.MirroredPoolRef, Address: "10.0.0.11"},
			}
			if c.addr != nil {
				c.addr(a)
			}
			p.ObserveAddress(claims.NewAddress(a))
			recorder := events.NewFakeRecorder(10)
			alloc := New(Options{Recorder: recorder, Clock: clocktesting.NewFakeClock(grantstest.Noon)})
			step := claims.ClaimantKind.NextServeStep(p.Inventory, p.Claimants.ByUID["uid-c"], &grants.Attempt{Now: grantstest.Noon.Add(2 * time.Hour), ClaimantRead: true})
			if reported := step.ForeignAddress != nil; reported != c.wantEvent {
				t.Fatalf("it is reported: %t, by %+v", reported, step.Call)
			}
			if c.wantEvent {
				alloc.writer.recordForeignAddressEvent(grants.NewPool(p), step.ForeignAddress)
				if event := <-recorder.Events; !strings.Contains(event, "TwoProviders IPAddress ns/c was written by another provider") {
					t.Error(event)
				}
			}
		})
	}
}
