package grants

import (
	"testing"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
)

// C52: a cluster-scoped pool that was copied from another management cluster grants nothing (R9).
func TestIsCopiedPool(t *testing.T) {
	for name, tc := range map[string]struct {
		reason                string
		namespace, annotation string
		here                  string
		copied, marked        bool
	}{
		"new":       {reason: "it is served here from now on", here: "here", marked: true},
		"own":       {reason: "it was served here", annotation: "here", here: "here"},
		"another's": {reason: "the other one may serve it still", annotation: "there", here: "here", copied: true},
		"unknown":   {reason: "the identity of this cluster is unknown", annotation: "there"},
		"unmarked":  {reason: "what to write is unknown"},
		"local":     {reason: "it moves with its namespace, and the other one has it no more", namespace: "ns", annotation: "there", here: "here"},
		"new local": {reason: "it says where it came from, should it be moved", namespace: "ns", here: "here", marked: true},
	} {
		t.Run(name, func(t *testing.T) {
			pool := v1alpha1.Pool(&v1alpha1.GlobalNetworkPool{})
			if tc.namespace != "" {
				pool = &v1alpha1.NetworkPool{}
				pool.SetNamespace(tc.namespace)
			}
			if tc.annotation != "" {
				pool.SetAnnotations(map[string]string{v1alpha1.ManagementClusterAnnotation: tc.annotation})
			}
			m := NewPoolState(pools.Key{}, nil, nil)
			m.Base.Pool, m.Quarantine.ManagementCluster = pool, tc.here
			if got := m.Quarantine.isCopiedPool(); got != tc.copied {
				t.Errorf("%s: copied %t", tc.reason, got)
			}
			marked := m.Quarantine.MarkManagementCluster(pool)
			if annotation := pool.GetAnnotations()[v1alpha1.ManagementClusterAnnotation]; marked != tc.marked || (marked && annotation != tc.here) || (!marked && annotation != tc.annotation) {
				t.Errorf("%s: marked %t, with %q", tc.reason, marked, annotation)
			}
		})
	}
}
