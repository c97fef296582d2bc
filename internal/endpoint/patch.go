package endpoint

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/netip"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	hooksv1 "sigs.k8s.io/cluster-api/api/runtime/hooks/v1alpha1"
)

// defaultPort is the default of kubeadm.
const defaultPort = 6443

// The fields of a Cluster that use the templates. A request distinguishes the templates by them, whatever their kinds.
const (
	infrastructureField = "spec.infrastructureRef"
	controlPlaneField   = "spec.controlPlaneRef"
)

// BuildPatches returns the patches that set an address in the templates of a request: the endpoint in the
// infrastructure's, and the address of kube-vip in the control plane's. A template that has it already gets no patch.
func BuildPatches(cluster *clusterv1.Cluster, items []hooksv1.GeneratePatchesRequestItem, address netip.Addr) ([]hooksv1.GeneratePatchesResponseItem, error) {
	var out []hooksv1.GeneratePatchesResponseItem
	for _, item := range items {
		holder := item.HolderReference
		if holder.Kind != clusterv1.ClusterKind {
			continue
		}
		patch, format := any(nil), hooksv1.JSONPatchType
		template := &unstructured.Unstructured{}
		if err := json.Unmarshal(item.Object.Raw, &template.Object); err != nil {
			return nil, fmt.Errorf("reading the template of %s: %w", holder.FieldPath, err)
		}
		switch holder.FieldPath {
		case infrastructureField:
			patch, format = newEndpointPatch(cluster, template, address), hooksv1.JSONMergePatchType
		case controlPlaneField:
			files, err := newFilesPatch(template, address)
			if err != nil {
				return nil, fmt.Errorf("%s %s: %w", template.GetKind(), template.GetName(), err)
			}
			if len(files) > 0 {
				patch = files
			}
		}
		if patch == nil {
			continue
		}
		raw, err := json.Marshal(patch)
		if err != nil {
			return nil, err
		}
		out = append(out, hooksv1.GeneratePatchesResponseItem{UID: item.UID, PatchType: format, Patch: raw})
	}
	return out, nil
}

// isSameAddress reports whether a text is an address, in any spelling: FD00::5 is fd00::5. A value with another
// spelling must not be rewritten, as that replaces machines.
func isSameAddress(text string, address netip.Addr) bool {
	parsed, err := netip.ParseAddr(strings.TrimSpace(text))
	return err == nil && parsed.Unmap() == address.Unmap()
}

// newEndpointPatch returns a merge patch, as the template may have none of the fields around the endpoint; nil if it
// has the endpoint.
func newEndpointPatch(cluster *clusterv1.Cluster, template *unstructured.Unstructured, address netip.Addr) any {
	endpoint := map[string]any{}
	path := []string{"spec", "template", "spec", "controlPlaneEndpoint"}
	if host, _, _ := unstructured.NestedString(template.Object, append(path, "host")...); !isSameAddress(host, address) {
		endpoint["host"] = address.String()
	}
	if port, _, _ := unstructured.NestedFieldNoCopy(template.Object, append(path, "port")...); port == nil || fmt.Sprint(port) == "0" {
		endpoint["port"] = cmp.Or(cluster.Spec.ControlPlaneEndpoint.Port, cluster.Spec.ClusterNetwork.APIServerPort, defaultPort)
	}
	if len(endpoint) == 0 {
		return nil
	}
	patch := any(endpoint)
	for i := len(path) - 1; i >= 0; i-- {
		patch = map[string]any{path[i]: patch}
	}
	return patch
}
