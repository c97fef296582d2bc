package framework

import (
	"path/filepath"
	"strconv"
)

// StartControllerManager starts a kube-controller-manager with its garbage collector and its namespace
// controller. The caller ends it, before the control plane, with the function that is returned.
func (c *ControlPlane) StartControllerManager() (stop func() error, err error) {
	assets, err := Assets()
	if err != nil {
		return nil, err
	}
	port, err := FreePort()
	if err != nil {
		return nil, err
	}
	p, err := startProcess(filepath.Join(c.Dir, "controller-manager.log"), make(chan struct{}), nil,
		filepath.Join(assets, "kube-controller-manager"),
		"--kubeconfig="+c.Kubeconfig, "--leader-elect=false", "--bind-address=127.0.0.1", "--secure-port="+strconv.Itoa(port),
		"--cert-dir="+filepath.Join(c.Dir, "controller-manager"),
		"--controllers=garbage-collector-controller,namespace-controller")
	if err != nil {
		return nil, err
	}
	return p.Kill, nil
}
