package framework

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework/watchdog"
)

// process is a program that runs beside the tests until its owner calls Stop or Kill.
type process struct {
	logFile string
	cmd     *exec.Cmd
	done    chan struct{}
	err     error
	peakRSS int64
}

// startProcess starts a program, appends its output to logFile, and closes done when the program has ended. The
// program gets the environment env; nil means the environment of this process.
func startProcess(logFile string, done chan struct{}, env []string, binary string, args ...string) (*process, error) {
	return startProcessWith((*exec.Cmd).Start, logFile, done, env, binary, args...)
}

// startProcessWith is startProcess with a custom function that starts the command.
func startProcessWith(start func(*exec.Cmd) error, logFile string, done chan struct{}, env []string, binary string, args ...string) (*process, error) {
	log, err := os.OpenFile(logFile, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer log.Close() // the process has its own descriptor
	p := &process{logFile: logFile, done: done}
	// The process is not bound to a context: it outlives the step that started it, and its owner ends it.
	p.cmd = exec.Command(binary, args...) //nolint:noctx // see above
	p.cmd.Env = env
	p.cmd.Stdout, p.cmd.Stderr = log, log
	// The process has a group of its own, or an interrupt at the terminal would end it before its owner does.
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := start(p.cmd); err != nil {
		return nil, fmt.Errorf("starting %s: %w", p.programName(), err)
	}
	watched := watchdog.WatchProcess(p.cmd.Process.Pid)
	go func() {
		p.err = p.cmd.Wait()
		if usage, ok := p.cmd.ProcessState.SysUsage().(*syscall.Rusage); ok {
			p.peakRSS = usage.Maxrss * 1024
		}
		close(p.done)
	}()
	if watched != nil {
		return nil, errors.Join(watched, p.Kill())
	}
	return p, nil
}

// waitUntil calls ready repeatedly until it returns true, ctx ends or the process ends.
func (p *process) waitUntil(ctx context.Context, ready func(context.Context) bool) error {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		if ready(ctx) {
			return nil
		}
		select {
		case <-p.done:
			return fmt.Errorf("it ended: %w", p.err)
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
}

func (p *process) programName() string { return filepath.Base(p.cmd.Path) }

// CommandLine returns a shell command that starts the process again.
func (p *process) CommandLine() string { return strings.Join(p.cmd.Args, " ") }

// Pid returns the process id.
func (p *process) Pid() int { return p.cmd.Process.Pid }

// Done returns a channel that is closed when the process has ended.
func (p *process) Done() <-chan struct{} { return p.done }

// Signal sends a signal to the process, for example SIGSTOP and later SIGCONT. After SIGSTOP it waits until all
// threads have stopped: on a busy machine some of them run on until the thread that takes the signal is scheduled.
func (p *process) Signal(sig os.Signal) error {
	if err := p.cmd.Process.Signal(sig); err != nil || sig != syscall.SIGSTOP {
		return err
	}
	for {
		err := unix.Waitid(unix.P_PID, p.Pid(), nil, unix.WSTOPPED|unix.WNOWAIT, nil)
		if !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// Kill ends the process at once (SIGKILL), as a crash would. It returns no error if the process has ended by itself.
func (p *process) Kill() error {
	if err := p.Signal(syscall.SIGKILL); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("killing %s: %w", p.programName(), err)
	}
	<-p.done
	return nil
}

// Stop sends SIGTERM and waits for the process to end. After a minute it kills the process, which is an error, as is
// an exit code other than zero. A frozen process is resumed first.
func (p *process) Stop() error {
	_ = p.Signal(syscall.SIGTERM)
	_ = p.Signal(syscall.SIGCONT)
	select {
	case <-p.done:
	case <-time.After(time.Minute):
		return errors.Join(fmt.Errorf("%s did not stop within a minute of SIGTERM", p.programName()), p.Kill())
	}
	if p.err != nil {
		return fmt.Errorf("stopping %s: %w\n%s", p.programName(), p.err, p.LogTail(20))
	}
	return nil
}

// PeakRSS returns the peak resident memory of the process, in bytes. It can be read while the process runs and after
// its end.
func (p *process) PeakRSS() (int64, error) {
	select {
	case <-p.done:
		return p.peakRSS, nil
	default:
	}
	const field = "VmHWM"
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.Pid()))
	if err != nil {
		return 0, fmt.Errorf("reading the memory of %s: %w", p.programName(), err)
	}
	for line := range strings.Lines(string(status)) {
		if rest, ok := strings.CutPrefix(line, field+":"); ok {
			kib, err := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(rest), "kB")), 10, 64)
			return kib * 1024, err
		}
	}
	return 0, fmt.Errorf("reading the memory of %s: the kernel reports no %s", p.programName(), field)
}

// LogTail returns the last n lines of the output.
func (p *process) LogTail(n int) string {
	log, err := os.ReadFile(p.logFile)
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimRight(string(log), "\n"), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}
