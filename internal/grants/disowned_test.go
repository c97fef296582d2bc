package grants_test

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/grants"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/incluster"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/kinds/claims"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/grantstest"
)

// newDisownedAddress returns an IPAddress from which the garbage collector has removed the claim: only its pool owns
// it.
func newDisownedAddress(address string) *ipamv1.IPAddress {
	return &ipamv1.IPAddress{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "ns", Name: "a", UID: "address-a", ResourceVersion: "7", Finalizers: []string{v1alpha1.AddressFinalizer},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: v1alpha1.GroupVersion.String(), Kind: v1alpha1.NetworkPoolKind, Name: "pool", UID: "pool-uid"}},
		},
		Spec: ipamv1.IPAddressSpec{ClaimRef: ipamv1.IPAddressClaimReference{Name: "a"}, PoolRef: grantstest.PoolKey.PoolReference(), Address: address},
	}
}

// TestDisownedAddress checks that the IPAddress of a claim that is deleted in the foreground is still the claim's,
// whichever of the two is seen first, until it is released.
func TestDisownedAddress(t *testing.T) {
	newer := func(c *ipamv1.IPAddressClaim) { c.ResourceVersion = "9" }
	byHand := func(a *ipamv1.IPAddress) { a.OwnerReferences = nil }
	tests := map[string]struct {
		claim   []func(*ipamv1.IPAddressClaim)
		address string
		change  func(*ipamv1.IPAddress)
		its     bool
	}{
		"a claim that is being deleted":          {claim: []func(*ipamv1.IPAddressClaim){grantstest.WithRecordedAddress("10.0.0.1"), grantstest.WithDeletionTimestamp, newer}, its: true},
		"a claim that lives":                     {claim: []func(*ipamv1.IPAddressClaim){grantstest.WithRecordedAddress("10.0.0.1"), newer}},
		"a claim that remembers another address": {claim: []func(*ipamv1.IPAddressClaim){grantstest.WithRecordedAddress("10.0.0.2"), grantstest.WithDeletionTimestamp, newer}},
		"a claim that no manager has served":     {claim: []func(*ipamv1.IPAddressClaim){grantstest.WithRecordedAddress("10.0.0.1"), noFinalizer, grantstest.WithDeletionTimestamp, newer}},
		"an IPAddress that was made by hand":     {claim: []func(*ipamv1.IPAddressClaim){grantstest.WithRecordedAddress("10.0.0.1"), grantstest.WithDeletionTimestamp, newer}, change: byHand},
	}
	for name, tc := range tests {
		for first, order := range map[string][2]int{"the claim first": {0, 1}, "the IPAddress first": {1, 0}} {
			t.Run(name+", "+first, func(t *testing.T) {
				p := grantstest.NewPool(t, "10.0.0.1-10.0.0.4")
				address := newDisownedAddress("10.0.0.1")
				if tc.change != nil {
					tc.change(address)
				}
				show := []func(){
					func() { grantstest.ObserveClaim(p, "a", 0, tc.claim...) },
					func() { p.ObserveAddress(claims.NewAddress(address)) },
				}
				show[order[0]]()
				show[order[1]]()
				c := p.Claimants.ByUID["uid-a"]
				if belongs := p.Addresses.AddressFor(c).ClaimantUID == c.Owner.UID; belongs != tc.its {
					t.Errorf("it is of the claim: %v, want %v", belongs, tc.its)
				}
				if !tc.its {
					return
				}
				if n := p.Space.Ledger.Counts(); n.Allocated != 1 || n.Owners != 1 || len(p.Addresses.Orphans) > 0 {
					t.Errorf("%d addresses of %d owners, and %d orphans", n.Allocated, n.Owners, len(p.Addresses.Orphans))
				}
				if s := c.Kind.NextReleaseStep(p.Inventory, c, &grants.Attempt{Now: grantstest.Noon}); s.Address == nil || s.Address.UID != address.UID {
					t.Errorf("it is released by %+v, and its IPAddress stays", s)
				}
			})
		}
	}
}

// TestDeletedPoolIsNoRequiredOwner checks that a pool that is being deleted is not required among the owners of
// IPAddresses: the garbage collector removes it. Nor is the pool behind a mirror.
func TestDeletedPoolIsNoRequiredOwner(t *testing.T) {
	served := func(p *grants.PoolState, change ...func(*ipamv1.IPAddressClaim)) *grants.Claimant {
		c := grantstest.ObserveClaim(p, "a", 0, append([]func(*ipamv1.IPAddressClaim){grantstest.WithRecordedAddress("10.0.0.1"), grantstest.WithReadyStatus}, change...)...)
		address := newDisownedAddress("10.0.0.1")
		address.OwnerReferences = []metav1.OwnerReference{{Kind: claims.IPAddressClaimKind, Name: "a", UID: c.Owner.UID}}
		address.Spec.PoolRef = c.Kind.NewObject().(*ipamv1.IPAddressClaim).Spec.PoolRef
		p.ObserveAddress(claims.NewAddress(address))
		return c
	}
	ofSource := func(c *ipamv1.IPAddressClaim) {
		c.Spec.PoolRef = ipamv1.IPPoolReference{APIGroup: incluster.GroupVersion.Group, Kind: incluster.IPPoolKind, Name: "p"}
	}
	mirror := func(o *v1alpha1.NetworkPool) {
		o.Name, o.Annotations = "p.in-cluster", map[string]string{incluster.SourceUIDAnnotation: "source", incluster.HandedOverAnnotation: ""}
	}
	ending := func(o *v1alpha1.NetworkPool) { o.Annotations[incluster.EndingAnnotation] = "it waits" }
	deleted := func(o *v1alpha1.NetworkPool) { o.DeletionTimestamp = &metav1.Time{Time: grantstest.Noon} }
	tests := map[string]struct {
		pool  []func(*v1alpha1.NetworkPool)
		claim []func(*ipamv1.IPAddressClaim)
		want  grants.Need
	}{
		"a pool":                         {want: grants.NeedWrite},
		"a pool that is being deleted":   {pool: []func(*v1alpha1.NetworkPool){deleted}},
		"a mirror":                       {pool: []func(*v1alpha1.NetworkPool){mirror}, claim: []func(*ipamv1.IPAddressClaim){ofSource}, want: grants.NeedWrite},
		"a mirror that is being deleted": {pool: []func(*v1alpha1.NetworkPool){mirror, deleted}, claim: []func(*ipamv1.IPAddressClaim){ofSource}},
		"a mirror of a pool that is being deleted": {pool: []func(*v1alpha1.NetworkPool){mirror, ending}, claim: []func(*ipamv1.IPAddressClaim){ofSource}},
		"a mirror that is named itself":            {pool: []func(*v1alpha1.NetworkPool){mirror, ending}, want: grants.NeedWrite},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			p := grantstest.NewPool(t, "10.0.0.1-10.0.0.4", tc.pool...)
			c := served(p, tc.claim...)
			if got := p.Inventory.NeedFor(c); got != tc.want {
				t.Errorf("it needs %d, not %d", got, tc.want)
			}
		})
	}
}
