package allocator

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/grants"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/kinds/claims"
)

// onRecord is the annotation alone, as a user writes it.
func onRecord(address string) func(*ipamv1.IPAddressClaim) {
	return func(c *ipamv1.IPAddressClaim) { c.Annotations[v1alpha1.AddressAnnotation] = address }
}

// An IPAddress that somebody made for a claim that was to come: the in-cluster provider takes it up.
func TestMadeByHand(t *testing.T) {
	bound := func(c *ipamv1.IPAddressClaim) { c.Status.AddressRef.Name = c.Name }
	for name, c := range map[string]struct {
		ref   ipamv1.IPPoolReference // of the IPAddress
		text  string
		claim []func(*ipamv1.IPAddressClaim)
		// also sees what else there is.
		also func(*grants.Memory)
		made func(*ipamv1.IPAddress)
		// told is why it is not taken up; empty: it is.
		told string
	}{
		"in the place of the in-cluster provider": {ref: mirrored, text: "10.0.0.11", claim: []func(*ipamv1.IPAddressClaim){naming(mirrored)}},
		"with another owner": {ref: mirrored, text: "10.0.0.11", claim: []func(*ipamv1.IPAddressClaim){naming(mirrored)}, made: func(a *ipamv1.IPAddress) {
			a.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "ConfigMap", Name: "x", UID: "uid-x"}}
		}},
		"for a claim that was granted something and not told": {ref: mirrored, text: "10.0.0.11", claim: []func(*ipamv1.IPAddressClaim){naming(mirrored), remembers("10.0.0.10")}},
		"of which the claim has another":                      {ref: mirrored, text: "10.0.0.11", claim: []func(*ipamv1.IPAddressClaim){naming(mirrored), remembers("10.0.0.10"), bound}, told: "created by hand"},
		"outside the pool":                                    {ref: mirrored, text: "10.0.0.99", claim: []func(*ipamv1.IPAddressClaim){naming(mirrored)}, told: "does not hand out"},
		"that is no address":                                  {ref: mirrored, text: "x", claim: []func(*ipamv1.IPAddressClaim){naming(mirrored)}, told: "not an IP address"},
		"that somebody else has": {ref: mirrored, text: "10.0.0.11", claim: []func(*ipamv1.IPAddressClaim){naming(mirrored)}, told: "with 10.0.0.11, which IPAddressClaim ns/other has",
			also: func(p *grants.Memory) { see(p, "other", 1); seeAddress(p, "other", "10.0.0.11", "uid-other") }},
		"that names the mirror": {ref: mirrorKey.Ref(), text: "10.0.0.11", claim: []func(*ipamv1.IPAddressClaim){naming(mirrored)}, told: "for another pool"},
		"of a pool of ours": {ref: mirrorKey.Ref(), text: "10.0.0.11", claim: []func(*ipamv1.IPAddressClaim){naming(mirrorKey.Ref())},
			told: "set the annotation butler.butlerlabs.dev/address of the claim to 10.0.0.11"},
		"of a pool of ours, and of another claim": {ref: mirrorKey.Ref(), text: "10.0.0.11", claim: []func(*ipamv1.IPAddressClaim){naming(mirrorKey.Ref())}, told: "created by hand; delete it",
			made: func(a *ipamv1.IPAddress) { a.Spec.ClaimRef.Name = "d" }},
		"of a pool of ours, that somebody else has": {ref: mirrorKey.Ref(), text: "10.0.0.11", claim: []func(*ipamv1.IPAddressClaim){naming(mirrorKey.Ref())}, told: "with 10.0.0.11, which IPAddressClaim ns/other has; delete it",
			also: func(p *grants.Memory) { see(p, "other", 1); seeAddress(p, "other", "10.0.0.11", "uid-other") }},
		"of a pool of ours, that is on record": {ref: mirrorKey.Ref(), text: "10.0.0.11", claim: []func(*ipamv1.IPAddressClaim){naming(mirrorKey.Ref()), onRecord("10.0.0.11")}},
		"of a pool of ours, that is being deleted": {ref: mirrorKey.Ref(), text: "10.0.0.11", claim: []func(*ipamv1.IPAddressClaim){naming(mirrorKey.Ref())}, told: "is being deleted; waiting until it is gone",
			made: func(a *ipamv1.IPAddress) { a.DeletionTimestamp = &metav1.Time{Time: noon} }},
		"that is of another claim": {ref: mirrored, text: "10.0.0.11", claim: []func(*ipamv1.IPAddressClaim){naming(mirrored)}, told: "still belongs to an earlier claim", made: func(a *ipamv1.IPAddress) {
			a.OwnerReferences = []metav1.OwnerReference{{Kind: claims.Name, Name: "c", UID: "uid-before"}}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			p := aMirror(t, "10.0.0.10-10.0.0.12")
			a := &ipamv1.IPAddress{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "c", UID: "by-hand", ResourceVersion: "1"}}
			a.Spec = ipamv1.IPAddressSpec{ClaimRef: ipamv1.IPAddressClaimReference{Name: "c"}, PoolRef: c.ref, Address: c.text}
			if c.made != nil {
				c.made(a)
			}
			p.ObserveAttached(claims.AddressOf(a))
			if c.also != nil {
				c.also(p)
			}
			seen := see(p, "c", 0, c.claim...)
			if c.told == "" {
				if _, taken := p.Todo[seen.Owner.UID]; !taken {
					_, no := p.Choose(seen)
					t.Errorf("it is not taken up: %+v", no)
				}
				return
			}
			if _, no := p.Choose(seen); no == nil || !strings.Contains(no.Message, c.told) {
				t.Errorf("it is told %+v, want %q", no, c.told)
			}
		})
	}
}
