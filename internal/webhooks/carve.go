package webhooks

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/carve"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"
)

// validateCarve rejects a pool that is carved from itself, or too far below others, and warns of a parent that gives it
// no addresses.
func validateCarve(ctx context.Context, reader client.Reader, pool v1alpha1.Pool) (admission.Warnings, field.ErrorList) {
	spec := pool.PoolSpec().Carve
	if spec == nil {
		return nil, nil
	}
	others, err := pools.List(ctx, reader, "")
	if err != nil {
		return admission.Warnings{"it could not be checked whether the pool can be carved: " + err.Error()}, nil
	}
	byKey := map[pools.Key]v1alpha1.Pool{}
	for _, other := range others {
		byKey[pools.KeyForPool(other)] = other
	}
	byKey[pools.KeyForPool(pool)] = pool
	parent := pools.KeyFromPoolReference(pool.GetNamespace(), spec.PoolRef)
	switch from := byKey[parent]; {
	case from == nil:
		return admission.Warnings{fmt.Sprintf("%s, which the pool is carved from, does not exist; the pool has no addresses until it does", parent)}, nil
	case from.PoolSpec().Carvable == nil:
		return admission.Warnings{fmt.Sprintf("%s does not set spec.carvable, so nothing can be carved from it", parent)}, nil
	}
	_, problem := carve.Ancestors(pools.KeyForPool(pool), func(at pools.Key) (pools.Key, bool) {
		ancestor := byKey[at]
		if ancestor == nil {
			return pools.Key{}, false
		}
		parent, _ := pools.ParentPoolKey(ancestor)
		return parent, true
	})
	if problem == "" {
		return nil, nil
	}
	return nil, field.ErrorList{field.Invalid(field.NewPath("spec", "carve", "poolRef"), spec.PoolRef.Name, problem)}
}
