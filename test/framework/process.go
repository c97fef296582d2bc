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

// process is a program that runs beside the tests until its owner ends it with Stop or Kill.
type process struct {
	logFile string
	cmd     *exec.Cmd
	done    chan struct{}
	err     error
	rss     int64
}

// startProcess starts a program, adds what it prints to logFile, and closes done when it has ended. It has the
// environment env (nil: ours).
func startProcess(logFile string, done chan struct{}, env []string, binary string, args ...string) (*process, error) {
	return startIn((*exec.Cmd).Start, logFile, done, env, binary, args...)
}

// startIn is startProcess, where start starts it.
func startIn(start func(*exec.Cmd) error, logFile string, done chan struct{}, env []string, binary string, args ...string) (*process, error) {
	log, err := os.OpenFile(logFile, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer log.Close() // the process has it open by itself
	p := &process{logFile: logFile, done: done}
	// Not bound to a context: the process outlives the step that started it and is ended by its owner.
	p.cmd = exec.Command(binary, args...) //nolint:noctx // see above
	p.cmd.Env = env
	p.cmd.Stdout, p.cmd.Stderr = log, log
	// A group of its own, or an interrupt at the terminal would end it before its owner does.
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := start(p.cmd); err != nil {
		return nil, fmt.Errorf("starting %s: %w", p.name(), err)
	}
	watched := watchdog.Watch(p.cmd.Process.Pid)
	go func() {
		p.err = p.cmd.Wait()
		if usage, ok := p.cmd.ProcessState.SysUsage().(*syscall.Rusage); ok {
			p.rss = usage.Maxrss * 1024
		}
		close(p.done)
	}()
	if watched != nil {
		return nil, errors.Join(watched, p.Kill())
	}
	return p, nil
}

// waitUntil asks ready again and again until it says yes, ctx ends or the process does.
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

func (p *process) name() string { return filepath.Base(p.cmd.Path) }

// CommandLine starts it again, in a shell.
func (p *process) CommandLine() string { return strings.Join(p.cmd.Args, " ") }

// Pid is the process id.
func (p *process) Pid() int { return p.cmd.Process.Pid }

// Done is closed when the process has ended.
func (p *process) Done() <-chan struct{} { return p.done }

// Signal sends it a signal, for example SIGSTOP and later SIGCONT. After SIGSTOP it waits until all threads have stopped: on a busy
// machine some of them run on until the one is scheduled that takes the signal.
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

// Kill ends it at once (SIGKILL), as a crash would. One that has ended by itself is no error.
func (p *process) Kill() error {
	if err := p.Signal(syscall.SIGKILL); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("killing %s: %w", p.name(), err)
	}
	<-p.done
	return nil
}

// Stop asks it to end (SIGTERM) and waits; after a minute it is killed, which is an error, as is an
// exit code other than zero. A process that is frozen is woken first.
func (p *process) Stop() error {
	_ = p.Signal(syscall.SIGTERM)
	_ = p.Signal(syscall.SIGCONT)
	select {
	case <-p.done:
	case <-time.After(time.Minute):
		return errors.Join(fmt.Errorf("%s did not stop within a minute of SIGTERM", p.name()), p.Kill())
	}
	if p.err != nil {
		return fmt.Errorf("stopping %s: %w\n%s", p.name(), p.err, p.LogTail(20))
	}
	return nil
}

// PeakRSS is the most memory the process has had resident, in bytes. It can be read while it runs
// and after its end.
func (p *process) PeakRSS() (int64, error) {
	select {
	case <-p.done:
		return p.rss, nil
	default:
	}
	return p.memory("VmHWM")
}

// AnonymousRSS is the memory that the process has resident of its own, in bytes: without the pages of its program, of which
// there are more with all that it does for the first time.
func (p *process) AnonymousRSS() (int64, error) { return p.memory("RssAnon") }

// memory is what the kernel says of the memory of the process while it runs.
func (p *process) memory(field string) (int64, error) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.Pid()))
	if err != nil {
		return 0, fmt.Errorf("reading the memory of %s: %w", p.name(), err)
	}
	for line := range strings.Lines(string(status)) {
		if rest, ok := strings.CutPrefix(line, field+":"); ok {
			kib, err := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(rest), "kB")), 10, 64)
			return kib * 1024, err
		}
	}
	return 0, fmt.Errorf("reading the memory of %s: the kernel reports no %s", p.name(), field)
}

// LogTail returns the last n lines it printed.
func (p *process) LogTail(n int) string {
	log, err := os.ReadFile(p.logFile)
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimRight(string(log), "\n"), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}
