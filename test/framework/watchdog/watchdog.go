// Package watchdog ends the processes that tests have started when the test binary ends, in whichever way: at its time
// limit, by a panic or killed, none of which runs a cleanup. A shell waits for the end of its input, which the binary holds
// open, and kills then what it was told of. It does so on Linux alone, where a process can be told from a later one that has
// its number.
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

// script reads the number and the start time of a process in each line. At the end of its input it kills those of them
// that are still the same process, each with its group.
const script = `all=
while read -r pid started; do all="$all $pid:$started"; done
for p in $all; do
	pid=${p%%:*}
	if [ "$(cut -d' ' -f22 "/proc/$pid/stat" 2>/dev/null)" = "${p#*:}" ]; then kill -9 "-$pid" 2>/dev/null || kill -9 "$pid"; fi
done`

var dog struct {
	mu    sync.Mutex
	input io.Writer
	known []int
}

// Watch has a process die with this one. It is called once it runs.
func Watch(pid int) error {
	started, err := startOf(pid)
	if err != nil {
		return nil // it has ended already, or this is not Linux
	}
	dog.mu.Lock()
	defer dog.mu.Unlock()
	if slices.Contains(dog.known, pid) {
		return nil
	}
	if dog.input == nil {
		if dog.input, err = start(); err != nil {
			return fmt.Errorf("starting what ends processes with the tests: %w", err)
		}
	}
	dog.known = append(dog.known, pid)
	_, err = fmt.Fprintln(dog.input, pid, started)
	return err
}

// Children has those of our children that run a program of these names die with us: what starts them may be a library that
// does not say which processes they are.
func Children(names ...string) error {
	all, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		return err
	}
	for _, path := range all {
		text, err := os.ReadFile(path)
		if err != nil {
			continue // it has ended
		}
		pid, name, parent := parse(string(text))
		if parent == os.Getpid() && slices.Contains(names, name) {
			if err := Watch(pid); err != nil {
				return err
			}
		}
	}
	return nil
}

// Watched are the processes that die with this one.
func Watched() []int {
	dog.mu.Lock()
	defer dog.mu.Unlock()
	return slices.Clone(dog.known)
}

// start starts the shell, in a group of its own: what ends the tests does not end it.
func start() (io.Writer, error) {
	// It ends by itself, when this process has ended.
	cmd := exec.Command("/bin/sh", "-c", script) //nolint:noctx // see above
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	input, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	return input, cmd.Start()
}

// startOf is when a process was started, as the kernel counts it.
func startOf(pid int) (string, error) {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return "", err
	}
	fields := strings.Split(string(text), " ")
	const at = 21 // of a program whose name has no spaces
	if len(fields) <= at {
		return "", fmt.Errorf("process %d: its state cannot be read: %s", pid, text)
	}
	return fields[at], nil
}

// parse reads the number, the name and the parent of a process.
func parse(stat string) (pid int, name string, parent int) {
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
