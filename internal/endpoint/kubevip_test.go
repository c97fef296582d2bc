package endpoint

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// pod returns a manifest of kube-vip, as templates of providers have it, with the given env.
func pod(env string) string {
	return `apiVersion: v1
kind: Pod
metadata:
  creationTimestamp: null
  name: kube-vip
spec:
  # Runs before there is an API server.
  containers:
  - args: ["manager"]
    image: ghcr.io/kube-vip/kube-vip:v0.8.9
    name: kube-vip
` + env + `  hostNetwork: true
  volumes:
  - hostPath:
      path: /etc/kubernetes/admin.conf
    name: kubeconfig
`
}

func env(lines ...string) string {
	return "    env:\n    - name: port\n      value: \"6443\"\n    - " + strings.Join(lines, "\n    - ") + "\n"
}

func TestSetManifestAddress(t *testing.T) { // U43
	const other = "    name: kube-vip\n"
	cases := map[string]struct{ manifest, want, err string }{
		"the variable has a placeholder": {
			manifest: pod(env("name: address\n      value: 0.0.0.0 # of the pool")),
			want:     pod(env("name: address\n      value: 10.0.0.5 # of the pool")),
		},
		"the value is empty":   {manifest: pod(env("name: address\n      value: \"\"")), want: pod(env("name: address\n      value: 10.0.0.5"))},
		"the value is missing": {manifest: pod(env("name: address")), want: pod(env("name: address\n      value: 10.0.0.5"))},
		"it is read from elsewhere": {
			manifest: pod(env("name: address\n      valueFrom:\n        fieldRef:\n          fieldPath: status.hostIP")),
			want:     pod(env("name: address\n      value: 10.0.0.5")),
		},
		"an old one": {manifest: pod(env("name: vip_address\n      value: 1.1.1.1")), want: pod(env("name: vip_address\n      value: 10.0.0.5"))},
		"both are there": {
			manifest: pod(env("name: vip_address\n      value: 1.1.1.1", "name: address\n      value: 10.0.0.5")),
			want:     pod(env("name: vip_address\n      value: 10.0.0.5", "name: address\n      value: 10.0.0.5")),
		},
		"none is there": {manifest: pod(env("name: vip_arp\n      value: \"true\"")), want: pod(env("name: vip_arp\n      value: \"true\"", "name: address\n      value: 10.0.0.5"))},
		"no env at all": {manifest: pod(""), want: strings.Replace(pod(""), other, other+"    env:\n    - name: address\n      value: 10.0.0.5\n", 1)},
		"one of the other family is kept": {
			manifest: pod(env("name: address\n      value: 10.0.0.9,fd00::9")),
			want:     pod(env("name: address\n      value: 10.0.0.5,fd00::9")),
		},
		"and in its place": {
			manifest: pod(env("name: address\n      value: fd00::9, 0.0.0.0")),
			want:     pod(env("name: address\n      value: fd00::9,10.0.0.5")),
		},
		"it has the address, beside another": {
			manifest: "kind: Pod\nspec: {containers: [{name: kube-vip, env: [{name: address, value: \"fd00::9, 10.0.0.5\"}]}]}\n",
			want:     "kind: Pod\nspec: {containers: [{name: kube-vip, env: [{name: address, value: \"fd00::9, 10.0.0.5\"}]}]}\n",
		},
		"beside what is no address": {
			manifest: pod(env("name: address\n      value: unused,fd00::9")),
			want:     pod(env("name: address\n      value: 10.0.0.5,fd00::9")),
		},
		"beside none at all": {
			manifest: pod(env("name: address\n      value: \",fd00::9\"")),
			want:     pod(env("name: address\n      value: 10.0.0.5,fd00::9")),
		},
		"a second one of its family is not kept": {
			manifest: pod(env("name: address\n      value: 10.0.0.9,10.0.0.10,fd00::9")),
			want:     pod(env("name: address\n      value: 10.0.0.5,fd00::9")),
		},
		"all are of the other family": {
			manifest: pod(env("name: address\n      value: fd00::9,fd00::a")),
			want:     pod(env("name: address\n      value: 10.0.0.5,fd00::9,fd00::a")),
		},
		"the only one is of the other family": {
			manifest: pod(env("name: address\n      value: fd00::9")),
			want:     pod(env("name: address\n      value: 10.0.0.5")),
		},
		"it has the address": {
			manifest: "kind: Pod\nspec: {containers: [{name: kube-vip, env: [{name: address, value: \"10.0.0.5\"}]}]}\n",
			want:     "kind: Pod\nspec: {containers: [{name: kube-vip, env: [{name: address, value: \"10.0.0.5\"}]}]}\n",
		},
		"another Pod": {
			manifest: "kind: Pod\nspec:\n    containers:\n        - name: haproxy\n          env: [{name: address, value: 1.1.1.1}]\n",
			want:     "kind: Pod\nspec:\n    containers:\n        - name: haproxy\n          env: [{name: address, value: 1.1.1.1}]\n",
		},
		"no Pod":        {manifest: "kind: ConfigMap\n", err: "its kind is not Pod"},
		"no object":     {manifest: "- a\n- b\n", err: "its kind is not Pod"},
		"no YAML":       {manifest: "{{ if .x }}\nkind: Pod\n", err: "yaml:"},
		"nothing":       {manifest: "# later\n", err: "EOF"},
		"two documents": {manifest: pod("") + "---\n" + pod(""), err: "more than one document"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			got, err := setManifestAddress(c.manifest, netip.MustParseAddr("10.0.0.5"))
			if c.err != "" {
				if err == nil || !strings.Contains(err.Error(), c.err) {
					t.Errorf("%v, not %q", err, c.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Error(diff)
			}
			if again, err := setManifestAddress(got, netip.MustParseAddr("10.0.0.5")); err != nil || again != got {
				t.Errorf("once more it is another: %v\n%s", err, again)
			}
		})
	}
}

// TestSetManifestAddressOfTwoFamilies checks that the IPv4 address that a dual-stack control plane has from elsewhere
// is kept beside one of IPv6.
func TestSetManifestAddressOfTwoFamilies(t *testing.T) { // U43
	got, err := setManifestAddress(pod(env("name: address\n      value: \"10.0.0.9,::\"")), netip.MustParseAddr("fd00::5"))
	if want := pod(env("name: address\n      value: 10.0.0.9,fd00::5")); err != nil || got != want {
		t.Errorf("%v\n%s", err, cmp.Diff(want, got))
	}
}

// TestSetManifestAddressOfIPv6 checks that an IPv6 address is written as a string, and not as a mapping.
func TestSetManifestAddressOfIPv6(t *testing.T) {
	got, err := setManifestAddress(pod(env("name: address\n      value: x")), netip.MustParseAddr("fd00::5"))
	if err != nil || !strings.Contains(got, "value: fd00::5\n") && !strings.Contains(got, `value: "fd00::5"`) {
		t.Errorf("%v\n%s", err, got)
	}
}

func TestFilesPatch(t *testing.T) { // U43
	placeholder := pod(env("name: address\n      value: 0.0.0.0"))
	file := func(path, content string) map[string]any { return map[string]any{"path": path, "content": content} }
	cases := map[string]struct {
		files []any
		want  []string
		err   string
	}{
		"no files": {},
		"kube-vip is the second": {
			files: []any{file("/etc/kube-vip.hosts", "127.0.0.1 localhost"), file("/etc/kubernetes/manifests/kube-vip.yaml", placeholder)},
			want:  []string{"/spec/template/spec/kubeadmConfigSpec/files/1/content"},
		},
		"the name of its file does not matter": {
			files: []any{file("/etc/kubernetes/manifests/vip.yaml", placeholder)},
			want:  []string{"/spec/template/spec/kubeadmConfigSpec/files/0/content"},
		},
		"a manifest elsewhere":           {files: []any{file("/root/kube-vip.yaml", placeholder)}},
		"content from a Secret":          {files: []any{map[string]any{"path": "/etc/kubernetes/manifests/a.yaml", "contentFrom": map[string]any{"secret": map[string]any{"name": "a", "key": "b"}}}}},
		"another manifest without sense": {files: []any{file("/etc/kubernetes/manifests/a.yaml", "{{ a }}")}},
		"kube-vip that cannot be read":   {files: []any{file("/etc/kubernetes/manifests/kube-vip.yaml", "{{ a }}")}, err: "is no manifest of a Pod"},
		"kube-vip that is encoded": {
			files: []any{map[string]any{"path": "/etc/kubernetes/manifests/kube-vip.yaml", "content": "YQ==", "encoding": "base64"}}, err: "has encoding base64",
		},
		"kube-vip from a Secret": {
			files: []any{map[string]any{"path": "/etc/kubernetes/manifests/kube-vip.yaml", "contentFrom": map[string]any{"secret": map[string]any{"name": "a", "key": "b"}}}},
			err:   "kube-vip.yaml has contentFrom",
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			template := &unstructured.Unstructured{Object: map[string]any{}}
			if c.files != nil {
				_ = unstructured.SetNestedSlice(template.Object, c.files, "spec", "template", "spec", "kubeadmConfigSpec", "files")
			}
			patches, err := newFilesPatch(template, netip.MustParseAddr("10.0.0.5"))
			if (c.err == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), c.err) {
				t.Fatalf("%v, not %q", err, c.err)
			}
			var got []string
			for _, p := range patches {
				got = append(got, p.Path)
				if !strings.Contains(p.Value, "value: 10.0.0.5\n") {
					t.Error(p.Value)
				}
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}
