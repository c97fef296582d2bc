package main

import (
	"context"
	"errors"
	"net/netip"
	"strings"

	"go4.org/netipx"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/poolutil"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

// watchObjects records in the history what the API server shows, until ctx ends. A watch that breaks lists again.
func watchObjects(ctx context.Context, cp *framework.ControlPlane, h *history) error {
	scheme, err := framework.NewScheme()
	if err != nil {
		return err
	}
	c, err := cache.New(cp.Config, cache.Options{Scheme: scheme})
	if err != nil {
		return err
	}
	for obj, handler := range map[client.Object]toolscache.ResourceEventHandlerFuncs{
		&ipamv1.IPAddress{}:      {AddFunc: h.observeAddress, UpdateFunc: func(_, o any) { h.observeAddress(o) }},
		&ipamv1.IPAddressClaim{}: {DeleteFunc: h.observeDeletion},
		&v1alpha1.IPAllocation{}: {AddFunc: h.observeAllocation, UpdateFunc: func(_, o any) { h.observeAllocation(o) }, DeleteFunc: h.observeDeletion},
	} {
		informer, err := c.GetInformer(ctx, obj, cache.BlockUntilSynced(false))
		if err != nil {
			return err
		}
		if _, err := informer.AddEventHandler(handler); err != nil {
			return err
		}
	}
	go func() { _ = c.Start(ctx) }() // it ends with ctx
	if !c.WaitForCacheSync(ctx) {
		return errors.New("the caches did not sync")
	}
	return nil
}

// observeAddress handles an IPAddress from the watch. Its owner is the claim with the UID in its owner reference, not
// the claim of that name.
func (h *history) observeAddress(o any) {
	a, ok := o.(*ipamv1.IPAddress)
	if !ok {
		return
	}
	ip, err := netip.ParseAddr(a.Spec.Address)
	if err != nil {
		return
	}
	for _, ref := range a.OwnerReferences {
		if ref.Kind == "IPAddressClaim" {
			h.recordAddresses(ref.UID, addressSpaceForPool(a.Spec.PoolRef.Name), netipx.IPRangeFrom(ip, ip))
		}
	}
}

// addressSpaceForPool returns the pool that the addresses of a pool come from: all pools that are carved from one
// pool share its space.
func addressSpaceForPool(pool string) string {
	if strings.HasPrefix(pool, teamPoolName(0)[:len(teamPoolName(0))-1]) {
		return parentPool
	}
	return pool
}

func (h *history) observeAllocation(o any) {
	a, ok := o.(*v1alpha1.IPAllocation)
	if !ok || a.Status.Phase != v1alpha1.AllocationAllocated || a.Spec.Type == v1alpha1.PoolAllocation {
		return
	}
	if r, err := poolutil.ParseRange(a.Status.CIDR); err == nil {
		h.recordAddresses(a.UID, addressSpaceForPool(a.Spec.PoolRef.Name), r)
	}
}

// observeDeletion handles the deletion of a claim or an allocation.
func (h *history) observeDeletion(o any) {
	if unseen, ok := o.(toolscache.DeletedFinalStateUnknown); ok {
		o = unseen.Obj
	}
	if obj, ok := o.(client.Object); ok {
		h.recordGone(obj.GetUID())
	}
}

// getUID returns the UID of an object whose create call lost its answer.
func getUID(ctx context.Context, c client.Client, obj client.Object) (types.UID, error) {
	err := c.Get(ctx, client.ObjectKeyFromObject(obj), obj)
	return obj.GetUID(), err
}
