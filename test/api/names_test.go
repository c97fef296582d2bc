package api_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	. "github.com/onsi/gomega"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/balancer"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/incluster"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/migrate"
)

// names are the values of all constants of package v1alpha1: finalizers, labels, annotations, condition types,
// reasons, values. Objects of users and of earlier releases contain them, and scripts search for them, so none may
// change.
var names = map[string]string{
	"AboveThresholdReason":           "UtilizationAboveThreshold",
	"AccessDeniedReason":             "AccessDenied",
	"AddressAnnotation":              "butler.butlerlabs.dev/address",
	"AddressAttemptsExhaustedReason": "AddressAttemptsExhausted",
	"AddressFinalizer":               "ipam.cluster.x-k8s.io/ProtectAddress",
	"AddressInUseReason":             "AddressInUse",
	"AdoptingReason":                 "Adopting",
	"AllocatedBy":                    "networkpool-controller",
	"AllocatedReason":                "Allocated",
	"AllocationAllocated":            "Allocated",
	"AllocationFailed":               "Failed",
	"AllocationFailedReason":         "AllocationFailed",
	"AllocationPending":              "Pending",
	"AllocationReleased":             "Released",
	"AllocationRoleLabel":            "butler.butlerlabs.dev/allocation-role",
	"AllocationTypeLabel":            "butler.butlerlabs.dev/allocation-type",
	"AnnouncedCondition":             "Announced",
	"AnnouncedReason":                "Announced",
	"BelowThresholdReason":           "UtilizationBelowThreshold",
	"BestFitOrder":                   "BestFit",
	"CapacityCriticalCondition":      "CapacityCritical",
	"CapacityExhaustedCondition":     "CapacityExhausted",
	"CapacityWarningCondition":       "CapacityWarning",
	"CarvedPoolFinalizer":            "butler.butlerlabs.dev/carved-pool",
	"ChildPoolLabel":                 "butler.butlerlabs.dev/child-pool",
	"ClaimFinalizer":                 "ipam.cluster.x-k8s.io/ReleaseAddress",
	"CloudMode":                      "cloud",
	"CloudModeReason":                "CloudMode",
	"ClusterCIDRAnnotation":          "butler.butlerlabs.dev/cluster-cidr",
	"ClusterCIDRFinalizer":           "butler.butlerlabs.dev/clustercidr",
	"ClusterCIDRKind":                "ClusterCIDR",
	"ClusterSeenCondition":           "ClusterSeen",
	"ConfirmingReason":               "Confirming",
	"ConflictReason":                 "Conflict",
	"ContestedReason":                "Contested",
	"DefaultGrowthIncrement":         "2",
	"DefaultInitialPoolSize":         "2",
	"DefaultPoolProjection":          "DefaultPool",
	"MetalLBLoadBalancer":            "MetalLB",
	"CiliumLoadBalancer":             "Cilium",
	"DefaultPoolSize":                "8",
	"DeleteForMoveAnnotation":        "clusterctl.cluster.x-k8s.io/delete-for-move",
	"MoveLabel":                      "clusterctl.cluster.x-k8s.io/move",
	"DeletingReason":                 "Deleting",
	"DemandSatisfiedCondition":       "DemandSatisfied",
	"DrainingCondition":              "Draining",
	"ElasticAllocation":              "elastic",
	"ExhaustedCondition":             "Exhausted",
	"ExhaustedReason":                "Exhausted",
	"FenceDamagedReason":             "FenceDamaged",
	"FenceRefusedReason":             "FenceRefused",
	"FirstGateway":                   "First",
	"GlobalNetworkPoolKind":          "GlobalNetworkPool",
	"GrantedReason":                  "Granted",
	"GrowthRole":                     "growth",
	"HostErrorReason":                "HostError",
	"HostSilentReason":               "HostSilent",
	"HostLBAnnotation":               "butler.butlerlabs.dev/host-lb",
	"HostLoadBalancerClass":          "butler.butlerlabs.dev/host",
	"IPAMMode":                       "ipam",
	"IPAllocationFinalizer":          "butler.butlerlabs.dev/ipallocation",
	"IPAllocationKind":               "IPAllocation",
	"IPLeaseFinalizer":               "butler.butlerlabs.dev/iplease",
	"IPLeaseKind":                    "IPLease",
	"IdleReason":                     "Idle",
	"InUseAgainReason":               "InUseAgain",
	"InUseCondition":                 "InUse",
	"InUseReason":                    "InUse",
	"InitialRole":                    "initial",
	"LBPoolSizeAnnotation":           "butler.butlerlabs.dev/lb-pool-size",
	"LastGateway":                    "Last",
	"LeaseAnnotation":                "butler.butlerlabs.dev/lease",
	"LeaseNotFoundReason":            "LeaseNotFound",
	"LeaseNotReadyReason":            "LeaseNotReady",
	"LeaseSatisfiedCondition":        "butler.butlerlabs.dev/LeaseSatisfied",
	"LeaseShownFinalizer":            "butler.butlerlabs.dev/lease-shown",
	"LeaseUnfitReason":               "LeaseUnfit",
	"LeasedAddressesAnnotation":      "butler.butlerlabs.dev/leased-addresses",
	"LeasedLabel":                    "butler.butlerlabs.dev/leased",
	"LeastRecentlyUsedOrder":         "LeastRecentlyUsed",
	"LoadBalancerAllocation":         "loadbalancer",
	"MadeForServicesLabel":           "butler.butlerlabs.dev/made-for-services",
	"MaxCarvedBlocks":                "128",
	"MaxLeasedPorts":                 "512",
	"MaxListedAddresses":             "65536",
	"ForeignAdvertisementReason":     "ForeignAdvertisement",
	"ForeignPoolReason":              "ForeignPool",
	"HandOverAnnotation":             "butler.butlerlabs.dev/hand-over",
	"HandedOverAnnotation":           "butler.butlerlabs.dev/handed-over",
	"ManagementClusterAnnotation":    "butler.butlerlabs.dev/management-cluster",
	"ClustersAnnotation":             "butler.butlerlabs.dev/clusters",
	"CopiedReason":                   "Copied",
	"ReleaseHeldAnnotation":          "butler.butlerlabs.dev/release-held",
	"MetalLBMissingReason":           "MetalLBMissing",
	"CiliumMissingReason":            "CiliumMissing",
	"TypeChangedReason":              "TypeChanged",
	"MetalLBRefusesReason":           "MetalLBRefuses",
	"MovedReason":                    "Moved",
	"AllocationsRemainReason":        "AllocationsRemain",
	"NetworkNotReadyReason":          "NetworkNotReady",
	"NetworkPoolKind":                "NetworkPool",
	"NetworkPoolLabel":               "butler.butlerlabs.dev/network-pool",
	"NetworkReadyCondition":          "NetworkReady",
	"NoCommonNodeReason":             "NoCommonNode",
	"NoHostReason":                   "NoHost",
	"NoMatchReason":                  "NoMatch",
	"NoOverlapReason":                "NoOverlap",
	"NoPoolReason":                   "NoPool",
	"NodeCIDRsLabel":                 "butler.butlerlabs.dev/node-cidrs",
	"NodesAllocation":                "nodes",
	"NodesRefusedReason":             "NodesRefused",
	"NotAllowedReason":               "NotAllowed",
	"NotDeclaredReason":              "NotDeclared",
	"NotPlacedReason":                "NotPlaced",
	"NotSeenReason":                  "NotSeen",
	"NotServedReason":                "NotServed",
	"OverlapCondition":               "Overlap",
	"OverlapReason":                  "Overlap",
	"ParentNetwork":                  "Parent",
	"ParentNotReadyReason":           "ParentNotReady",
	"PlatformScope":                  "platform",
	"PodCIDRsReadyCondition":         "PodCIDRsReady",
	"PodsAllocation":                 "pods",
	"PodsFinalizer":                  "butler.butlerlabs.dev/node-cidrs",
	"PoolAllocation":                 "pool",
	"PoolAvailableCondition":         "PoolAvailable",
	"PoolAvailableReason":            "PoolAvailable",
	"PoolExhaustedReason":            "PoolExhausted",
	"PoolFinalizer":                  "butler.butlerlabs.dev/networkpool",
	"PoolPerAllocationProjection":    "PoolPerAllocation",
	"PoolSeenCondition":              "PoolSeen",
	"PortFullReason":                 "PortFull",
	"PortInUseOnHostReason":          "PortInUseOnHost",
	"PortNotSupportedReason":         "PortNotSupported",
	"PortTakenReason":                "PortTaken",
	"ProviderConfigLabel":            "butler.butlerlabs.dev/provider-config",
	"QuotaExceededReason":            "QuotaExceeded",
	"QuotaReachedReason":             "QuotaReached",
	"ReadyCondition":                 "Ready",
	"ReadyReason":                    "Ready",
	"ReconcilingReason":              "Reconciling",
	"ReleaseUnconfirmedAnnotation":   "butler.butlerlabs.dev/release-unconfirmed",
	"RequestedAddressAnnotation":     "butler.butlerlabs.dev/requested-address",
	"RoomLeftReason":                 "RoomLeft",
	"RoutedNetwork":                  "Routed",
	"SatisfiedReason":                "Satisfied",
	"SeenReason":                     "Seen",
	"ServiceCIDRReason":              "ServiceCIDR",
	"SharedRangeReason":              "SharedRange",
	"ShownByHost":                    "Host",
	"ShownByMetalLB":                 "MetalLB",
	"StaticAllocation":               "static",
	"StaticReason":                   "Static",
	"TeamLabel":                      "butler.butlerlabs.dev/team",
	"TeamScope":                      "team",
	"TenantLabel":                    "butler.butlerlabs.dev/tenant",
	"TenantNetworkFinalizer":         "butler.butlerlabs.dev/tenant-network",
	"TenantPoolFinalizer":            "butler.butlerlabs.dev/tenant-pool",
	"CiliumPoolFinalizer":            "butler.butlerlabs.dev/cilium-pool",
	"TenantRefusedReason":            "TenantRefused",
	"TenantUnreachableReason":        "TenantUnreachable",
	"TriedAddressesAnnotation":       "butler.butlerlabs.dev/tried-addresses",
	"TriedGrowthPoolsAnnotation":     "butler.butlerlabs.dev/tried-growth-pools",
	"TriedPoolsAnnotation":           "butler.butlerlabs.dev/tried-pools",
	"ValidationFailedReason":         "ValidationFailed",
	"WaitingForBlockReason":          "WaitingForBlock",
	"WriteFailedReason":              "WriteFailed",
}

func TestNamesNeverChange(t *testing.T) {
	g := NewWithT(t)
	if diff := cmp.Diff(names, declared(g, "../../api/v1alpha1")); diff != "" {
		t.Error(diff)
	}
	// Constants of other packages. The first is the in-cluster provider's too, like ClaimFinalizer and
	// AddressFinalizer, so that the in-cluster provider can take over from this one.
	g.Expect(incluster.PoolFinalizer).To(Equal("ipam.cluster.x-k8s.io/ProtectPool"))
	g.Expect(incluster.GatewayAnnotation).To(Equal("butler.butlerlabs.dev/in-cluster-gateway"))
	g.Expect(incluster.EndedAnnotation).To(Equal("butler.butlerlabs.dev/in-cluster-ended"))
	g.Expect(incluster.SourceUIDAnnotation).To(Equal("butler.butlerlabs.dev/in-cluster-uid"))
	g.Expect(migrate.ImportAnnotation).To(Equal("butler.butlerlabs.dev/imported-from"))
	g.Expect(string(balancer.FieldOwner)).To(Equal("butler-controller/ipam")) // B54
}

// declared returns the string constants of a package with their values.
func declared(g *WithT, dir string) map[string]string {
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	g.Expect(err).NotTo(HaveOccurred())
	out := map[string]string{}
	for _, path := range files {
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		g.Expect(err).NotTo(HaveOccurred())
		for _, d := range file.Decls {
			constants, ok := d.(*ast.GenDecl)
			if !ok || constants.Tok != token.CONST || strings.HasSuffix(path, "_test.go") {
				continue
			}
			for _, spec := range constants.Specs {
				spec, ok := spec.(*ast.ValueSpec)
				g.Expect(ok).To(BeTrue())
				for i, name := range spec.Names {
					value, ok := spec.Values[i].(*ast.BasicLit)
					g.Expect(ok).To(BeTrue(), fmt.Sprintf("%s is written out", name.Name))
					out[name.Name] = value.Value
					if text, err := strconv.Unquote(value.Value); err == nil {
						out[name.Name] = text
					}
				}
			}
		}
	}
	return out
}
