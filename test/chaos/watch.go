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

// watch writes into the history what the API server shows, until ctx ends. Watches that break list anew.
func watch(ctx context.Context, cp *framework.ControlPlane, h *history) error {
	scheme, err := framework.Scheme()
	if err != nil {
		return err
	}
	c, err := cache.New(cp.Config, cache.Options{Scheme: scheme})
	if err != nil {
		return err
	}
	for obj, handler := range map[client.Object]toolscache.ResourceEventHandlerFuncs{
		&ipamv1.IPAddress{}:      {AddFunc: h.address, UpdateFunc: func(_, o any) { h.address(o) }},
		&ipamv1.IPAddressClaim{}: {DeleteFunc: h.owner},
		&v1alpha1.IPAllocation{}: {AddFunc: h.allocation, UpdateFunc: func(_, o any) { h.allocation(o) }, DeleteFunc: h.owner},
	} {
		informer, err := c.GetInformer(ctx, obj, cache.BlockUntilSynced(false))
		if err != nil {
			return err
		}
		if _, err := informer.AddEventHandler(handler); err != nil {
			return err
		}
	}
	go func() { _ = c.Start(ctx) }() // ends with ctx
	if !c.WaitForCacheSync(ctx) {
		return errors.New("the caches did not sync")
	}
	return nil
}

// address is told of an IPAddress. Its owner is the claim of the UID, not of the name.
func (h *history) address(o any) {
	a, is := o.(*ipamv1.IPAddress)
	if !is {
		return
	}
	ip, err := netip.ParseAddr(a.Spec.Address)
	if err != nil {
		return
	}
	for _, ref := range a.OwnerReferences {
		if ref.Kind == "IPAddressClaim" {
			h.sees(ref.UID, spaceOf(a.Spec.PoolRef.Name), netipx.IPRangeFrom(ip, ip))
		}
	}
}

// spaceOf is the pool that the addresses of a pool come from: what is carved from one is one space.
func spaceOf(pool string) string {
	if strings.HasPrefix(pool, team(0)[:len(team(0))-1]) {
		return trunk
	}
	return pool
}

func (h *history) allocation(o any) {
	a, is := o.(*v1alpha1.IPAllocation)
	if !is || a.Status.Phase != v1alpha1.AllocationAllocated || a.Spec.Type == v1alpha1.PoolAllocation {
		return
	}
	if r, err := poolutil.ParseRange(a.Status.CIDR); err == nil {
		h.sees(a.UID, spaceOf(a.Spec.PoolRef.Name), r)
	}
}

// owner is told that a claim or an allocation is gone.
func (h *history) owner(o any) {
	if unseen, is := o.(toolscache.DeletedFinalStateUnknown); is {
		o = unseen.Obj
	}
	if obj, is := o.(client.Object); is {
		h.ends(obj.GetUID())
	}
}

// uidOf is the UID of what a call created whose answer was lost.
func uidOf(ctx context.Context, c client.Client, obj client.Object) (types.UID, error) {
	err := c.Get(ctx, client.ObjectKeyFromObject(obj), obj)
	return obj.GetUID(), err
}
