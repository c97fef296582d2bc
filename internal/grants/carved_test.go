package grants_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/poolutil"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/grantstest"
)

// TestBlockFromObject checks R13: a range that the parent's holder states twice, on record and in the status, is
// granted; a range that is stated once may be in use.
func TestBlockFromObject(t *testing.T) {
	type blockFacts struct {
		Prefix            string
		Had               []string
		ByHand, Protected bool
		Others            []string
	}
	shows := func(a *v1alpha1.IPAllocation, cidr, first, last string) {
		a.Status.Phase, a.Status.CIDR, a.Status.StartAddress, a.Status.EndAddress = v1alpha1.AllocationAllocated, cidr, first, last
	}
	tests := map[string]struct {
		change func(a *v1alpha1.IPAllocation)
		want   blockFacts
	}{
		"Asked": {func(*v1alpha1.IPAllocation) {}, blockFacts{}},
		"Ours": {func(a *v1alpha1.IPAllocation) {
			a.Name, a.Finalizers = "team-3", []string{v1alpha1.CarvedPoolFinalizer}
		}, blockFacts{Protected: true}},
		"Granted": {func(a *v1alpha1.IPAllocation) {
			a.Annotations, a.Finalizers = map[string]string{v1alpha1.AddressAnnotation: "10.0.0.8/30"}, []string{v1alpha1.IPAllocationFinalizer}
			shows(a, "10.0.0.8/30", "10.0.0.8", "10.0.0.11")
		}, blockFacts{Prefix: "10.0.0.8/30", Had: []string{"10.0.0.8/30", "10.0.0.8/30"}, ByHand: true, Others: []string{v1alpha1.IPAllocationFinalizer}}},
		"Moved": {func(a *v1alpha1.IPAllocation) { // a move brings no status
			a.Annotations = map[string]string{v1alpha1.AddressAnnotation: "10.0.0.8/30"}
		}, blockFacts{Had: []string{"10.0.0.8/30"}, ByHand: true}},
		"StrippedOfItsRecord": {func(a *v1alpha1.IPAllocation) { shows(a, "10.0.0.8/30", "10.0.0.8", "10.0.0.11") },
			blockFacts{Had: []string{"10.0.0.8/30"}, ByHand: true}},
		"SaysTwoThings": {func(a *v1alpha1.IPAllocation) {
			a.Annotations = map[string]string{v1alpha1.AddressAnnotation: "10.0.0.12/30"}
			shows(a, "10.0.0.8/30", "10.0.0.8", "10.0.0.11")
		}, blockFacts{Had: []string{"10.0.0.12/30", "10.0.0.8/30"}, ByHand: true}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			a := &v1alpha1.IPAllocation{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "vips", UID: "u", ResourceVersion: "1"}}
			a.Spec = v1alpha1.IPAllocationSpec{
				PoolRef: v1alpha1.PoolReference{Name: "site"}, Type: v1alpha1.PoolAllocation, PrefixLength: ptr.To[int32](30),
				ChildPoolRef: &v1alpha1.PoolReference{Name: "team"},
			}
			tt.change(a)
			b, child := grantstest.BlockKind.BlockFromObject(a)
			if want := (pools.Key{Kind: v1alpha1.NetworkPoolKind, Namespace: "ns", Name: "team"}); child != want {
				t.Errorf("for %s", child)
			}
			got := blockFacts{ByHand: b.CreatedManually, Protected: b.HasFinalizer, Others: b.OtherFinalizers}
			if tt.want.ByHand = tt.want.ByHand || a.Name == "vips"; b.Prefix.IsValid() {
				got.Prefix = b.Prefix.String()
			}
			for _, r := range b.RecordedRanges {
				got.Had = append(got.Had, poolutil.FormatRange(r))
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}
