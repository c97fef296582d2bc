package nodeipam

import (
	"context"
	"fmt"

	"go4.org/netipx"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	netutils "k8s.io/utils/net"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/podcidr"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/term"
)

// NetworkingXGroupVersion is the version of the ClusterCIDRs of node-ipam-controller
// (github.com/kubernetes-sigs/node-ipam-controller). They are served unchanged, so that a return to it stays possible.
var NetworkingXGroupVersion = schema.GroupVersion{Group: "networking.x-k8s.io", Version: "v1"}

const (
	// NetworkingXKind is their kind in refs, as our kind has the same name.
	NetworkingXKind = v1alpha1.ClusterCIDRKind + ".networking.x-k8s.io"
	// NetworkingXFinalizer is the finalizer of node-ipam-controller, which protects them as ours protects our kind.
	NetworkingXFinalizer = "networking.x-k8s.io/cluster-cidr-finalizer"
)

// networkingXSpec is their spec. An empty text means no range, and an empty selector selects all Nodes.
type networkingXSpec struct {
	NodeSelector    *corev1.NodeSelector `json:"nodeSelector"`
	PerNodeHostBits int32                `json:"perNodeHostBits"`
	IPv4            string               `json:"ipv4"`
	IPv6            string               `json:"ipv6"`
}

// NewNetworkingXClusterCIDR returns an empty ClusterCIDR of node-ipam-controller.
func NewNetworkingXClusterCIDR() *unstructured.Unstructured {
	out := &unstructured.Unstructured{}
	out.SetGroupVersionKind(NetworkingXGroupVersion.WithKind(v1alpha1.ClusterCIDRKind))
	return out
}

// NewNetworkingXClusterCIDRList returns an empty list of ClusterCIDRs of node-ipam-controller.
func NewNetworkingXClusterCIDRList() *unstructured.UnstructuredList {
	out := &unstructured.UnstructuredList{}
	out.SetGroupVersionKind(NetworkingXGroupVersion.WithKind(v1alpha1.ClusterCIDRKind + "List"))
	return out
}

// RefForNetworkingX returns the reference of a ClusterCIDR of node-ipam-controller.
func RefForNetworkingX(o client.Object) podcidr.Ref {
	return podcidr.Ref{Kind: NetworkingXKind, Name: o.GetName(), UID: o.GetUID()}
}

// RangeObjectFromNetworkingX returns a ClusterCIDR of node-ipam-controller as a RangeObject.
func RangeObjectFromNetworkingX(o *unstructured.Unstructured) RangeObject {
	var in networkingXSpec
	spec, _, err := unstructured.NestedMap(o.Object, "spec")
	if err == nil {
		err = runtime.DefaultUnstructuredConverter.FromUnstructured(spec, &in)
	}
	declared := v1alpha1.ClusterCIDRSpec{
		NodeSelector: in.NodeSelector, PerNodeHostBits: in.PerNodeHostBits, IPv4: maskCIDR(in.IPv4), IPv6: maskCIDR(in.IPv6),
	}
	out := newRangeObject(RefForNetworkingX(o), o, NetworkingXFinalizer, &declared)
	if err != nil {
		out.Range, out.ValidationErrors = nil, field.ErrorList{field.Invalid(field.NewPath("spec"), "", err.Error())}
	}
	return out
}

// maskCIDR returns a CIDR in canonical form: node-ipam-controller accepts more texts, and ignores bits beyond the
// prefix.
func maskCIDR(text string) string {
	if _, parsed, err := netutils.ParseCIDRSloppy(text); err == nil {
		if p, ok := netipx.FromStdIPNet(parsed); ok {
			return p.String()
		}
	}
	return text
}

// NetworkingXProtector protects the ClusterCIDRs of node-ipam-controller, in the cluster of the manager.
type NetworkingXProtector struct {
	Client client.Client
	// Live reads the current state of the API server.
	Live client.Reader
}

func (n NetworkingXProtector) finalizerProtector() finalizerProtector {
	return finalizerProtector{client: n.Client, live: n.Live, finalizer: NetworkingXFinalizer}
}

// ProtectObject implements ObjectProtector.
func (n NetworkingXProtector) ProtectObject(ctx context.Context, ref podcidr.Ref) error {
	return n.finalizerProtector().addFinalizer(ctx, ref, NewNetworkingXClusterCIDR())
}

// UnprotectObject implements ObjectProtector.
func (n NetworkingXProtector) UnprotectObject(ctx context.Context, ref podcidr.Ref, _ string) error {
	return n.finalizerProtector().removeFinalizer(ctx, ref, NewNetworkingXClusterCIDR())
}

// HasProtectedObjects implements ObjectProtector: node-ipam-controller protects them too, and its last requests may
// still be under way.
func (n NetworkingXProtector) HasProtectedObjects(ctx context.Context) (bool, error) {
	all := NewNetworkingXClusterCIDRList()
	ctx, cancel := context.WithTimeout(ctx, term.RequestTimeout)
	defer cancel()
	if err := n.Live.List(ctx, all); err != nil {
		return false, fmt.Errorf("listing the ClusterCIDRs of %s: %w", NetworkingXGroupVersion, err)
	}
	for i := range all.Items {
		if controllerutil.ContainsFinalizer(&all.Items[i], NetworkingXFinalizer) {
			return true, nil
		}
	}
	return false, nil
}
