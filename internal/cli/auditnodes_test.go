package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
)

// forbidden returns the error with which the API server refuses a list of a resource.
func forbidden(group, resource string) error {
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Reason: metav1.StatusReasonForbidden, Details: &metav1.StatusDetails{Group: group, Kind: resource},
	}}
}

func TestAuditOfNodes(t *testing.T) {
	const node = "*v1.NodeList"
	s, err := newScheme()
	if err != nil {
		t.Fatal(err)
	}
	own := &v1alpha1.ClusterCIDR{ObjectMeta: metav1.ObjectMeta{Name: "own"}}
	fleet := &v1alpha1.ClusterCIDR{ObjectMeta: metav1.ObjectMeta{Name: "fleet"}}
	fleet.Spec.ClusterSelector = &metav1.LabelSelector{}
	nodeWithCIDR := func(name, cidr string) client.Object {
		return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)}, Spec: corev1.NodeSpec{PodCIDR: cidr, PodCIDRs: []string{cidr}}}
	}
	a, b, c := nodeWithCIDR("a", "10.0.0.0/24"), nodeWithCIDR("b", "10.0.0.0/25"), nodeWithCIDR("c", "10.0.1.0/24")
	for name, tc := range map[string]struct {
		reason  string
		objects []client.Object
		// refuses maps the Go type of a list to the error that the list returns.
		refuses    map[string]error
		want       auditResult
		wantOutput string
		fails      bool
	}{
		"apart":         {reason: "all is well", objects: []client.Object{own, a, c}, want: auditResult{Nodes: 2}, wantOutput: ", 2 Nodes: nothing is held twice"},
		"one has twice": {reason: "the smaller one", objects: []client.Object{own, a, b, c}, want: auditResult{Nodes: 3, Violations: []string{"the pod CIDR 10.0.0.0/25 is held by the Nodes a, b"}}, wantOutput: "1 violation\n"},
		"not ours":      {reason: "another allocator answers for its own", objects: []client.Object{a, b}, wantOutput: "0 IPAllocations: nothing"},
		"of a fleet":    {reason: "its Nodes are in workload clusters", objects: []client.Object{fleet, a, b}, wantOutput: "0 IPAllocations: nothing"},
		"an old release": {
			reason: "without the kind", objects: []client.Object{a, b}, wantOutput: "0 IPAllocations: nothing",
			refuses: map[string]error{"*v1alpha1.ClusterCIDRList": &meta.NoKindMatchError{}},
		},
		"no right to ClusterCIDRs": {
			reason: "the pools were audited", refuses: map[string]error{"*v1alpha1.ClusterCIDRList": forbidden("butler.butlerlabs.dev", "clustercidrs")},
			want:       auditResult{NodesUnchecked: "you may not list clustercidrs.butler.butlerlabs.dev"},
			wantOutput: "the pod CIDRs of Nodes were not checked: you may not list clustercidrs.butler.butlerlabs.dev\n",
		},
		"no right to Nodes": {
			reason: "the pools were audited", objects: []client.Object{own, a, b}, refuses: map[string]error{node: forbidden("", "nodes")},
			want: auditResult{NodesUnchecked: "you may not list nodes"}, wantOutput: "the pod CIDRs of Nodes were not checked: you may not list nodes\n",
		},
		"no answer": {reason: "it is not known", objects: []client.Object{own}, refuses: map[string]error{node: errors.New("away")}, fails: true},
	} {
		t.Run(name, func(t *testing.T) {
			from := fake.NewClientBuilder().WithScheme(s).WithObjects(tc.objects...).WithInterceptorFuncs(interceptor.Funcs{
				List: func(ctx context.Context, in client.WithWatch, l client.ObjectList, opts ...client.ListOption) error {
					if err := tc.refuses[fmt.Sprintf("%T", l)]; err != nil {
						return err
					}
					return in.List(ctx, l, opts...)
				},
			}).Build()
			var got auditResult
			if err := got.addNodeViolations(t.Context(), from); (err != nil) != tc.fails {
				t.Fatalf("%s: %v", tc.reason, err)
			}
			if d := cmp.Diff(tc.want, got); d != "" {
				t.Errorf("%s (-want +got):\n%s", tc.reason, d)
			}
			if text := (&plugin{}).formatAuditResult(got); !strings.Contains(text, tc.wantOutput) {
				t.Errorf("%s: it says\n%s", tc.reason, text)
			}
		})
	}
}
