package webhooks

import (
	"context"
	"fmt"

	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/poolspec"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/poolutil"
)

// +kubebuilder:rbac:groups=butler.butlerlabs.dev,resources=networkpools;globalnetworkpools,verbs=get;list;watch

// warnOverlaps warns of other pools of the same network that have some of the addresses. It does not reject the pool:
// two pools may be meant to take turns, and the allocator keeps the younger one from granting (R11).
func warnOverlaps(ctx context.Context, reader client.Reader, pool v1alpha1.Pool, layout *poolspec.Layout) admission.Warnings {
	others, err := pools.List(ctx, reader, "")
	if err != nil {
		return admission.Warnings{"it could not be checked whether another pool has the same addresses: " + err.Error()}
	}
	consequence := "the younger of the two pools grants nothing; use other addresses, set different values of spec.network " +
		"if the pools are in different networks, or set spec.allowOverlap on the younger pool, after which both may give the same address"
	if pool.PoolSpec().AllowOverlap {
		consequence = "spec.allowOverlap is set, so both may grant the same address"
	}
	var warnings admission.Warnings
	for _, other := range others {
		same := kindForPool(other) == kindForPool(pool) && client.ObjectKeyFromObject(other) == client.ObjectKeyFromObject(pool)
		if same || other.PoolSpec().Network != pool.PoolSpec().Network {
			continue
		}
		otherLayout, errs := poolspec.Compile(other.PoolSpec())
		if len(errs) > 0 {
			continue // it grants nothing
		}
		if shared := poolspec.OverlappingRanges(layout, otherLayout); len(shared) > 0 {
			warnings = append(warnings, fmt.Sprintf("%s has %s too: %s",
				describePool(other), poolutil.ShowRange(shared[0]), consequence))
		}
	}
	return warnings
}
