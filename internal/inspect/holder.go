package inspect

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/kinds/claims"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/ledger"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"
)

// Holder is an object that has an address.
type Holder struct {
	Kind      string `json:"kind"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name"`
	// Range is the range that it has, where that is more than the address.
	Range string     `json:"range,omitempty"`
	Since *time.Time `json:"since,omitempty"`
	// Cluster is the Cluster that it is for, as namespace/name.
	Cluster string `json:"cluster,omitempty"`
	// ChildPool is the carved pool that it is a block for.
	ChildPool string `json:"childPool,omitempty"`
	// Owners are its owners, from the nearest one upwards.
	Owners []Owner `json:"owners,omitempty"`
	// Services are the Services of the workload cluster that have the address.
	Services []string `json:"services,omitempty"`

	// Object is the claim or the allocation; nil where only a reference to it was found.
	Object metav1.Object `json:"-"`
}

// Owner is a direct or indirect owner of a holder.
type Owner struct {
	Kind string `json:"kind"`
	Name string `json:"name"`
}

// newHolder finds a claim, an allocation or a lease by its name.
func newHolder(o pools.Objects, owner ledger.Owner) Holder {
	h := Holder{Kind: owner.Kind, Namespace: owner.Namespace, Name: owner.Name}
	if owner.Kind == v1alpha1.IPAllocationKind {
		for i := range o.Allocations {
			a := &o.Allocations[i]
			if a.Namespace == owner.Namespace && a.Name == owner.Name {
				h.Object = a
				if child, ok := pools.ChildPoolKey(a); ok {
					h.ChildPool = child.String()
				}
				if a.Spec.TenantClusterRef.Name != "" {
					h.Cluster = a.Spec.TenantClusterRef.NamespacedName().String()
				}
				h.Since = &a.CreationTimestamp.Time
				if a.Status.AllocatedAt != nil {
					h.Since = &a.Status.AllocatedAt.Time
				}
			}
		}
		return h
	}
	if owner.Kind == v1alpha1.IPLeaseKind {
		for i := range o.Leases {
			if l := &o.Leases[i]; l.Namespace == owner.Namespace && l.Name == owner.Name {
				h.Object, h.Since = l, &l.CreationTimestamp.Time
			}
		}
		return h
	}
	for i := range o.Claims {
		c := &o.Claims[i]
		if c.Namespace == owner.Namespace && c.Name == owner.Name {
			h.Object, h.Since = c, &c.CreationTimestamp.Time
			if name := claims.ClusterNameForClaim(c); name != "" {
				h.Cluster = c.Namespace + "/" + name
			}
		}
	}
	for i := range o.Addresses {
		a := &o.Addresses[i]
		if a.Namespace == owner.Namespace && a.Name == owner.Name {
			h.Since = &a.CreationTimestamp.Time
			if h.Object == nil {
				h.Kind, h.Object = "IPAddress", a // created by hand, or its claim is gone
			}
		}
	}
	return h
}

func ownerForAddress(a *ipamv1.IPAddress) ledger.Owner {
	return ledger.Owner{Kind: "IPAddressClaim", Namespace: a.Namespace, Name: a.Name}
}
