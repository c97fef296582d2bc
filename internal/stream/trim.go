package stream

import (
	"github.com/go-json-experiment/json/jsontext"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
)

// trimmedObject is the decoded form of an object: without managed fields, which are not read here and make up half of
// it.
type trimmedObject[Spec, Status any] struct {
	Metadata trimmedMetadata `json:"metadata"`
	Spec     Spec            `json:"spec"`
	Status   Status          `json:"status"`
}

type (
	trimmedClaim      = trimmedObject[ipamv1.IPAddressClaimSpec, ipamv1.IPAddressClaimStatus]
	trimmedAddress    = trimmedObject[ipamv1.IPAddressSpec, struct{}] // it has no status
	trimmedAllocation = trimmedObject[v1alpha1.IPAllocationSpec, v1alpha1.IPAllocationStatus]
	trimmedLease      = trimmedObject[v1alpha1.IPLeaseSpec, v1alpha1.IPLeaseStatus]
)

func toIPAddressClaim(c *trimmedClaim) ipamv1.IPAddressClaim {
	return ipamv1.IPAddressClaim{ObjectMeta: c.Metadata.ObjectMeta, Spec: c.Spec, Status: c.Status}
}

func toIPAddress(a *trimmedAddress) ipamv1.IPAddress {
	return ipamv1.IPAddress{ObjectMeta: a.Metadata.ObjectMeta, Spec: a.Spec}
}

func toIPAllocation(a *trimmedAllocation) v1alpha1.IPAllocation {
	return v1alpha1.IPAllocation{ObjectMeta: a.Metadata.ObjectMeta, Spec: a.Spec, Status: a.Status}
}

func toIPLease(l *trimmedLease) v1alpha1.IPLease {
	return v1alpha1.IPLease{ObjectMeta: l.Metadata.ObjectMeta, Spec: l.Spec, Status: l.Status}
}

// trimmedMetadata is ObjectMeta with one field shadowed.
type trimmedMetadata struct {
	metav1.ObjectMeta

	ManagedFields skippedValue `json:"managedFields"`
}

// skippedValue accepts any value and keeps nothing of it.
type skippedValue struct{}

// UnmarshalJSONFrom implements json.UnmarshalerFrom.
func (*skippedValue) UnmarshalJSONFrom(d *jsontext.Decoder) error { return d.SkipValue() }
