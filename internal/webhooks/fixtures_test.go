package webhooks

import (
	"context"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/poolspec"
)

type spec = v1alpha1.NetworkPoolSpec

// stored returns an API server that has the objects. A fake client is enough: it is only listed, and the tests check
// what the webhooks make of the list.
func stored(t *testing.T, objects ...client.Object) client.WithWatch {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{v1alpha1.AddToScheme, ipamv1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	return fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).Build()
}

// pool returns the NetworkPool ns/name.
func pool(name string, s spec) *v1alpha1.NetworkPool {
	return &v1alpha1.NetworkPool{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}, Spec: s}
}

func global(name string, s spec) *v1alpha1.GlobalNetworkPool {
	return &v1alpha1.GlobalNetworkPool{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       v1alpha1.GlobalNetworkPoolSpec{NetworkPoolSpec: s},
	}
}

// fakeHolderLister returns fixed holders, and records the pools that it was called for.
type fakeHolderLister struct {
	holders []poolspec.Holder
	err     error
	asked   []v1alpha1.Pool
}

func (u *fakeHolderLister) ListHolders(_ context.Context, pool v1alpha1.Pool) ([]poolspec.Holder, error) {
	u.asked = append(u.asked, pool)
	return u.holders, u.err
}
