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

// defaultPort is that of kubeadm.
const defaultPort = 6443

// Where the templates of a Cluster are used, by which a request tells them apart, whatever their kinds.
const (
	infrastructureField = "spec.infrastructureRef"
	controlPlaneField   = "spec.controlPlaneRef"
)

// Patches returns what becomes of the templates of a request with an address: the endpoint in that of the
// infrastructure, and the address of kube-vip in that of the control plane. What has it already is not patched.
func Patches(cluster *clusterv1.Cluster, items []hooksv1.GeneratePatchesRequestItem, address netip.Addr) ([]hooksv1.GeneratePatchesResponseItem, error) {
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
			patch, format = endpointPatch(cluster, template, address), hooksv1.JSONMergePatchType
		case controlPlaneField:
			files, err := filesPatch(template, address)
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

// isAddress reports whether a text is an address, however it is spelled: FD00::5 is fd00::5. What is spelled otherwise is not
// written anew, as that replaces machines.
func isAddress(text string, address netip.Addr) bool {
	is, err := netip.ParseAddr(strings.TrimSpace(text))
	return err == nil && is.Unmap() == address.Unmap()
}

// endpointPatch is a merge patch, as the template may lack all that the endpoint is in; nil: it has the endpoint.
func endpointPatch(cluster *clusterv1.Cluster, template *unstructured.Unstructured, address netip.Addr) any {
	endpoint := map[string]any{}
	path := []string{"spec", "template", "spec", "controlPlaneEndpoint"}
	if host, _, _ := unstructured.NestedString(template.Object, append(path, "host")...); !isAddress(host, address) {
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
