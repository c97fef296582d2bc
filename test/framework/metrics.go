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

// ReadCounter returns the value of each series of a counter, keyed by the labels of the series, for example
// {controller="tenant",result="success"}.
func (m *Manager) ReadCounter(ctx context.Context, counter string) (map[string]int, error) {
	families, err := m.readFamilies(ctx)
	out := map[string]int{}
	for _, metric := range families[counter].GetMetric() {
		out[formatLabels(metric)] = int(metric.GetCounter().GetValue())
	}
	return out, err
}

// ReadGauge returns the value of one series of a gauge, given as name{controller="tenant"}.
func (m *Manager) ReadGauge(ctx context.Context, series string) (float64, error) {
	families, err := m.readFamilies(ctx)
	if err != nil {
		return 0, err
	}
	name, _, _ := strings.Cut(series, "{")
	for _, metric := range families[name].GetMetric() {
		if name+formatLabels(metric) == series {
			return metric.GetGauge().GetValue(), nil
		}
	}
	return 0, fmt.Errorf("%w: %s", ErrMetricNotFound, series)
}

// ReadHistogramBuckets returns the cumulative count of each bucket of a histogram, keyed by its upper bound and
// summed over all series.
func (m *Manager) ReadHistogramBuckets(ctx context.Context, histogram string) (map[float64]int, error) {
	families, err := m.readFamilies(ctx)
	out := map[float64]int{}
	for _, metric := range families[histogram].GetMetric() {
		for _, b := range metric.GetHistogram().GetBucket() {
			out[b.GetUpperBound()] += int(b.GetCumulativeCount())
		}
	}
	return out, err
}

// readFamilies returns all metrics of a manager.
func (m *Manager) readFamilies(ctx context.Context) (map[string]*dto.MetricFamily, error) {
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

func formatLabels(m *dto.Metric) string {
	var out []string
	for _, l := range m.GetLabel() {
		out = append(out, fmt.Sprintf("%s=%q", l.GetName(), l.GetValue()))
	}
	return "{" + strings.Join(out, ",") + "}"
}

// labelValue returns the value of a label of a series, or "" if the series has no such label.
func labelValue(m *dto.Metric, name string) string {
	for _, l := range m.GetLabel() {
		if l.GetName() == name {
			return l.GetValue()
		}
	}
	return ""
}
