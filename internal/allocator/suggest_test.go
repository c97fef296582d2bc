package allocator

import (
	"testing"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"
)

// TestSuggestPoolName checks that the refusal of a claim whose pool does not exist names the pool that its author may
// have meant.
func TestSuggestPoolName(t *testing.T) {
	namespaced := func(ns, name string) pools.Key {
		return pools.Key{Kind: v1alpha1.NetworkPoolKind, Namespace: ns, Name: name}
	}
	global := func(name string) pools.Key { return pools.Key{Kind: v1alpha1.GlobalNetworkPoolKind, Name: name} }
	o := &overlapIndex{specs: map[pools.Key]poolDeclaration{}}
	for _, key := range []pools.Key{namespaced("a", "machines"), namespaced("a", "machinez"), namespaced("b", "other"), global("shared"), global("x1")} {
		o.specs[key] = poolDeclaration{uid: "u"}
	}
	for name, tc := range map[string]struct {
		missing      pools.Key
		want, reason string
	}{
		"a slip":             {missing: namespaced("a", "machine"), want: " (did you mean NetworkPool a/machines?)"},
		"the nearer of two":  {missing: namespaced("a", "machinezz"), want: " (did you mean NetworkPool a/machinez?)"},
		"the other kind":     {missing: namespaced("a", "shared"), want: " (did you mean GlobalNetworkPool shared?)"},
		"another namespace":  {missing: namespaced("a", "other"), want: " (another namespace has a pool of that name; only a GlobalNetworkPool is for all namespaces)", reason: "whose it is, is not said"},
		"a slip elsewhere":   {missing: namespaced("a", "othr"), reason: "names of other tenants are not guessed"},
		"a global one":       {missing: global("machines"), reason: "in which namespace the object is, is not known"},
		"nothing like it":    {missing: namespaced("a", "storage")},
		"names of two signs": {missing: namespaced("a", "x2"), reason: "all short names are near"},
	} {
		t.Run(name, func(t *testing.T) {
			if got := o.suggestPoolName(tc.missing); got != tc.want {
				t.Errorf("%q, not %q: %s", got, tc.want, tc.reason)
			}
		})
	}
}
