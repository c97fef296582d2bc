package tenancy

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
)

// U75, U76: the load balancer that is shown a block stays, until none is left that it has not let go of.
func TestServingOf(t *testing.T) {
	const metalLB, cilium = v1alpha1.MetalLBLoadBalancer, v1alpha1.CiliumLoadBalancer
	for name, tc := range map[string]struct {
		config string // names it; "-": there is none
		blocks string // each with who is shown it, and whether it is leaving
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
					a.Finalizers = []string{ShownFinalizer(v1alpha1.LoadBalancerType(of))}
				}
				if leaving {
					a.DeletionTimestamp = &metav1.Time{}
					a.Status.Conditions = []metav1.Condition{{Type: v1alpha1.DrainingCondition, Status: metav1.ConditionTrue}}
				}
				blocks = append(blocks, a)
			}
			s := ServingOf(config, blocks)
			if s.By != tc.by || s.Kept() != tc.kept || s.Moving != tc.moving {
				t.Errorf("%+v, kept %t", s, s.Kept())
			}
		})
	}
}
