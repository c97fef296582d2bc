// Package manifests applies every shipped manifest to a real API server, with Pod Security as its namespace requires,
// and creates the Pods of its workloads: a cluster may refuse what kustomize builds.
package manifests

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

var cp *framework.ControlPlane

func TestMain(m *testing.M) {
	os.Exit(framework.RunTestMain(m, framework.Options{}, func(c *framework.ControlPlane) { cp = c }))
}

// notServed are the API groups that other software installs: cert-manager, the operator of Prometheus, Cluster API's
// extensions.
var notServed = []string{"cert-manager.io", "monitoring.coreos.com", "runtime.cluster.x-k8s.io"}

// foreign are namespaces of other programs that objects of this provider are in.
var foreign = []string{"metallb-system"}

// placeholders are the images that config names. A release replaces them by its own (hack/release.mk).
var placeholders = []string{"controller:latest", "host-lb:latest"}

func TestEveryManifestIsAdmitted(t *testing.T) { // W36
	k8s := admin(t)
	for _, name := range foreign {
		if err := k8s.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}); err != nil {
			t.Fatal(err)
		}
	}
	for _, dir := range append(releasedDirectories(t), "samples") {
		t.Run(strings.ReplaceAll(dir, "/", " "), func(t *testing.T) {
			for _, o := range kustomize(t, dir) {
				admit(t, k8s, o)
			}
		})
	}
}

// Every workload in a directory of config is part of a release, with an image that exists.
func TestEveryWorkloadIsReleased(t *testing.T) {
	released := releasedDirectories(t)
	paths, err := filepath.Glob(filepath.Join(framework.RepoRootForTest(t), "config", "*", "kustomization.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	parts := []string{"manager"} // the base of the others
	for _, path := range paths {
		dir := filepath.Base(filepath.Dir(path))
		if slices.Contains(released, dir) || slices.Contains(parts, dir) {
			continue
		}
		for _, o := range kustomize(t, dir) {
			if template(t, o) != nil {
				t.Errorf("config/%s runs %s %s, and is in no release: add it to RELEASE_MANIFESTS", dir, o.GetKind(), o.GetName())
			}
		}
	}
}

// admit sends an object to the API server for admission, and the Pods of a workload as its controller creates them.
// It persists nothing but namespaces, whose labels restrict their Pods.
func admit(t *testing.T, k8s client.Client, o *unstructured.Unstructured) {
	t.Helper()
	if slices.Contains(notServed, o.GroupVersionKind().Group) {
		return
	}
	how := []client.ApplyOption{client.FieldOwner("manifests"), client.ForceOwnership}
	if o.GetKind() != "Namespace" {
		how = append(how, client.DryRunAll)
	}
	if err := k8s.Apply(t.Context(), client.ApplyConfigurationFromUnstructured(o.DeepCopy()), how...); err != nil {
		t.Errorf("%s %s: %v", o.GetKind(), o.GetName(), err)
	}
	if pod := template(t, o); pod != nil {
		checkImages(t, pod)
		if err := k8s.Create(t.Context(), pod, client.DryRunAll); err != nil {
			t.Errorf("the Pods of %s %s: %v", o.GetKind(), o.GetName(), err)
		}
	}
}

func admin(t *testing.T) client.Client {
	t.Helper()
	k8s, err := cp.NewClient()
	if err != nil {
		t.Fatal(err)
	}
	return k8s
}

func checkImages(t *testing.T, pod *corev1.Pod) {
	t.Helper()
	for _, c := range pod.Spec.Containers {
		if !slices.Contains(placeholders, c.Image) {
			t.Errorf("a release does not replace the image %s", c.Image)
		}
	}
}

// template returns a Pod of a workload, or nil for other kinds.
func template(t *testing.T, o *unstructured.Unstructured) *corev1.Pod {
	t.Helper()
	from, ok, err := unstructured.NestedMap(o.Object, "spec", "template")
	if err != nil || !ok || !slices.Contains([]string{"Deployment", "DaemonSet", "StatefulSet", "Job"}, o.GetKind()) {
		return nil
	}
	var pods corev1.PodTemplateSpec
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(from, &pods); err != nil {
		t.Fatal(err)
	}
	pod := &corev1.Pod{ObjectMeta: pods.ObjectMeta, Spec: pods.Spec}
	pod.Namespace, pod.Name = o.GetNamespace(), o.GetName()
	return pod
}

// releasedDirectories returns the directories of config that a release is built from.
func releasedDirectories(t *testing.T) (out []string) {
	t.Helper()
	list := run(t, "make", "--silent", "--eval=list: ; @echo $(RELEASE_MANIFESTS)", "list")
	for _, m := range strings.Fields(list) {
		dir, _, _ := strings.Cut(m, ":")
		out = append(out, dir)
	}
	if len(out) < 10 {
		t.Fatalf("RELEASE_MANIFESTS has %v", out)
	}
	return out
}

// kustomize builds a directory of config with the kustomize of kubectl.
func kustomize(t *testing.T, dir string) []*unstructured.Unstructured {
	t.Helper()
	assets, err := framework.FindAssets()
	if err != nil {
		t.Fatal(err)
	}
	text := run(t, filepath.Join(assets, "kubectl"), "kustomize", filepath.Join("config", filepath.FromSlash(dir)))
	objects, err := framework.ParseManifests([]byte(text))
	if err != nil || len(objects) == 0 {
		t.Fatalf("config/%s: %d objects, %v", dir, len(objects), err)
	}
	return objects
}

func run(t *testing.T, name string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), name, args...)
	cmd.Dir = framework.RepoRootForTest(t)
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s %v: %v", name, args, err)
	}
	return string(out)
}
