package framework

import (
	"path/filepath"
	"strconv"
)

// StartControllerManager starts a kube-controller-manager with its garbage collector and its namespace controller.
// The caller ends it with the returned function, before the control plane.
func (c *ControlPlane) StartControllerManager() (stop func() error, err error) {
	return c.startControllers("controller-manager", "garbage-collector-controller,namespace-controller")
}

// StartPolicyChecker starts a kube-controller-manager, as StartControllerManager does, with the controller that
// reports type errors in the expressions of an admission policy in the status of the policy.
func (c *ControlPlane) StartPolicyChecker() (stop func() error, err error) {
	return c.startControllers("policy-checker", "validatingadmissionpolicy-status-controller")
}

// startControllers starts a kube-controller-manager with the given controllers.
func (c *ControlPlane) startControllers(name, controllers string) (stop func() error, err error) {
	p, err := c.startControllerManager(filepath.Join(c.Dir, name), "--controllers="+controllers)
	if err != nil {
		return nil, err
	}
	return p.Kill, nil
}

// startControllerManager starts a kube-controller-manager. It stores its certificate in the directory certs.
func (c *ControlPlane) startControllerManager(certs string, args ...string) (*process, error) {
	assets, err := FindAssets()
	if err != nil {
		return nil, err
	}
	port, err := FreePort()
	if err != nil {
		return nil, err
	}
	args = append([]string{
		"--kubeconfig=" + c.Kubeconfig, "--leader-elect=false", "--cert-dir=" + certs,
		"--bind-address=127.0.0.1", "--secure-port=" + strconv.Itoa(port),
	}, args...)
	binary := filepath.Join(assets, "kube-controller-manager")
	return startProcess(certs+".log", make(chan struct{}), nil, binary, args...)
}
