package cli

import (
	"context"
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
)

// gone returns a condition that is met when an object does not exist.
func gone(obj client.Object) func(context.Context) error {
	return func(ctx context.Context) error {
		err := k8s.Get(ctx, client.ObjectKeyFromObject(obj), obj)
		if apierrors.IsNotFound(err) {
			return nil
		}
		return errors.Join(err, fmt.Errorf("%s is still there", obj.GetName()))
	}
}

// settled returns a condition that is met when a pool counts `used` addresses in use, and has no grant in flight.
func settled(pool v1alpha1.Pool, used int64) func(context.Context) error {
	return func(ctx context.Context) error {
		if err := k8s.Get(ctx, client.ObjectKeyFromObject(pool), pool); err != nil {
			return err
		}
		s := pool.PoolStatus()
		if s.AllocatedIPs != used || s.Allocator == nil || len(s.Allocator.InFlight) > 0 {
			return fmt.Errorf("%s: %d in use, want %d", pool.GetName(), s.AllocatedIPs, used)
		}
		return nil
	}
}
