package recipes

import (
	"maps"
	"os"
	"regexp"
	"slices"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	utilfeature "k8s.io/component-base/featuregate/testing"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/controllers/clustercache"
	"sigs.k8s.io/cluster-api/core/webhooks/admission"
	"sigs.k8s.io/cluster-api/exp/topology/desiredstate"
	"sigs.k8s.io/cluster-api/exp/topology/scope"
	"sigs.k8s.io/cluster-api/feature"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

// Cluster API admits the ClusterClass of docs/consumers.md, and its Cluster gets machine templates that name the
// pools in its variables.
func TestDocumentedClusterClass(t *testing.T) {
	utilfeature.SetFeatureGateDuringTest(t, feature.Gates, feature.ClusterTopology, true)
	objs := documented(t)
	class, cluster := &clusterv1.ClusterClass{}, &clusterv1.Cluster{}
	decodeInto(t, objs["ClusterClass"], class)
	decodeInto(t, objs["Cluster"], cluster)
	scheme, err := framework.NewScheme()
	if err != nil {
		t.Fatal(err)
	}
	if err := apiextensionsv1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	// Cluster API reads the contract that the kind fulfils from the label.
	c := fake.NewClientBuilder().WithScheme(scheme).WithObjects(&apiextensionsv1.CustomResourceDefinition{ObjectMeta: metav1.ObjectMeta{
		Name: "kubeadmcontrolplanes.controlplane.cluster.x-k8s.io", Labels: map[string]string{clusterv1.GroupVersion.Group + "/v1beta2": "v1beta2"},
	}}).Build()
	if _, err := (&admission.ClusterClass{Client: c}).ValidateCreate(t.Context(), class.DeepCopy()); err != nil {
		t.Fatal(err)
	}

	for _, v := range class.Spec.Variables { // as the controller of ClusterClasses does
		class.Status.Variables = append(class.Status.Variables, clusterv1.ClusterClassStatusVariable{Name: v.Name, Definitions: []clusterv1.ClusterClassStatusVariableDefinition{
			{From: clusterv1.VariableDefinitionFromInline, Required: v.Required, Schema: v.Schema},
		}})
	}

	machines := objs["VSphereMachineTemplate"]
	devices, _, _ := unstructured.NestedSlice(machines.Object, "spec", "template", "spec", "network", "devices")
	delete(devices[0].(map[string]any), "addressesFromPools")
	if err := unstructured.SetNestedSlice(machines.Object, devices, "spec", "template", "spec", "network", "devices"); err != nil {
		t.Fatal(err)
	}
	s := scope.New(cluster)
	s.Blueprint = &scope.ClusterBlueprint{
		Topology: cluster.Spec.Topology, ClusterClass: class,
		InfrastructureClusterTemplate: template(class.Spec.Infrastructure.TemplateRef),
		ControlPlane:                  &scope.ControlPlaneBlueprint{Template: template(class.Spec.ControlPlane.TemplateRef), InfrastructureMachineTemplate: machines},
		MachineDeployments: map[string]*scope.MachineDeploymentBlueprint{"workers": {
			BootstrapTemplate:             template(class.Spec.Workers.MachineDeployments[0].Bootstrap.TemplateRef),
			InfrastructureMachineTemplate: machines,
		}},
	}
	s.Current.ControlPlane = &scope.ControlPlaneState{}
	generator, err := desiredstate.NewGenerator(c, clustercache.NewFakeEmptyClusterCache(), nil, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	desired, err := generator.Generate(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	got := map[string][]string{"control plane": poolsOf(desired.ControlPlane.InfrastructureMachineTemplate)}
	for name, deployment := range desired.MachineDeployments {
		got[name] = poolsOf(deployment.InfrastructureMachineTemplate)
	}
	want := map[string][]string{"control plane": {"machines"}, "rack-1": {"machines"}, "rack-2": {"rack-2"}}
	if !maps.EqualFunc(got, want, slices.Equal) {
		t.Errorf("pools %v, not %v", got, want)
	}
}

// documented returns the manifests of docs/consumers.md, the first of each kind.
func documented(t *testing.T) map[string]*unstructured.Unstructured {
	t.Helper()
	text, err := os.ReadFile("../../docs/consumers.md")
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]*unstructured.Unstructured{}
	for _, block := range regexp.MustCompile("(?s)\n```yaml\n(.*?)\n```\n").FindAllSubmatch(text, -1) {
		objs, err := framework.ParseManifests(block[1])
		if err != nil {
			t.Fatal(err)
		}
		for _, obj := range objs {
			if out[obj.GetKind()] == nil {
				out[obj.GetKind()] = obj
			}
		}
	}
	return out
}

func decodeInto(t *testing.T, obj *unstructured.Unstructured, into any) {
	t.Helper()
	if obj == nil {
		t.Fatalf("docs/consumers.md has no %T", into)
	}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(obj.Object, into, true); err != nil {
		t.Fatal(err)
	}
}

// template returns an empty template.
func template(ref clusterv1.ClusterClassTemplateReference) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": ref.APIVersion, "kind": ref.Kind,
		"metadata": map[string]any{"name": ref.Name, "namespace": "default"},
		"spec":     map[string]any{"template": map[string]any{"spec": map[string]any{}}},
	}}
}

// poolsOf returns the names of the pools in the first device of a machine template.
func poolsOf(template *unstructured.Unstructured) (names []string) {
	devices, _, _ := unstructured.NestedSlice(template.Object, "spec", "template", "spec", "network", "devices")
	refs, _, _ := unstructured.NestedSlice(devices[0].(map[string]any), "addressesFromPools")
	for _, ref := range refs {
		r := ref.(map[string]any)
		if r["apiGroup"] == v1alpha1.GroupVersion.Group && r["kind"] == v1alpha1.NetworkPoolKind {
			names = append(names, r["name"].(string))
		}
	}
	return names
}
