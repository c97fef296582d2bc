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

// comparison is a measurement of our forwarder and of a competitor.
type comparison struct {
	kind, description string
	unit              string
	unitScale         float64 // of the unit
	competitor        string
	ourPort           int
	competitorPort    int
	minRatio          float64 // ours divided by theirs
}

var comparisons = []comparison{
	{kind: kindBytes, unit: "GB/s", unitScale: 1e9, competitor: haproxyName, ourPort: 7001, competitorPort: 8001, minRatio: 0.8,
		description: "TCP, some streams (-streams)"},
	{kind: kindConnections, unit: "connections/s", unitScale: 1, competitor: haproxyName, ourPort: 7002, competitorPort: 8002, minRatio: 0.7,
		description: fmt.Sprintf("TCP, new connections that ask %d bytes and are answered, %d at once", requestSize, connectionsInFlight)},
	{kind: kindUDP, unit: "answers/s", unitScale: 1, competitor: nginxName, ourPort: 7003, competitorPort: 8003, minRatio: 0.7,
		description: fmt.Sprintf("UDP, %d clients; nginx expects one answer (proxy_responses 1)", udpClients)},
	{kind: kindUDPKept, unit: "answers/s", unitScale: 1, competitor: nginxName, ourPort: 7003, competitorPort: 8004, minRatio: 0.7,
		description: fmt.Sprintf("UDP, %d clients; nginx expects any number of answers, as ours does", udpClients)},
}

// runComparisons runs all requested comparisons, and returns an error that names those that miss their goal.
func runComparisons(ctx context.Context, o options, w *testbed) error {
	var missed []string
	for _, c := range comparisons {
		if o.onlyKind != "" && o.onlyKind != c.kind {
			continue
		}
		ratio, err := w.runComparison(ctx, o, c)
		if err != nil {
			return fmt.Errorf("%s: %w", c.kind, err)
		}
		if ratio > 0 && ratio < c.minRatio {
			missed = append(missed, fmt.Sprintf("%s %.2f of %s, goal %.1f", c.kind, ratio, c.competitor, c.minRatio))
		}
	}
	if len(missed) > 0 {
		return fmt.Errorf("missed: %s", strings.Join(missed, "; "))
	}
	return nil
}

// runComparison measures our forwarder and the competitor in turns, and returns the median of the ratios, or 0 if the
// competitor is not installed.
func (w *testbed) runComparison(ctx context.Context, o options, c comparison) (float64, error) {
	fmt.Printf("\n%s: %s\n", c.kind, c.description)
	sides := []candidate{{forwarderName, c.ourPort}}
	if w.proxies[c.competitor] != nil {
		sides = append(sides, candidate{c.competitor, c.competitorPort})
	} else {
		fmt.Printf("  without %s, which is not here (hack/proxies.sh unpacks it where apt can download)\n", c.competitor)
	}
	var ratios, byCPU []float64
	for turn := range o.rounds {
		got := map[string]measurement{}
		for _, s := range sides {
			f, err := w.measureOnce(ctx, o, c, s)
			if err != nil {
				return 0, fmt.Errorf("%s: %w", s.name, err)
			}
			got[s.name] = f
		}
		fmt.Printf("  turn %d: ours %s", turn+1, got[forwarderName].format(c))
		if competitor, ok := got[c.competitor]; ok {
			ratios = append(ratios, got[forwarderName].rate/competitor.rate)
			byCPU = append(byCPU, got[forwarderName].rate/got[forwarderName].cpus/(competitor.rate/competitor.cpus))
			fmt.Printf("; %s %s; ratio %.2f, by CPU %.2f", c.competitor, competitor.format(c), ratios[turn], byCPU[turn])
		}
		fmt.Println()
		slices.Reverse(sides) // the one that was first is second now
	}
	if len(ratios) == 0 {
		return 0, nil
	}
	slices.Sort(ratios)
	slices.Sort(byCPU)
	median := ratios[len(ratios)/2]
	fmt.Printf("  median ratio %.2f of %s, goal %.1f; by CPU %.2f\n", median, c.competitor, c.minRatio, byCPU[len(byCPU)/2])
	return median, nil
}

type candidate struct {
	name string
	port int
}

// measurement is one round of one candidate.
type measurement struct {
	rate   float64
	failed int64
	// cpus is how many of the CPUs of the machine the program used.
	cpus float64
}

func (f measurement) format(c comparison) string {
	digits := 0
	if c.unitScale > 1 {
		digits = 2
	}
	out := fmt.Sprintf("%.*f %s with %.2f CPUs", digits, f.rate, c.unit, f.cpus)
	if f.failed > 0 {
		out += fmt.Sprintf(", %d failed", f.failed)
	}
	return out
}

// measureOnce measures one candidate, from the namespace of the client.
func (w *testbed) measureOnce(ctx context.Context, o options, c comparison, s candidate) (measurement, error) {
	self, err := os.Executable()
	if err != nil {
		return measurement{}, err
	}
	cmd := exec.CommandContext(ctx, self, roleLoad, "-kind="+c.kind, fmt.Sprintf("-to=%s:%d", hostAddress, s.port), "-each="+o.duration.String(), "-streams="+strconv.Itoa(o.streams))
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return measurement{}, err
	}
	if err := w.client.runInside(cmd.Start); err != nil {
		return measurement{}, err
	}
	lines := bufio.NewReader(out)
	_, err = lines.ReadString('\n')
	before := cpuSeconds(w.proxies[s.name].Process.Pid)
	var d loadResult
	if err == nil {
		err = json.NewDecoder(lines).Decode(&d)
	}
	after := cpuSeconds(w.proxies[s.name].Process.Pid)
	if waited := cmd.Wait(); waited != nil {
		return measurement{}, waited
	}
	if err != nil {
		return measurement{}, err
	}
	if d.Count == 0 {
		return measurement{}, fmt.Errorf("nothing was answered, %d failed", d.Failed)
	}
	return measurement{rate: float64(d.Count) / d.Elapsed.Seconds() / c.unitScale, failed: d.Failed, cpus: (after - before) / d.Elapsed.Seconds()}, nil
}

// cpuSeconds returns the CPU time that a process and its children have used, in seconds.
func cpuSeconds(pid int) float64 {
	const ticks = 100 // a second, on every Linux
	var sum float64
	if stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid)); err == nil {
		// The fields after the name, which may have spaces: the state is the third field, utime and stime are the 14th and
		// 15th.
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
				sum += cpuSeconds(n)
			}
		}
	}
	return sum
}
