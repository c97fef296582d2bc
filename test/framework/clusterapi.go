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

// InstallClusterAPI installs the CRDs of Cluster API, of its kubeadm providers, and those of infrastructure providers that
// a ClusterClass names. Like those of Start they have no conversion, and no webhooks.
func (c *ControlPlane) InstallClusterAPI(ctx context.Context) error {
	capi, err := ClusterAPIDir(ctx)
	if err != nil {
		return err
	}
	dirs, err := ProviderCRDs(ctx)
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
		contract, err := contractOf(dir)
		if err != nil {
			return err
		}
		for _, crd := range of.CRDs {
			if inClasses(crd) {
				crd.Labels = contract
				crds = append(crds, crd)
			}
		}
	}
	_, err = envtest.InstallCRDs(c.Config, envtest.CRDInstallOptions{CRDs: crds, MaxTime: startTimeout})
	return err
}

// inClasses reports whether a kind is Cluster API's, or one that a ClusterClass is made of.
func inClasses(crd *apiextensionsv1.CustomResourceDefinition) bool {
	if !strings.HasPrefix(crd.Spec.Group, "infrastructure.") {
		return true
	}
	kind := strings.TrimSuffix(crd.Spec.Names.Kind, "Template")
	return slices.ContainsFunc([]string{"VSphere", "Metal3", "Proxmox"}, func(of string) bool { return kind == of+"Cluster" || kind == of+"Machine" })
}

// contractOf are the labels by which the CRDs in a directory say which versions fulfil which contract of Cluster API. The
// kustomization beside it adds them.
func contractOf(dir string) (map[string]string, error) {
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

// CoreManager is Cluster API's core manager as a process, with ClusterClasses and the Runtime SDK.
type CoreManager struct {
	*process
	ready string
}

// StartCoreManager starts it, after InstallClusterAPI, and returns when it is ready. The caller ends it, before the control
// plane. Its webhooks are served, and not registered.
func (c *ControlPlane) StartCoreManager(ctx context.Context) (*CoreManager, error) {
	root, err := RepoRoot()
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
	if _, err := ServingCerts(certs); err != nil {
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
		"--health-addr="+loopback(ports[1]), "--diagnostics-address="+loopback(ports[2]), "--insecure-diagnostics")
	if err != nil {
		return nil, err
	}
	m := &CoreManager{process: p, ready: "http://" + loopback(ports[1]) + "/readyz"}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	if err := p.waitUntil(ctx, func(ctx context.Context) bool { return answers(ctx, m.ready) }); err != nil {
		err = fmt.Errorf("the core manager of Cluster API did not become ready: %w\n%s", err, p.LogTail(20))
		return nil, errors.Join(err, p.Kill())
	}
	return m, nil
}

// answers reports whether a URL is answered with 200.
func answers(ctx context.Context, url string) bool {
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
