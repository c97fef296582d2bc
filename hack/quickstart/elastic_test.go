package main

import (
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
)

// TestBlocksArePrintedAfterTheirConditions checks that blocks are printed only after their conditions are set: a block
// is granted before its condition InUse is, and was printed without it.
func TestBlocksArePrintedAfterTheirConditions(t *testing.T) {
	block := func(role string, holds ...string) v1alpha1.IPAllocation {
		a := v1alpha1.IPAllocation{}
		a.Labels = map[string]string{v1alpha1.AllocationRoleLabel: role}
		a.Status.Phase = v1alpha1.AllocationAllocated
		for _, condition := range append(holds, v1alpha1.ReadyCondition) {
			meta.SetStatusCondition(&a.Status.Conditions, metav1.Condition{Type: condition, Status: metav1.ConditionTrue, Reason: "Test"})
		}
		return a
	}
	first := block(v1alpha1.InitialRole, v1alpha1.DemandSatisfiedCondition)
	for name, c := range map[string]struct {
		blocks []v1alpha1.IPAllocation
		want   bool
	}{
		"all said":               {[]v1alpha1.IPAllocation{first, block(v1alpha1.GrowthRole, v1alpha1.InUseCondition)}, true},
		"granted, not in use":    {[]v1alpha1.IPAllocation{first, block(v1alpha1.GrowthRole, v1alpha1.InUseCondition), block(v1alpha1.GrowthRole)}, false},
		"in use, demand unknown": {[]v1alpha1.IPAllocation{block(v1alpha1.InitialRole), block(v1alpha1.GrowthRole, v1alpha1.InUseCondition)}, false},
		"none yet":               {nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			if got := areBlocksInUse(c.blocks); got != c.want {
				t.Errorf("shown: %t, want %t", got, c.want)
			}
		})
	}
}
