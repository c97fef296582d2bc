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

// KillAPIServer ends the API server at once, as a crash would; StartAPIServer starts it again.
// StopAPIServer waits for those who watch, which is a minute if a manager runs.
func (c *ControlPlane) KillAPIServer() error {
	// The test environment keeps the process to itself; its directory names it.
	pid, err := findProcess("--cert-dir=" + c.env.ControlPlane.GetAPIServer().CertDir)
	if err != nil {
		return fmt.Errorf("killing the API server: %w", err)
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		return fmt.Errorf("killing the API server: %w", err)
	}
	if err := c.StopAPIServer(); err != nil {
		// That it was killed is an error where its end was noticed already.
		if _, alive := findProcess("--cert-dir=" + c.env.ControlPlane.GetAPIServer().CertDir); alive == nil {
			return err
		}
	}
	return nil
}

// findProcess returns the process that was started with an argument.
func findProcess(arg string) (pid int, err error) {
	paths, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		return 0, err
	}
	for _, path := range paths {
		cmdline, err := os.ReadFile(path)
		if err != nil {
			continue // it has ended meanwhile
		}
		for word := range bytes.SplitSeq(cmdline, []byte{0}) {
			if string(word) == arg {
				return strconv.Atoi(filepath.Base(filepath.Dir(path)))
			}
		}
	}
	return 0, errors.New("no process has the argument " + arg)
}

// Backup copies what etcd holds to a folder that does not exist.
func (c *ControlPlane) Backup(folder string) error {
	return c.offline(func(data string) error { return os.CopyFS(folder, os.DirFS(data)) })
}

// Restore puts back what Backup has copied, and starts the API server anew, as Kubernetes asks for it: one that goes on answers
// from the caches of before. A process that has seen what was written since is to be stopped first, or to notice.
func (c *ControlPlane) Restore(folder string) error {
	return c.offline(func(data string) error {
		return errors.Join(os.RemoveAll(data), os.Mkdir(data, 0o700), os.CopyFS(data, os.DirFS(folder)))
	})
}

// offline works on the data of etcd while nothing runs.
func (c *ControlPlane) offline(do func(data string) error) error {
	if err := c.KillAPIServer(); err != nil {
		return err
	}
	etcd := c.env.ControlPlane.Etcd
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
