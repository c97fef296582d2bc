package allocator

import (
	"strings"

	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
)

// IsPool reports whether there is such a kind of pool. Claims may name another kind of our group: nobody else looks
// after it, so they are told.
func (k PoolKey) IsPool() bool {
	return k.Kind == v1alpha1.NetworkPoolKind || k.Kind == v1alpha1.GlobalNetworkPoolKind
}

// keyOfClaim is keyOf for a claim, whose pool may be of a kind that our group does not have.
func (a *Allocator) keyOfClaim(c *ipamv1.IPAddressClaim) (PoolKey, bool) {
	ref := c.Spec.PoolRef
	if key, ours := a.keyOf(c.Namespace, ref); ours || ref.APIGroup != v1alpha1.GroupVersion.Group {
		return key, ours
	}
	return PoolKey{Kind: ref.Kind, Namespace: c.Namespace, Name: ref.Name}, true
}

// noSuchKind says which kind a claim should have named.
func noSuchKind(key PoolKey) *refusal {
	means := v1alpha1.NetworkPoolKind
	if strings.HasPrefix(strings.ToLower(key.Kind), "global") {
		means = v1alpha1.GlobalNetworkPoolKind
	}
	return notReady("its poolRef names kind %s, which the group %s does not have; write %s, in a new claim: poolRef cannot be changed",
		key.Kind, v1alpha1.GroupVersion.Group, means)
}
