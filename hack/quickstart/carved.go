package main

import (
	"context"
	"fmt"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
)

// showCarvedPool applies the sample of a carved pool, and waits until it has its first block.
func showCarvedPool(ctx context.Context, c client.Client, steps *stepPrinter) error {
	steps.beginStep("carved")
	pools, err := readSamples("carved.yaml", newPool)
	if err != nil {
		return err
	}
	for _, pool := range pools {
		if err := createObject(ctx, c, pool); err != nil {
			return err
		}
	}
	child := pools[len(pools)-1].(v1alpha1.Pool)
	if err := pollUntil(ctx, func(ctx context.Context) (bool, error) {
		err := c.Get(ctx, client.ObjectKeyFromObject(child), child)
		return err == nil && len(child.PoolStatus().Blocks) > 0 && child.PoolStatus().TotalIPs > 0, err
	}); err != nil {
		return fmt.Errorf("%s has no block: %w", child.GetName(), err)
	}
	steps.endStepf("%s of config/samples/carved.yaml has %s of %s", child.GetName(), child.PoolStatus().Blocks[0].Range, child.PoolSpec().Carve.PoolRef.Name)
	return nil
}
