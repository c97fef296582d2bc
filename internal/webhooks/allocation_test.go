package webhooks

import (
	"context"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
)

func TestWarnsOfMissingReferences(t *testing.T) {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{v1alpha1.AddToScheme, clusterv1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	there := pool("p", spec{CIDR: "10.0.0.0/24"})
	cluster := &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "prod"}}
	noPool := "NetworkPool ns/p does not exist yet; nothing is allocated before it does"
	noCluster := "Cluster team/prod does not exist yet; addresses are allocated all the same, and kept for it"
	for name, c := range map[string]struct {
		objects []client.Object
		fails   error
		want    []string
	}{
		"both are there": {objects: []client.Object{there, cluster}},
		"no Cluster":     {objects: []client.Object{there}, want: []string{noCluster}},
		"no pool":        {objects: []client.Object{cluster}, want: []string{noPool}},
		"neither":        {want: []string{noPool, noCluster}},
		"unknown":        {fails: errors.New("not in this cache")},
	} {
		t.Run(name, func(t *testing.T) {
			reader := fake.NewClientBuilder().WithScheme(scheme).WithObjects(c.objects...).WithInterceptorFuncs(interceptor.Funcs{
				Get: func(ctx context.Context, w client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
					if c.fails != nil {
						return c.fails
					}
					return w.Get(ctx, key, o, opts...)
				},
			}).Build()
			a := &v1alpha1.IPAllocation{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "a"}}
			a.Spec.PoolRef.Name, a.Spec.TenantClusterRef = "p", v1alpha1.ClusterReference{Namespace: "team", Name: "prod"}
			got, err := (&AllocationValidator{Reader: reader}).ValidateCreate(t.Context(), a)
			if diff := cmp.Diff(c.want, []string(got)); diff != "" || err != nil {
				t.Errorf("%v\n%s", err, diff)
			}
		})
	}
}
