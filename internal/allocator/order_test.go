package allocator

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/grants"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/poolutil"
)

func byRelease(o *v1alpha1.NetworkPool) { o.Spec.AllocationOrder = v1alpha1.LeastRecentlyUsedOrder }

// used has claims have addresses, and release them in this order.
func used(p *grants.Memory, addresses ...string) {
	for _, a := range addresses {
		see(p, "had-"+a, 0, remembers(a))
	}
	for _, a := range addresses {
		p.Forget(types.UID("uid-had-" + a))
	}
}

// given are the addresses that so many new claims are granted, one after the other.
func given(p *grants.Memory, n int) (out []string) {
	for i := range n {
		c := see(p, fmt.Sprintf("new-%03d", i), i)
		p.Plan(noon.Add(time.Hour), 9, anyone)
		if g := p.Grants[c.Owner.UID]; g != nil {
			out = append(out, poolutil.ShowRange(g.Range))
		}
	}
	return out
}

// saysReleased is what the next commit of a pool says of releases.
func saysReleased(p *grants.Memory) string {
	return p.Prepare(noon).Pool.PoolStatus().Released
}

// U50: never used first, then what was released longest ago; whoever asks for an address, or has one that rests for it, gets
// that.
func TestOrder(t *testing.T) {
	for name, tc := range map[string]struct {
		reason    string
		addresses string
		change    []func(*v1alpha1.NetworkPool)
		before    func(*grants.Memory)
		want      []string
	}{
		"best fit": {addresses: "10.0.0.1-10.0.0.4", before: func(p *grants.Memory) { used(p, "10.0.0.2", "10.0.0.1") }, want: []string{"10.0.0.1", "10.0.0.2"}},
		"by release": {
			addresses: "10.0.0.1-10.0.0.4", change: []func(*v1alpha1.NetworkPool){byRelease},
			before: func(p *grants.Memory) { used(p, "10.0.0.2", "10.0.0.1") }, want: []string{"10.0.0.3", "10.0.0.4", "10.0.0.2", "10.0.0.1"},
		},
		"of preAllocations": {
			reason: "they are nobody else's, and not used by being kept", addresses: "10.0.0.1-10.0.0.3", change: []func(*v1alpha1.NetworkPool){byRelease, pins("vip", "10.0.0.3")},
			before: func(p *grants.Memory) {
				used(p, "10.0.0.1")
				next := p.Base.DeepCopyObject().(*v1alpha1.NetworkPool)
				next.Spec.PreAllocations, next.Generation, next.ResourceVersion = nil, 2, "11"
				p.SetBase(next)
			}, want: []string{"10.0.0.2", "10.0.0.3", "10.0.0.1"},
		},
		"of what a claim asks for": {
			addresses: "10.0.0.1-10.0.0.3", change: []func(*v1alpha1.NetworkPool){byRelease},
			before: func(p *grants.Memory) {
				used(p, "10.0.0.1", "10.0.0.2")
				see(p, "asking", 0, asks("10.0.0.2"))
				p.Plan(noon, 9, anyone)
			}, want: []string{"10.0.0.3", "10.0.0.1"},
		},
		"of prefixes": {
			addresses: "10.0.0.0/26", change: []func(*v1alpha1.NetworkPool){byRelease, func(o *v1alpha1.NetworkPool) {
				o.Spec.AllocationPrefixLength, o.Spec.Prefix = ptr.To[int32](28), nil
			}},
			before: func(p *grants.Memory) { used(p, "10.0.0.16/28", "10.0.0.0/28") }, want: []string{"10.0.0.32/28", "10.0.0.48/28", "10.0.0.16/28", "10.0.0.0/28"},
		},
		"of a grant that did not come to be": {
			reason: "nobody was given it", addresses: "10.0.0.1-10.0.0.2", change: []func(*v1alpha1.NetworkPool){byRelease},
			before: func(p *grants.Memory) {
				c := see(p, "first", 0)
				p.Plan(noon, 9, anyone)
				p.DropGrant(c.Owner.UID)
				p.Forget(c.Owner.UID)
			}, want: []string{"10.0.0.1", "10.0.0.2"},
		},
		"of what rests": {
			reason: "its place is that of its release", addresses: "10.0.0.1-10.0.0.3",
			change: []func(*v1alpha1.NetworkPool){byRelease, func(o *v1alpha1.NetworkPool) { o.Spec.AddressReuseGracePeriodSeconds = ptr.To[int64](30) }},
			before: func(p *grants.Memory) {
				used(p, "10.0.0.3")
				c := see(p, "ends", 0, remembers("10.0.0.1"), bothReady, ends)
				p.StartCooling(p.EndingOf(c), noon)
				p.Forget(c.Owner.UID)
				used(p, "10.0.0.2")
				p.ExpireCooling(noon.Add(time.Hour))
			}, want: []string{"10.0.0.3", "10.0.0.1", "10.0.0.2"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := aPool(t, tc.addresses, tc.change...)
			tc.before(p)
			if got := given(p, len(tc.want)); !slices.Equal(got, tc.want) {
				t.Errorf("%v, not %v: %s", got, tc.want, tc.reason)
			}
		})
	}
}

// U51: the next holder goes on in the order that the status says, with what rests at the end of it, and a pool that is told to
// give by best fit forgets it.
func TestOrderIsOnRecord(t *testing.T) {
	rests := func(o *v1alpha1.NetworkPool) { o.Spec.AddressReuseGracePeriodSeconds = ptr.To[int64](30) }
	p := aPool(t, "10.0.0.1-10.0.0.6", byRelease, rests)
	used(p, "10.0.0.4", "10.0.0.2", "10.0.0.3", "10.0.0.6")
	c := see(p, "ends", 0, remembers("10.0.0.5"), bothReady, ends)
	p.StartCooling(p.EndingOf(c), noon)
	p.Forget(c.Owner.UID)
	see(p, "new", 0, remembers("10.0.0.6"))
	if got, want := saysReleased(p), "10.0.0.4, 10.0.0.2/31"; got != want {
		t.Fatalf("%q, not %q", got, want)
	}

	next := aPool(t, "10.0.0.1-10.0.0.6", byRelease, rests, func(o *v1alpha1.NetworkPool) { o.Status = *p.Prepare(noon).Pool.PoolStatus() })
	next.Rebuild(&grants.Listed{Claimants: []*grants.Claimant{p.Claimants["uid-new"]}})
	if got := saysReleased(next); got != saysReleased(p) {
		t.Errorf("the next holder says %q", got)
	}
	next.ExpireCooling(noon.Add(time.Hour))
	if got, want := given(next, 9), []string{"10.0.0.1", "10.0.0.4", "10.0.0.2", "10.0.0.3", "10.0.0.5"}; !slices.Equal(got, want) {
		t.Errorf("the next holder gives %v, not %v", got, want)
	}

	bestFit := p.Base.DeepCopyObject().(*v1alpha1.NetworkPool)
	bestFit.Spec.AllocationOrder, bestFit.Generation, bestFit.ResourceVersion = v1alpha1.BestFitOrder, 2, "11"
	p.SetBase(bestFit)
	if got := saysReleased(p); got != "" {
		t.Errorf("by best fit it says %q", got)
	}
}

// U51, U52: the status has room for the last 4 KiB of releases, whatever is in it is read without harm, and what is not on record
// comes first.
func TestOrderOnRecordIsBounded(t *testing.T) {
	p := aPool(t, "10.0.0.0/20", byRelease, func(o *v1alpha1.NetworkPool) { o.Spec.Prefix = ptr.To[int32](16) })
	var even []string
	a := netip.MustParseAddr("10.0.15.0")
	for range 1000 {
		even = append(even, a.String())
		a = a.Prev().Prev()
	}
	used(p, even...)
	text := saysReleased(p)
	if !strings.HasSuffix(text, ", "+even[999]) || len(text) > 4<<10 || len(text) < 4<<10-20 {
		t.Errorf("%d bytes: %s", len(text), text)
	}
	for _, text := range []string{"", ",", "nonsense, 10.0.0.1", "10.0.0.1, 10.0.0.1", "0.0.0.0/0", "fd00::/64, 10.0.0.1-10.0.0.9, 10.0.0.3"} {
		next := aPool(t, "10.0.0.1-10.0.0.3", byRelease, func(o *v1alpha1.NetworkPool) { o.Status.Released = text })
		next.Rebuild(&grants.Listed{})
		if got := given(next, 9); len(got) != 3 {
			t.Errorf("%q: %v are given", text, got)
		}
	}
}
