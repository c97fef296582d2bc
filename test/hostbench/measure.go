//go:build linux

package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

// contest is what is measured of ours and of theirs.
type contest struct {
	kind, what string
	unit       string
	scale      float64 // of the unit
	theirs     string
	ourPort    int
	theirPort  int
	goal       float64 // ours by theirs
}

var contests = []contest{
	{kind: kindBytes, unit: "GB/s", scale: 1e9, theirs: haproxy, ourPort: 7001, theirPort: 8001, goal: 0.8,
		what: "TCP, some streams (-streams)"},
	{kind: kindConnections, unit: "connections/s", scale: 1, theirs: haproxy, ourPort: 7002, theirPort: 8002, goal: 0.7,
		what: fmt.Sprintf("TCP, new connections that ask %d bytes and are answered, %d at once", question, inFlight)},
	{kind: kindUDP, unit: "answers/s", scale: 1, theirs: nginx, ourPort: 7003, theirPort: 8003, goal: 0.7,
		what: fmt.Sprintf("UDP, %d clients; nginx expects one answer (proxy_responses 1)", clients)},
	{kind: kindKept, unit: "answers/s", scale: 1, theirs: nginx, ourPort: 7003, theirPort: 8004, goal: 0.7,
		what: fmt.Sprintf("UDP, %d clients; nginx expects any number of answers, as ours does", clients)},
}

// measure measures all that is asked for, and says what has not reached its goal.
func measure(ctx context.Context, o options, w *world) error {
	var missed []string
	for _, c := range contests {
		if o.only != "" && o.only != c.kind {
			continue
		}
		ratio, err := w.contest(ctx, o, c)
		if err != nil {
			return fmt.Errorf("%s: %w", c.kind, err)
		}
		if ratio > 0 && ratio < c.goal {
			missed = append(missed, fmt.Sprintf("%s %.2f of %s, goal %.1f", c.kind, ratio, c.theirs, c.goal))
		}
	}
	if len(missed) > 0 {
		return fmt.Errorf("missed: %s", strings.Join(missed, "; "))
	}
	return nil
}

// contest measures ours and theirs in turns, and returns the median of the ratios; 0 if theirs is not there.
func (w *world) contest(ctx context.Context, o options, c contest) (float64, error) {
	fmt.Printf("\n%s: %s\n", c.kind, c.what)
	sides := []side{{ours, c.ourPort}}
	if w.proxies[c.theirs] != nil {
		sides = append(sides, side{c.theirs, c.theirPort})
	} else {
		fmt.Printf("  without %s, which is not here (hack/proxies.sh unpacks it where apt can download)\n", c.theirs)
	}
	var ratios, byCPU []float64
	for turn := range o.turns {
		got := map[string]figure{}
		for _, s := range sides {
			f, err := w.one(ctx, o, c, s)
			if err != nil {
				return 0, fmt.Errorf("%s: %w", s.name, err)
			}
			got[s.name] = f
		}
		fmt.Printf("  turn %d: ours %s", turn+1, got[ours].text(c))
		if theirs, is := got[c.theirs]; is {
			ratios = append(ratios, got[ours].rate/theirs.rate)
			byCPU = append(byCPU, got[ours].rate/got[ours].cpu/(theirs.rate/theirs.cpu))
			fmt.Printf("; %s %s; ratio %.2f, by CPU %.2f", c.theirs, theirs.text(c), ratios[turn], byCPU[turn])
		}
		fmt.Println()
		slices.Reverse(sides) // whoever was first is second now
	}
	if len(ratios) == 0 {
		return 0, nil
	}
	slices.Sort(ratios)
	slices.Sort(byCPU)
	median := ratios[len(ratios)/2]
	fmt.Printf("  median ratio %.2f of %s, goal %.1f; by CPU %.2f\n", median, c.theirs, c.goal, byCPU[len(byCPU)/2])
	return median, nil
}

type side struct {
	name string
	port int
}

// figure is one turn of one side.
type figure struct {
	rate   float64
	failed int64
	// cpu are the CPUs that the program used, of those of the machine.
	cpu float64
}

func (f figure) text(c contest) string {
	digits := 0
	if c.scale > 1 {
		digits = 2
	}
	out := fmt.Sprintf("%.*f %s with %.2f CPUs", digits, f.rate, c.unit, f.cpu)
	if f.failed > 0 {
		out += fmt.Sprintf(", %d failed", f.failed)
	}
	return out
}

// one measures one side, from the client's namespace.
func (w *world) one(ctx context.Context, o options, c contest, s side) (figure, error) {
	self, err := os.Executable()
	if err != nil {
		return figure{}, err
	}
	cmd := exec.CommandContext(ctx, self, roleLoad, "-kind="+c.kind, fmt.Sprintf("-to=%s:%d", hostAddress, s.port), "-each="+o.each.String(), "-streams="+strconv.Itoa(o.streams))
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return figure{}, err
	}
	if err := w.client.in(cmd.Start); err != nil {
		return figure{}, err
	}
	lines := bufio.NewReader(out)
	_, err = lines.ReadString('\n')
	before := cpu(w.proxies[s.name].Process.Pid)
	var d done
	if err == nil {
		err = json.NewDecoder(lines).Decode(&d)
	}
	after := cpu(w.proxies[s.name].Process.Pid)
	if waited := cmd.Wait(); waited != nil {
		return figure{}, waited
	}
	if err != nil {
		return figure{}, err
	}
	if d.N == 0 {
		return figure{}, fmt.Errorf("nothing was answered, %d failed", d.Failed)
	}
	return figure{rate: float64(d.N) / d.In.Seconds() / c.scale, failed: d.Failed, cpu: (after - before) / d.In.Seconds()}, nil
}

// cpu is what a process and its children have used, in seconds.
func cpu(pid int) float64 {
	const ticks = 100 // a second, on every Linux
	var sum float64
	if stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid)); err == nil {
		// After the name, which may have spaces: the state is the third field, utime and stime the 14th and 15th.
		if fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:])); len(fields) > 12 {
			for _, f := range fields[11:13] {
				n, _ := strconv.ParseFloat(f, 64)
				sum += n / ticks
			}
		}
	}
	tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	for _, t := range tasks {
		children, _ := os.ReadFile(t)
		for child := range strings.FieldsSeq(string(children)) {
			if n, err := strconv.Atoi(child); err == nil {
				sum += cpu(n)
			}
		}
	}
	return sum
}
