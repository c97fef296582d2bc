package framework

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// ManagerOptions say how a manager process is started.
type ManagerOptions struct {
	// Binary is the manager to run. Empty: it is built from the current source first.
	Binary string
	// Kubeconfig is the path of the kubeconfig it works with. Required.
	Kubeconfig string
	// LogFile takes what it prints. Empty: a file that Stop and Kill remove.
	LogFile string
	// LeaderElect makes it wait for the lease; several managers without it are all active at once.
	LeaderElect bool
	// WebhookPort and WebhookCertDir switch its webhooks on: those of the ControlPlane.
	WebhookPort    int
	WebhookCertDir string
	// Args are further flags.
	Args []string
	// ReadyTimeout is how long it may take to become ready. Zero: one minute.
	ReadyTimeout time.Duration
}

// Components are the flags of what a manager does beside fulfilling claims, for tests of more than that. They need the rights
// of an administrator, or of [ControlPlane.ComponentsManagerKubeconfig].
func Components() []string { return []string{"--load-balancers", "--leases"} }

// Manager is a manager process.
type Manager struct {
	// LogFile is the path of what it prints.
	LogFile string

	*process
	dir     string
	metrics string
	readyz  string
	done    chan struct{}
}

// StartManager starts a manager and returns when it says it is ready. The caller ends it with Stop
// or Kill.
func StartManager(ctx context.Context, opts ManagerOptions) (*Manager, error) {
	m, err := LaunchManager(ctx, opts)
	if err != nil {
		return nil, err
	}
	if err := m.waitReady(ctx, opts.ReadyTimeout); err != nil {
		// The log is part of the error: its file goes with the process.
		err = fmt.Errorf("the manager did not become ready: %w\n%s", err, m.LogTail(20))
		return nil, errors.Join(err, m.Kill())
	}
	return m, nil
}

func (m *Manager) start(ctx context.Context, opts ManagerOptions) error {
	if opts.Kubeconfig == "" {
		return errors.New("no kubeconfig")
	}
	var err error
	binary := opts.Binary
	if binary == "" {
		if binary, err = BuildManager(ctx, m.dir); err != nil {
			return err
		}
	}
	healthPort, err := FreePort()
	if err != nil {
		return err
	}
	diagnosticsPort, err := FreePort()
	if err != nil {
		return err
	}
	m.readyz = "http://" + loopback(healthPort) + "/readyz"
	m.metrics = "http://" + loopback(diagnosticsPort) + "/metrics"

	args := []string{
		"--kubeconfig=" + opts.Kubeconfig,
		"--leader-elect=" + strconv.FormatBool(opts.LeaderElect), "--leader-elect-namespace=default",
		"--webhook-port=" + strconv.Itoa(opts.WebhookPort),
		"--health-probe-bind-address=" + loopback(healthPort),
		"--diagnostics-address=" + loopback(diagnosticsPort),
		"--insecure-diagnostics",
	}
	if opts.WebhookCertDir != "" {
		args = append(args, "--webhook-cert-dir="+opts.WebhookCertDir)
	}
	deployed, err := deployedEnv()
	if err != nil {
		return err
	}
	// What the caller has set counts more.
	m.process, err = startProcess(m.LogFile, m.done, append(deployed, os.Environ()...), binary, append(args, opts.Args...)...)
	return err
}

func (m *Manager) waitReady(ctx context.Context, timeout time.Duration) error {
	if timeout == 0 {
		timeout = time.Minute
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	return m.waitUntil(ctx, m.ready)
}

func (m *Manager) ready(ctx context.Context) bool { return answers(ctx, m.readyz) }

// MetricsURL is where it serves its metrics.
func (m *Manager) MetricsURL() string { return m.metrics }

// PageURL is where it serves its page of pools.
func (m *Manager) PageURL() string { return strings.TrimSuffix(m.metrics, "metrics") + "pools/" }

// Kill ends it at once (SIGKILL), as a crash would.
func (m *Manager) Kill() error { return errors.Join(m.process.Kill(), os.RemoveAll(m.dir)) }

// Stop asks it to end (SIGTERM) and waits; after a minute it is killed, which is an error, as is an
// exit code other than zero. A process that is frozen is woken first.
func (m *Manager) Stop() error { return errors.Join(m.process.Stop(), os.RemoveAll(m.dir)) }
