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

// world is an expression, and the series that there are: what Prometheus finds, when it asks at a moment.
type world struct {
	Expr string `json:"expr"`
	// At are the moments, in seconds; a sample is there each Step seconds from 0 on.
	At     []int64  `json:"at"`
	Step   int64    `json:"step"`
	Series []series `json:"series"`
}

// series are samples of a metric with labels, in the text of Prometheus. A sample that is null is missing.
type series struct {
	Labels map[string]string `json:"labels"`
	Values []*float64        `json:"values"`
}

// found is what an expression finds: at each moment, the labels of each series.
type found struct {
	Error  string                `json:"error,omitempty"`
	Result [][]map[string]string `json:"result"`
}

// eval evaluates an expression at each moment.
func eval(w world) (out found) {
	engine := promql.NewEngine(promql.EngineOpts{MaxSamples: 1_000_000, Timeout: time.Minute})
	defer engine.Close()
	for _, at := range w.At {
		result, err := evalAt(engine, w, at)
		if err != nil {
			return found{Error: err.Error()}
		}
		out.Result = append(out.Result, result)
	}
	return out
}

func evalAt(engine *promql.Engine, w world, at int64) ([]map[string]string, error) {
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

// Querier has a world be asked as a storage is.
func (w world) Querier(_, _ int64) (storage.Querier, error) { return querier{world: w}, nil }

type querier struct {
	storage.LabelQuerier
	world world
}

func (querier) Close() error { return nil }

func (q querier) Select(_ context.Context, _ bool, _ *storage.SelectHints, matchers ...*labels.Matcher) storage.SeriesSet {
	var out []storage.Series
	for _, s := range q.world.Series {
		if matches(s.Labels, matchers) {
			out = append(out, storage.NewListSeries(labels.FromMap(s.Labels), s.samples(q.world.Step)))
		}
	}
	return &set{all: out, at: -1}
}

func matches(is map[string]string, matchers []*labels.Matcher) bool {
	for _, m := range matchers {
		if !m.Matches(is[m.Name]) {
			return false
		}
	}
	return true
}

func (s series) samples(step int64) (out []chunks.Sample) {
	for i, v := range s.Values {
		if v != nil {
			out = append(out, sample{at: int64(i) * step * 1000, value: *v})
		}
	}
	return out
}

// set is a list of series, read one by one.
type set struct {
	all []storage.Series
	at  int
}

func (s *set) Next() bool                        { s.at++; return s.at < len(s.all) }
func (s *set) At() storage.Series                { return s.all[s.at] }
func (s *set) Err() error                        { return nil }
func (s *set) Warnings() annotations.Annotations { return nil }

// sample is a number at a time, in milliseconds.
type sample struct {
	at    int64
	value float64
}

func (s sample) T() int64                      { return s.at }
func (s sample) ST() int64                     { return 0 }
func (s sample) F() float64                    { return s.value }
func (s sample) H() *histogram.Histogram       { return nil }
func (s sample) FH() *histogram.FloatHistogram { return nil }
func (s sample) Type() chunkenc.ValueType      { return chunkenc.ValFloat }
func (s sample) Copy() chunks.Sample           { return s }
