// Package quickstart tests what a newcomer meets first: the quickstart, the examples of the documentation, and the
// files that clusterctl reads.
package quickstart

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/netns"
)

// deadline bounds a run on a loaded machine; an idle one needs ten seconds.
const deadline = 4 * time.Minute

// programs builds the quickstart and the manager from the current source and returns their paths.
func programs(t *testing.T) (quickstart, manager string) {
	t.Helper()
	dir := t.TempDir()
	manager, err := framework.BuildManager(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	quickstart = filepath.Join(dir, "quickstart")
	cmd := exec.CommandContext(t.Context(), "go", "build", "-buildvcs=false", "-o", quickstart, "../../hack/quickstart")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("building the quickstart: %v\n%s", err, out)
	}
	return quickstart, manager
}

func TestQuickstartDemonstrations(t *testing.T) {
	if testing.Short() {
		t.Skip("it starts six demonstrations: make quickstart shows one, make test-all runs them")
	}
	quickstart, manager := programs(t)

	t.Run("shows every claim and exits", func(t *testing.T) {
		out, tmp := &bytes.Buffer{}, t.TempDir()
		cmd := command(t, tmp, out, quickstart, "--manager="+manager, "--exit")
		if err := cmd.Run(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		for _, row := range []string{
			`lab-control-plane-0 +networkpool/lab +10\.20\.0\.\d+/24 +10\.20\.0\.1 `,
			`lab-worker-0 +networkpool/lab +10\.20\.0\.\d+/24 +10\.20\.0\.1 `,
			`lab-worker-1 +networkpool/lab +10\.20\.0\.\d+/24 +10\.20\.0\.1 `,
			`lab-registry +networkpool/lab +10\.20\.0\.100/24 +10\.20\.0\.1 `,
			`lab-vip +networkpool/lab +10\.20\.0\.10/24 +10\.20\.0\.1 `,
			`lab-pods +globalnetworkpool/fleet-prefixes +fd00:20:[0-9a-f:]*/64 +- `,
			`lab-nodes +nodes +Allocated +10\.20\.0\.\S+ +5 +allocated 5 IPs`,
			`lab-edge +loadbalancer +Allocated +10\.20\.0\.200/30 +4 +allocated 4 IPs`,
			`lab-too-large +loadbalancer +Failed +- +0 +no contiguous block available`,
			`default-lab-lb +loadbalancer +Allocated +10\.20\.0\.\S+ +8 +allocated 8 IPs`,
			`lab +10\.20\.0\.0/24 +- +- +\d+ +\d+ +22 +True +Ready `,
			`team-a +- +- +datacentre +64 +64 +0 +True +Ready `,
			`datacentre +10\.64\.0\.0/12 +- +- +\d+ +\d+ +64 +True +Ready `,
			`fleet-prefixes +fd00:20::/48 +- +- +\d+ +\d+ +1 +True +Ready `,
		} {
			if !regexp.MustCompile(`(?m)^ +` + row).MatchString(out.String()) {
				t.Errorf("no row %q", row)
			}
		}
		if t.Failed() {
			t.Log(out)
		}
		empty(t, tmp)
	})

	t.Run("shows a pool that follows its Services", func(t *testing.T) {
		out, tmp := &bytes.Buffer{}, t.TempDir()
		cmd := command(t, tmp, out, quickstart, "--elastic", "--manager="+manager, "--exit")
		if err := cmd.Run(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		for _, row := range []string{
			`web +10\.60\.0\.1 +\S+ +MetalLB had it`,
			`dns +10\.60\.0\.4 +\S+ +the pool grew`,
			`default-shop-lb-2 +services +shop +loadbalancer +Allocated +10\.60\.0\.4 +10\.60\.0\.4 +InUse `,
			`shrink .*their blocks were released after`,
		} {
			if !regexp.MustCompile(`(?m)^ +` + row).MatchString(out.String()) {
				t.Errorf("no row %q", row)
			}
		}
		if t.Failed() {
			t.Log(out)
		}
		empty(t, tmp)
	})

	t.Run("shows tenants that lease addresses for their Services", func(t *testing.T) {
		out, tmp := &bytes.Buffer{}, t.TempDir()
		cmd := command(t, tmp, out, quickstart, "--leases", "--manager="+manager, "--exit")
		if err := cmd.Run(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		for _, row := range []string{
			`team-a/shop +203\.0\.113\.1 +\S+$`,
			`team-b/shop +203\.0\.113\.2 +\S+$`,
			`team-a/web +TCP/443 +203\.0\.113\.1 +\S+$`,
			`team-a/dns +UDP/53 +203\.0\.113\.1 +\S+$`,
			`team-b/web +TCP/443 +203\.0\.113\.2 +\S+$`,
			`team-a/late +TCP/443 +\S+ +PortTaken: 203\.0\.113\.1 TCP/443 is already allocated to Service web; `,
		} {
			if !regexp.MustCompile(`(?m)^ +` + row).MatchString(out.String()) {
				t.Errorf("no row %q", row)
			}
		}
		if t.Failed() {
			t.Log(out)
		}
		empty(t, tmp)
	})

	t.Run("shows an address that goes from host to host", func(t *testing.T) {
		n, err := netns.NewSwitch()
		if err != nil {
			t.Skipf("SKIPPED: %v", err)
		}
		if err := n.Close(); err != nil {
			t.Fatal(err)
		}
		out, tmp := &bytes.Buffer{}, t.TempDir()
		cmd := command(t, tmp, out, quickstart, "--hosts", "--manager="+manager, "--exit")
		if err := cmd.Run(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		for _, row := range []string{
			`team-a/web +TCP/80 +192\.0\.2\.97 +\S+ +hello from the pod$`,
			`team-a/dns +UDP/53 +192\.0\.2\.97 +\S+ +answer to a query$`,
			`kill -9 +(h\d) +(h\d) +\S+$`,
			`SIGTERM +(h\d) +(h\d) +\S+$`,
		} {
			if !regexp.MustCompile(`(?m)^ +` + row).MatchString(out.String()) {
				t.Errorf("no row %q", row)
			}
		}
		if t.Failed() {
			t.Log(out)
		}
		empty(t, tmp)
	})

	t.Run("shows Nodes that get their pod CIDRs, and stays", func(t *testing.T) {
		output := runUntilInterrupted(t, func(output string) {
			if printed := runHints(t, output); !strings.Contains(printed, "is being deleted; 2 Nodes use it: worker-0, worker-1") {
				t.Errorf("the hints show\n%s", printed)
			}
		}, quickstart, "--nodes", "--manager="+manager, "--exit=false")
		for _, row := range []string{
			`worker-0 +10\.244\.0\.0/24 +first +\S+$`,
			`worker-1 +10\.244\.1\.0/24 +first +\S+$`,
			`Warning +CIDRNotAvailable +node/worker-2 +all ClusterCIDRs that match are full: first \(2 Nodes\); `,
			`Node worker-2 waits for its pod CIDR$`,
			` +tried: +1\. first, 10\.244\.0\.0/23: full \(2/2\)$`,
			`a range .* worker-2 has 192\.168\.16\.0/24, `,
			`first +8 +10\.244\.0\.0/23 +- +0 +2 +True `,
			`second +8 +192\.168\.16\.0/20 +- +15 +1 +True `,
			`Node worker-2 has 192\.168\.16\.0/24 of ClusterCIDR second$`,
		} {
			if !regexp.MustCompile(`(?m)^ +` + row).MatchString(output) {
				t.Errorf("no row %q", row)
			}
		}
		if t.Failed() {
			t.Log(output)
		}
	})

	t.Run("stays until it is interrupted", func(t *testing.T) {
		runUntilInterrupted(t, func(output string) { followHints(t, output) }, quickstart, "--manager="+manager, "--exit=false")
	})

	t.Run("stays when the manager ends, which can be started again", func(t *testing.T) {
		shown, gone, tmp := &notifyingWriter{text: "tail -f", seen: make(chan struct{})}, &notifyingWriter{text: "in another terminal:\n\n  /", seen: make(chan struct{})}, t.TempDir()
		cmd := command(t, tmp, io.MultiWriter(shown, gone), quickstart, "--manager="+manager, "--exit=false")
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		ended := make(chan error, 1)
		go func() { ended <- cmd.Wait() }()
		wait := func(of *notifyingWriter) string {
			t.Helper()
			select {
			case <-of.seen:
			case err := <-ended:
				t.Fatalf("it did not stay: %v\n%s", err, of.buffer.String())
			}
			return of.buffer.String()
		}
		pid, err := strconv.Atoi(regexp.MustCompile(`manager +\S+ +process (\d+), `).FindStringSubmatch(wait(shown))[1])
		if err != nil {
			t.Fatal(err)
		}
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		output := wait(gone)
		again := strings.Fields(output[strings.LastIndex(output, "\n  /"):])
		restarted := exec.CommandContext(t.Context(), again[0], again[1:]...)
		ready := &notifyingWriter{text: "Starting the manager", seen: make(chan struct{})}
		restarted.Stdout, restarted.Stderr = ready, ready
		if err := restarted.Start(); err != nil {
			t.Fatal(err)
		}
		wait(ready)
		if printed := runHints(t, output); !strings.Contains(printed, "lab-registry") {
			t.Errorf("the hints show\n%s", printed)
		}
		if err := errors.Join(restarted.Process.Signal(syscall.SIGTERM), restarted.Wait()); err != nil {
			t.Errorf("%v\n%s", err, ready.buffer.String())
		}
		if err := errors.Join(cmd.Process.Signal(os.Interrupt), <-ended); err != nil {
			t.Errorf("%v\n%s", err, gone.buffer.String())
		}
		empty(t, tmp)
	})

	t.Run("fails and cleans up where the manager does not start", func(t *testing.T) {
		out, tmp := &bytes.Buffer{}, t.TempDir()
		cmd := command(t, tmp, out, quickstart, "--manager=/bin/false", "--exit")
		if err := cmd.Run(); err == nil {
			t.Errorf("no error\n%s", out)
		}
		if !strings.Contains(out.String(), "the manager did not become ready") {
			t.Errorf("it does not say why\n%s", out)
		}
		empty(t, tmp)
	})
}

// runUntilInterrupted runs a demonstration that stays, calls beside while it runs, and interrupts it. It returns the
// output.
func runUntilInterrupted(t *testing.T, beside func(output string), name string, args ...string) string {
	t.Helper()
	out, tmp := &notifyingWriter{text: "manager.log\n", seen: make(chan struct{})}, t.TempDir() // the end of its hints
	cmd := command(t, tmp, out, name, args...)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	select {
	case <-out.seen:
		beside(out.buffer.String())
		if err := cmd.Process.Signal(os.Interrupt); err != nil {
			t.Error(err)
		}
		if err := <-ended; err != nil {
			t.Errorf("%v\n%s", err, out.buffer.String())
		}
	case err := <-ended:
		t.Errorf("it did not stay: %v\n%s", err, out.buffer.String())
	}
	empty(t, tmp)
	return out.buffer.String()
}

// followHints does what the quickstart suggests: it opens the page, and runs the commands for another terminal.
func followHints(t *testing.T, output string) {
	t.Helper()
	page := regexp.MustCompile(`who has them: (http://127\.0\.0\.1:\d+/\S*)\n`).FindStringSubmatch(output)
	if page == nil {
		t.Fatalf("it does not say how to go on\n%s", output)
	}
	for path, want := range map[string]string{"": "<title>", "api/pools": `"lab"`} {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, page[1]+path, http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		answer, err := http.DefaultClient.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(answer.Body)
		_ = answer.Body.Close()
		if err != nil || answer.StatusCode != http.StatusOK || !strings.Contains(string(text), want) {
			t.Errorf("%s%s: %s, %v\n%s", page[1], path, answer.Status, err, text)
		}
	}
	if printed := runHints(t, output); !strings.Contains(printed, "lab-registry") || !strings.Contains(printed, `"lab-worker-0" deleted`) {
		t.Errorf("the hints show\n%s", printed)
	}
}

// runHints runs the commands that a demonstration prints for another terminal, and returns their output.
func runHints(t *testing.T, output string) string {
	t.Helper()
	_, lines, found := strings.Cut(output, "In another terminal:\n")
	if !found {
		t.Fatalf("it does not say how to go on\n%s", output)
	}
	lines, _, _ = strings.Cut(lines, "tail -f") // the tail command does not end
	printed, err := exec.CommandContext(t.Context(), "sh", "-euc", lines).CombinedOutput()
	if err != nil {
		t.Errorf("%v: %s\n%s", err, lines, printed)
	}
	return string(printed)
}

// command returns a command with a temporary directory of its own. At the deadline the command is interrupted, not
// killed, so that its processes end with it.
func command(t *testing.T, tmp string, out interface{ Write([]byte) (int, error) }, name string, args ...string) *exec.Cmd {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), deadline)
	t.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = time.Minute
	cmd.Env = append(os.Environ(), "TMPDIR="+tmp)
	cmd.Stdout, cmd.Stderr = out, out
	return cmd
}

func empty(t *testing.T, dir string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range entries {
		t.Errorf("it left %s behind", entry.Name())
	}
}

// notifyingWriter closes seen once text has been written.
type notifyingWriter struct {
	buffer bytes.Buffer
	text   string
	seen   chan struct{}
	done   bool
}

func (n *notifyingWriter) Write(p []byte) (int, error) {
	n.buffer.Write(p)
	if !n.done && strings.Contains(n.buffer.String(), n.text) {
		n.done = true
		close(n.seen)
	}
	return len(p), nil
}
