package grants_test

import (
	"testing"

	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/grants"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/kinds/blocks"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/poolutil"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/text"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/grantstest"
)

// FuzzAnnotations checks that, whatever its author writes on a claim, an IPAllocation or an IPLease, it gets a refusal
// with a message that fits, or a range that the pool grants and that no other claimant has.
func FuzzAnnotations(f *testing.F) {
	for _, text := range []string{"10.0.0.5", "10.0.0.9", "10.0.0.0/29", "10.0.0.1-10.0.0.7", "fe80::1%eth0", "::ffff:10.0.0.6", "0.0.0.0/0", "x\x1b"} {
		f.Add(text, "", "10.0.0.8", "10.0.0.8", uint8(1))
		f.Add("", text, text, "10.0.0.9", uint8(6))
		f.Add(text, "", text, "10.0.0.9", uint8(32))
	}
	f.Fuzz(func(t *testing.T, record, requested, first, last string, bits uint8) {
		p := grantstest.NewPool(t, "10.0.0.1-10.0.0.9", grantstest.WithPreAllocation("vip", "10.0.0.4"), grantstest.WithCooling("10.0.0.3", "gone"))
		grantstest.ObserveClaim(p, "owner", 0, grantstest.WithRecordedAddress("10.0.0.5"))
		grantstest.ObserveAddress(p, "owner", "10.0.0.5", "uid-owner")
		// Between two others, as the order matters too.
		grantstest.ObserveClaim(p, "before", 1)
		grantstest.ObserveClaim(p, "author", 2, func(c *ipamv1.IPAddressClaim) {
			c.Annotations[v1alpha1.AddressAnnotation], c.Annotations[v1alpha1.RequestedAddressAnnotation] = record, requested
			if bits&1 != 0 {
				c.Finalizers = []string{v1alpha1.ClaimFinalizer}
			}
			if bits&2 != 0 {
				c.Status.AddressRef.Name = "author"
			}
		})
		a := &v1alpha1.IPAllocation{}
		a.Namespace, a.Name, a.UID, a.ResourceVersion = "ns", "block", "uid-block", "1"
		a.Annotations = map[string]string{v1alpha1.AddressAnnotation: record}
		a.Spec.PoolRef.Name, a.Spec.PinnedRange = "pool", &v1alpha1.PinnedRange{StartAddress: first, EndAddress: last}
		if bits&4 != 0 {
			a.Finalizers = []string{v1alpha1.IPAllocationFinalizer}
		}
		if bits&8 != 0 {
			p.ObserveClaimant(blocks.NewClaimant(a))
		}
		if bits&32 != 0 {
			p.Base.Pool.PoolSpec().Leases = &v1alpha1.Leases{}
			grantstest.ObserveLease(p, "lease", grantstest.WithLeaseAddress(first), func(l *v1alpha1.IPLease) {
				l.Annotations = map[string]string{v1alpha1.AddressAnnotation: record}
				if bits&4 != 0 {
					l.Finalizers = []string{v1alpha1.IPLeaseFinalizer}
				}
			})
		}
		grantstest.ObserveClaim(p, "after", 3)
		_, refused := p.Planner.PlanGrants(grantstest.Noon, 10, grantstest.AdmitAll)
		for c, refusal := range refused {
			if refusal.Message == "" || text.SanitizeMessage(refusal.Message) != refusal.Message {
				t.Errorf("the refusal of %s is %q", c.Owner.Name, refusal.Message)
			}
		}
		for uid, g := range p.Grants.ByClaimant {
			c := p.Claimants.ByUID[uid]
			if !p.Space.Layout.Contains(g.Range) && !c.StatusHasAddress {
				t.Errorf("%s is given %s, which the pool does not hand out", c.Owner.Name, poolutil.FormatRange(g.Range))
			}
			if g.Range.Contains(p.Addresses.ByName[grants.NamespacedNameFromOwner(p.Claimants.ByUID["uid-owner"].Owner)].IP) {
				t.Errorf("%s is given %s of the owner", c.Owner.Name, poolutil.FormatRange(g.Range))
			}
			if pin, _ := p.Space.Layout.PinForClaim("vip"); g.Range.Contains(pin) {
				t.Errorf("%s is given %s, which is kept", c.Owner.Name, poolutil.FormatRange(g.Range))
			}
			for other, h := range p.Grants.ByClaimant {
				if other != uid && h.Range.Overlaps(g.Range) {
					t.Errorf("%s and %s are given %s and %s", c.Owner.Name, p.Claimants.ByUID[other].Owner.Name, poolutil.FormatRange(g.Range), poolutil.FormatRange(h.Range))
				}
			}
			if r, err := poolutil.ParseRange(first + "-" + last); c.Kind == blocks.ClaimantKind && !c.HasRecord() && (err != nil || r != g.Range) {
				t.Errorf("%s is given %s, and asks for %q to %q", c.Owner.Name, poolutil.FormatRange(g.Range), first, last)
			}
		}
	})
}
