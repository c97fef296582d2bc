package framework

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	"sigs.k8s.io/yaml"
)

// InstallClusterAPI installs the CRDs of Cluster API, of its kubeadm providers, and of the infrastructure providers
// that a ClusterClass names. Like the CRDs of StartControlPlane they have no conversion and no webhooks.
func (c *ControlPlane) InstallClusterAPI(ctx context.Context) error {
	capi, err := FindClusterAPIDir(ctx)
	if err != nil {
		return err
	}
	dirs, err := FindProviderCRDs(ctx)
	if err != nil {
		return err
	}
	for _, part := range []string{"core", "bootstrap/kubeadm", "controlplane/kubeadm"} {
		dirs = append(dirs, filepath.Join(capi, part, "config", "crd", "bases"))
	}
	var crds []*apiextensionsv1.CustomResourceDefinition
	for _, dir := range dirs {
		of := envtest.CRDInstallOptions{Paths: []string{dir}, ErrorIfPathMissing: true}
		if err := envtest.ReadCRDFiles(&of); err != nil {
			return fmt.Errorf("reading the CRDs in %s: %w", dir, err)
		}
		contract, err := contractLabels(dir)
		if err != nil {
			return err
		}
		for _, crd := range of.CRDs {
			if isClusterClassCRD(crd) {
				crd.Labels = contract
				crds = append(crds, crd)
			}
		}
	}
	_, err = envtest.InstallCRDs(c.Config, envtest.CRDInstallOptions{CRDs: crds, MaxTime: startTimeout})
	return err
}

// isClusterClassCRD reports whether a kind is one of Cluster API, or one that a ClusterClass is made of.
func isClusterClassCRD(crd *apiextensionsv1.CustomResourceDefinition) bool {
	if !strings.HasPrefix(crd.Spec.Group, "infrastructure.") {
		return true
	}
	kind := strings.TrimSuffix(crd.Spec.Names.Kind, "Template")
	return slices.ContainsFunc([]string{"VSphere", "Metal3", "Proxmox"}, func(of string) bool { return kind == of+"Cluster" || kind == of+"Machine" })
}

// contractLabels returns the labels of the CRDs in a directory that list which versions fulfil which contract of
// Cluster API. The kustomization beside the directory adds them.
func contractLabels(dir string) (map[string]string, error) {
	text, err := os.ReadFile(filepath.Join(filepath.Dir(dir), "kustomization.yaml"))
	if err != nil {
		return nil, err
	}
	var k struct {
		CommonLabels map[string]string
		Labels       []struct{ Pairs map[string]string }
	}
	if err := yaml.Unmarshal(text, &k); err != nil {
		return nil, fmt.Errorf("reading the kustomization beside %s: %w", dir, err)
	}
	for _, l := range k.Labels {
		if k.CommonLabels == nil {
			k.CommonLabels = l.Pairs
		}
	}
	return k.CommonLabels, nil
}

// CoreManager is a process that runs Cluster API's core manager, with ClusterClasses and the Runtime SDK.
type CoreManager struct {
	*process
	readyURL string
}

// StartCoreManager starts the core manager and returns when it is ready; call InstallClusterAPI first. The caller
// ends it before the control plane. Its webhooks are served, but not registered.
func (c *ControlPlane) StartCoreManager(ctx context.Context) (*CoreManager, error) {
	root, err := FindRepoRoot()
	if err != nil {
		return nil, err
	}
	binary := filepath.Join(root, "bin", "capi-core")
	if _, err := os.Stat(binary); err != nil {
		return nil, fmt.Errorf("no %s: run `make capi-core`", binary)
	}
	certs, err := os.MkdirTemp(c.Dir, "capi-core-")
	if err != nil {
		return nil, err
	}
	if _, err := WriteServingCerts(certs); err != nil {
		return nil, err
	}
	var ports [3]int
	for i := range ports {
		if ports[i], err = FreePort(); err != nil {
			return nil, err
		}
	}
	p, err := startProcess(certs+".log", make(chan struct{}), nil, binary,
		"--kubeconfig="+c.Kubeconfig, "--feature-gates=ClusterTopology=true,RuntimeSDK=true", "--skip-crd-migration-phases=StorageVersionMigration,CleanupManagedFields",
		"--webhook-port="+strconv.Itoa(ports[0]), "--webhook-cert-dir="+certs,
		"--health-addr="+loopbackAddress(ports[1]), "--diagnostics-address="+loopbackAddress(ports[2]), "--insecure-diagnostics")
	if err != nil {
		return nil, err
	}
	m := &CoreManager{process: p, readyURL: "http://" + loopbackAddress(ports[1]) + "/readyz"}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	if err := p.waitUntil(ctx, func(ctx context.Context) bool { return isServing(ctx, m.readyURL) }); err != nil {
		err = fmt.Errorf("the core manager of Cluster API did not become ready: %w\n%s", err, p.LogTail(20))
		return nil, errors.Join(err, p.Kill())
	}
	return m, nil
}

// isServing reports whether a GET of url returns 200.
func isServing(ctx context.Context, url string) bool {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return false
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return false
	}
	defer resp.Body.Close()
	_, _ = io.Copy(io.Discard, resp.Body)
	return resp.StatusCode == http.StatusOK
}
