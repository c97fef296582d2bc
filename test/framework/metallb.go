package framework

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	metallbv1beta1 "go.universe.tf/metallb/api/v1beta1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
)

const (
	// MetalLBNamespace is the namespace in which MetalLB reads its pools.
	MetalLBNamespace = "metallb-system"

	// MetalLBConfigurationStateName names the object in which the controller of MetalLB reports whether its
	// configuration is valid.
	MetalLBConfigurationStateName = "controller"

	metalLBModule = "go.universe.tf/metallb"
)

// MetalLB is a process that runs the MetalLB controller. It serves metrics and probes at random ports of every
// interface: it has no flag to limit that.
type MetalLB struct {
	*process

	// PodName is the name of the controller's Pod, which the controller makes the owner of its ConfigurationState.
	// The Pod outlives the process, as it does when a container crashes. With a garbage collector, the
	// ConfigurationState is deleted with the last of these Pods, as when MetalLB is scaled down.
	PodName string
}

// InstallMetalLB creates the namespace of MetalLB and installs its CRDs. No controller serves them until
// StartMetalLB.
func (c *ControlPlane) InstallMetalLB(ctx context.Context) error {
	kinds, err := metalLBCRDs(ctx)
	if err != nil {
		return err
	}
	if _, err := envtest.InstallCRDs(c.Config, kinds); err != nil {
		return fmt.Errorf("installing the CRDs of MetalLB: %w", err)
	}
	admin, err := c.NewClient()
	if err != nil {
		return err
	}
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: MetalLBNamespace}}
	if err := client.IgnoreAlreadyExists(admin.Create(ctx, namespace)); err != nil {
		return fmt.Errorf("making the namespace of MetalLB: %w", err)
	}
	return nil
}

// UninstallMetalLB removes the CRDs of MetalLB, and with them all their objects. The namespace stays. No client may
// write the objects meanwhile. The API server's own clean-up takes minutes at times, so UninstallMetalLB deletes the
// objects itself.
func (c *ControlPlane) UninstallMetalLB(ctx context.Context) error {
	admin, err := c.NewClient()
	if err != nil {
		return err
	}
	crds := &apiextensionsv1.CustomResourceDefinitionList{}
	if err := admin.List(ctx, crds); err != nil {
		return fmt.Errorf("looking for the CRDs of MetalLB: %w", err)
	}
	for i := range crds.Items {
		if crd := &crds.Items[i]; crd.Spec.Group == metallbv1beta1.GroupVersion.Group {
			if err := uninstallCRD(ctx, admin, crd); err != nil {
				return fmt.Errorf("taking away CRD %s: %w", crd.Name, err)
			}
		}
	}
	return nil
}

// uninstallCRD deletes the objects of a kind, and then its CRD.
func uninstallCRD(ctx context.Context, admin client.Client, crd *apiextensionsv1.CustomResourceDefinition) error {
	version := slices.IndexFunc(crd.Spec.Versions, func(v apiextensionsv1.CustomResourceDefinitionVersion) bool { return v.Storage })
	all := &unstructured.Unstructured{}
	all.SetGroupVersionKind(schema.GroupVersionKind{Group: crd.Spec.Group, Version: crd.Spec.Versions[version].Name, Kind: crd.Spec.Names.Kind})
	if err := admin.DeleteAllOf(ctx, all, client.InNamespace(MetalLBNamespace)); err != nil {
		return err
	}
	if err := admin.Delete(ctx, crd); err != nil {
		return err
	}
	return client.IgnoreNotFound(admin.Patch(ctx, crd, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`))))
}

// metalLBCRDs returns the CRDs of MetalLB without the patches of its kustomization, which add a conversion webhook.
func metalLBCRDs(ctx context.Context) (envtest.CRDInstallOptions, error) {
	options := envtest.CRDInstallOptions{ErrorIfPathMissing: true, MaxTime: startTimeout}
	root, err := FindRepoRoot()
	if err != nil {
		return options, err
	}
	dir, err := FindModuleDir(ctx, filepath.Join(root, "hack", "tools", "metallb"), metalLBModule)
	options.Paths = []string{filepath.Join(dir, "config", "crd", "bases")}
	return options, err
}

// StartMetalLB starts the controller of MetalLB, with further flags if any are given, and returns when its
// controllers run; call InstallMetalLB first. The caller ends it with Stop or Kill before the control plane; it may
// be started again after that.
func (c *ControlPlane) StartMetalLB(ctx context.Context, args ...string) (*MetalLB, error) {
	root, err := FindRepoRoot()
	if err != nil {
		return nil, err
	}
	binary := filepath.Join(root, "bin", "metallb-controller")
	if _, err := os.Stat(binary); err != nil {
		return nil, fmt.Errorf("no %s: run `make metallb`", binary)
	}
	admin, err := c.NewClient()
	if err != nil {
		return nil, err
	}
	// Each start has a Pod of its own, so that the objects of this process can be distinguished from those of the
	// last one.
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: MetalLBNamespace, GenerateName: "metallb-controller-",
			Labels: map[string]string{"app": "metallb", "component": "controller"},
		},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "controller", Image: "none"}}},
	}
	if err := admin.Create(ctx, pod); err != nil {
		return nil, fmt.Errorf("making the Pod of MetalLB: %w", err)
	}
	p, err := startProcess(filepath.Join(c.Dir, pod.Name+".log"), make(chan struct{}), nil, binary, append([]string{
		"--kubeconfig=" + c.Kubeconfig, "--namespace=" + MetalLBNamespace, "--pod-name=" + pod.Name,
		"--webhook-mode=disabled", "--port=0", "--health-probe-port=0",
	}, args...)...)
	if err != nil {
		return nil, err
	}
	m := &MetalLB{process: p, PodName: pod.Name}
	if err := m.waitUntilReady(ctx, admin, pod); err != nil {
		err = fmt.Errorf("MetalLB did not start: %w\n%s", err, m.LogTail(20))
		return nil, errors.Join(err, m.Kill())
	}
	return m, nil
}

// waitUntilReady waits until the ConfigurationState is owned by the Pod and reports the result for the pools.
func (m *MetalLB) waitUntilReady(ctx context.Context, reader client.Reader, pod *corev1.Pod) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	return m.waitUntil(ctx, func(ctx context.Context) bool {
		state := &metallbv1beta1.ConfigurationState{}
		key := client.ObjectKey{Namespace: MetalLBNamespace, Name: MetalLBConfigurationStateName}
		if err := reader.Get(ctx, key, state); err != nil {
			return false // the object does not exist yet, or the API server is busy
		}
		owned := slices.ContainsFunc(state.OwnerReferences, func(o metav1.OwnerReference) bool { return o.UID == pod.UID })
		result := state.Status.Result
		return owned && (result == metallbv1beta1.ConfigurationResultValid || result == metallbv1beta1.ConfigurationResultInvalid)
	})
}
