package main

import (
	"context"
	"time"

	"github.com/prometheus/prometheus/model/histogram"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb/chunkenc"
	"github.com/prometheus/prometheus/tsdb/chunks"
	"github.com/prometheus/prometheus/util/annotations"
)

// evalRequest is an expression, the times of its evaluation, and the series that Prometheus has.
type evalRequest struct {
	Expr string `json:"expr"`
	// Times are the times of evaluation, in seconds; there is a sample each Step seconds from 0 on.
	Times  []int64       `json:"at"`
	Step   int64         `json:"step"`
	Series []inputSeries `json:"series"`
}

// inputSeries has the samples of a metric with labels. A null sample is missing.
type inputSeries struct {
	Labels map[string]string `json:"labels"`
	Values []*float64        `json:"values"`
}

// evalResult is the result of an expression: at each time, the labels of each series.
type evalResult struct {
	Error  string                `json:"error,omitempty"`
	Result [][]map[string]string `json:"result"`
}

// evaluateAll evaluates an expression at each time.
func evaluateAll(w evalRequest) (out evalResult) {
	engine := promql.NewEngine(promql.EngineOpts{MaxSamples: 1_000_000, Timeout: time.Minute})
	defer engine.Close()
	for _, at := range w.Times {
		result, err := evaluateAt(engine, w, at)
		if err != nil {
			return evalResult{Error: err.Error()}
		}
		out.Result = append(out.Result, result)
	}
	return out
}

func evaluateAt(engine *promql.Engine, w evalRequest, at int64) ([]map[string]string, error) {
	q, err := engine.NewInstantQuery(context.Background(), w, nil, w.Expr, time.Unix(at, 0))
	if err != nil {
		return nil, err
	}
	defer q.Close()
	vector, err := q.Exec(context.Background()).Vector()
	if err != nil {
		return nil, err
	}
	out := []map[string]string{}
	for _, s := range vector {
		out = append(out, s.Metric.Map())
	}
	return out, nil
}

// Querier implements storage.Queryable for the series of the request.
func (w evalRequest) Querier(_, _ int64) (storage.Querier, error) {
	return seriesQuerier{request: w}, nil
}

type seriesQuerier struct {
	storage.LabelQuerier
	request evalRequest
}

func (seriesQuerier) Close() error { return nil }

func (q seriesQuerier) Select(_ context.Context, _ bool, _ *storage.SelectHints, matchers ...*labels.Matcher) storage.SeriesSet {
	var out []storage.Series
	for _, s := range q.request.Series {
		if matchesAll(s.Labels, matchers) {
			out = append(out, storage.NewListSeries(labels.FromMap(s.Labels), s.toSamples(q.request.Step)))
		}
	}
	return &seriesSet{series: out, index: -1}
}

func matchesAll(labelValues map[string]string, matchers []*labels.Matcher) bool {
	for _, m := range matchers {
		if !m.Matches(labelValues[m.Name]) {
			return false
		}
	}
	return true
}

func (s inputSeries) toSamples(step int64) (out []chunks.Sample) {
	for i, v := range s.Values {
		if v != nil {
			out = append(out, sample{timestamp: int64(i) * step * 1000, value: *v})
		}
	}
	return out
}

// seriesSet iterates over a list of series.
type seriesSet struct {
	series []storage.Series
	index  int
}

func (s *seriesSet) Next() bool                        { s.index++; return s.index < len(s.series) }
func (s *seriesSet) At() storage.Series                { return s.series[s.index] }
func (s *seriesSet) Err() error                        { return nil }
func (s *seriesSet) Warnings() annotations.Annotations { return nil }

// sample is a value at a time, in milliseconds.
type sample struct {
	timestamp int64
	value     float64
}

func (s sample) T() int64                      { return s.timestamp }
func (s sample) ST() int64                     { return 0 }
func (s sample) F() float64                    { return s.value }
func (s sample) H() *histogram.Histogram       { return nil }
func (s sample) FH() *histogram.FloatHistogram { return nil }
func (s sample) Type() chunkenc.ValueType      { return chunkenc.ValFloat }
func (s sample) Copy() chunks.Sample           { return s }
