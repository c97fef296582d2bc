package migrate

import (
	"context"
	"errors"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"
)

// fakeOf returns a fake client. It calls before once, before the first deletion.
func fakeOf(t *testing.T, before func(context.Context, client.Client) error, objs ...client.Object) client.Client {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{v1alpha1.AddToScheme, corev1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	done := false
	return fake.NewClientBuilder().WithScheme(scheme).WithObjects(objs...).WithInterceptorFuncs(interceptor.Funcs{
		Delete: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.DeleteOption) error {
			if !done {
				done = true
				if err := before(ctx, c); err != nil {
					return err
				}
			}
			return c.Delete(ctx, o, opts...)
		},
	}).Build()
}

// TestPoolIsDeletedAtReadVersion checks that a pool is deleted at the version that was read (R3): after a write of its
// manager it is read again, and a pool that was unpaused, and may have granted an address, is not deleted.
func TestPoolIsDeletedAtReadVersion(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*v1alpha1.NetworkPool)
		stays  bool
	}{
		"written by its manager":        {change: func(p *v1alpha1.NetworkPool) { p.Finalizers = append(p.Finalizers, v1alpha1.PoolFinalizer) }},
		"unpaused by a user":            {change: func(p *v1alpha1.NetworkPool) { p.Annotations = nil }, stays: true},
		"granting something, meanwhile": {change: func(p *v1alpha1.NetworkPool) { p.Status.Allocator = inFlight() }, stays: true},
	} {
		t.Run(name, func(t *testing.T) {
			pool := &v1alpha1.NetworkPool{ObjectMeta: metav1.ObjectMeta{
				Namespace: "ns", Name: "p", UID: "u", Annotations: map[string]string{clusterv1.PausedAnnotation: ""}, Finalizers: []string{"example.com/other"},
			}}
			key := pools.KeyForPool(pool)
			c := fakeOf(t, func(ctx context.Context, c client.Client) error {
				current := &v1alpha1.NetworkPool{}
				if err := c.Get(ctx, client.ObjectKeyFromObject(pool), current); err != nil {
					return err
				}
				tc.change(current)
				return c.Update(ctx, current)
			}, pool)
			m := &Import{Client: c, Reportf: func(string, ...any) {}}
			err := m.deleteTargetPool(t.Context(), key, pool)
			if (err != nil) != tc.stays || tc.stays && !strings.Contains(err.Error(), "run the same command again") {
				t.Errorf("it says %v", err)
			}
			if err := c.Get(t.Context(), client.ObjectKeyFromObject(pool), pool); apierrors.IsNotFound(err) == tc.stays {
				t.Errorf("it is there: %v", err)
			}
		})
	}
}

func inFlight() *v1alpha1.AllocatorStatus {
	return &v1alpha1.AllocatorStatus{Holder: "other", InFlight: []v1alpha1.Grant{{}}}
}

// TestJournalOfAnotherRunIsKept checks that a journal is deleted at the version that this run knows, and not after
// another run wrote it.
func TestJournalOfAnotherRunIsKept(t *testing.T) {
	for name, written := range map[string]bool{"as it was": false, "written since": true} {
		t.Run(name, func(t *testing.T) {
			s := journalStore{namespace: "ns", source: Source{Metal3IPPoolKind, "ns", "p"}}
			head, part := s.newConfigMap(""), s.newConfigMap("-0")
			head.UID, part.UID = "head", "part"
			s.client = fakeOf(t, func(ctx context.Context, c client.Client) error {
				journal := s.newConfigMap("")
				if err := c.Get(ctx, client.ObjectKeyFromObject(journal), journal); err != nil || !written {
					return err
				}
				journal.Data = map[string]string{"other": "run"}
				return c.Update(ctx, journal)
			}, head, part)
			j := &journal{PartCount: 2, head: s.newConfigMap("")}
			if err := s.client.Get(t.Context(), client.ObjectKeyFromObject(head), j.head); err != nil {
				t.Fatal(err)
			}
			err := s.deleteJournal(t.Context(), j)
			if written != errors.Is(err, errConcurrentRun) || !written && err != nil {
				t.Errorf("it says %v", err)
			}
			for o, stays := range map[client.Object]bool{head: written, part: false} {
				if err := s.client.Get(t.Context(), client.ObjectKeyFromObject(o), o); apierrors.IsNotFound(err) == stays {
					t.Errorf("%s is there: %v", o.GetName(), err)
				}
			}
		})
	}
}
