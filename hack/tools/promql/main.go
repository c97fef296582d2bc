// Promql reads a JSON list of PromQL expressions, and writes a JSON list of what they need: the metrics that each one
// names, with the labels by which it selects, groups or joins them. test/alerts compares that with the metrics that the
// manager exports. It uses Prometheus' own parser, and is a module of its own, because that parser would raise the
// versions of the manager's dependencies. With the argument eval it reads a JSON list of expressions with series, and
// writes the results of Prometheus' engine at each time.
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"

	"github.com/prometheus/prometheus/promql/parser"
)

// expressionInfo is what an expression needs.
type expressionInfo struct {
	Error     string         `json:"error,omitempty"`
	Selectors []selectorInfo `json:"selectors"`
	// GroupingLabels are the labels that aggregations keep.
	GroupingLabels []string `json:"by"`
}

// selectorInfo is a metric, and the labels that it must have.
type selectorInfo struct {
	Name   string   `json:"name"`
	Labels []string `json:"labels"`
}

func main() {
	run := func() error { return processList(parseExpression) }
	if slices.Equal(os.Args[1:], []string{"eval"}) {
		run = func() error { return processList(evaluateAll) }
	}
	err := run()
	if err != nil {
		fmt.Fprintln(os.Stderr, "promql:", err)
		os.Exit(1)
	}
}

// processList reads a list, and writes the result of each for its elements.
func processList[In, Out any](each func(In) Out) error {
	var in []In
	if err := json.NewDecoder(os.Stdin).Decode(&in); err != nil {
		return err
	}
	out := make([]Out, 0, len(in))
	for _, input := range in {
		out = append(out, each(input))
	}
	return json.NewEncoder(os.Stdout).Encode(out)
}

func parseExpression(text string) expressionInfo {
	root, err := parser.NewParser(parser.Options{}).ParseExpr(text)
	if err != nil {
		return expressionInfo{Error: err.Error()}
	}
	var out expressionInfo
	parser.Inspect(root, func(node parser.Node, above []parser.Node) error {
		if aggregation, ok := node.(*parser.AggregateExpr); ok && !aggregation.Without {
			out.GroupingLabels = append(out.GroupingLabels, aggregation.Grouping...)
		}
		vector, ok := node.(*parser.VectorSelector)
		if !ok {
			return nil
		}
		s := selectorInfo{Name: vector.Name}
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
