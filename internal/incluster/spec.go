package incluster

import (
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
)

// Spec is that of a pool of either sort, as far as it decides what is handed out.
type Spec struct {
	Addresses                      []v1alpha1.Range `json:"addresses"`
	Prefix                         int32            `json:"prefix"`
	Gateway                        v1alpha1.Address `json:"gateway"`
	AllocateReservedIPAddresses    bool             `json:"allocateReservedIPAddresses"`
	ExcludedAddresses              []v1alpha1.Range `json:"excludedAddresses"`
	AddressReuseGracePeriodSeconds *int64           `json:"addressReuseGracePeriodSeconds"`

	Prefixes               []v1alpha1.Range `json:"prefixes"`
	AllocationPrefixLength int32            `json:"allocationPrefixLength"`
	ExcludedPrefixes       []v1alpha1.Range `json:"excludedPrefixes"`
}

// SpecOf is what a pool of ours hands out in the place of a pool. Pools of the in-cluster provider may overlap: it
// knows of no networks.
func SpecOf(k Kind, pool *unstructured.Unstructured) (*v1alpha1.NetworkPoolSpec, error) {
	var in struct {
		Spec Spec `json:"spec"`
	}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(pool.Object, &in); err != nil {
		return nil, fmt.Errorf("reading the spec of %s %s: %w", k.Name, pool.GetName(), err)
	}
	out, _, problems := in.Spec.Translate(k.Prefixes)
	if len(problems) > 0 {
		return nil, fmt.Errorf("this pool is not served: %s", strings.Join(problems, "; "))
	}
	out.AllowOverlap = true
	return &out, nil
}

// Gateway is what the IPAddresses of a pool of prefixes name as their gateway. It may be anywhere, and nothing is
// kept from being handed out for it: pools of ours have no such thing, so it is an annotation of the mirror.
func Gateway(pool *unstructured.Unstructured) string {
	gateway, _, _ := unstructured.NestedString(pool.Object, "spec", "gateway")
	return gateway
}

// GatewayAnnotation of a mirror has the Gateway of its pool.
const GatewayAnnotation = "butler.butlerlabs.dev/in-cluster-gateway"

// CountsOf are what the status of a pool says of its addresses: those in use that the spec does not cover count as
// used, too.
func CountsOf(s *v1alpha1.NetworkPoolStatus) map[string]any {
	used := s.AllocatedIPs + s.OutOfRangeIPs
	return map[string]any{"total": s.TotalIPs, "used": used, "free": s.TotalIPs - used, "outOfRange": s.OutOfRangeIPs}
}
