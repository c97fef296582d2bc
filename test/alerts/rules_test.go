// Package alerts compares the alerts and the dashboard of config/prometheus with the metrics that a manager exports,
// and with their runbooks in docs/alerts.md.
package alerts

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

const (
	rulesPath     = "../../config/prometheus/rules.yaml"
	dashboardPath = "../../config/prometheus/dashboard.json"
	runbooksPath  = "../../docs/alerts.md"
	runbooksURL   = "https://github.com/butlerdotdev/cluster-api-ipam-provider-butler/blob/main/docs/alerts.md#"
)

// rule is an alerting rule.
type rule struct {
	Alert, Expr, For    string
	Labels, Annotations map[string]string
}

func rules(t *testing.T) []rule {
	t.Helper()
	text, err := os.ReadFile(rulesPath)
	if err != nil {
		t.Fatal(err)
	}
	var object struct {
		APIVersion, Kind string
		Metadata         map[string]string
		Spec             struct {
			Groups []struct {
				Name  string
				Rules []rule
			}
		}
	}
	if err := yaml.UnmarshalStrict(text, &object); err != nil {
		t.Fatal(err)
	}
	if object.APIVersion != "monitoring.coreos.com/v1" || object.Kind != "PrometheusRule" {
		t.Errorf("it is a %s of %s", object.Kind, object.APIVersion)
	}
	var out []rule
	for _, group := range object.Spec.Groups {
		out = append(out, group.Rules...)
	}
	return out
}

// query is an expression, the place where it is, and the labels that the text beside it refers to.
type query struct {
	where, expr string
	speaksOf    []string
}

var (
	labelOfRule  = regexp.MustCompile(`\$labels\.([a-zA-Z_]+)`)
	labelOfPanel = regexp.MustCompile(`\{\{([a-zA-Z_]+)\}\}`)
)

func named(pattern *regexp.Regexp, texts ...string) []string {
	var out []string
	for _, m := range pattern.FindAllStringSubmatch(strings.Join(texts, " "), -1) {
		out = append(out, m[1])
	}
	return out
}

// dashboard is the Grafana dashboard.
type dashboard struct {
	Templating struct {
		List []struct{ Name, Definition string }
	}
	Panels []panel
}

// panel is a panel, or a row.
type panel struct {
	Title   string
	Targets []struct{ Expr, LegendFormat string }
	// Panels are the panels of a collapsed row. Those of an expanded row follow it.
	Panels []panel
}

func readDashboard(t *testing.T) (d dashboard) {
	t.Helper()
	text, err := os.ReadFile(dashboardPath)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, &d); err != nil {
		t.Fatal(err)
	}
	return d
}

// templateReplacer replaces the variables of Grafana by values.
var templateReplacer = strings.NewReplacer("$__rate_interval", "5m", "$namespace", ".*", "$pool", ".*")

// queries returns the expressions of all alerts and of the dashboard.
func queries(t *testing.T) []query {
	t.Helper()
	var out []query
	for _, r := range rules(t) {
		out = append(out, query{"alert " + r.Alert, r.Expr, named(labelOfRule, r.Annotations["summary"], r.Annotations["description"])})
	}
	d := readDashboard(t)
	for _, p := range d.Panels {
		for _, p := range append(p.Panels, p) {
			for _, target := range p.Targets {
				out = append(out, query{"panel " + p.Title, templateReplacer.Replace(target.Expr), named(labelOfPanel, target.LegendFormat)})
			}
		}
	}
	values := regexp.MustCompile(`^label_values\((.*), ([a-z_]+)\)$`)
	for _, v := range d.Templating.List {
		if m := values.FindStringSubmatch(v.Definition); m != nil {
			out = append(out, query{"variable " + v.Name, "count by (" + m[2] + ") (" + m[1] + ")", nil})
		} else if v.Definition != "" {
			t.Errorf("variable %s: %s", v.Name, v.Definition)
		}
	}
	return out
}

// expression is the output of hack/tools/promql for an expression.
type expression struct {
	Error     string
	Selectors []struct {
		Name   string
		Labels []string
	}
	By []string
}

// parse parses the expressions with Prometheus' parser.
func parse(t *testing.T, all []query) []expression {
	t.Helper()
	var texts []string
	for _, q := range all {
		texts = append(texts, q.expr)
	}
	in, err := json.Marshal(texts)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "go", "run", "-buildvcs=false", ".")
	cmd.Dir, cmd.Stdin, cmd.Stderr = "../../hack/tools/promql", bytes.NewReader(in), os.Stderr
	text, err := cmd.Output()
	if err != nil {
		t.Fatalf("running hack/tools/promql: %v", err)
	}
	var out []expression
	if err := json.Unmarshal(text, &out); err != nil || len(out) != len(all) {
		t.Fatalf("hack/tools/promql answers %d of %d: %v", len(out), len(all), err)
	}
	return out
}

// Every alert has a severity and a description, and links to a runbook with the remedy; every runbook belongs to an
// alert.
func TestAlertsHaveRunbooks(t *testing.T) {
	text, err := os.ReadFile(runbooksPath)
	if err != nil {
		t.Fatal(err)
	}
	sections := map[string]string{}
	for section := range strings.SplitSeq("\n"+string(text), "\n## ") {
		title, body, _ := strings.Cut(section, "\n")
		sections[title] = body
	}
	seen := []string{}
	for _, r := range rules(t) {
		if slices.Contains(seen, r.Alert) {
			t.Errorf("%s is there twice", r.Alert)
		}
		seen = append(seen, r.Alert)
		if s := r.Labels["severity"]; !slices.Contains([]string{"critical", "warning", "info"}, s) {
			t.Errorf("%s: severity %q", r.Alert, s)
		}
		if r.Annotations["summary"] == "" || r.Annotations["description"] == "" {
			t.Errorf("%s does not say what happened", r.Alert)
		}
		if want := runbooksURL + strings.ToLower(r.Alert); r.Annotations["runbook_url"] != want {
			t.Errorf("%s: its runbook is %s, want %s", r.Alert, r.Annotations["runbook_url"], want)
		}
		for _, part := range []string{"**Means**", "**Look**", "**Do**"} {
			if !strings.Contains(sections[r.Alert], part) {
				t.Errorf("docs/alerts.md has no %s of %s", part, r.Alert)
			}
		}
	}
	for title := range sections {
		if strings.HasPrefix(title, "Butler") && !slices.Contains(seen, title) {
			t.Errorf("docs/alerts.md has a section of %s, which is no alert", title)
		}
	}
}
