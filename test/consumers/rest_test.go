package consumers

import (
	"context"
	"slices"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/invariants"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"
)

func keyOf(obj client.Object) client.ObjectKey { return client.ObjectKeyFromObject(obj) }

// objects reads the objects that the invariants are about, in a namespace; it reads IPAddresses first, as a claim is
// gone only after its address.
func objects(ctx context.Context, namespace string) pools.Objects {
	GinkgoHelper()
	claims, addresses, locals := &ipamv1.IPAddressClaimList{}, &ipamv1.IPAddressList{}, &v1alpha1.NetworkPoolList{}
	for _, list := range []client.ObjectList{addresses, claims, locals} {
		Expect(k8s.List(ctx, list, client.InNamespace(namespace))).To(Succeed())
	}
	o := pools.Objects{Claims: claims.Items, Addresses: addresses.Items}
	for i := range locals.Items {
		o.Pools = append(o.Pools, &locals.Items[i])
	}
	return o
}

// expectAtRest waits until nothing is in flight in a namespace, and n claims have an address.
func expectAtRest(ctx context.Context, namespace string, n int) {
	GinkgoHelper()
	history := &invariants.History{}
	Eventually(func(g Gomega) {
		o := objects(ctx, namespace)
		g.Expect(o.Claims).To(HaveLen(n))
		g.Expect(o.Addresses).To(HaveLen(n))
		g.Expect(slices.ContainsFunc(o.Claims, func(c ipamv1.IPAddressClaim) bool { return c.Status.AddressRef.Name == "" })).To(BeFalse())
		g.Expect(history.CheckAtRest(o)).To(BeEmpty())
	}).Should(Succeed())
}
