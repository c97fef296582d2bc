package endpoint

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"path"
	"strings"

	"go.yaml.in/yaml/v3"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

const (
	// manifestsDir is the directory from which the kubelet reads static Pods.
	manifestsDir = "/etc/kubernetes/manifests"
	kubeVIPName  = "kube-vip"
)

// kubeVIPAddressVariables are the variables of kube-vip that have the address; the second one is for releases before
// 0.4.
var kubeVIPAddressVariables = []string{"address", "vip_address"}

// jsonPatch is one operation of RFC 6902.
type jsonPatch struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	Value string `json:"value"`
}

// newFilesPatch returns the operations that set the address in each file of a control plane's template that is a static
// Pod of kube-vip.
func newFilesPatch(template *unstructured.Unstructured, address netip.Addr) ([]jsonPatch, error) {
	fields := []string{"spec", "template", "spec", "kubeadmConfigSpec", "files"}
	files, _, err := unstructured.NestedSlice(template.Object, fields...)
	if err != nil {
		return nil, err
	}
	var out []jsonPatch
	for i, f := range files {
		file, _ := f.(map[string]any)
		name, _ := file["path"].(string)
		if path.Dir(path.Clean(name)) != manifestsDir {
			continue
		}
		if why := unreadableReason(file); why != "" {
			if strings.Contains(name, kubeVIPName) {
				return nil, fmt.Errorf("%s %s, and the address of kube-vip cannot be written into it; write it plainly, as content", name, why)
			}
			continue
		}
		content, _ := file["content"].(string)
		if content == "" {
			continue
		}
		changed, err := setManifestAddress(content, address)
		switch {
		case err != nil && strings.Contains(name, kubeVIPName):
			return nil, fmt.Errorf("%s is no manifest of a Pod, and the address of kube-vip cannot be written into it: %w", name, err)
		case err == nil && changed != content:
			out = append(out, jsonPatch{Op: "replace", Path: fmt.Sprintf("/%s/%d/content", strings.Join(fields, "/"), i), Value: changed})
		}
	}
	return out, nil
}

// unreadableReason returns why the content of a file cannot be read in its template; "" where it can.
func unreadableReason(file map[string]any) string {
	if from, _ := file["contentFrom"].(map[string]any); len(from) > 0 {
		return "has contentFrom"
	}
	if encoding, _ := file["encoding"].(string); encoding != "" {
		return "has encoding " + encoding
	}
	return ""
}

// setManifestAddress returns the manifest of a Pod in which kube-vip has the address. The manifest of another Pod, or
// of one that already has the address, is returned unchanged, to the byte; a changed one keeps its comments and the
// order of its fields.
func setManifestAddress(manifest string, address netip.Addr) (string, error) {
	var pod yaml.Node
	decoder := yaml.NewDecoder(strings.NewReader(manifest))
	if err := decoder.Decode(&pod); err != nil {
		return "", err
	}
	switch err := decoder.Decode(&yaml.Node{}); {
	case err == nil:
		return "", errors.New("it has more than one document")
	case !errors.Is(err, io.EOF):
		return "", err
	}
	root := pod.Content[0]
	if kind := mappingField(root, "kind"); kind == nil || kind.Value != "Pod" {
		return "", errors.New("its kind is not Pod")
	}
	changed := false
	for _, container := range sequenceItems(mappingField(mappingField(root, "spec"), "containers")) {
		if name := mappingField(container, "name"); name != nil && name.Value == kubeVIPName {
			changed = setContainerAddress(container, address) || changed
		}
	}
	if !changed {
		return manifest, nil
	}
	var out bytes.Buffer
	encoder := yaml.NewEncoder(&out)
	encoder.SetIndent(2)
	encoder.CompactSeqIndent()
	if err := encoder.Encode(&pod); err != nil {
		return "", err
	}
	return out.String(), encoder.Close()
}

// setContainerAddress sets the address variables of a container, or adds one where it has none. It reports whether that
// changed anything.
func setContainerAddress(container *yaml.Node, address netip.Addr) bool {
	found, changed := false, false
	env := mappingField(container, "env")
	if env != nil && env.Kind == yaml.AliasNode { // other users of the alias must stay unchanged
		own := copyNode(env.Alias)
		defer func() {
			if changed || !found {
				setMappingField(container, "env", own)
			}
		}()
		env = own
	}
	for _, variable := range sequenceItems(env) {
		name := mappingField(variable, "name")
		if name == nil || (name.Value != kubeVIPAddressVariables[0] && name.Value != kubeVIPAddressVariables[1]) {
			continue
		}
		found = true
		value := mappingField(variable, "value")
		if value == nil {
			variable.Content = newVariableNode(name.Value, address.String()).Content // replaces a valueFrom
			changed = true
			continue
		}
		if want := replaceInAddressList(value.Value, address); value.Value != want { // keeps its comments
			value.Kind, value.Tag, value.Value, value.Style = yaml.ScalarNode, "!!str", want, 0
			changed = true
		}
	}
	if found {
		return changed
	}
	if env == nil || env.Kind != yaml.SequenceNode {
		env = &yaml.Node{Kind: yaml.SequenceNode, Tag: "!!seq"}
		setMappingField(container, "env", env)
	}
	env.Content = append(env.Content, newVariableNode(kubeVIPAddressVariables[0], address.String()))
	return true
}

// replaceInAddressList returns the value of an address variable with a new address. kube-vip accepts several, separated
// by commas: those of the other IP family keep their places. A single value, of any family, is the address of the
// control plane or a placeholder.
func replaceInAddressList(value string, address netip.Addr) string {
	parts := strings.Split(value, ",")
	if len(parts) == 1 {
		if isSameAddress(value, address) {
			return value // to the byte: another manifest replaces the machines
		}
		return address.String()
	}
	out, placed := []string{}, false
	for _, part := range parts {
		parsed, err := netip.ParseAddr(strings.TrimSpace(part))
		switch {
		case err == nil && parsed.Is4() != address.Is4():
			out = append(out, part)
		case !placed && parsed == address:
			out, placed = append(out, part), true // to the byte, too
		case !placed:
			out, placed = append(out, address.String()), true
		}
	}
	if !placed {
		out = append([]string{address.String()}, out...)
	}
	return strings.Join(out, ",")
}

// copyNode returns a deep copy of a node without the anchors of its parts.
func copyNode(of *yaml.Node) *yaml.Node {
	out := *of
	out.Anchor, out.Content = "", nil
	for _, n := range of.Content {
		out.Content = append(out.Content, copyNode(n))
	}
	return &out
}

func newVariableNode(name, value string) *yaml.Node {
	return &yaml.Node{Kind: yaml.MappingNode, Tag: "!!map", Content: []*yaml.Node{newScalarNode("name"), newScalarNode(name), newScalarNode("value"), newScalarNode(value)}}
}

func newScalarNode(value string) *yaml.Node {
	return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: value}
}

// mappingField returns the value of a mapping's key; nil where it has none, or is no mapping.
func mappingField(mapping *yaml.Node, key string) *yaml.Node {
	if mapping == nil || mapping.Kind != yaml.MappingNode {
		return nil
	}
	for i := 0; i+1 < len(mapping.Content); i += 2 {
		if mapping.Content[i].Value == key {
			return mapping.Content[i+1]
		}
	}
	return nil
}

func setMappingField(mapping *yaml.Node, key string, value *yaml.Node) {
	for i := 0; i+1 < len(mapping.Content); i += 2 {
		if mapping.Content[i].Value == key {
			mapping.Content[i+1] = value
			return
		}
	}
	mapping.Content = append(mapping.Content, newScalarNode(key), value)
}

func sequenceItems(sequence *yaml.Node) []*yaml.Node {
	if sequence == nil || sequence.Kind != yaml.SequenceNode {
		return nil
	}
	return sequence.Content
}
