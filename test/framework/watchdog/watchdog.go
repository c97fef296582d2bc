// Package watchdog ends the processes that tests have started when the test binary ends, in whichever way: by its
// time limit, by a panic or by a kill; in none of these cases a cleanup runs. A shell waits for the end of its input,
// which the test binary holds open, and then kills the registered processes. This works on Linux alone, where the
// start time distinguishes a process from a later one with the same id.
package watchdog

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
)

// killScript reads the id and the start time of a process from each line. At the end of its input it kills each
// process that is still the same one, with its group.
const killScript = `all=
while read -r pid started; do all="$all $pid:$started"; done
for p in $all; do
	pid=${p%%:*}
	if [ "$(cut -d' ' -f22 "/proc/$pid/stat" 2>/dev/null)" = "${p#*:}" ]; then kill -9 "-$pid" 2>/dev/null || kill -9 "$pid"; fi
done`

var registry struct {
	mu    sync.Mutex
	input io.Writer
	known []int
}

// WatchProcess registers a process to be killed when this process ends. Call it once the process runs.
func WatchProcess(pid int) error {
	started, err := processStartTime(pid)
	if err != nil {
		return nil // the process has ended already, or this is not Linux
	}
	registry.mu.Lock()
	defer registry.mu.Unlock()
	if slices.Contains(registry.known, pid) {
		return nil
	}
	if registry.input == nil {
		if registry.input, err = startShell(); err != nil {
			return fmt.Errorf("starting what ends processes with the tests: %w", err)
		}
	}
	registry.known = append(registry.known, pid)
	_, err = fmt.Fprintln(registry.input, pid, started)
	return err
}

// WatchChildren registers the children of this process that run one of the named programs: a library may start them
// without returning their process ids.
func WatchChildren(names ...string) error {
	all, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		return err
	}
	for _, path := range all {
		text, err := os.ReadFile(path)
		if err != nil {
			continue // the process has ended
		}
		pid, name, parent := parseStat(string(text))
		if parent == os.Getpid() && slices.Contains(names, name) {
			if err := WatchProcess(pid); err != nil {
				return err
			}
		}
	}
	return nil
}

// WatchedProcesses returns the ids of the registered processes.
func WatchedProcesses() []int {
	registry.mu.Lock()
	defer registry.mu.Unlock()
	return slices.Clone(registry.known)
}

// startShell starts the shell in a process group of its own, so that what ends the tests does not end it.
func startShell() (io.Writer, error) {
	// The shell ends by itself when this process has ended.
	cmd := exec.Command("/bin/sh", "-c", killScript) //nolint:noctx // see above
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	input, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	return input, cmd.Start()
}

// processStartTime returns the start time of a process, in the unit of the kernel.
func processStartTime(pid int) (string, error) {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return "", err
	}
	fields := strings.Split(string(text), " ")
	const at = 21 // valid for a program whose name contains no space
	if len(fields) <= at {
		return "", fmt.Errorf("process %d: its state cannot be read: %s", pid, text)
	}
	return fields[at], nil
}

// parseStat returns the id, the name and the parent id of a process from its stat line.
func parseStat(stat string) (pid int, name string, parent int) {
	open, end := strings.Index(stat, "("), strings.LastIndex(stat, ")")
	if open < 0 || end < open {
		return 0, "", 0
	}
	pid, _ = strconv.Atoi(strings.TrimSpace(stat[:open]))
	if fields := strings.Fields(stat[end+1:]); len(fields) > 1 {
		parent, _ = strconv.Atoi(fields[1])
	}
	return pid, stat[open+1 : end], parent
}
