package invariants

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"
)

// pool returns a pool of namespace ns, modified by change.
func pool(name string, change ...func(*v1alpha1.NetworkPool)) v1alpha1.Pool {
	p := &v1alpha1.NetworkPool{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID("pool-" + name)}}
	for _, f := range change {
		f(p)
	}
	return p
}

func inNetwork(network string) func(*v1alpha1.NetworkPool) {
	return func(p *v1alpha1.NetworkPool) { p.Spec.Network = network }
}

func allows(p *v1alpha1.NetworkPool) { p.Spec.AllowOverlap = true }

// carvedFrom makes a pool a carved one with blocks open; with contains their names and ranges in turn.
func carvedFrom(parent string, with ...string) func(*v1alpha1.NetworkPool) {
	return func(p *v1alpha1.NetworkPool) {
		p.Spec.Carve = &v1alpha1.Carve{PoolRef: v1alpha1.PoolReference{Name: parent}}
		for i := 0; i < len(with); i += 2 {
			p.Status.Blocks = append(p.Status.Blocks, v1alpha1.CarvedBlock{Allocation: with[i], UID: "uid-" + with[i], Range: with[i+1]})
		}
	}
}

// inFlight adds a grant in flight to a pool.
func inFlight(name, first, last string) func(*v1alpha1.NetworkPool) {
	return func(p *v1alpha1.NetworkPool) {
		p.Status.Allocator = &v1alpha1.AllocatorStatus{InFlight: []v1alpha1.Grant{{Namespace: "ns", Name: name, UID: "uid-" + name, First: first, Last: last}}}
	}
}

func of(pool string) func(*ipamv1.IPAddress) {
	return ofPool(v1alpha1.GroupVersion.Group, v1alpha1.NetworkPoolKind, pool)
}

// block returns an IPAllocation of a pool for a child; it has no range if address is empty.
func block(name, of, child, address string) v1alpha1.IPAllocation {
	a := v1alpha1.IPAllocation{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID("uid-" + name)}}
	a.Spec = v1alpha1.IPAllocationSpec{Type: v1alpha1.PoolAllocation, PoolRef: v1alpha1.PoolReference{Name: of}, ChildPoolRef: &v1alpha1.PoolReference{Name: child}}
	if address != "" {
		a.Annotations, a.Finalizers = map[string]string{v1alpha1.AddressAnnotation: address}, []string{v1alpha1.IPAllocationFinalizer}
	}
	return a
}

// TestMomentOverPools checks what two pools of one network must not both grant (R11), and what a pool and the pools
// that are carved from it may (R13).
func TestMomentOverPools(t *testing.T) {
	claims := []ipamv1.IPAddressClaim{claim("a"), claim("b")}
	both := []ipamv1.IPAddress{address("a", "10.0.0.5", of("p")), address("b", "10.0.0.5", of("q"))}
	twice := []string{"I1: 10.0.0.5 is given to ns/a by NetworkPool ns/p, and ns/b has it of NetworkPool ns/q", "I1: 10.0.0.5 is given to ns/b by NetworkPool ns/q, and ns/a has it of NetworkPool ns/p"}
	tests := map[string]struct {
		pools     []v1alpha1.Pool
		addresses []ipamv1.IPAddress
		blocks    []v1alpha1.IPAllocation
		want      []string
	}{
		"OneNetwork":    {pools: []v1alpha1.Pool{pool("p"), pool("q")}, addresses: both, want: twice},
		"OtherNetwork":  {pools: []v1alpha1.Pool{pool("p"), pool("q", inNetwork("x"))}, addresses: both},
		"Allowed":       {pools: []v1alpha1.Pool{pool("p", allows), pool("q")}, addresses: both},
		"OtherAddress":  {pools: []v1alpha1.Pool{pool("p"), pool("q")}, addresses: []ipamv1.IPAddress{address("a", "10.0.0.5", of("p")), address("b", "10.0.0.6", of("q"))}},
		"ParentAndFree": {pools: []v1alpha1.Pool{pool("p"), pool("q", carvedFrom("p"))}, addresses: both, want: append([]string{"R13: 10.0.0.5 is given to ns/b by NetworkPool ns/q, which has no such block"}, twice...)},
		"Siblings": {
			pools:     []v1alpha1.Pool{pool("site"), pool("p", carvedFrom("site")), pool("q", carvedFrom("site"))},
			blocks:    []v1alpha1.IPAllocation{block("p-1", "site", "p", "10.0.0.4/30"), block("q-1", "site", "q", "10.0.0.8/30")},
			addresses: both, want: append([]string{"R13: 10.0.0.5 is given to ns/b by NetworkPool ns/q, which has no such block"},
				"I1: 10.0.0.5 is given to ns/a by NetworkPool ns/p, and ns/b has it of NetworkPool ns/q",
				"I1: 10.0.0.5 is given to ns/b by NetworkPool ns/q, and ns/a has it of NetworkPool ns/p",
				"I1: 10.0.0.5 is given to ns/b by NetworkPool ns/q, and ns/p-1 has it of NetworkPool ns/site",
				"I1: 10.0.0.4 is given to ns/p-1 by NetworkPool ns/site, and ns/b has it of NetworkPool ns/q",
			),
		},
		"AllowedToOthers": {
			pools:     []v1alpha1.Pool{pool("p", allows), pool("q", carvedFrom("p"))},
			addresses: both, want: append([]string{"R13: 10.0.0.5 is given to ns/b by NetworkPool ns/q, which has no such block"}, twice...),
		},
		"InItsBlock": {
			pools:     []v1alpha1.Pool{pool("site"), pool("p", carvedFrom("site"))},
			blocks:    []v1alpha1.IPAllocation{block("p-1", "site", "p", "10.0.0.4/30")},
			addresses: []ipamv1.IPAddress{address("a", "10.0.0.5", of("p"))},
		},
		"InTwoBlocks": {
			pools:  []v1alpha1.Pool{pool("site"), pool("p", carvedFrom("site"))},
			blocks: []v1alpha1.IPAllocation{block("p-1", "site", "p", "10.0.0.4/30"), block("p-2", "site", "p", "10.0.0.8/30"), block("nodes", "p", "", "10.0.0.6-10.0.0.9")},
		},
		"ThroughLevels": {
			pools:     []v1alpha1.Pool{pool("site"), pool("q", carvedFrom("site")), pool("p", carvedFrom("q"))},
			blocks:    []v1alpha1.IPAllocation{block("q-1", "site", "q", "10.0.0.0/28"), block("p-1", "q", "p", "10.0.0.4/30")},
			addresses: []ipamv1.IPAddress{address("a", "10.0.0.5", of("p"))},
		},
		"BlockInFlight": {
			pools:     []v1alpha1.Pool{pool("site", inFlight("p-1", "10.0.0.4", "10.0.0.7")), pool("p", carvedFrom("site"))},
			blocks:    []v1alpha1.IPAllocation{block("p-1", "site", "p", "10.0.0.4/30")},
			addresses: []ipamv1.IPAddress{address("a", "10.0.0.5", of("p"))},
		},
		"ClaimInFlight": {
			pools:     []v1alpha1.Pool{pool("p", inFlight("b", "10.0.0.5", "10.0.0.5")), pool("q")},
			addresses: []ipamv1.IPAddress{address("a", "10.0.0.5", of("q"))},
			want:      []string{"I1: 10.0.0.5 is given to ns/b by NetworkPool ns/p, and ns/a has it of NetworkPool ns/q", "I1: 10.0.0.5 is given to ns/a by NetworkPool ns/q, and ns/b has it of NetworkPool ns/p"},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			o := pools.Objects{Pools: tt.pools, Claims: claims, Addresses: tt.addresses, Allocations: tt.blocks}
			if diff := cmp.Diff(tt.want, (&History{}).CheckMoment(o)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// TestMomentBlockForcedAway checks that a block that was forced away is known from the record of its pool.
func TestMomentBlockForcedAway(t *testing.T) {
	h := &History{BlocksMayBeRemoved: true}
	o := pools.Objects{
		Claims:    []ipamv1.IPAddressClaim{claim("a")},
		Addresses: []ipamv1.IPAddress{address("a", "10.0.0.5", of("p"))},
		Pools:     []v1alpha1.Pool{pool("site", inFlight("p-1", "10.0.0.4", "10.0.0.7")), pool("p", carvedFrom("site", "p-1", "10.0.0.4/30"))},
	}
	if bad := h.CheckMoment(o); len(bad) > 0 {
		t.Error(bad)
	}
}
