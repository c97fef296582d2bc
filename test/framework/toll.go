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

// Toll is how much a manager has done since it started, by what it is: reconciles of a controller, reads and writes of an API
// server, and lines of its log, by their cause.
type Toll map[string]float64

// Since returns what was done after an earlier reading, without what was not.
func (t Toll) Since(earlier Toll) Toll {
	out := Toll{}
	for what, n := range t {
		if n > earlier[what] {
			out[what] = n - earlier[what]
		}
	}
	return out
}

// cause is what the lines of a log have in common that tell the same of different objects: where they are written, and their
// text without its values.
var cause = regexp.MustCompile(`(?m)^[IWEF][0-9]{4} \S+ +[0-9]+ (\S+\](?: "(?:[^"\\]|\\.)*")?)`)

// Toll reads what the manager has done, from its metrics and its log. A metric that it does not export yet counts as none.
func (m *Manager) Toll(ctx context.Context) (Toll, error) {
	out := Toll{}
	families, err := m.families(ctx)
	if err != nil {
		return nil, err
	}
	for _, metric := range families["controller_runtime_reconcile_total"].GetMetric() {
		out["reconciles of "+label(metric, "controller")] += metric.GetCounter().GetValue()
	}
	for _, metric := range families["rest_client_requests_total"].GetMetric() {
		kind := "writes to "
		if label(metric, "method") == "GET" {
			kind = "reads of "
		}
		out[kind+label(metric, "host")] += metric.GetCounter().GetValue()
	}
	log, err := os.ReadFile(m.LogFile)
	if err != nil {
		return nil, fmt.Errorf("reading the log of a manager: %w", err)
	}
	for _, line := range cause.FindAllStringSubmatch(string(log), -1) {
		out["log lines of "+strings.TrimSpace(line[1])]++
	}
	return out, nil
}

// Watch reads again and again how much a manager does.
type Watch struct {
	manager *Manager
	toll    Toll
	at      time.Time
}

// Watch begins a watch. The first reading of it is of all that the manager has done since it started.
func (m *Manager) Watch() *Watch { return &Watch{manager: m} }

// Above returns what the manager has done since the last reading more often than so many times a second. The second is the
// unit, and not a bound for anything: on a slow machine more time passes between two readings, and more is allowed.
func (w *Watch) Above(ctx context.Context, mostPerSecond float64) (Toll, error) {
	began := time.Now()
	toll, err := w.manager.Toll(ctx)
	if err != nil {
		return nil, err
	}
	did, passed := toll.Since(w.toll), time.Since(w.at)
	if w.toll == nil {
		passed = 0
	}
	w.toll, w.at = toll, began
	maps.DeleteFunc(did, func(_ string, n float64) bool { return n <= mostPerSecond*passed.Seconds() })
	return did, nil
}

// Resting returns a check that managers did nothing more often than so many times a second since it was called last. The first time
// it fails: it is to be asked again after a second.
func Resting(mostPerSecond float64, managers ...*Manager) func(context.Context) error {
	watches := make([]*Watch, len(managers))
	for i, m := range managers {
		watches[i] = m.Watch()
	}
	return func(ctx context.Context) error {
		var errs []error
		for _, w := range watches {
			above, err := w.Above(ctx, mostPerSecond)
			if err == nil && len(above) > 0 {
				err = fmt.Errorf("%w: more than %.1f times a second: %v", errNoRest, mostPerSecond, above)
			}
			errs = append(errs, err)
		}
		return errors.Join(errs...)
	}
}

var errNoRest = errors.New("a manager does not rest")
