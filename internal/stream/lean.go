package stream

import (
	"github.com/go-json-experiment/json/jsontext"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
)

// lean is an object as it is decoded: without managed fields, which nobody reads here and which are half of it.
type lean[Spec, Status any] struct {
	Metadata metadata `json:"metadata"`
	Spec     Spec     `json:"spec"`
	Status   Status   `json:"status"`
}

type (
	claim      = lean[ipamv1.IPAddressClaimSpec, ipamv1.IPAddressClaimStatus]
	address    = lean[ipamv1.IPAddressSpec, struct{}] // it has none
	allocation = lean[v1alpha1.IPAllocationSpec, v1alpha1.IPAllocationStatus]
	lease      = lean[v1alpha1.IPLeaseSpec, v1alpha1.IPLeaseStatus]
)

func fullClaim(c *claim) ipamv1.IPAddressClaim {
	return ipamv1.IPAddressClaim{ObjectMeta: c.Metadata.ObjectMeta, Spec: c.Spec, Status: c.Status}
}

func fullAddress(a *address) ipamv1.IPAddress {
	return ipamv1.IPAddress{ObjectMeta: a.Metadata.ObjectMeta, Spec: a.Spec}
}

func fullAllocation(a *allocation) v1alpha1.IPAllocation {
	return v1alpha1.IPAllocation{ObjectMeta: a.Metadata.ObjectMeta, Spec: a.Spec, Status: a.Status}
}

func fullLease(l *lease) v1alpha1.IPLease {
	return v1alpha1.IPLease{ObjectMeta: l.Metadata.ObjectMeta, Spec: l.Spec, Status: l.Status}
}

// metadata is ObjectMeta of which one field is shadowed.
type metadata struct {
	metav1.ObjectMeta

	ManagedFields skipped `json:"managedFields"`
}

// skipped takes any value and keeps nothing of it.
type skipped struct{}

// UnmarshalJSONFrom implements json.UnmarshalerFrom.
func (*skipped) UnmarshalJSONFrom(d *jsontext.Decoder) error { return d.SkipValue() }
