package webhooks

import (
	"context"
	"errors"
	"strings"
	"testing"

	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
)

// TestOverlapWarnings checks the warnings of pools that share addresses (W13, U3, U4).
func TestOverlapWarnings(t *testing.T) {
	younger, both := "the younger of the two pools grants nothing", "both may grant the same address"
	tests := map[string]struct {
		reason string
		spec   spec
		others []client.Object
		want   [][]string // parts of each warning
	}{
		"Alone": {reason: "no other pool", spec: spec{CIDR: "10.0.0.0/24"}},
		"Same": {
			reason: "another pool has all of it",
			spec:   spec{CIDR: "10.0.0.0/24"},
			others: []client.Object{pool("q", spec{CIDR: "10.0.0.0/24"})},
			want:   [][]string{{"NetworkPool ns/q has 10.0.0.0/24 too", younger}},
		},
		"Part": {
			reason: "what is shared is named, by what is declared: the reservation may go one day",
			spec:   spec{CIDR: "10.0.0.0/24", Reserved: []v1alpha1.ReservedRange{{Addresses: "10.0.0.128/25"}}},
			others: []client.Object{pool("q", spec{Addresses: []string{"10.0.0.200-10.0.1.9"}})},
			want:   [][]string{{"NetworkPool ns/q has 10.0.0.200-10.0.0.255 too", younger}},
		},
		"Beside": {
			reason: "neighbours share nothing",
			spec:   spec{CIDR: "10.0.0.0/24"},
			others: []client.Object{pool("q", spec{CIDR: "10.0.1.0/24"})},
		},
		"OtherNetwork": {
			reason: "the same range in two networks is two ranges",
			spec:   spec{CIDR: "10.0.0.0/24", Network: "a"},
			others: []client.Object{pool("q", spec{CIDR: "10.0.0.0/24", Network: "b"}), pool("r", spec{CIDR: "10.0.0.0/24"})},
		},
		"SameNetwork": {
			reason: "in one network it is one",
			spec:   spec{CIDR: "10.0.0.0/24", Network: "a"},
			others: []client.Object{pool("q", spec{CIDR: "10.0.0.0/24", Network: "a"})},
			want:   [][]string{{"NetworkPool ns/q has 10.0.0.0/24 too", younger}},
		},
		"Allowed": {
			reason: "a user who allows it gets a warning of what it means",
			spec:   spec{CIDR: "10.0.0.0/24", AllowOverlap: true},
			others: []client.Object{pool("q", spec{CIDR: "10.0.0.0/24"})},
			want:   [][]string{{"NetworkPool ns/q has 10.0.0.0/24 too", both}},
		},
		"Itself": {
			reason: "a pool does not overlap with itself",
			spec:   spec{CIDR: "10.0.0.0/24"},
			others: []client.Object{pool("p", spec{CIDR: "10.0.0.0/25"})},
		},
		"Namesakes": {
			reason: "a pool of the same name in another namespace, or of the other kind, is another",
			spec:   spec{CIDR: "10.0.0.0/24"},
			others: []client.Object{global("p", spec{CIDR: "10.0.0.0/26"}), inOtherNamespace(pool("p", spec{CIDR: "10.0.0.0/25"}))},
			want:   [][]string{{"NetworkPool other/p has 10.0.0.0/25 too", younger}, {"GlobalNetworkPool p has 10.0.0.0/26 too", younger}},
		},
		"Broken": {
			reason: "a pool that cannot be served grants nothing",
			spec:   spec{CIDR: "10.0.0.0/24"},
			others: []client.Object{pool("q", spec{CIDR: "10.0.0.0/24", Gateway: "10.9.0.1"})},
		},
		"OtherFamily": {
			reason: "families share nothing",
			spec:   spec{CIDR: "10.0.0.0/24"},
			others: []client.Object{pool("q", spec{CIDR: "fd00::/64"})},
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			v := &PoolValidator[*v1alpha1.NetworkPool]{Holders: &fakeHolderLister{}, PoolReader: stored(t, tc.others...)}
			got, err := v.ValidateCreate(t.Context(), pool("p", tc.spec))
			if err != nil || len(got) != len(tc.want) {
				t.Fatalf("%s: want %d warnings and no refusal, got %v, %v", tc.reason, len(tc.want), got, err)
			}
			for i, parts := range tc.want {
				for _, part := range parts {
					if !strings.Contains(got[i], part) {
						t.Errorf("%s: want %q in %q", tc.reason, part, got[i])
					}
				}
			}
		})
	}
}

// TestOverlapOfGlobal checks that a global pool does not overlap with itself, but with the NetworkPool of its name.
func TestOverlapOfGlobal(t *testing.T) {
	p := global("p", spec{CIDR: "10.0.0.0/24"})
	v := &PoolValidator[*v1alpha1.GlobalNetworkPool]{Holders: &fakeHolderLister{}, PoolReader: stored(t, p, pool("p", spec{CIDR: "10.0.0.0/25"}))}
	got, err := v.ValidateCreate(t.Context(), p)
	if err != nil || len(got) != 1 || !strings.Contains(got[0], "NetworkPool ns/p has 10.0.0.0/25 too") {
		t.Errorf("got %v, %v", got, err)
	}
}

// TestOverlapUnknown checks that an overlap that cannot be checked leads to a warning, and is no reason to reject: the
// allocator checks it again.
func TestOverlapUnknown(t *testing.T) {
	for name, fails := range map[string]func(client.ObjectList) bool{
		"NetworkPools":       func(l client.ObjectList) bool { _, ok := l.(*v1alpha1.NetworkPoolList); return ok },
		"GlobalNetworkPools": func(l client.ObjectList) bool { _, ok := l.(*v1alpha1.GlobalNetworkPoolList); return ok },
	} {
		t.Run(name, func(t *testing.T) {
			all := interceptor.NewClient(stored(t), interceptor.Funcs{
				List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
					if fails(list) {
						return errors.New("no answer")
					}
					return c.List(ctx, list, opts...)
				},
			})
			got, err := (&PoolValidator[*v1alpha1.NetworkPool]{Holders: &fakeHolderLister{}, PoolReader: all}).ValidateCreate(t.Context(), pool("p", spec{CIDR: "10.0.0.0/24"}))
			if err != nil || len(got) != 1 || !strings.Contains(got[0], "could not be checked") || !strings.Contains(got[0], "no answer") {
				t.Errorf("got %v, %v", got, err)
			}
		})
	}
}

func inOtherNamespace(p *v1alpha1.NetworkPool) *v1alpha1.NetworkPool {
	p.Namespace = "other"
	return p
}
