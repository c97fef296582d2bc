package tenancy

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
)

func TestNewPool(t *testing.T) {
	home := Namespace{Name: "home", Labels: map[string]string{"stage": "prod"}}
	ready := func(status metav1.ConditionStatus, reason string) v1alpha1.NetworkPoolStatus {
		return v1alpha1.NetworkPoolStatus{AvailableIPs: 9, LargestFreeBlock: 4, Conditions: []metav1.Condition{
			{Type: v1alpha1.ReadyCondition, Status: status, Reason: reason, Message: "why"}}}
	}
	open := ready(metav1.ConditionTrue, v1alpha1.ReadyReason)
	global := func(selector *metav1.LabelSelector) v1alpha1.Pool {
		return &v1alpha1.GlobalNetworkPool{Spec: v1alpha1.GlobalNetworkPoolSpec{NamespaceSelector: selector}, Status: open}
	}
	deleted := metav1.ObjectMeta{DeletionTimestamp: &metav1.Time{Time: time.Unix(1, 0)}}
	tests := map[string]struct {
		reason      string
		obj         v1alpha1.Pool
		state       PoolAvailability
		wantMessage string
		nodes       int32
	}{
		"Missing":  {reason: "nothing of that name", state: PoolMissing, wantMessage: "does not exist"},
		"Open":     {reason: "Ready is True", obj: &v1alpha1.NetworkPool{Status: open}, state: PoolOpen},
		"New":      {reason: "no allocator has said anything", obj: &v1alpha1.NetworkPool{}, state: PoolSettling, wantMessage: "has not been served by a manager yet"},
		"Unknown":  {reason: "it does not know yet", obj: &v1alpha1.NetworkPool{Status: ready(metav1.ConditionUnknown, v1alpha1.ReconcilingReason)}, state: PoolSettling, wantMessage: "has not been served by a manager yet"},
		"Adopting": {reason: "this ends by itself", obj: &v1alpha1.NetworkPool{Status: ready(metav1.ConditionFalse, v1alpha1.AdoptingReason)}, state: PoolSettling, wantMessage: "is not ready: why"},
		"Closed":   {reason: "this does not", obj: &v1alpha1.NetworkPool{Status: ready(metav1.ConditionFalse, v1alpha1.OverlapReason)}, state: PoolClosed, wantMessage: "is not ready: why"},
		"Deleted":  {reason: "its status may be old", obj: &v1alpha1.NetworkPool{ObjectMeta: deleted, Status: open}, state: PoolClosed, wantMessage: "is being deleted"},
		"Prefixes": {reason: "it serves claims alone", obj: &v1alpha1.NetworkPool{Spec: v1alpha1.NetworkPoolSpec{AllocationPrefixLength: ptr.To[int32](64)}, Status: open}, state: PoolClosed, wantMessage: "hands out prefixes of /64, not blocks of addresses"},
		"Global":   {reason: "a global pool serves everybody", obj: global(nil), state: PoolOpen},
		"Selected": {reason: "or whom it selects", obj: global(&metav1.LabelSelector{MatchLabels: home.Labels}), state: PoolOpen},
		"Others":   {reason: "and no other", obj: global(&metav1.LabelSelector{MatchLabels: map[string]string{"stage": "test"}}), state: PoolClosed, wantMessage: "does not serve the namespace home"},
		"BadSelector": {reason: "whom it admits is unknown", obj: global(&metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "a", Operator: "Like"}}}),
			state: PoolClosed, wantMessage: `has an invalid namespaceSelector: "Like" is not a valid label selector operator`},
		"Nodes": {reason: "the defaults come along", state: PoolOpen, nodes: 3,
			obj: &v1alpha1.NetworkPool{Status: open, Spec: v1alpha1.NetworkPoolSpec{TenantAllocation: &v1alpha1.TenantAllocation{Defaults: &v1alpha1.AllocationDefaults{NodesPerTenant: 3}}}}},
		"NoDefaults": {reason: "a range without defaults says nothing", state: PoolOpen,
			obj: &v1alpha1.NetworkPool{Status: open, Spec: v1alpha1.NetworkPoolSpec{TenantAllocation: &v1alpha1.TenantAllocation{}}}},
	}
	for name, c := range tests {
		t.Run(name, func(t *testing.T) {
			want := Pool{Ref: v1alpha1.PoolReference{Kind: v1alpha1.NetworkPoolKind, Name: "p"}, Availability: c.state, Message: c.wantMessage, NodesPerTenant: c.nodes}
			if c.obj != nil {
				want.AvailableIPs, want.LargestFreeBlock = c.obj.PoolStatus().AvailableIPs, c.obj.PoolStatus().LargestFreeBlock
			}
			if diff := cmp.Diff(want, NewPool(v1alpha1.PoolReference{Name: "p"}, c.obj, home)); diff != "" {
				t.Errorf("%s:\n%s", c.reason, diff)
			}
		})
	}
}

// TestFamilyOfACarvedPool checks that a carved pool without a block has the family of the blocks that it will get.
func TestFamilyOfACarvedPool(t *testing.T) {
	for length, want := range map[int32]bool{24: false, 32: false, 64: true, 112: true} {
		p := &v1alpha1.NetworkPool{Spec: v1alpha1.NetworkPoolSpec{Carve: &v1alpha1.Carve{PrefixLength: length, Blocks: v1alpha1.CarvedBlocks{Max: 4}}}}
		if got := NewPool(v1alpha1.PoolReference{Name: "p"}, p, Namespace{}); got.IsIPv6 != want || got.LargestFreeBlock == 0 {
			t.Errorf("blocks of /%d: %+v", length, got)
		}
	}
}
