package stream

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
)

// The kinds as they are decoded: without managed fields, which nobody reads here and which are half of each object.

type claim struct {
	Metadata metadata                    `json:"metadata"`
	Spec     ipamv1.IPAddressClaimSpec   `json:"spec"`
	Status   ipamv1.IPAddressClaimStatus `json:"status"`
}

func (c *claim) full() *ipamv1.IPAddressClaim {
	return &ipamv1.IPAddressClaim{ObjectMeta: c.Metadata.ObjectMeta, Spec: c.Spec, Status: c.Status}
}

type address struct {
	Metadata metadata             `json:"metadata"`
	Spec     ipamv1.IPAddressSpec `json:"spec"`
}

func (a *address) full() *ipamv1.IPAddress {
	return &ipamv1.IPAddress{ObjectMeta: a.Metadata.ObjectMeta, Spec: a.Spec}
}

type allocation struct {
	Metadata metadata                    `json:"metadata"`
	Spec     v1alpha1.IPAllocationSpec   `json:"spec"`
	Status   v1alpha1.IPAllocationStatus `json:"status"`
}

func (a *allocation) full() *v1alpha1.IPAllocation {
	return &v1alpha1.IPAllocation{ObjectMeta: a.Metadata.ObjectMeta, Spec: a.Spec, Status: a.Status}
}

// metadata is ObjectMeta of which one field is shadowed.
type metadata struct {
	metav1.ObjectMeta

	ManagedFields skipped `json:"managedFields"`
}

// skipped takes any value and keeps nothing of it.
type skipped struct{}

// UnmarshalJSON implements json.Unmarshaler.
func (*skipped) UnmarshalJSON([]byte) error { return nil }
