package process

import (
	"errors"
	"fmt"

	metallbv1beta1 "go.universe.tf/metallb/api/v1beta1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/nodeipam"
)

// Needed are kinds that are needed, and what to do where one is not there.
type Needed struct {
	group schema.GroupVersion
	kinds []string
	do    string
}

const noCRDs = "the CRDs of this provider are not installed here, or older than the manager"

// ForPools are the kinds that serving pools needs, ForNodes those that giving Nodes their CIDRs needs, ForNetworkingX those
// of node-ipam-controller.
var (
	ForPools = []Needed{
		{clusterv1.GroupVersion, []string{"Cluster"}, "Cluster API is not installed here, or older than v1.11"},
		{ipamv1.GroupVersion, []string{"IPAddressClaim", "IPAddress"}, "Cluster API is not installed here, or older than v1.11"},
		{v1alpha1.GroupVersion, []string{v1alpha1.NetworkPoolKind, v1alpha1.GlobalNetworkPoolKind, v1alpha1.IPAllocationKind, v1alpha1.IPLeaseKind, "ProviderConfig"}, noCRDs},
	}
	// ForLeases are those of MetalLB.
	ForLeases = []Needed{{
		metallbv1beta1.GroupVersion, []string{"IPAddressPool", "L2Advertisement"},
		"MetalLB is not installed in this cluster; run without --service-leases, or install it",
	}}
	// ForHosts are those that hosts need which show leases.
	ForHosts = []Needed{{v1alpha1.GroupVersion, []string{v1alpha1.IPLeaseKind}, noCRDs}}
	ForNodes = []Needed{{v1alpha1.GroupVersion, []string{v1alpha1.ClusterCIDRKind}, noCRDs}}
	// Its objects would otherwise be thought of as none at all, and the ranges of its Nodes as nobody's.
	ForNetworkingX = []Needed{{
		nodeipam.NetworkingXVersion, []string{v1alpha1.ClusterCIDRKind},
		"the CRD of node-ipam-controller is not installed here; run without --serve-node-ipam-cluster-cidrs, or install it",
	}}
)

// ErrKindUnknown says that the API server has no such kind.
var ErrKindUnknown = errors.New("is unknown")

// CheckKinds returns which kinds the manager needs and the API server does not have. Watching one would fail with a
// text that names Go types.
func CheckKinds(mapper meta.RESTMapper, needed []Needed) error {
	for _, needs := range needed {
		for _, kind := range needs.kinds {
			_, err := mapper.RESTMapping(needs.group.WithKind(kind).GroupKind(), needs.group.Version)
			if meta.IsNoMatchError(err) {
				return fmt.Errorf("%s: kind %s of %s %w", needs.do, kind, needs.group, ErrKindUnknown)
			}
			if err != nil {
				return fmt.Errorf("asking the API server which kinds it has: %w", err)
			}
		}
	}
	return nil
}
