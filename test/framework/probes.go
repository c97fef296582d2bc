package framework

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
)

// LaunchManager starts a manager and does not wait until it is ready: it may be kept from it. The
// caller ends it with Stop or Kill.
func LaunchManager(ctx context.Context, opts ManagerOptions) (*Manager, error) {
	dir, err := os.MkdirTemp("", "butler-ipam-manager-")
	if err != nil {
		return nil, fmt.Errorf("launching the manager: %w", err)
	}
	m := &Manager{dir: dir, LogFile: opts.LogFile, done: make(chan struct{})}
	if m.LogFile == "" {
		m.LogFile = dir + "/manager.log"
	}
	if err := m.start(ctx, opts); err != nil {
		return nil, errors.Join(fmt.Errorf("launching the manager: %w", err), os.RemoveAll(dir))
	}
	return m, nil
}

// Probe asks one of its health endpoints, "healthz" or "readyz", and returns the status code and
// what it says. It is an error if the manager does not answer.
func (m *Manager) Probe(ctx context.Context, endpoint string) (code int, text string, err error) {
	code, text, err = get(ctx, strings.TrimSuffix(m.readyz, "readyz")+endpoint+"?verbose")
	if err != nil {
		return 0, "", fmt.Errorf("probing %s: %w", endpoint, err)
	}
	return code, text, nil
}

// Ask asks what the manager serves beside its metrics, and returns the status code and what it says.
func (m *Manager) Ask(ctx context.Context, path string) (code int, text string, err error) {
	code, text, err = get(ctx, strings.TrimSuffix(m.metrics, "/metrics")+path)
	if err != nil {
		return 0, "", fmt.Errorf("asking for %s: %w", path, err)
	}
	return code, text, nil
}

// ErrNoMetric says that the manager does not export a metric, or not yet.
var ErrNoMetric = errors.New("the manager exports no such metric")

// Metric returns a metric of the manager, summed over its labels, or ErrNoMetric.
func (m *Manager) Metric(ctx context.Context, name string) (float64, error) {
	series, err := m.Series(ctx, name)
	if err != nil {
		return 0, err
	}
	sum := 0.0
	for _, v := range series {
		sum += v
	}
	return sum, nil
}

// Series are the values of a metric, each by its name and labels. It is ErrNoMetric where there is none.
func (m *Manager) Series(ctx context.Context, name string) (map[string]float64, error) {
	_, text, err := get(ctx, m.metrics)
	if err != nil {
		return nil, fmt.Errorf("reading the metrics: %w", err)
	}
	out := map[string]float64{}
	for line := range strings.Lines(text) {
		series, value, ok := strings.Cut(strings.TrimSpace(line), " ")
		if base, _, _ := strings.Cut(series, "{"); !ok || base != name {
			continue
		}
		v, err := strconv.ParseFloat(value, 64)
		if err != nil {
			return nil, fmt.Errorf("reading metric %s: %w", name, err)
		}
		out[series] = v
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("%w: %s", ErrNoMetric, name)
	}
	return out, nil
}

func get(ctx context.Context, url string) (code int, text string, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return 0, "", err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(body), err
}
