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
	// manifests is where the kubelet reads static Pods.
	manifests = "/etc/kubernetes/manifests"
	kubeVIP   = "kube-vip"
)

// addressVariables are those of kube-vip that have the address; the second is that of releases before 0.4.
var addressVariables = []string{"address", "vip_address"}

// jsonPatch is one operation of RFC 6902.
type jsonPatch struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	Value string `json:"value"`
}

// filesPatch gives kube-vip the address in each file of a control plane's template that is its static Pod.
func filesPatch(template *unstructured.Unstructured, address netip.Addr) ([]jsonPatch, error) {
	fields := []string{"spec", "template", "spec", "kubeadmConfigSpec", "files"}
	files, _, err := unstructured.NestedSlice(template.Object, fields...)
	if err != nil {
		return nil, err
	}
	var out []jsonPatch
	for i, f := range files {
		file, _ := f.(map[string]any)
		name, _ := file["path"].(string)
		if path.Dir(path.Clean(name)) != manifests {
			continue
		}
		if why := unreadable(file); why != "" {
			if strings.Contains(name, kubeVIP) {
				return nil, fmt.Errorf("%s %s, and the address of kube-vip cannot be written into it; write it plainly, as content", name, why)
			}
			continue
		}
		content, _ := file["content"].(string)
		if content == "" {
			continue
		}
		changed, err := withAddress(content, address)
		switch {
		case err != nil && strings.Contains(name, kubeVIP):
			return nil, fmt.Errorf("%s is no manifest of a Pod, and the address of kube-vip cannot be written into it: %w", name, err)
		case err == nil && changed != content:
			out = append(out, jsonPatch{Op: "replace", Path: fmt.Sprintf("/%s/%d/content", strings.Join(fields, "/"), i), Value: changed})
		}
	}
	return out, nil
}

// unreadable says why the contents of a file are not seen in its template; empty: they are.
func unreadable(file map[string]any) string {
	if from, _ := file["contentFrom"].(map[string]any); len(from) > 0 {
		return "has contentFrom"
	}
	if encoding, _ := file["encoding"].(string); encoding != "" {
		return "has encoding " + encoding
	}
	return ""
}

// withAddress returns the manifest of a Pod in which kube-vip has the address. Another Pod, and one that has it, stays as
// it is, to the byte; in this one comments and the order of fields stay.
func withAddress(manifest string, address netip.Addr) (string, error) {
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
	if kind := field(root, "kind"); kind == nil || kind.Value != "Pod" {
		return "", errors.New("its kind is not Pod")
	}
	changed := false
	for _, container := range items(field(field(root, "spec"), "containers")) {
		if name := field(container, "name"); name != nil && name.Value == kubeVIP {
			changed = setAddress(container, address) || changed
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

// setAddress sets the variables of a container that have the address, or adds one where it has none. It reports
// whether that changed anything.
func setAddress(container *yaml.Node, address netip.Addr) bool {
	found, changed := false, false
	env := field(container, "env")
	if env != nil && env.Kind == yaml.AliasNode { // what others name stays as it is
		own := copied(env.Alias)
		defer func() {
			if changed || !found {
				setField(container, "env", own)
			}
		}()
		env = own
	}
	for _, variable := range items(env) {
		name := field(variable, "name")
		if name == nil || (name.Value != addressVariables[0] && name.Value != addressVariables[1]) {
			continue
		}
		found = true
		value := field(variable, "value")
		if value == nil {
			variable.Content = variableOf(name.Value, address.String()).Content // in place of a valueFrom
			changed = true
			continue
		}
		if want := among(value.Value, address); value.Value != want { // with its comments
			value.Kind, value.Tag, value.Value, value.Style = yaml.ScalarNode, "!!str", want, 0
			changed = true
		}
	}
	if found {
		return changed
	}
	if env == nil || env.Kind != yaml.SequenceNode {
		env = &yaml.Node{Kind: yaml.SequenceNode, Tag: "!!seq"}
		setField(container, "env", env)
	}
	env.Content = append(env.Content, variableOf(addressVariables[0], address.String()))
	return true
}

// among returns the value of such a variable with an address. kube-vip takes several, with commas between them: those of
// the other family stay, in their places. A single one is that of the control plane, or stands for it, in any family.
func among(value string, address netip.Addr) string {
	parts := strings.Split(value, ",")
	if len(parts) == 1 {
		if isAddress(value, address) {
			return value // to the byte: another manifest is another machine
		}
		return address.String()
	}
	out, placed := []string{}, false
	for _, part := range parts {
		is, err := netip.ParseAddr(strings.TrimSpace(part))
		switch {
		case err == nil && is.Is4() != address.Is4():
			out = append(out, part)
		case !placed && is == address:
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

// copied is a copy of a node, without the names by which others name its parts.
func copied(of *yaml.Node) *yaml.Node {
	out := *of
	out.Anchor, out.Content = "", nil
	for _, n := range of.Content {
		out.Content = append(out.Content, copied(n))
	}
	return &out
}

func variableOf(name, value string) *yaml.Node {
	return &yaml.Node{Kind: yaml.MappingNode, Tag: "!!map", Content: []*yaml.Node{scalar("name"), scalar(name), scalar("value"), scalar(value)}}
}

func scalar(value string) *yaml.Node {
	return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: value}
}

// field returns the value of a mapping's key; nil: it has none, or is no mapping.
func field(mapping *yaml.Node, key string) *yaml.Node {
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

func setField(mapping *yaml.Node, key string, value *yaml.Node) {
	for i := 0; i+1 < len(mapping.Content); i += 2 {
		if mapping.Content[i].Value == key {
			mapping.Content[i+1] = value
			return
		}
	}
	mapping.Content = append(mapping.Content, scalar(key), value)
}

func items(sequence *yaml.Node) []*yaml.Node {
	if sequence == nil || sequence.Kind != yaml.SequenceNode {
		return nil
	}
	return sequence.Content
}
