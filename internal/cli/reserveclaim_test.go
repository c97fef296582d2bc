package cli

import (
	"testing"

	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/incluster"
)

// TestPoolsOfTheInClusterProvider checks that `reserve` accepts a pool of the in-cluster provider, with the reference
// that other claims use, and that a claim of a pool that does not exist is reported.
func TestPoolsOfTheInClusterProvider(t *testing.T) {
	s, err := newScheme()
	if err != nil {
		t.Fatal(err)
	}
	local, global := incluster.PoolKinds[0].NewPool(), incluster.PoolKinds[1].NewPool()
	local.SetNamespace("ns")
	local.SetName("p")
	global.SetName("g")
	from := fake.NewClientBuilder().WithScheme(s).WithObjects(local, global).Build()
	for arg, tc := range map[string]struct{ kind, name, missing string }{
		"inclusterippool/p":        {kind: incluster.IPPoolKind, name: "p"},
		"InClusterIPPools/p":       {kind: incluster.IPPoolKind, name: "p"},
		"globalinclusterippool/g":  {kind: incluster.GlobalIPPoolKind, name: "g"},
		"inclusterippool/none":     {kind: incluster.IPPoolKind, name: "none", missing: "InClusterIPPool ns/none"},
		"GlobalInClusterIPPool/no": {kind: incluster.GlobalIPPoolKind, name: "no", missing: "GlobalInClusterIPPool no"},
	} {
		t.Run(arg, func(t *testing.T) {
			ref, err := (&plugin{}).resolvePoolRef(t.Context(), from, "ns", arg)
			if (err != nil) != (tc.missing != "") || (err == nil && (ref.Kind != tc.kind || ref.Name != tc.name)) {
				t.Errorf("%+v, %v", ref, err)
			}
			claim := &ipamv1.IPAddressClaim{}
			claim.Namespace = "ns"
			claim.Spec.PoolRef = ipamv1.IPPoolReference{APIGroup: incluster.GroupVersion.Group, Kind: tc.kind, Name: tc.name}
			if missing, err := missingInClusterPool(t.Context(), from, claim, false); err != nil || missing != tc.missing {
				t.Errorf("%q is said to be missing, %v", missing, err)
			}
		})
	}
}
