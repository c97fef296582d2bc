package faults

import (
	"fmt"
	"reflect"

	metallbv1beta1 "go.universe.tf/metallb/api/v1beta1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	eventsv1 "k8s.io/api/events/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/cilium"
)

// Kind is a kind of object that the server serves.
type Kind string

// The kinds: those of the allocator, of the controllers of Clusters, of the Node CIDR allocator, and of workload
// clusters.
const (
	Pools       Kind = v1alpha1.NetworkPoolKind
	GlobalPools Kind = v1alpha1.GlobalNetworkPoolKind
	Claims      Kind = "IPAddressClaim"
	Addresses   Kind = "IPAddress"
	Allocations Kind = v1alpha1.IPAllocationKind
	Leases      Kind = v1alpha1.IPLeaseKind

	Clusters        Kind = "Cluster"
	ProviderConfigs Kind = "ProviderConfig"
	Namespaces      Kind = "Namespace"

	Nodes        Kind = "Node"
	ClusterCIDRs Kind = v1alpha1.ClusterCIDRKind
	ConfigMaps   Kind = "ConfigMap"
	ServiceCIDRs Kind = "ServiceCIDR"

	Services         Kind = "Service"
	EndpointSlices   Kind = "EndpointSlice"
	MetalLBPools     Kind = "IPAddressPool"
	L2Advertisements Kind = "L2Advertisement"
	MetalLBStates    Kind = "ConfigurationState"
	CiliumPools      Kind = "CiliumLoadBalancerIPPool"
	Events           Kind = "Event"
	// HostLeases is the kind of the coordination Leases of hosts.
	HostLeases Kind = "Lease"
)

// AllocatorKinds are the kinds that allocators watch.
var AllocatorKinds = []Kind{Pools, GlobalPools, Claims, Addresses, Allocations, Leases, Clusters}

// newObjectByKind has a function for each kind that makes an empty object, as the server does.
var newObjectByKind = map[Kind]func() client.Object{
	Pools:       func() client.Object { return &v1alpha1.NetworkPool{} },
	GlobalPools: func() client.Object { return &v1alpha1.GlobalNetworkPool{} },
	Claims:      func() client.Object { return &ipamv1.IPAddressClaim{} },
	Addresses:   func() client.Object { return &ipamv1.IPAddress{} },
	Allocations: func() client.Object {
		return &v1alpha1.IPAllocation{Status: v1alpha1.IPAllocationStatus{Phase: v1alpha1.AllocationPending}}
	},
	Leases:          func() client.Object { return &v1alpha1.IPLease{} },
	Clusters:        func() client.Object { return &clusterv1.Cluster{} },
	ProviderConfigs: func() client.Object { return &v1alpha1.ProviderConfig{} },
	Namespaces: func() client.Object {
		o := &metav1.PartialObjectMetadata{}
		o.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind(string(Namespaces)))
		return o
	},
	Nodes:            func() client.Object { return &corev1.Node{} },
	ClusterCIDRs:     func() client.Object { return &v1alpha1.ClusterCIDR{} },
	ConfigMaps:       func() client.Object { return &corev1.ConfigMap{} },
	ServiceCIDRs:     func() client.Object { return &networkingv1.ServiceCIDR{} },
	Services:         func() client.Object { return &corev1.Service{} },
	EndpointSlices:   func() client.Object { return &discoveryv1.EndpointSlice{} },
	MetalLBPools:     func() client.Object { return &metallbv1beta1.IPAddressPool{} },
	L2Advertisements: func() client.Object { return &metallbv1beta1.L2Advertisement{} },
	MetalLBStates:    func() client.Object { return &metallbv1beta1.ConfigurationState{} },
	CiliumPools:      func() client.Object { return &cilium.Pool{} },
	Events:           func() client.Object { return &eventsv1.Event{} },
	HostLeases:       func() client.Object { return &coordinationv1.Lease{} },
}

// kindByType maps each type of object to its kind.
var kindByType = func() map[reflect.Type]Kind {
	out := map[reflect.Type]Kind{}
	for kind, empty := range newObjectByKind {
		out[reflect.TypeOf(empty())] = kind
	}
	return out
}()

// Ref identifies an object by kind, namespace and name.
type Ref struct {
	Kind            Kind
	Namespace, Name string
}

// RefForObject returns the Ref of an object.
func RefForObject(o client.Object) Ref {
	kind, known := kindByType[reflect.TypeOf(o)]
	if !known { // the kind of an unstructured object, or a kind that the server does not serve
		kind = Kind(o.GetObjectKind().GroupVersionKind().Kind)
	}
	return Ref{kind, o.GetNamespace(), o.GetName()}
}

// kindForList returns the kind of the items of a list.
func kindForList(l client.ObjectList) Kind {
	items, has := reflect.TypeOf(l).Elem().FieldByName("Items")
	if !has {
		panic(fmt.Sprintf("%T has no items", l))
	}
	return kindByType[reflect.PointerTo(items.Type.Elem())]
}

func (r Ref) groupResource() schema.GroupResource {
	return schema.GroupResource{Resource: string(r.Kind)}
}

func (r Ref) newObject() client.Object {
	empty, known := newObjectByKind[r.Kind]
	if !known {
		panic(fmt.Sprintf("objects of kind %q are not known here", r.Kind))
	}
	return empty()
}

// copyStatus copies the status of one object to another of the same kind, if the kind has a status.
func copyStatus(to, from client.Object) {
	is := reflect.ValueOf(to).Elem().FieldByName("Status")
	if is.IsValid() {
		is.Set(reflect.ValueOf(copyObject(from)).Elem().FieldByName("Status"))
	}
}
