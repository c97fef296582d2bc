package framework

import (
	"context"
	"fmt"
	"net/http"
	"strings"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// Counts returns what a counter of a manager says of each series, by its labels:
// {controller="tenant",result="success"}.
func (m *Manager) Counts(ctx context.Context, counter string) (map[string]int, error) {
	families, err := m.families(ctx)
	out := map[string]int{}
	for _, metric := range families[counter].GetMetric() {
		out[labels(metric)] = int(metric.GetCounter().GetValue())
	}
	return out, err
}

// Gauge returns what a manager says of one series of a gauge: name{controller="tenant"}.
func (m *Manager) Gauge(ctx context.Context, series string) (float64, error) {
	families, err := m.families(ctx)
	if err != nil {
		return 0, err
	}
	name, _, _ := strings.Cut(series, "{")
	for _, metric := range families[name].GetMetric() {
		if name+labels(metric) == series {
			return metric.GetGauge().GetValue(), nil
		}
	}
	return 0, fmt.Errorf("%w: %s", ErrNoMetric, series)
}

// Buckets returns how many of what a histogram of a manager measures were at most so large, over all its series.
func (m *Manager) Buckets(ctx context.Context, histogram string) (map[float64]int, error) {
	families, err := m.families(ctx)
	out := map[float64]int{}
	for _, metric := range families[histogram].GetMetric() {
		for _, b := range metric.GetHistogram().GetBucket() {
			out[b.GetUpperBound()] += int(b.GetCumulativeCount())
		}
	}
	return out, err
}

// families are all metrics of a manager.
func (m *Manager) families(ctx context.Context) (map[string]*dto.MetricFamily, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, m.MetricsURL(), http.NoBody)
	if err != nil {
		return nil, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, fmt.Errorf("reading the metrics of a manager: %w", err)
	}
	defer resp.Body.Close()
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(resp.Body)
	if err != nil {
		return nil, fmt.Errorf("reading the metrics of a manager: %w", err)
	}
	return families, nil
}

func labels(m *dto.Metric) string {
	var out []string
	for _, l := range m.GetLabel() {
		out = append(out, fmt.Sprintf("%s=%q", l.GetName(), l.GetValue()))
	}
	return "{" + strings.Join(out, ",") + "}"
}

// label returns the value of a label of a series, empty if it has none.
func label(m *dto.Metric, name string) string {
	for _, l := range m.GetLabel() {
		if l.GetName() == name {
			return l.GetValue()
		}
	}
	return ""
}
