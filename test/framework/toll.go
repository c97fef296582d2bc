package framework

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"regexp"
	"strings"
	"time"
)

// WorkCounts counts what a manager has done since it started, by kind of work: reconciles by controller, reads and
// writes by API server, and log lines by cause.
type WorkCounts map[string]float64

// Since returns the difference to an earlier reading; it omits work that did not increase.
func (t WorkCounts) Since(earlier WorkCounts) WorkCounts {
	out := WorkCounts{}
	for name, n := range t {
		if n > earlier[name] {
			out[name] = n - earlier[name]
		}
	}
	return out
}

// logCausePattern matches the part that log lines about different objects share: the source position, and the text
// without its values.
var logCausePattern = regexp.MustCompile(`(?m)^[IWEF][0-9]{4} \S+ +[0-9]+ (\S+\](?: "(?:[^"\\]|\\.)*")?)`)

// ReadWorkCounts reads the manager's work from its metrics and its log. A metric that the manager does not export yet
// counts as zero.
func (m *Manager) ReadWorkCounts(ctx context.Context) (WorkCounts, error) {
	out := WorkCounts{}
	families, err := m.readFamilies(ctx)
	if err != nil {
		return nil, err
	}
	for _, metric := range families["controller_runtime_reconcile_total"].GetMetric() {
		out["reconciles of "+labelValue(metric, "controller")] += metric.GetCounter().GetValue()
	}
	for _, metric := range families["rest_client_requests_total"].GetMetric() {
		kind := "writes to "
		if labelValue(metric, "method") == "GET" {
			kind = "reads of "
		}
		out[kind+labelValue(metric, "host")] += metric.GetCounter().GetValue()
	}
	log, err := os.ReadFile(m.LogFile)
	if err != nil {
		return nil, fmt.Errorf("reading the log of a manager: %w", err)
	}
	for _, line := range logCausePattern.FindAllStringSubmatch(string(log), -1) {
		out["log lines of "+strings.TrimSpace(line[1])]++
	}
	return out, nil
}

// WorkMonitor reads repeatedly how much a manager does.
type WorkMonitor struct {
	manager    *Manager
	lastCounts WorkCounts
	lastRead   time.Time
}

// NewWorkMonitor returns a monitor of the manager. Its first reading covers all that the manager has done since it
// started.
func (m *Manager) NewWorkMonitor() *WorkMonitor { return &WorkMonitor{manager: m} }

// ReadAboveRate returns the work that the manager has done since the last reading more often than mostPerSecond times
// a second. The second is only the unit: on a slow machine more time passes between two readings, and more is
// allowed.
func (w *WorkMonitor) ReadAboveRate(ctx context.Context, mostPerSecond float64) (WorkCounts, error) {
	began := time.Now()
	toll, err := w.manager.ReadWorkCounts(ctx)
	if err != nil {
		return nil, err
	}
	did, passed := toll.Since(w.lastCounts), time.Since(w.lastRead)
	if w.lastCounts == nil {
		passed = 0
	}
	w.lastCounts, w.lastRead = toll, began
	maps.DeleteFunc(did, func(_ string, n float64) bool { return n <= mostPerSecond*passed.Seconds() })
	return did, nil
}

// NewRestCheck returns a check that fails if a manager did anything more often than mostPerSecond times a second
// since the last call. The first call fails: call it again after a second.
func NewRestCheck(mostPerSecond float64, managers ...*Manager) func(context.Context) error {
	watches := make([]*WorkMonitor, len(managers))
	for i, m := range managers {
		watches[i] = m.NewWorkMonitor()
	}
	return func(ctx context.Context) error {
		var errs []error
		for _, w := range watches {
			above, err := w.ReadAboveRate(ctx, mostPerSecond)
			if err == nil && len(above) > 0 {
				err = fmt.Errorf("%w: more than %.1f times a second: %v", errNotResting, mostPerSecond, above)
			}
			errs = append(errs, err)
		}
		return errors.Join(errs...)
	}
}

var errNotResting = errors.New("a manager does not rest")
