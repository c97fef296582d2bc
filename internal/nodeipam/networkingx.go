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

// NetworkingXVersion is the version of the ClusterCIDRs of node-ipam-controller
// (github.com/kubernetes-sigs/node-ipam-controller). They are served as they are, so that the way back stays open.
var NetworkingXVersion = schema.GroupVersion{Group: "networking.x-k8s.io", Version: "v1"}

const (
	// NetworkingXKind is what refs call their kind: ours has the same name.
	NetworkingXKind = v1alpha1.ClusterCIDRKind + ".networking.x-k8s.io"
	// NetworkingXFinalizer is node-ipam-controller's, which holds them as ours holds our kind.
	NetworkingXFinalizer = "networking.x-k8s.io/cluster-cidr-finalizer"
)

// networkingXSpec is their spec. An empty text is no range, and an empty selector selects all Nodes.
type networkingXSpec struct {
	NodeSelector    *corev1.NodeSelector `json:"nodeSelector"`
	PerNodeHostBits int32                `json:"perNodeHostBits"`
	IPv4            string               `json:"ipv4"`
	IPv6            string               `json:"ipv6"`
}

// NewNetworkingX returns an empty one of them.
func NewNetworkingX() *unstructured.Unstructured {
	out := &unstructured.Unstructured{}
	out.SetGroupVersionKind(NetworkingXVersion.WithKind(v1alpha1.ClusterCIDRKind))
	return out
}

// NewNetworkingXList returns an empty list of them.
func NewNetworkingXList() *unstructured.UnstructuredList {
	out := &unstructured.UnstructuredList{}
	out.SetGroupVersionKind(NetworkingXVersion.WithKind(v1alpha1.ClusterCIDRKind + "List"))
	return out
}

// NetworkingXRef names one of them.
func NetworkingXRef(o client.Object) podcidr.Ref {
	return podcidr.Ref{Kind: NetworkingXKind, Name: o.GetName(), UID: o.GetUID()}
}

// NetworkingXObject is what one of them says.
func NetworkingXObject(o *unstructured.Unstructured) Object {
	var in networkingXSpec
	spec, _, err := unstructured.NestedMap(o.Object, "spec")
	if err == nil {
		err = runtime.DefaultUnstructuredConverter.FromUnstructured(spec, &in)
	}
	said := v1alpha1.ClusterCIDRSpec{
		NodeSelector: in.NodeSelector, PerNodeHostBits: in.PerNodeHostBits, IPv4: masked(in.IPv4), IPv6: masked(in.IPv6),
	}
	out := objectOf(NetworkingXRef(o), o, NetworkingXFinalizer, &said)
	if err != nil {
		out.Range, out.Invalid = nil, field.ErrorList{field.Invalid(field.NewPath("spec"), "", err.Error())}
	}
	return out
}

// masked is a CIDR as we write it: node-ipam-controller takes more texts, and passes over bits beyond the prefix.
func masked(text string) string {
	if _, parsed, err := netutils.ParseCIDRSloppy(text); err == nil {
		if p, is := netipx.FromStdIPNet(parsed); is {
			return p.String()
		}
	}
	return text
}

// NetworkingX are the ClusterCIDRs of node-ipam-controller, in the cluster of the manager.
type NetworkingX struct {
	Client client.Client
	// Live reads what the API server has.
	Live client.Reader
}

func (n NetworkingX) held() held {
	return held{client: n.Client, live: n.Live, finalizer: NetworkingXFinalizer}
}

// Protect implements Objects.
func (n NetworkingX) Protect(ctx context.Context, ref podcidr.Ref) error {
	return n.held().protect(ctx, ref, NewNetworkingX())
}

// Release implements Objects.
func (n NetworkingX) Release(ctx context.Context, ref podcidr.Ref, _ string) error {
	return n.held().release(ctx, ref, NewNetworkingX())
}

// AnyProtected implements Objects: node-ipam-controller protects them too, and what it sent last may be on its way.
func (n NetworkingX) AnyProtected(ctx context.Context) (bool, error) {
	all := NewNetworkingXList()
	ctx, cancel := context.WithTimeout(ctx, term.RequestTimeout)
	defer cancel()
	if err := n.Live.List(ctx, all); err != nil {
		return false, fmt.Errorf("listing the ClusterCIDRs of %s: %w", NetworkingXVersion, err)
	}
	for i := range all.Items {
		if controllerutil.ContainsFinalizer(&all.Items[i], NetworkingXFinalizer) {
			return true, nil
		}
	}
	return false, nil
}
