package main

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
)

// Results are printed only after a wait: when a claim is ready, the manager has not yet written the statuses that it
// writes last.

// waitForPoolCounts waits until the pools are ready and count every claim.
func waitForPoolCounts(ctx context.Context, c client.Client, pools []client.Object, claims int) error {
	var counted int64
	err := pollUntil(ctx, func(ctx context.Context) (bool, error) {
		counted = 0
		for _, obj := range pools {
			if err := c.Get(ctx, client.ObjectKeyFromObject(obj), obj); err != nil {
				return false, err
			}
			pool, ok := obj.(v1alpha1.Pool)
			if !ok || !meta.IsStatusConditionTrue(pool.PoolStatus().Conditions, v1alpha1.ReadyCondition) {
				return false, nil
			}
			counted += pool.PoolStatus().AllocationCount
		}
		return counted >= int64(claims), nil
	})
	if err != nil {
		return fmt.Errorf("the pools count %d of %d claims: %w", counted, claims, err)
	}
	return nil
}

// waitForCapacity waits until the ProviderConfigs report the free addresses that their NetworkPools report.
func waitForCapacity(ctx context.Context, c client.Client) error {
	err := pollUntil(ctx, func(ctx context.Context) (bool, error) {
		configs := &v1alpha1.ProviderConfigList{}
		if err := c.List(ctx, configs); err != nil {
			return false, err
		}
		for i := range configs.Items {
			config := &configs.Items[i]
			free := int64(0)
			for _, ref := range config.Network().PoolRefs {
				pool := &v1alpha1.NetworkPool{}
				if err := c.Get(ctx, client.ObjectKey{Namespace: config.Namespace, Name: ref.Name}, pool); err != nil {
					return false, err
				}
				free += pool.Status.AvailableIPs
			}
			if config.Status.ObservedGeneration != config.Generation || config.Status.Capacity.AvailableIPs != free {
				return false, nil
			}
		}
		return true, nil
	})
	if err != nil {
		return fmt.Errorf("waiting for what the ProviderConfigs say of their pools: %w", err)
	}
	return nil
}

// waitForAllocationEvents waits until there is an event about each allocation: events are written after the change that
// they report.
func waitForAllocationEvents(ctx context.Context, c client.Client) error {
	err := pollUntil(ctx, func(ctx context.Context) (bool, error) {
		events, allocations := &corev1.EventList{}, &v1alpha1.IPAllocationList{}
		if err := c.List(ctx, allocations); err != nil {
			return false, err
		}
		if err := c.List(ctx, events); err != nil {
			return false, err
		}
		about := map[types.UID]bool{}
		for i := range events.Items {
			about[events.Items[i].InvolvedObject.UID] = true
		}
		for i := range allocations.Items {
			if !about[allocations.Items[i].UID] {
				return false, nil
			}
		}
		return true, nil
	})
	if err != nil {
		return fmt.Errorf("waiting for the events of the allocations: %w", err)
	}
	return nil
}

// pollUntil polls at short intervals, as a user is watching.
func pollUntil(ctx context.Context, condition wait.ConditionWithContextFunc) error {
	return wait.PollUntilContextCancel(ctx, 20*time.Millisecond, true, condition)
}
