package controllers

import (
	"context"
	"errors"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
)

// TestManagementCluster checks that a manager that may not read the identity of its cluster serves all the same, and
// that one that cannot read it now does not start.
func TestManagementCluster(t *testing.T) { // C52
	forbidden := apierrors.NewForbidden(corev1.Resource("namespaces"), metav1.NamespaceSystem, errors.New("no right"))
	for name, c := range map[string]struct {
		there bool
		err   error
		want  string
		fails bool
	}{
		"known":                 {there: true, want: "here"},
		"it may not be read":    {there: true, err: forbidden},
		"there is none":         {},
		"it cannot be read now": {there: true, err: apierrors.NewServiceUnavailable("later"), fails: true},
	} {
		t.Run(name, func(t *testing.T) {
			b := fake.NewClientBuilder()
			if c.there {
				b.WithObjects(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: metav1.NamespaceSystem, UID: "here"}})
			}
			b.WithInterceptorFuncs(interceptor.Funcs{
				Get: func(ctx context.Context, of client.WithWatch, key client.ObjectKey, obj client.Object, o ...client.GetOption) error {
					if c.err != nil {
						return c.err
					}
					return of.Get(ctx, key, obj, o...)
				},
			})
			got, err := managementClusterUID(t.Context(), b.Build())
			if got != c.want || (err != nil) != c.fails {
				t.Errorf("%q %v, not %q", got, err, c.want)
			}
		})
	}
}
