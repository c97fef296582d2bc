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

// ManagerOptions configure a manager process.
type ManagerOptions struct {
	// Binary is the path of the manager. If it is empty, the manager is built from the current source first.
	Binary string
	// Kubeconfig is the path of the manager's kubeconfig. It is required.
	Kubeconfig string
	// LogFile is the path of the manager's output. If it is empty, the output goes to a file that Stop and Kill
	// remove.
	LogFile string
	// LeaderElect enables leader election; several managers without it are all active at once.
	LeaderElect bool
	// WebhookPort and WebhookCertDir enable the manager's webhooks: set them to those of the ControlPlane.
	WebhookPort    int
	WebhookCertDir string
	// Args are further flags.
	Args []string
	// ReadyTimeout bounds the wait for readiness. Zero means one minute.
	ReadyTimeout time.Duration
}

// ComponentFlags returns the flags that enable what a manager does besides fulfilling claims, for tests that need it.
// They require the rights of an administrator, or of [ControlPlane.ComponentsManagerKubeconfig].
func ComponentFlags() []string { return []string{"--load-balancers", "--leases"} }

// Manager is a manager process.
type Manager struct {
	// LogFile is the path of the manager's output.
	LogFile string

	*process
	dir        string
	metricsURL string
	readyURL   string
	done       chan struct{}
}

// StartManager starts a manager and returns when it is ready. The caller ends it with Stop or Kill.
func StartManager(ctx context.Context, opts ManagerOptions) (*Manager, error) {
	m, err := LaunchManager(ctx, opts)
	if err != nil {
		return nil, err
	}
	if err := m.waitUntilReady(ctx, opts.ReadyTimeout); err != nil {
		// The error includes the log, because Kill removes its file.
		err = fmt.Errorf("the manager did not become ready: %w\n%s", err, m.LogTail(20))
		return nil, errors.Join(err, m.Kill())
	}
	return m, nil
}

func (m *Manager) launch(ctx context.Context, opts ManagerOptions) error {
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
	m.readyURL = "http://" + loopbackAddress(healthPort) + "/readyz"
	m.metricsURL = "http://" + loopbackAddress(diagnosticsPort) + "/metrics"

	args := []string{
		"--kubeconfig=" + opts.Kubeconfig,
		"--leader-elect=" + strconv.FormatBool(opts.LeaderElect), "--leader-elect-namespace=default",
		"--webhook-port=" + strconv.Itoa(opts.WebhookPort),
		"--health-probe-bind-address=" + loopbackAddress(healthPort),
		"--diagnostics-address=" + loopbackAddress(diagnosticsPort),
		"--insecure-diagnostics",
	}
	if opts.WebhookCertDir != "" {
		args = append(args, "--webhook-cert-dir="+opts.WebhookCertDir)
	}
	deployed, err := deploymentEnv()
	if err != nil {
		return err
	}
	// The environment of the caller takes precedence.
	m.process, err = startProcess(m.LogFile, m.done, append(deployed, os.Environ()...), binary, append(args, opts.Args...)...)
	return err
}

func (m *Manager) waitUntilReady(ctx context.Context, timeout time.Duration) error {
	if timeout == 0 {
		timeout = time.Minute
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	return m.waitUntil(ctx, m.isReady)
}

func (m *Manager) isReady(ctx context.Context) bool { return isServing(ctx, m.readyURL) }

// MetricsURL returns the URL of the manager's metrics.
func (m *Manager) MetricsURL() string { return m.metricsURL }

// PageURL returns the URL of the manager's page of pools.
func (m *Manager) PageURL() string { return strings.TrimSuffix(m.metricsURL, "metrics") + "pools/" }

// Kill ends the manager at once (SIGKILL), as a crash would.
func (m *Manager) Kill() error { return errors.Join(m.process.Kill(), os.RemoveAll(m.dir)) }

// Stop sends SIGTERM and waits for the manager to end. After a minute it kills the manager, which is an error, as is
// an exit code other than zero. A frozen process is resumed first.
func (m *Manager) Stop() error { return errors.Join(m.process.Stop(), os.RemoveAll(m.dir)) }
