package inspect

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"
)

// carvedFrom returns a pool that is carved from another pool of its namespace.
func carvedFrom(name, parent string) *v1alpha1.NetworkPool {
	p := &v1alpha1.NetworkPool{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: "pool"}}
	p.Spec.Carve = &v1alpha1.Carve{PoolRef: v1alpha1.PoolReference{Name: parent}, PrefixLength: 30}
	return p
}

func TestPoolsFormTree(t *testing.T) {
	plain := func(name string) *v1alpha1.NetworkPool {
		return &v1alpha1.NetworkPool{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}, Spec: v1alpha1.NetworkPoolSpec{CIDR: "10.0.0.0/24"}}
	}
	tests := map[string]struct {
		pools []v1alpha1.Pool
		want  string
	}{
		"Below":          {[]v1alpha1.Pool{carvedFrom("a", "site"), plain("b"), plain("site"), carvedFrom("c", "site")}, "b site >a >c"},
		"Twice":          {[]v1alpha1.Pool{carvedFrom("a", "b"), carvedFrom("b", "site"), plain("site")}, "site >b >>a"},
		"WithoutAParent": {[]v1alpha1.Pool{plain("b"), carvedFrom("a", "elsewhere")}, "a b"},
		"InACircle":      {[]v1alpha1.Pool{carvedFrom("a", "b"), carvedFrom("b", "a"), plain("c")}, "c a b"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			var got []string
			for _, p := range DescribePools(tt.pools) {
				got = append(got, strings.Repeat(">", p.Level)+p.Name)
			}
			if diff := cmp.Diff(tt.want, strings.Join(got, " ")); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// TestDescribeAddressInAncestorPools checks that an address of a carved block is listed in each ancestor pool, after
// the pool that granted it.
func TestDescribeAddressInAncestorPools(t *testing.T) {
	site := &v1alpha1.NetworkPool{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "site", UID: "site"},
		Spec:       v1alpha1.NetworkPoolSpec{CIDR: "10.0.0.0/24", Carvable: &v1alpha1.Carvable{}},
	}
	team := carvedFrom("team", "site")
	team.Status.Blocks = []v1alpha1.CarvedBlock{{Range: "10.0.0.4/30", Allocation: "team-1", UID: "block", Prefix: 24}}
	block := v1alpha1.IPAllocation{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "ns", Name: "team-1", UID: "block", Annotations: map[string]string{v1alpha1.AddressAnnotation: "10.0.0.4/30"},
			Finalizers: []string{v1alpha1.CarvedPoolFinalizer, v1alpha1.IPAllocationFinalizer},
		},
		Spec: v1alpha1.IPAllocationSpec{
			PoolRef: v1alpha1.PoolReference{Name: "site"}, Type: v1alpha1.PoolAllocation, PrefixLength: ptr.To[int32](30),
			ChildPoolRef: &v1alpha1.PoolReference{Name: "team"},
		},
	}
	var got []string
	for _, s := range DescribeAddress(pools.Objects{Pools: []v1alpha1.Pool{site, team}, Allocations: []v1alpha1.IPAllocation{block}}, netip.MustParsePrefix("10.0.0.6/32")) {
		got = append(got, fmt.Sprintf("%s: %s %s", s.Pool, s.State, s.Detail))
	}
	want := []string{"NetworkPool ns/site: carved it is in a block of NetworkPool ns/team", "NetworkPool ns/team: free "}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}
