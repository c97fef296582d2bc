package tenancy

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
)

func entry(name string, priority int32) v1alpha1.ProviderPoolReference {
	return v1alpha1.ProviderPoolReference{PoolReference: v1alpha1.PoolReference{Name: name}, Priority: priority}
}

// TestOrderPoolRefs checks that priority decides on the order of pools (B24), not the order of the list (F6).
func TestOrderPoolRefs(t *testing.T) {
	tests := map[string]struct {
		reason string
		refs   []v1alpha1.ProviderPoolReference
		want   string
	}{
		"None":   {reason: "no pools, no order"},
		"Sorted": {reason: "lower goes first", refs: []v1alpha1.ProviderPoolReference{entry("c", 20), entry("a", 0), entry("b", 10)}, want: "abc"},
		"Equal": {reason: "equal ones stay as they are listed",
			refs: []v1alpha1.ProviderPoolReference{entry("z", 1), entry("d", 0), entry("y", 1), entry("c", 0), entry("x", 1), entry("b", 0)}, want: "dcbzyx"},
		"Negative": {reason: "below the default goes before it", refs: []v1alpha1.ProviderPoolReference{entry("b", 0), entry("a", -2147483648), entry("c", 2147483647)}, want: "abc"},
	}
	for name, c := range tests {
		t.Run(name, func(t *testing.T) {
			before, got := slices.Clone(c.refs), ""
			for _, r := range OrderPoolRefs(c.refs) {
				got += r.Name
				if r.Kind != v1alpha1.NetworkPoolKind {
					t.Errorf("%s has kind %q: the default is not stated", r.Name, r.Kind)
				}
			}
			if got != c.want {
				t.Errorf("%s: got %q, want %q", c.reason, got, c.want)
			}
			if diff := cmp.Diff(before, c.refs); diff != "" {
				t.Errorf("the input was changed:\n%s", diff)
			}
		})
	}
}
