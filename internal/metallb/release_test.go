package metallb

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	metallbv1beta1 "go.universe.tf/metallb/api/v1beta1"
	"go4.org/netipx"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/elastic"
)

// tenant returns a fake client, to enumerate the possible responses of a workload cluster. The e2e suite has a real
// one.
func tenant(t *testing.T, installed bool, objs ...client.Object) client.WithWatch {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, metallbv1beta1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	absent := func(o runtime.Object) error {
		kinds, _, err := scheme.ObjectKinds(o)
		if err == nil && !installed && kinds[0].Group == metallbv1beta1.GroupVersion.Group {
			return &meta.NoKindMatchError{GroupKind: kinds[0].GroupKind(), SearchedVersions: []string{kinds[0].Version}}
		}
		return err
	}
	return fake.NewClientBuilder().WithScheme(scheme).WithObjects(objs...).
		WithIndex(&corev1.Service{}, "spec.type", func(o client.Object) []string {
			s, _ := o.(*corev1.Service)
			return []string{string(s.Spec.Type)}
		}).
		WithInterceptorFuncs(interceptor.Funcs{
			Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
				if err := absent(o); err != nil {
					return err
				}
				return c.Get(ctx, key, o, opts...)
			},
			List: func(ctx context.Context, c client.WithWatch, l client.ObjectList, opts ...client.ListOption) error {
				if err := absent(l); err != nil {
					return err
				}
				return c.List(ctx, l, opts...)
			},
		}).Build()
}

func newServiceUsing(address string) *corev1.Service {
	return service(func(s *corev1.Service) {
		s.Spec.Type = corev1.ServiceTypeLoadBalancer
		s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: address}}
	})
}

func TestCheckReleased(t *testing.T) { // F2 (free when MetalLB has released it), B57 (a silent cluster is asked again)
	r := netipx.MustParseIPRange("10.0.0.8-10.0.0.9")
	rest := func(counts int64) *metallbv1beta1.IPAddressPool {
		p := ipPool("10.0.0.1-10.0.0.2")
		p.Status.AvailableIPv4 = counts
		return p
	}
	careful := func(counts int64) *metallbv1beta1.IPAddressPool {
		p := rest(counts)
		p.Spec.AvoidBuggyIPs, p.Spec.Addresses = true, []string{"10.0.0.0-10.0.0.3"}
		return p
	}
	written := func(addresses string) *metallbv1beta1.IPAddressPool {
		p := ipPool(addresses)
		p.Name, p.Labels = "theirs", nil
		return p
	}
	state := func(valid metav1.ConditionStatus) *metallbv1beta1.ConfigurationState {
		s := &metallbv1beta1.ConfigurationState{ObjectMeta: metav1.ObjectMeta{Namespace: Namespace, Name: "controller"}}
		s.Status.Conditions = []metav1.Condition{{Type: "poolReconcilerValid", Status: valid, Message: "overlaps"}}
		return s
	}
	tests := map[string]struct {
		reason string
		absent bool
		objs   []client.Object
		want   string
	}{
		"Gone":       {reason: "shown nowhere, counted nowhere, used by no Service", objs: []client.Object{rest(2), state(metav1.ConditionTrue), newServiceUsing("10.0.0.1")}},
		"Shown":      {reason: "a pool has some of it, whichever its owner", objs: []client.Object{rest(2), func() client.Object { p := ipPool("10.0.0.9/32"); p.Name, p.Labels = "other", nil; return p }()}, want: "IPAddressPool other still has 10.0.0.8/31"},
		"Used":       {reason: "a Service has an address of it", objs: []client.Object{rest(2), newServiceUsing("10.0.0.9")}, want: "Service ns/web has 10.0.0.9"},
		"NotTaken":   {reason: "MetalLB works with the pool as it was", objs: []client.Object{rest(4), state(metav1.ConditionTrue)}, want: "has not applied the change"},
		"Careful":    {reason: "what it leaves out is not counted (avoidBuggyIPs)", objs: []client.Object{careful(3), state(metav1.ConditionTrue)}},
		"Carefully":  {reason: "it works with the pool as it was, without what it leaves out", objs: []client.Object{careful(5), state(metav1.ConditionTrue)}, want: "has not applied the change"},
		"Spaced":     {reason: "MetalLB reads it so", objs: []client.Object{rest(2), written("10.0.0.7 - 10.0.0.8")}, want: "IPAddressPool theirs still has"},
		"Unread":     {reason: "it may be in what cannot be read", objs: []client.Object{rest(2), written("10.0.0.8")}, want: "which is not a range"},
		"Refused":    {reason: "and would go on with it", objs: []client.Object{rest(2), state(metav1.ConditionFalse)}, want: "refuses its configuration, and keeps an older one: overlaps"},
		"LastPool":   {reason: "there is no pool any more", objs: []client.Object{state(metav1.ConditionTrue)}},
		"Old":        {reason: "a release without ConfigurationState", objs: []client.Object{rest(2)}},
		"NoMetalLB":  {reason: "no Service could take it", absent: true},
		"StillThere": {reason: "but a Service that has it still", absent: true, objs: []client.Object{newServiceUsing("10.0.0.8")}, want: "Service ns/web has 10.0.0.8"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			why, err := CheckReleased(t.Context(), tenant(t, !tc.absent, tc.objs...), r)
			if err != nil || (tc.want == "") != (why == "") || !strings.Contains(why, tc.want) {
				t.Errorf("%s: got %q, %v; want %q", tc.reason, why, err, tc.want)
			}
		})
	}
}

// TestRemainingRangeMessage checks that the message states that MetalLB may count as many addresses without the range
// with avoidBuggyIPs, and that the step it names helps: without avoidBuggyIPs the count shows that the range is gone.
func TestRemainingRangeMessage(t *testing.T) {
	stays, none := "10.0.0.4-10.0.0.6", "10.0.0.255-10.0.1.1" // counts as -1, -1 and 2 of 2
	noneRange := netipx.MustParseIPRange(none)
	for name, c := range map[string]struct {
		addresses []string
		careful   bool
		labels    map[string]string
		counted   int64
		explains  bool
	}{
		"no count shows it":                {addresses: []string{stays, none}, careful: true, counted: 3, explains: true},
		"the last change is not counted":   {addresses: []string{stays, none}, careful: true, counted: 5},
		"MetalLB counts all":               {addresses: []string{stays, none}, counted: 6},
		"it is all that the pool has":      {addresses: []string{none}, careful: true},
		"the pool of another writer":       {addresses: []string{stays, none}, careful: true, labels: map[string]string{}, counted: 3},
		"the count shows it":               {addresses: []string{stays, "10.0.0.250-10.0.1.1"}, careful: true, counted: 8},
		"another one goes before, by then": {addresses: []string{stays, none, "10.0.1.2-10.0.1.2", "10.0.2.255-10.0.2.255"}, careful: true, counted: 3, explains: true},
	} {
		p := ipPool(c.addresses...)
		if c.labels != nil {
			p.Name, p.Labels = "theirs", c.labels
		}
		p.Spec.AvoidBuggyIPs, p.Status.AvailableIPv4 = c.careful, c.counted
		why, err := CheckReleased(t.Context(), tenant(t, true, p), noneRange)
		if err != nil || !strings.HasPrefix(why, "IPAddressPool "+p.Name+" still has 10.0.0.255-10.0.1.1") {
			t.Errorf("%s: got %q, %v", name, why, err)
		}
		if got := strings.Contains(why, "set avoidBuggyIPs of that IPAddressPool to false"); got != c.explains {
			t.Errorf("%s: it says %q", name, why)
		}
		left := slices.DeleteFunc(slices.Clone(c.addresses), func(text string) bool { return text == none })
		if !c.explains {
			continue
		}
		if _, waits, err := nextCountableAddresses(t.Context(), tenant(t, true), p, left); !waits || err != nil {
			t.Errorf("%s: it is taken away (%v)", name, err)
		}
		p.Spec.AvoidBuggyIPs = false
		n, _ := expectedCount(c.addresses, false)
		p.Status.AvailableIPv4 = n[elastic.IPv4]
		if to, waits, err := nextCountableAddresses(t.Context(), tenant(t, true), p, left); waits || err != nil || !slices.Equal(to, left) {
			t.Errorf("%s: without avoidBuggyIPs it is to have %v, waits=%t, %v", name, to, waits, err)
		}
	}
}

// TestCheckReleasedReadsAll checks that an error is no proof: a failed read keeps the block.
func TestCheckReleasedReadsAll(t *testing.T) {
	r := netipx.MustParseIPRange("10.0.0.8-10.0.0.9")
	for _, kind := range []string{"IPAddressPoolList", "ServiceList", "ConfigurationState"} {
		broken := errors.New("no answer")
		c := interceptor.NewClient(tenant(t, true), interceptor.Funcs{
			Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
				if strings.HasSuffix(fmt.Sprintf("%T", o), kind) {
					return broken
				}
				return c.Get(ctx, key, o, opts...)
			},
			List: func(ctx context.Context, c client.WithWatch, l client.ObjectList, opts ...client.ListOption) error {
				if strings.HasSuffix(fmt.Sprintf("%T", l), kind) {
					return broken
				}
				return c.List(ctx, l, opts...)
			},
		})
		if why, err := CheckReleased(t.Context(), c, r); !errors.Is(err, broken) {
			t.Errorf("%s cannot be read, and it says %q, %v", kind, why, err)
		}
	}
}
