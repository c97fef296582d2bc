// Promql reads PromQL expressions, a JSON list of texts, and writes what they need, a JSON list: the metrics each
// one names, with the labels it selects, groups or joins them by. test/alerts compares that with what the manager
// exports. Prometheus' own parser reads them; it is in a module of its own because it would raise the versions of
// what the manager is built from. With the argument eval it reads worlds, a JSON list of expressions with series, and
// writes what Prometheus' engine finds at which moment.
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"

	"github.com/prometheus/prometheus/promql/parser"
)

// expression is what an expression needs.
type expression struct {
	Error     string     `json:"error,omitempty"`
	Selectors []selector `json:"selectors"`
	// By are the labels that aggregations keep.
	By []string `json:"by"`
}

// selector is a metric, and the labels that must be on it.
type selector struct {
	Name   string   `json:"name"`
	Labels []string `json:"labels"`
}

func main() {
	run := func() error { return answer(read) }
	if slices.Equal(os.Args[1:], []string{"eval"}) {
		run = func() error { return answer(eval) }
	}
	err := run()
	if err != nil {
		fmt.Fprintln(os.Stderr, "promql:", err)
		os.Exit(1)
	}
}

// answer reads a list, and writes what becomes of each of its parts.
func answer[In, Out any](each func(In) Out) error {
	var in []In
	if err := json.NewDecoder(os.Stdin).Decode(&in); err != nil {
		return err
	}
	out := make([]Out, 0, len(in))
	for _, is := range in {
		out = append(out, each(is))
	}
	return json.NewEncoder(os.Stdout).Encode(out)
}

func read(text string) expression {
	root, err := parser.NewParser(parser.Options{}).ParseExpr(text)
	if err != nil {
		return expression{Error: err.Error()}
	}
	var out expression
	parser.Inspect(root, func(node parser.Node, above []parser.Node) error {
		if aggregation, is := node.(*parser.AggregateExpr); is && !aggregation.Without {
			out.By = append(out.By, aggregation.Grouping...)
		}
		vector, is := node.(*parser.VectorSelector)
		if !is {
			return nil
		}
		s := selector{Name: vector.Name}
		for _, m := range vector.LabelMatchers {
			if m.Name != "__name__" {
				s.Labels = append(s.Labels, m.Name)
			}
		}
		for _, a := range above {
			switch a := a.(type) {
			case *parser.AggregateExpr:
				s.Labels = append(s.Labels, a.Grouping...)
			case *parser.BinaryExpr:
				if a.VectorMatching != nil {
					s.Labels = append(s.Labels, a.VectorMatching.MatchingLabels...)
				}
			}
		}
		slices.Sort(s.Labels)
		s.Labels = slices.Compact(s.Labels)
		out.Selectors = append(out.Selectors, s)
		return nil
	})
	return out
}
