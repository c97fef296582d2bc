package pools

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/incluster"
)

// TestIsOwner checks that every kind of pool may own an IPAddress, ours and those that ours mirror, and that nothing
// else with these names or groups may.
func TestIsOwner(t *testing.T) {
	cases := map[metav1.OwnerReference]bool{
		{APIVersion: v1alpha1.GroupVersion.String(), Kind: v1alpha1.NetworkPoolKind}:       true,
		{APIVersion: v1alpha1.GroupVersion.String(), Kind: v1alpha1.GlobalNetworkPoolKind}: true,
		{APIVersion: v1alpha1.GroupVersion.Group + "/v9", Kind: v1alpha1.NetworkPoolKind}:  true,
		{APIVersion: v1alpha1.GroupVersion.String(), Kind: v1alpha1.IPAllocationKind}:      false,
		{APIVersion: "example.com/v1", Kind: v1alpha1.NetworkPoolKind}:                     false,
		{APIVersion: v1alpha1.GroupVersion.String(), Kind: incluster.IPPoolKind}:           false,
		{APIVersion: "ipam.cluster.x-k8s.io/v1beta2", Kind: "IPAddressClaim"}:              false,
		{APIVersion: "a/b/c", Kind: v1alpha1.NetworkPoolKind}:                              false,
		{}: false,
	}
	for _, k := range incluster.PoolKinds {
		cases[metav1.OwnerReference{APIVersion: incluster.GroupVersion.String(), Kind: k.Name}] = true
	}
	for owner, ok := range cases {
		owner.Name, owner.UID = "p", "u"
		if IsPoolOwner(owner) != ok {
			t.Errorf("%s %s is a pool: %v", owner.APIVersion, owner.Kind, !ok)
		}
	}
}
