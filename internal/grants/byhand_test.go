package grants_test

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/grants"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/kinds/claims"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/grantstest"
)

// withRecord sets the annotation alone, as a user writes it.
func withRecord(address string) func(*ipamv1.IPAddressClaim) {
	return func(c *ipamv1.IPAddressClaim) { c.Annotations[v1alpha1.AddressAnnotation] = address }
}

// TestAddressMadeByUserIsAdopted checks an IPAddress that a user created for a claim before the claim itself: the
// in-cluster provider adopts it.
func TestAddressMadeByUserIsAdopted(t *testing.T) {
	bound := func(c *ipamv1.IPAddressClaim) { c.Status.AddressRef.Name = c.Name }
	for name, c := range map[string]struct {
		ref   ipamv1.IPPoolReference // of the IPAddress
		text  string
		claim []func(*ipamv1.IPAddressClaim)
		// also feeds the other objects.
		also func(*grants.PoolState)
		made func(*ipamv1.IPAddress)
		// wantMessage is part of why it is not adopted; empty if it is.
		wantMessage string
	}{
		"in the place of the in-cluster provider": {ref: grantstest.MirroredPoolRef, text: "10.0.0.11", claim: []func(*ipamv1.IPAddressClaim){grantstest.WithPoolRef(grantstest.MirroredPoolRef)}},
		"with another owner": {ref: grantstest.MirroredPoolRef, text: "10.0.0.11", claim: []func(*ipamv1.IPAddressClaim){grantstest.WithPoolRef(grantstest.MirroredPoolRef)}, made: func(a *ipamv1.IPAddress) {
			a.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "ConfigMap", Name: "x", UID: "uid-x"}}
		}},
		"for a claim with a grant that is not published": {ref: grantstest.MirroredPoolRef, text: "10.0.0.11", claim: []func(*ipamv1.IPAddressClaim){grantstest.WithPoolRef(grantstest.MirroredPoolRef), grantstest.WithRecordedAddress("10.0.0.10")}},
		"of which the claim has another":                 {ref: grantstest.MirroredPoolRef, text: "10.0.0.11", claim: []func(*ipamv1.IPAddressClaim){grantstest.WithPoolRef(grantstest.MirroredPoolRef), grantstest.WithRecordedAddress("10.0.0.10"), bound}, wantMessage: "created by hand"},
		"outside the pool":                               {ref: grantstest.MirroredPoolRef, text: "10.0.0.99", claim: []func(*ipamv1.IPAddressClaim){grantstest.WithPoolRef(grantstest.MirroredPoolRef)}, wantMessage: "does not hand out"},
		"that is no address":                             {ref: grantstest.MirroredPoolRef, text: "x", claim: []func(*ipamv1.IPAddressClaim){grantstest.WithPoolRef(grantstest.MirroredPoolRef)}, wantMessage: "not an IP address"},
		"that another claim has": {ref: grantstest.MirroredPoolRef, text: "10.0.0.11", claim: []func(*ipamv1.IPAddressClaim){grantstest.WithPoolRef(grantstest.MirroredPoolRef)}, wantMessage: "with 10.0.0.11, which IPAddressClaim ns/other has",
			also: func(p *grants.PoolState) {
				grantstest.ObserveClaim(p, "other", 1)
				grantstest.ObserveAddress(p, "other", "10.0.0.11", "uid-other")
			}},
		"that names the mirror": {ref: grantstest.MirrorKey.PoolReference(), text: "10.0.0.11", claim: []func(*ipamv1.IPAddressClaim){grantstest.WithPoolRef(grantstest.MirroredPoolRef)}, wantMessage: "for another pool"},
		"of a pool of ours": {ref: grantstest.MirrorKey.PoolReference(), text: "10.0.0.11", claim: []func(*ipamv1.IPAddressClaim){grantstest.WithPoolRef(grantstest.MirrorKey.PoolReference())},
			wantMessage: "set the annotation butler.butlerlabs.dev/address of the claim to 10.0.0.11"},
		"of a pool of ours, and of another claim": {ref: grantstest.MirrorKey.PoolReference(), text: "10.0.0.11", claim: []func(*ipamv1.IPAddressClaim){grantstest.WithPoolRef(grantstest.MirrorKey.PoolReference())}, wantMessage: "created by hand; delete it",
			made: func(a *ipamv1.IPAddress) { a.Spec.ClaimRef.Name = "d" }},
		"of a pool of ours, that another claim has": {ref: grantstest.MirrorKey.PoolReference(), text: "10.0.0.11", claim: []func(*ipamv1.IPAddressClaim){grantstest.WithPoolRef(grantstest.MirrorKey.PoolReference())}, wantMessage: "with 10.0.0.11, which IPAddressClaim ns/other has; delete it",
			also: func(p *grants.PoolState) {
				grantstest.ObserveClaim(p, "other", 1)
				grantstest.ObserveAddress(p, "other", "10.0.0.11", "uid-other")
			}},
		"of a pool of ours, that is on record": {ref: grantstest.MirrorKey.PoolReference(), text: "10.0.0.11", claim: []func(*ipamv1.IPAddressClaim){grantstest.WithPoolRef(grantstest.MirrorKey.PoolReference()), withRecord("10.0.0.11")}},
		"of a pool of ours, that is being deleted": {ref: grantstest.MirrorKey.PoolReference(), text: "10.0.0.11", claim: []func(*ipamv1.IPAddressClaim){grantstest.WithPoolRef(grantstest.MirrorKey.PoolReference())}, wantMessage: "is being deleted; waiting until it is gone",
			made: func(a *ipamv1.IPAddress) { a.DeletionTimestamp = &metav1.Time{Time: grantstest.Noon} }},
		"that is of another claim": {ref: grantstest.MirroredPoolRef, text: "10.0.0.11", claim: []func(*ipamv1.IPAddressClaim){grantstest.WithPoolRef(grantstest.MirroredPoolRef)}, wantMessage: "still belongs to an earlier claim", made: func(a *ipamv1.IPAddress) {
			a.OwnerReferences = []metav1.OwnerReference{{Kind: claims.IPAddressClaimKind, Name: "c", UID: "uid-before"}}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			p := grantstest.NewMirrorPool(t, "10.0.0.10-10.0.0.12")
			a := &ipamv1.IPAddress{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "c", UID: "by-hand", ResourceVersion: "1"}}
			a.Spec = ipamv1.IPAddressSpec{ClaimRef: ipamv1.IPAddressClaimReference{Name: "c"}, PoolRef: c.ref, Address: c.text}
			if c.made != nil {
				c.made(a)
			}
			p.ObserveAddress(claims.NewAddress(a))
			if c.also != nil {
				c.also(p)
			}
			seen := grantstest.ObserveClaim(p, "c", 0, c.claim...)
			if c.wantMessage == "" {
				if _, taken := p.Queues.ToWrite[seen.Owner.UID]; !taken {
					_, refusal := p.Planner.ChooseRange(seen)
					t.Errorf("it is not taken up: %+v", refusal)
				}
				return
			}
			if _, refusal := p.Planner.ChooseRange(seen); refusal == nil || !strings.Contains(refusal.Message, c.wantMessage) {
				t.Errorf("its refusal is %+v, want %q", refusal, c.wantMessage)
			}
		})
	}
}
