package cli

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/incluster"
)

// A claim of a pool of the in-cluster provider is served by the mirror of that pool, where there is one.
func TestServedBy(t *testing.T) {
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	mirror := incluster.Kinds[0].MirrorName("p")
	from := fake.NewClientBuilder().WithScheme(scheme).
		WithObjects(&v1alpha1.NetworkPool{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: mirror}}).Build()
	for name, tc := range map[string]struct {
		group, kind, pool string
		ours              bool
		by                string
	}{
		"NetworkPool":  {v1alpha1.GroupVersion.Group, v1alpha1.NetworkPoolKind, "q", true, "q"},
		"AnotherKind":  {v1alpha1.GroupVersion.Group, "networkpool", "q", false, "q"},
		"AnotherGroup": {"example.com", v1alpha1.NetworkPoolKind, "q", false, "q"},
		"Mirrored":     {incluster.GroupVersion.Group, incluster.IPPool, "p", true, mirror},
		"NotMirrored":  {incluster.GroupVersion.Group, incluster.IPPool, "q", false, "q"},
	} {
		t.Run(name, func(t *testing.T) {
			claim := &ipamv1.IPAddressClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns"}}
			claim.Spec.PoolRef = ipamv1.IPPoolReference{APIGroup: tc.group, Kind: tc.kind, Name: tc.pool}
			ref, ours, err := servedBy(t.Context(), from, claim)
			if err != nil || ours != tc.ours || ref.Name != tc.by {
				t.Errorf("it is served by %s, ours %v, %v", ref.Name, ours, err)
			}
		})
	}
}
