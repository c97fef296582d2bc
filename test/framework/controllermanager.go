package framework

import (
	"path/filepath"
	"strconv"
)

// StartControllerManager starts a kube-controller-manager with its garbage collector and its namespace
// controller. The caller ends it, before the control plane, with the function that is returned.
func (c *ControlPlane) StartControllerManager() (stop func() error, err error) {
	certs := filepath.Join(c.Dir, "controller-manager")
	p, _, err := c.startControllerManager(certs, "--controllers=garbage-collector-controller,namespace-controller")
	if err != nil {
		return nil, err
	}
	return p.Kill, nil
}

// startControllerManager starts a kube-controller-manager, and returns the port that it serves at. It keeps its
// certificate in a directory.
func (c *ControlPlane) startControllerManager(certs string, args ...string) (*process, int, error) {
	assets, err := Assets()
	if err != nil {
		return nil, 0, err
	}
	port, err := FreePort()
	if err != nil {
		return nil, 0, err
	}
	args = append([]string{
		"--kubeconfig=" + c.Kubeconfig, "--leader-elect=false", "--cert-dir=" + certs,
		"--bind-address=127.0.0.1", "--secure-port=" + strconv.Itoa(port),
	}, args...)
	binary := filepath.Join(assets, "kube-controller-manager")
	p, err := startProcess(certs+".log", make(chan struct{}), nil, binary, args...)
	return p, port, err
}
