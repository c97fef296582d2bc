package tenancy

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
)

// TestChooseLoadBalancer checks that the load balancer that blocks are projected to stays active until it has released
// all of them (U75), and that the Cluster then moves to the other one (U76).
func TestChooseLoadBalancer(t *testing.T) {
	const metalLB, cilium = v1alpha1.MetalLBLoadBalancer, v1alpha1.CiliumLoadBalancer
	for name, tc := range map[string]struct {
		config string // the configured one; "-": there is no ProviderConfig
		blocks string // each with the load balancer it is projected to, and whether it is being withdrawn
		by     v1alpha1.LoadBalancerType
		kept   bool
		moving bool
	}{
		"the default":          {by: metalLB},
		"named":                {config: "Cilium", by: cilium},
		"not shown yet":        {config: "Cilium", blocks: "?", by: cilium},
		"shown":                {config: "Cilium", blocks: "Cilium, ?", by: cilium},
		"another is shown":     {config: "Cilium", blocks: "MetalLB, ?", by: metalLB, kept: true},
		"and back":             {blocks: "Cilium", by: cilium, kept: true},
		"some are leaving":     {config: "Cilium", blocks: "MetalLB-, MetalLB", by: metalLB, kept: true},
		"all are leaving":      {config: "Cilium", blocks: "MetalLB-, MetalLB-", by: metalLB, moving: true},
		"all, and one is new":  {config: "Cilium", blocks: "?, MetalLB-", by: metalLB, moving: true},
		"leaving, and no move": {config: "Cilium", blocks: "Cilium-, ?", by: cilium},
		"gets nothing new":     {config: "-", blocks: "Cilium", by: cilium},
		"nothing new, leaving": {config: "-", blocks: "Cilium-", by: cilium},
		"by hand, of two":      {config: "Cilium", blocks: "Cilium-, MetalLB", by: metalLB, kept: true},
	} {
		t.Run(name, func(t *testing.T) {
			var config *v1alpha1.ProviderConfig
			if tc.config != "-" {
				lb := &v1alpha1.LoadBalancerPool{Type: v1alpha1.LoadBalancerType(tc.config)}
				config = &v1alpha1.ProviderConfig{Spec: v1alpha1.ProviderConfigSpec{Network: &v1alpha1.ProviderNetwork{LoadBalancer: lb}}}
			}
			var blocks []*v1alpha1.IPAllocation
			for _, text := range strings.FieldsFunc(tc.blocks, func(r rune) bool { return r == ',' || r == ' ' }) {
				a := &v1alpha1.IPAllocation{}
				of, leaving := strings.CutSuffix(text, "-")
				if of != "?" {
					a.Finalizers = []string{ProjectionFinalizer(v1alpha1.LoadBalancerType(of))}
				}
				if leaving {
					a.DeletionTimestamp = &metav1.Time{}
					a.Status.Conditions = []metav1.Condition{{Type: v1alpha1.DrainingCondition, Status: metav1.ConditionTrue}}
				}
				blocks = append(blocks, a)
			}
			s := ChooseLoadBalancer(config, blocks)
			if s.Active != tc.by || s.KeepsPrevious() != tc.kept || s.Switching != tc.moving {
				t.Errorf("%+v, kept %t", s, s.KeepsPrevious())
			}
		})
	}
}
