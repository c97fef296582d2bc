package cli

import (
	"context"
	"errors"
	"fmt"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
)

// gone holds when an object does not exist.
func gone(obj client.Object) func(context.Context) error {
	return func(ctx context.Context) error {
		err := k8s.Get(ctx, client.ObjectKeyFromObject(obj), obj)
		if apierrors.IsNotFound(err) {
			return nil
		}
		return errors.Join(err, fmt.Errorf("%s is still there", obj.GetName()))
	}
}

// settled holds when a pool counts so many addresses in use, and has no grant in flight.
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

// remove takes away what a test has left in a namespace: an audit looks at all of them.
func remove(t *testing.T, ns string) {
	t.Helper()
	for _, kind := range []client.Object{&ipamv1.IPAddress{}, &ipamv1.IPAddressClaim{}, &v1alpha1.IPAllocation{}, &v1alpha1.IPLease{}, &v1alpha1.NetworkPool{}} {
		if err := k8s.DeleteAllOf(context.WithoutCancel(t.Context()), kind, client.InNamespace(ns)); err != nil {
			t.Error(err)
		}
	}
}
