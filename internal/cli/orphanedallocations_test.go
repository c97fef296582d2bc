package cli

import (
	"context"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

// TestAuditNamesBlocksThatOutlive checks that the audit names a block whose Cluster or carved pool is gone, and was
// paused when it was last seen: no manager deletes such a block.
func TestAuditNamesBlocksThatOutlive(t *testing.T) {
	cluster := func(namespace, name string) client.Object {
		return &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	}
	child := func(parent string) v1alpha1.Pool {
		p := framework.MakePool("c").Namespace("ns").Obj()
		p.Spec = v1alpha1.NetworkPoolSpec{Carve: &v1alpha1.Carve{PoolRef: v1alpha1.PoolReference{Name: parent}, PrefixLength: 30}}
		return p
	}
	block := func(seen metav1.ConditionStatus, edits ...func(*v1alpha1.IPAllocation)) v1alpha1.IPAllocation {
		a := framework.MakeAllocation("ns", "b").Obj()
		a.Annotations = map[string]string{v1alpha1.AddressAnnotation: "10.0.0.4/30"}
		a.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ClusterSeenCondition, Status: seen}}
		for _, edit := range edits {
			edit(a)
		}
		return *a
	}
	of := func(namespace string) func(*v1alpha1.IPAllocation) {
		return func(a *v1alpha1.IPAllocation) { a.Spec.TenantClusterRef.Namespace = namespace }
	}
	ofPool := func(a *v1alpha1.IPAllocation) {
		a.Spec.Type, a.Spec.TenantClusterRef = v1alpha1.PoolAllocation, v1alpha1.ClusterReference{}
		a.Spec.ChildPoolRef = &v1alpha1.PoolReference{Name: "c"}
		a.Status.Conditions[0].Type = v1alpha1.PoolSeenCondition
	}
	ending := func(a *v1alpha1.IPAllocation) { a.DeletionTimestamp = &metav1.Time{} }
	const (
		allocated      = "IPAllocation ns/b has 10.0.0.4/30 of NetworkPool ns/p, and "
		moved          = " was paused when that was last seen, as clusterctl pauses what it moves; "
		resume         = "if clusterctl moves the namespace, resume the move; else delete the allocation"
		ofIts          = allocated + "Cluster ns/tenant does not exist: it stays, as the Cluster" + moved + resume
		carved         = allocated + "no NetworkPool ns/c is carved from that: it stays, as a Cluster of namespace ns" + moved + resume
		otherNamespace = allocated + "Cluster team/tenant does not exist: it stays, as the Cluster" + moved +
			"if the Cluster uses these addresses in another management cluster, leave the allocation: the move of namespace team does not take it along; else delete the allocation"
	)
	tests := map[string]struct {
		reason   string
		block    v1alpha1.IPAllocation
		pools    []v1alpha1.Pool
		clusters []client.Object
		// hidden reports that the user may not list Clusters.
		hidden bool
		want   []string
		// helps follows the advice of the audit, after which the finding is gone (W29).
		helps func(o *pools.Objects)
	}{
		"Paused": {reason: "its Cluster is there", block: block(metav1.ConditionUnknown), clusters: []client.Object{cluster("ns", "tenant")}},
		"Gone": {
			reason: "no manager deletes it", block: block(metav1.ConditionUnknown), clusters: []client.Object{cluster("ns", "other"), cluster("team", "tenant")}, want: []string{ofIts},
			helps: func(o *pools.Objects) { o.Allocations = nil },
		},
		"Elsewhere":  {reason: "the move does not take it along", block: block(metav1.ConditionUnknown, of("team")), clusters: []client.Object{cluster("ns", "tenant")}, want: []string{otherNamespace}},
		"Seen":       {reason: "the manager deletes it", block: block(metav1.ConditionTrue)},
		"Before":     {reason: "its Cluster may come", block: block(metav1.ConditionFalse)},
		"Deleted":    {reason: "it is on its way", block: block(metav1.ConditionUnknown, ending)},
		"Empty":      {reason: "it keeps nothing", block: block(metav1.ConditionUnknown, func(a *v1alpha1.IPAllocation) { a.Annotations = nil })},
		"Hidden":     {reason: "it is not known, and that is said", block: block(metav1.ConditionUnknown), hidden: true},
		"Carved":     {reason: "its pool is there", block: block(metav1.ConditionUnknown, ofPool), pools: []v1alpha1.Pool{child("p")}},
		"PoolGone":   {reason: "no manager deletes it, and no Cluster has to be read", block: block(metav1.ConditionUnknown, ofPool), hidden: true, want: []string{carved}},
		"PoolOfElse": {reason: "a pool of its name that is carved from another one", block: block(metav1.ConditionUnknown, ofPool), pools: []v1alpha1.Pool{child("q")}, want: []string{carved}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			s, err := newScheme()
			if err != nil {
				t.Fatal(err)
			}
			from := fake.NewClientBuilder().WithScheme(s).WithObjects(tc.clusters...).WithInterceptorFuncs(interceptor.Funcs{
				List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
					if tc.hidden {
						return apierrors.NewForbidden(clusterv1.GroupVersion.WithResource("clusters").GroupResource(), "", nil)
					}
					return c.List(ctx, list, opts...)
				},
			}).Build()
			o := pools.Objects{Pools: tc.pools, Allocations: []v1alpha1.IPAllocation{tc.block}}
			found := func() auditResult {
				answer := auditResult{}
				if err := answer.addOrphanedAllocations(t.Context(), from, o); err != nil {
					t.Fatal(err)
				}
				return answer
			}
			got := found()
			if diff := cmp.Diff(tc.want, got.Unsettled); diff != "" {
				t.Errorf("%s (-want +got):\n%s", tc.reason, diff)
			}
			text := (&plugin{}).formatAuditResult(got)
			if hidden := strings.Contains(text, "was not checked"); hidden != tc.hidden {
				t.Errorf("what may not be read:\n%s", text)
			}
			if tc.helps == nil {
				return
			}
			if got.isClean(true) || !got.isClean(false) {
				t.Error("it counts only with --strict")
			}
			if tc.helps(&o); len(found().Unsettled) > 0 {
				t.Errorf("after what it says to do: %v", found().Unsettled)
			}
		})
	}
}
