package cilium

import (
	"context"
	"errors"
	"strings"
	"testing"

	"go4.org/netipx"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
)

// newTenantClient returns a fake client, to enumerate the possible responses of a workload cluster. The e2e suite has
// a real one.
func newTenantClient(t *testing.T, fails error, objs ...client.Object) client.WithWatch {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	return fake.NewClientBuilder().WithScheme(scheme).WithObjects(objs...).
		WithIndex(&corev1.Service{}, "spec.type", func(o client.Object) []string {
			s, _ := o.(*corev1.Service)
			return []string{string(s.Spec.Type)}
		}).
		WithInterceptorFuncs(interceptor.Funcs{
			List: func(ctx context.Context, c client.WithWatch, l client.ObjectList, opts ...client.ListOption) error {
				if _, ok := l.(*PoolList); ok && fails != nil {
					return fails
				}
				return c.List(ctx, l, opts...)
			},
		}).Build()
}

func newServiceUsing(address string) client.Object {
	s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web"}, Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer}}
	s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: address}}
	return s
}

// TestCheckReleased checks that a workload cluster has released a range (U71) when Cilium has applied every pool of
// ours as it is, no pool contains the range, and no Service has an address of it.
func TestCheckReleased(t *testing.T) {
	r := netipx.MustParseIPRange("10.0.0.8-10.0.0.9")
	absent := &meta.NoKindMatchError{GroupKind: GroupVersion.WithKind(poolKind).GroupKind()}
	ptr := func(p Pool) client.Object { return &p }
	for name, tc := range map[string]struct {
		objs  []client.Object
		fails error
		why   string // empty: the cluster has released it
		err   string
	}{
		"Nothing":                {},
		"Taken":                  {objs: []client.Object{ptr(pool("default-pool", "10.0.0.1"))}},
		"Emptied":                {objs: []client.Object{ptr(pool("default-pool", ""))}},
		"Shown":                  {objs: []client.Object{ptr(pool("default-pool", "10.0.0.1 10.0.0.9"))}, why: "default-pool still has"},
		"Disabled":               {objs: []client.Object{ptr(pool("block", "10.0.0.8-10.0.0.9", disabled))}, why: "block still has"},
		"By another owner":       {objs: []client.Object{ptr(pool("theirs", "10.0.0.0-10.0.0.255", makeForeign))}, why: "theirs still has"},
		"By a CIDR":              {objs: []client.Object{ptr(pool("theirs", "", makeForeign, func(p *Pool) { p.Spec.Blocks = []Block{{CIDR: "10.0.0.9/24"}} }))}, why: "theirs still has"},
		"By one address":         {objs: []client.Object{ptr(pool("theirs", "", makeForeign, func(p *Pool) { p.Spec.Blocks = []Block{{Start: "10.0.0.9"}} }))}, why: "theirs still has"},
		"Not taken":              {objs: []client.Object{ptr(pool("default-pool", "10.0.0.1", changed))}, why: "not of generation 4"},
		"Never taken":            {objs: []client.Object{ptr(pool("default-pool", "10.0.0.1", func(p *Pool) { p.Status.Conditions = nil }))}, why: "not of generation 3"},
		"Not taken, another":     {objs: []client.Object{ptr(pool("block-1", "10.0.0.1", changed))}, why: "block-1"},
		"Not taken, nor ours":    {objs: []client.Object{ptr(pool("theirs", "10.5.0.1", makeForeign, changed))}},
		"Used":                   {objs: []client.Object{newServiceUsing("10.0.0.9")}, why: "Service ns/web has 10.0.0.9"},
		"Used, kind gone":        {objs: []client.Object{newServiceUsing("10.0.0.9")}, fails: absent, why: "Service ns/web has 10.0.0.9"},
		"Kind gone":              {fails: absent},
		"Unknown":                {fails: errors.New("no leader"), err: "no leader"},
		"Another address is use": {objs: []client.Object{newServiceUsing("10.0.0.7")}},
	} {
		t.Run(name, func(t *testing.T) {
			why, err := checkReleased(t.Context(), newTenantClient(t, tc.fails, tc.objs...), r)
			if (err == nil) != (tc.err == "") || (err != nil && !strings.Contains(err.Error(), tc.err)) {
				t.Errorf("%v", err)
			}
			if (why == "") != (tc.why == "") || !strings.Contains(why, tc.why) {
				t.Errorf("it says %q", why)
			}
		})
	}
}

// TestCheckPoolEmpty checks that a block with a pool of its own is withdrawn (U71) when Cilium assigns no address of it
// any more, and none is in use.
func TestCheckPoolEmpty(t *testing.T) {
	ptr := func(p Pool) client.Object { return &p }
	for name, tc := range map[string]struct {
		objs []client.Object
		why  string
	}{
		"gone":               {},
		"enabled":            {objs: []client.Object{ptr(pool("b", "10.0.0.9"))}, why: "still serves new Services"},
		"disabled, not seen": {objs: []client.Object{ptr(pool("b", "10.0.0.9", disabled, changed))}, why: "not of generation 4"},
		"disabled, used":     {objs: []client.Object{ptr(pool("b", "10.0.0.9", disabled)), newServiceUsing("10.0.0.9")}, why: "Service ns/web"},
		"disabled":           {objs: []client.Object{ptr(pool("b", "10.0.0.9", disabled))}},
	} {
		t.Run(name, func(t *testing.T) {
			why, err := checkPoolEmpty(t.Context(), newTenantClient(t, nil, tc.objs...), "b", netipx.MustParseIPRange("10.0.0.9-10.0.0.9"))
			if err != nil || (why == "") != (tc.why == "") || !strings.Contains(why, tc.why) {
				t.Errorf("it says %q, %v", why, err)
			}
		})
	}
}
