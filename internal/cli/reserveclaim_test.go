package cli

import (
	"testing"

	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/incluster"
)

// Who uses the pools of the in-cluster provider reserves an address of one, as its other claims name it; and is told where a
// claim names one that is not there.
func TestPoolsOfTheInClusterProvider(t *testing.T) {
	s, err := scheme()
	if err != nil {
		t.Fatal(err)
	}
	local, global := incluster.Kinds[0].New(), incluster.Kinds[1].New()
	local.SetNamespace("ns")
	local.SetName("p")
	global.SetName("g")
	from := fake.NewClientBuilder().WithScheme(s).WithObjects(local, global).Build()
	for arg, tc := range map[string]struct{ kind, name, missing string }{
		"inclusterippool/p":        {kind: incluster.IPPool, name: "p"},
		"InClusterIPPools/p":       {kind: incluster.IPPool, name: "p"},
		"globalinclusterippool/g":  {kind: incluster.GlobalIPPool, name: "g"},
		"inclusterippool/none":     {kind: incluster.IPPool, name: "none", missing: "InClusterIPPool ns/none"},
		"GlobalInClusterIPPool/no": {kind: incluster.GlobalIPPool, name: "no", missing: "GlobalInClusterIPPool no"},
	} {
		t.Run(arg, func(t *testing.T) {
			ref, err := (&plugin{}).poolToReserveFrom(t.Context(), from, "ns", arg)
			if (err != nil) != (tc.missing != "") || (err == nil && (ref.Kind != tc.kind || ref.Name != tc.name)) {
				t.Errorf("%+v, %v", ref, err)
			}
			claim := &ipamv1.IPAddressClaim{}
			claim.Namespace = "ns"
			claim.Spec.PoolRef = ipamv1.IPPoolReference{APIGroup: incluster.GroupVersion.Group, Kind: tc.kind, Name: tc.name}
			if missing, err := missingSource(t.Context(), from, claim, false); err != nil || missing != tc.missing {
				t.Errorf("%q is said to be missing, %v", missing, err)
			}
		})
	}
}
