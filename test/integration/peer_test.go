package integration

import (
	"context"
	"net/netip"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/utils/ptr"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"
	"sigs.k8s.io/cluster-api/util/annotations"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/incluster"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

// peer acts as the manager of the in-cluster provider: it does the same writes in the same order, and considers only
// the IPAddresses that name its own pool. It hands out the lowest free address of a pool of a namespace.
type peer struct {
	ns   string
	pool *unstructured.Unstructured
	// first and last are the first and the last address of the pool.
	first, last netip.Addr
	gateway     string
}

// serveClaims serves each claim of the pool once, unless the pool is paused.
func (p *peer) serveClaims(ctx context.Context) {
	GinkgoHelper()
	pool := p.pool.DeepCopy()
	if Expect(k8s.Get(ctx, client.ObjectKeyFromObject(pool), pool)).To(Succeed()); annotations.HasPaused(pool) {
		return
	}
	claims := &ipamv1.IPAddressClaimList{}
	Expect(k8s.List(ctx, claims, client.InNamespace(p.ns))).To(Succeed())
	for i := range claims.Items {
		c := &claims.Items[i]
		if c.Spec.PoolRef.Kind != p.pool.GetKind() || c.Spec.PoolRef.Name != p.pool.GetName() {
			continue
		}
		before := c.DeepCopy()
		switch {
		case c.DeletionTimestamp != nil:
			p.release(ctx, c)
		case controllerutil.AddFinalizer(c, "ipam.cluster.x-k8s.io/ReleaseAddress"):
			Expect(client.IgnoreNotFound(k8s.Patch(ctx, c, client.MergeFrom(before)))).To(Succeed())
		case c.Status.AddressRef.Name == "":
			p.bind(ctx, c)
		}
	}
}

func (p *peer) bind(ctx context.Context, c *ipamv1.IPAddressClaim) {
	GinkgoHelper()
	addresses := &ipamv1.IPAddressList{}
	Expect(k8s.List(ctx, addresses, client.InNamespace(p.ns))).To(Succeed())
	used := map[string]bool{p.gateway: true}
	mine := false
	for i := range addresses.Items {
		a := &addresses.Items[i]
		if a.Spec.PoolRef == c.Spec.PoolRef {
			used[a.Spec.Address] = true
			mine = mine || a.Name == c.Name
		}
	}
	if !mine {
		free := p.first
		for used[free.String()] {
			free = free.Next()
		}
		if p.last.Less(free) {
			return // the pool is full
		}
		Expect(k8s.Create(ctx, p.address(c, free.String()))).To(Succeed())
	}
	before := c.DeepCopy()
	c.Status.AddressRef.Name = c.Name
	Expect(client.IgnoreNotFound(k8s.Status().Patch(ctx, c, client.MergeFrom(before)))).To(Succeed())
}

// address returns an IPAddress as the in-cluster provider creates it.
func (p *peer) address(c *ipamv1.IPAddressClaim, address string) *ipamv1.IPAddress {
	a := madeAddress(c.Namespace, c.Name, address, 24, claimOwner(c.Name, c.UID), metav1.OwnerReference{
		APIVersion: incluster.GroupVersion.String(), Kind: p.pool.GetKind(), Name: p.pool.GetName(), UID: p.pool.GetUID(),
		Controller: ptr.To(false), BlockOwnerDeletion: ptr.To(true),
	})
	a.Spec.PoolRef, a.Spec.Gateway = c.Spec.PoolRef, p.gateway
	return a
}

func (p *peer) release(ctx context.Context, c *ipamv1.IPAddressClaim) {
	GinkgoHelper()
	a := &ipamv1.IPAddress{ObjectMeta: metav1.ObjectMeta{Namespace: c.Namespace, Name: c.Name}}
	force(ctx, a)
	before := c.DeepCopy()
	controllerutil.RemoveFinalizer(c, "ipam.cluster.x-k8s.io/ReleaseAddress")
	Expect(client.IgnoreNotFound(k8s.Patch(ctx, c, client.MergeFrom(before)))).To(Succeed())
}

// run calls serveClaims repeatedly until the returned function is called.
func (p *peer) run(ctx context.Context) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer GinkgoRecover()
		defer close(done)
		for ctx.Err() == nil {
			p.serveClaims(context.WithoutCancel(ctx)) // a call is never interrupted
		}
	}()
	return func() {
		cancel()
		<-done
	}
}

// makeInClusterPool creates a pool of the in-cluster provider.
func makeInClusterPool(ctx context.Context, kind, ns, name string, spec map[string]any) *unstructured.Unstructured {
	GinkgoHelper()
	for _, k := range incluster.PoolKinds {
		if k.Name == kind {
			u := k.NewPool()
			u.SetNamespace(ns)
			u.SetName(name)
			u.Object["spec"] = spec
			Expect(k8s.Create(ctx, u)).To(Succeed())
			return u
		}
	}
	Fail(kind)
	return nil
}

// claimOn returns a claim of a pool of the in-cluster provider.
func claimOn(ns, name, kind, pool string) *ipamv1.IPAddressClaim {
	return framework.MakeClaim(ns, name).PoolRef(incluster.GroupVersion.Group, kind, pool).Obj()
}
