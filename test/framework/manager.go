package framework

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
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

// Manager is a manager process.
type Manager struct {
	// LogFile is the path of what it prints.
	LogFile string

	cmd        *exec.Cmd
	dir        string
	metrics    string
	readyz     string
	done       chan struct{}
	err        error
	rss        int64
	closeFiles func() error
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
	log, err := os.OpenFile(m.LogFile, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	m.closeFiles = log.Close
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
	// Not bound to ctx: the process outlives the step that started it and is ended by its owner.
	m.cmd = exec.Command(binary, append(args, opts.Args...)...) //nolint:noctx // see above
	m.cmd.Stdout, m.cmd.Stderr = log, log
	// A group of its own, or an interrupt at the terminal would end it before its owner does.
	m.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := m.cmd.Start(); err != nil {
		return errors.Join(err, log.Close())
	}
	go func() {
		m.err = m.cmd.Wait()
		if usage, ok := m.cmd.ProcessState.SysUsage().(*syscall.Rusage); ok {
			m.rss = usage.Maxrss * 1024
		}
		close(m.done)
	}()
	return nil
}

func (m *Manager) waitReady(ctx context.Context, timeout time.Duration) error {
	if timeout == 0 {
		timeout = time.Minute
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		if m.ready(ctx) {
			return nil
		}
		select {
		case <-m.done:
			return fmt.Errorf("it ended: %w", m.err)
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
}

func (m *Manager) ready(ctx context.Context) bool {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, m.readyz, http.NoBody)
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

// Pid is the process id.
func (m *Manager) Pid() int { return m.cmd.Process.Pid }

// MetricsURL is where it serves its metrics.
func (m *Manager) MetricsURL() string { return m.metrics }

// Done is closed when the process has ended.
func (m *Manager) Done() <-chan struct{} { return m.done }

// Signal sends it a signal, for example SIGSTOP and later SIGCONT.
func (m *Manager) Signal(sig os.Signal) error { return m.cmd.Process.Signal(sig) }

// Kill ends it at once (SIGKILL), as a crash would.
func (m *Manager) Kill() error {
	_ = m.Signal(syscall.SIGKILL) // it may have ended by itself
	<-m.done
	return m.close()
}

// Stop asks it to end (SIGTERM) and waits; after a minute it is killed, which is an error, as is an
// exit code other than zero. A process that is frozen is woken first.
func (m *Manager) Stop() error {
	_ = m.Signal(syscall.SIGTERM)
	_ = m.Signal(syscall.SIGCONT)
	select {
	case <-m.done:
	case <-time.After(time.Minute):
		return errors.Join(errors.New("the manager did not stop within a minute of SIGTERM"), m.Kill())
	}
	if m.err != nil {
		return errors.Join(fmt.Errorf("stopping the manager: %w", m.err), m.close())
	}
	return m.close()
}

// close may be called more than once.
func (m *Manager) close() error {
	err := m.closeFiles()
	if errors.Is(err, os.ErrClosed) {
		err = nil
	}
	return errors.Join(err, os.RemoveAll(m.dir))
}

// PeakRSS is the most memory the process has had resident, in bytes. It can be read while it runs
// and after its end.
func (m *Manager) PeakRSS() (int64, error) {
	select {
	case <-m.done:
		return m.rss, nil
	default:
	}
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", m.Pid()))
	if err != nil {
		return 0, fmt.Errorf("reading the manager's memory: %w", err)
	}
	for line := range strings.Lines(string(status)) {
		if rest, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			kib, err := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(rest), "kB")), 10, 64)
			return kib * 1024, err
		}
	}
	return 0, errors.New("reading the manager's memory: the kernel reports no VmHWM")
}

// LogTail returns the last n lines it printed.
func (m *Manager) LogTail(n int) string {
	log, err := os.ReadFile(m.LogFile)
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimRight(string(log), "\n"), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}
