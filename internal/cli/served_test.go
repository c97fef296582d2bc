package cli

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/incluster"
)

// TestResolveServingPool checks that a claim of a pool of the in-cluster provider is served by the mirror of that pool,
// where there is one.
func TestResolveServingPool(t *testing.T) {
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	mirror := incluster.PoolKinds[0].MirrorName("p")
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
		"Mirrored":     {incluster.GroupVersion.Group, incluster.IPPoolKind, "p", true, mirror},
		"NotMirrored":  {incluster.GroupVersion.Group, incluster.IPPoolKind, "q", false, "q"},
	} {
		t.Run(name, func(t *testing.T) {
			claim := &ipamv1.IPAddressClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns"}}
			claim.Spec.PoolRef = ipamv1.IPPoolReference{APIGroup: tc.group, Kind: tc.kind, Name: tc.pool}
			ref, ours, err := resolveServingPool(t.Context(), from, claim)
			if err != nil || ours != tc.ours || ref.Name != tc.by {
				t.Errorf("it is served by %s, ours %v, %v", ref.Name, ours, err)
			}
		})
	}
}

// TestDropInWithoutRights checks that `drop-in` still answers for a user who may not list Deployments, or the pools of
// all namespaces.
func TestDropInWithoutRights(t *testing.T) {
	s, err := newScheme()
	if err != nil {
		t.Fatal(err)
	}
	old := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "x", Name: "old", Labels: map[string]string{"cluster.x-k8s.io/provider": "ipam-in-cluster"}}}
	for name, tc := range map[string]struct{ list, group, resource, wantOutput string }{
		"to Deployments": {"*v1.DeploymentList", "apps", "deployments", "note: whether the in-cluster provider runs is not known: "},
		"to pools":       {"*v1alpha1.NetworkPoolList", v1alpha1.GroupVersion.Group, "networkpools", "note: the in-cluster provider runs (deployment -n x old); before you swap: kubectl scale deployment -n x old --replicas=0\n"},
	} {
		t.Run(name, func(t *testing.T) {
			from := fake.NewClientBuilder().WithScheme(s).WithObjects(old.DeepCopy()).WithInterceptorFuncs(interceptor.Funcs{
				List: func(ctx context.Context, in client.WithWatch, l client.ObjectList, opts ...client.ListOption) error {
					if fmt.Sprintf("%T", l) == tc.list {
						return forbidden(tc.group, tc.resource)
					}
					return in.List(ctx, l, opts...)
				},
			}).Build()
			var output bytes.Buffer
			p := &plugin{Env: EnvFromStreams(strings.NewReader(""), &output, &output, time.Now)}
			if both, err := p.warnInClusterRunning(t.Context(), from); both || err != nil || !strings.HasPrefix(output.String(), tc.wantOutput) {
				t.Errorf("%t, %v: it says %q", both, err, output.String())
			}
		})
	}
}
