package watchdog

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"testing"
)

const asTests = "WATCHDOG_TEST_STARTS_A_PROCESS"

func TestMain(m *testing.M) {
	if how := os.Getenv(asTests); how != "" {
		startOne(how)
	}
	os.Exit(m.Run())
}

// startOne runs as the test binary: it starts a process, and ends without stopping it.
func startOne(how string) {
	cmd := exec.Command("/bin/sh", "-c", "echo $$; exec sleep 100000") //nolint:noctx // it is to be left
	cmd.Stdout = os.Stdout
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		panic(err)
	}
	err := WatchProcess(cmd.Process.Pid)
	if how == "children" {
		err = WatchChildren("sh", "sleep")
	}
	if err != nil {
		panic(err)
	}
	fmt.Println("watched")
	select {}
}

// A test binary that ends by its time limit, or is killed, leaves no process behind: the started process holds the
// output open until it is dead.
func TestProcessesEndWithTheTests(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("processes are distinguished on Linux alone")
	}
	for _, how := range []string{"itself", "children"} {
		t.Run(how, func(t *testing.T) {
			read, write, err := os.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			tests := exec.CommandContext(t.Context(), os.Args[0])
			tests.Env, tests.Stdout = append(os.Environ(), asTests+"="+how), write
			if err := tests.Start(); err != nil {
				t.Fatal(err)
			}
			if err := write.Close(); err != nil {
				t.Fatal(err)
			}
			lines := bufio.NewReader(read)
			for range 2 { // the process prints its id, and the test binary prints that it is watched
				if _, err := lines.ReadString('\n'); err != nil {
					t.Fatal(err)
				}
			}
			if err := tests.Process.Kill(); err != nil {
				t.Fatal(err)
			}
			_ = tests.Wait()
			if rest, err := io.ReadAll(lines); err != nil || len(rest) > 0 { // the output ends when the last process ends
				t.Errorf("%q, %v", rest, err)
			}
		})
	}
}
