package framework

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"sigs.k8s.io/controller-runtime/pkg/envtest"
)

// LBIPAM is a process that runs the LB IPAM of Cilium's operator.
type LBIPAM struct{ *process }

// InstallCilium installs the CRD of CiliumLoadBalancerIPPools. No controller serves them until StartLBIPAM.
func (c *ControlPlane) InstallCilium(ctx context.Context) error {
	root, err := FindRepoRoot()
	if err != nil {
		return err
	}
	dir, err := FindModuleDir(ctx, filepath.Join(root, "hack", "tools", "cilium"), "github.com/cilium/cilium")
	if err != nil {
		return err
	}
	if _, err := envtest.InstallCRDs(c.Config, envtest.CRDInstallOptions{
		ErrorIfPathMissing: true, MaxTime: startTimeout,
		Paths: []string{filepath.Join(dir, "pkg", "k8s", "apis", "cilium.io", "client", "crds", "v2", "ciliumloadbalancerippools.yaml")},
	}); err != nil {
		return fmt.Errorf("installing the CRD of Cilium: %w", err)
	}
	return nil
}

// StartLBIPAM starts the LB IPAM of Cilium; call InstallCilium first. The caller ends it with Stop or Kill before it
// ends the control plane; it may be started again after that.
func (c *ControlPlane) StartLBIPAM() (*LBIPAM, error) {
	root, err := FindRepoRoot()
	if err != nil {
		return nil, err
	}
	binary := filepath.Join(root, "bin", "cilium-lbipam")
	if _, err := os.Stat(binary); err != nil {
		return nil, fmt.Errorf("no %s: run `make cilium`", binary)
	}
	p, err := startProcess(filepath.Join(c.Dir, "cilium-lbipam.log"), make(chan struct{}), nil, binary, "--k8s-kubeconfig-path="+c.Kubeconfig)
	if err != nil {
		return nil, err
	}
	return &LBIPAM{p}, nil
}
