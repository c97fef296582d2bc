package allocator

import (
	"testing"

	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/poolutil"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/text"
)

// Whatever the author of a claim, or of an IPAllocation, writes on it: he is refused in words that fit, or he is given
// what the pool hands out and nobody else has.
func FuzzAnnotations(f *testing.F) {
	for _, text := range []string{"10.0.0.5", "10.0.0.9", "10.0.0.0/29", "10.0.0.1-10.0.0.7", "fe80::1%eth0", "::ffff:10.0.0.6", "0.0.0.0/0", "x\x1b"} {
		f.Add(text, "", "10.0.0.8", "10.0.0.8", uint8(1))
		f.Add("", text, text, "10.0.0.9", uint8(6))
	}
	f.Fuzz(func(t *testing.T, record, requested, first, last string, bits uint8) {
		p := aPool(t, "10.0.0.1-10.0.0.9", pins("vip", "10.0.0.4"), cools("10.0.0.3", "gone"))
		see(p, "owner", 0, remembers("10.0.0.5"))
		seeAddress(p, "owner", "10.0.0.5", "uid-owner")
		// Between two others, as who came first matters too.
		see(p, "before", 1)
		see(p, "author", 2, func(c *ipamv1.IPAddressClaim) {
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
			p.observe(claimOfAllocation(a))
		}
		see(p, "after", 3)
		_, refused := p.plan(noon, 10, anyone)
		for c, no := range refused {
			if no.message == "" || text.Message(no.message) != no.message {
				t.Errorf("%s is told %q", c.owner.Name, no.message)
			}
		}
		for uid, g := range p.grants {
			c := p.claimants[uid]
			if !p.layout.Contains(g.rng) && !c.hadAddress {
				t.Errorf("%s is given %s, which the pool does not hand out", c.owner.Name, poolutil.FormatRange(g.rng))
			}
			if g.rng.Contains(p.attached[nameOf(p.claimants["uid-owner"].owner)].ip) {
				t.Errorf("%s is given %s of the owner", c.owner.Name, poolutil.FormatRange(g.rng))
			}
			if pin, _ := p.layout.Pin("vip"); g.rng.Contains(pin) {
				t.Errorf("%s is given %s, which is kept", c.owner.Name, poolutil.FormatRange(g.rng))
			}
			for other, h := range p.grants {
				if other != uid && h.rng.Overlaps(g.rng) {
					t.Errorf("%s and %s are given %s and %s", c.owner.Name, p.claimants[other].owner.Name, poolutil.FormatRange(g.rng), poolutil.FormatRange(h.rng))
				}
			}
			if r, err := poolutil.ParseRange(first + "-" + last); c.kind == kind(blocks{}) && !c.hasRecord() && (err != nil || r != g.rng) {
				t.Errorf("%s is given %s, and asks for %q to %q", c.owner.Name, poolutil.FormatRange(g.rng), first, last)
			}
		}
	})
}
