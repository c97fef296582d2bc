package framework

import (
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
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
	log, err := c.logFile("controller-manager.log")
	if err != nil {
		return nil, err
	}
	// Not bound to a context: its owner ends it.
	cmd := exec.Command(filepath.Join(assets, "kube-controller-manager"), //nolint:noctx // see above
		"--kubeconfig="+c.Kubeconfig, "--leader-elect=false", "--bind-address=127.0.0.1", "--secure-port="+strconv.Itoa(port),
		"--cert-dir="+filepath.Join(c.Dir, "controller-manager"),
		"--controllers=garbage-collector-controller,namespace-controller")
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("starting the kube-controller-manager: %w", err)
	}
	return func() error {
		killed := cmd.Process.Kill()
		var exit *exec.ExitError
		if err := cmd.Wait(); !errors.As(err, &exit) {
			return errors.Join(killed, err)
		}
		return killed
	}, nil
}
