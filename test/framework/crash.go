package framework

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
)

// KillAPIServer ends the API server at once, as a crash would; StartAPIServer starts it again. StopAPIServer in
// contrast waits for open watches, which takes a minute while a manager runs.
func (c *ControlPlane) KillAPIServer() error {
	// The test environment does not export the process; the process is found by its certificate directory.
	pid, err := findProcessByArg(c.apiServerArg())
	if err != nil {
		return fmt.Errorf("killing the API server: %w", err)
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		return fmt.Errorf("killing the API server: %w", err)
	}
	if err := c.StopAPIServer(); err != nil {
		// Stop returns an error for the killed process if its end was noticed already; that is not a failure.
		if _, alive := findProcessByArg(c.apiServerArg()); alive == nil {
			return err
		}
	}
	return nil
}

// apiServerArg returns an argument that no process but the API server has.
func (c *ControlPlane) apiServerArg() string {
	return "--cert-dir=" + c.testEnv.ControlPlane.GetAPIServer().CertDir
}

// findProcessByArg returns the id of the process that was started with the given argument.
func findProcessByArg(arg string) (pid int, err error) {
	paths, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		return 0, err
	}
	for _, path := range paths {
		cmdline, err := os.ReadFile(path)
		if err != nil {
			continue // the process has ended meanwhile
		}
		for field := range bytes.SplitSeq(cmdline, []byte{0}) {
			if string(field) == arg {
				return strconv.Atoi(filepath.Base(filepath.Dir(path)))
			}
		}
	}
	return 0, errors.New("no process has the argument " + arg)
}

// BackupEtcd copies the data of etcd to a folder that does not exist yet.
func (c *ControlPlane) BackupEtcd(folder string) error {
	return c.withEtcdStopped(func(data string) error { return os.CopyFS(folder, os.DirFS(data)) })
}

// RestoreEtcd restores what BackupEtcd copied, and restarts the API server, as Kubernetes requires: a running one
// would answer from caches of the later state. A process that has read later writes must be stopped first, or must
// notice the restore.
func (c *ControlPlane) RestoreEtcd(folder string) error {
	return c.withEtcdStopped(func(data string) error {
		return errors.Join(os.RemoveAll(data), os.Mkdir(data, 0o700), os.CopyFS(data, os.DirFS(folder)))
	})
}

// withEtcdStopped calls do with the data directory of etcd while neither etcd nor the API server runs.
func (c *ControlPlane) withEtcdStopped(do func(data string) error) error {
	if err := c.KillAPIServer(); err != nil {
		return err
	}
	etcd := c.testEnv.ControlPlane.Etcd
	if err := etcd.Stop(); err != nil {
		return fmt.Errorf("stopping etcd: %w", err)
	}
	if err := do(etcd.DataDir); err != nil {
		return fmt.Errorf("copying the data of etcd: %w", err)
	}
	if err := etcd.Start(); err != nil {
		return fmt.Errorf("starting etcd: %w", err)
	}
	return c.StartAPIServer()
}
