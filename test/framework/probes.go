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

// LaunchManager starts a manager and does not wait until it is ready, as some tests keep it from becoming ready. The
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
	if err := m.launch(ctx, opts); err != nil {
		return nil, errors.Join(fmt.Errorf("launching the manager: %w", err), os.RemoveAll(dir))
	}
	return m, nil
}

// ProbeEndpoint sends a request to a health endpoint, "healthz" or "readyz", and returns the status code and the
// body. It returns an error if the manager does not answer.
func (m *Manager) ProbeEndpoint(ctx context.Context, endpoint string) (code int, text string, err error) {
	code, text, err = httpGet(ctx, strings.TrimSuffix(m.readyURL, "readyz")+endpoint+"?verbose")
	if err != nil {
		return 0, "", fmt.Errorf("probing %s: %w", endpoint, err)
	}
	return code, text, nil
}

// GetPath requests a path on the port of the manager's metrics, and returns the status code and the body.
func (m *Manager) GetPath(ctx context.Context, path string) (code int, text string, err error) {
	code, text, err = httpGet(ctx, strings.TrimSuffix(m.metricsURL, "/metrics")+path)
	if err != nil {
		return 0, "", fmt.Errorf("asking for %s: %w", path, err)
	}
	return code, text, nil
}

// ErrMetricNotFound means that the manager does not export a metric, or not yet.
var ErrMetricNotFound = errors.New("the manager exports no such metric")

// ReadMetric returns a metric of the manager, summed over its series, or ErrMetricNotFound.
func (m *Manager) ReadMetric(ctx context.Context, name string) (float64, error) {
	series, err := m.ReadSeries(ctx, name)
	if err != nil {
		return 0, err
	}
	sum := 0.0
	for _, v := range series {
		sum += v
	}
	return sum, nil
}

// ReadSeries returns the values of a metric, keyed by name and labels, or ErrMetricNotFound if there is none.
func (m *Manager) ReadSeries(ctx context.Context, name string) (map[string]float64, error) {
	_, text, err := httpGet(ctx, m.metricsURL)
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
		return nil, fmt.Errorf("%w: %s", ErrMetricNotFound, name)
	}
	return out, nil
}

func httpGet(ctx context.Context, url string) (code int, text string, err error) {
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
