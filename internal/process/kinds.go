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

// RequiredKinds are kinds that are needed, and what to do if one does not exist.
type RequiredKinds struct {
	group  schema.GroupVersion
	kinds  []string
	remedy string
}

const missingCRDsRemedy = "the CRDs of this provider are not installed here, or older than the manager"

// KindsForPools are the kinds that serving pools requires, KindsForNodes those that assigning CIDRs to Nodes
// requires, KindsForNetworkingX those of node-ipam-controller.
var (
	KindsForPools = []RequiredKinds{
		{clusterv1.GroupVersion, []string{"Cluster"}, "Cluster API is not installed here, or older than v1.11"},
		{ipamv1.GroupVersion, []string{"IPAddressClaim", "IPAddress"}, "Cluster API is not installed here, or older than v1.11"},
		{v1alpha1.GroupVersion, []string{v1alpha1.NetworkPoolKind, v1alpha1.GlobalNetworkPoolKind, v1alpha1.IPAllocationKind, v1alpha1.IPLeaseKind, "ProviderConfig"}, missingCRDsRemedy},
	}
	// KindsForLeases are the kinds of MetalLB.
	KindsForLeases = []RequiredKinds{{
		metallbv1beta1.GroupVersion, []string{"IPAddressPool", "L2Advertisement"},
		"MetalLB is not installed in this cluster; run without --service-leases, or install it",
	}}
	// KindsForHosts are the kinds that hosts with addresses of leases require.
	KindsForHosts = []RequiredKinds{{v1alpha1.GroupVersion, []string{v1alpha1.IPLeaseKind}, missingCRDsRemedy}}
	KindsForNodes = []RequiredKinds{{v1alpha1.GroupVersion, []string{v1alpha1.ClusterCIDRKind}, missingCRDsRemedy}}
	// Without this kind, node-ipam-controller would seem to have no objects, and the ranges of its Nodes would seem
	// unowned.
	KindsForNetworkingX = []RequiredKinds{{
		nodeipam.NetworkingXGroupVersion, []string{v1alpha1.ClusterCIDRKind},
		"the CRD of node-ipam-controller is not installed here; run without --serve-node-ipam-cluster-cidrs, or install it",
	}}
)

// ErrKindUnknown is wrapped by errors about a kind that the API server does not have.
var ErrKindUnknown = errors.New("is unknown")

// CheckKinds returns an error that names a kind that the manager needs and the API server does not have. Otherwise a
// watch of it would fail with an error that names Go types.
func CheckKinds(mapper meta.RESTMapper, needed []RequiredKinds) error {
	for _, needs := range needed {
		for _, kind := range needs.kinds {
			_, err := mapper.RESTMapping(needs.group.WithKind(kind).GroupKind(), needs.group.Version)
			if meta.IsNoMatchError(err) {
				return fmt.Errorf("%s: kind %s of %s %w", needs.remedy, kind, needs.group, ErrKindUnknown)
			}
			if err != nil {
				return fmt.Errorf("asking the API server which kinds it has: %w", err)
			}
		}
	}
	return nil
}
