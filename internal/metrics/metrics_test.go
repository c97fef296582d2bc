package metrics

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
)

var (
	row    = regexp.MustCompile("(?m)^\\| `((?:butler_ipam|node_ipam_controller)_[a-z_]+)` \\| ([a-z]+) \\|([^|]*)\\| [^|]+ \\|$")
	named  = regexp.MustCompile(`(?:butler_ipam|node_ipam_controller)_[a-z_]+`)
	desc   = regexp.MustCompile(`fqName: "((?:butler_ipam|node_ipam_controller)_[a-z_]+)".* variableLabels: \{([^}]*)\}`)
	series = regexp.MustCompile(`_(bucket|sum|count)$`)
)

// registered returns the labels of every metric of ours that the manager serves.
func registered(t *testing.T) map[string]string {
	t.Helper()
	all, ok := metrics.Registry.(prometheus.Collector)
	if !ok {
		t.Fatal("the registry does not describe its metrics")
	}
	out := map[string]string{}
	descs := make(chan *prometheus.Desc)
	go func() { all.Describe(descs); close(descs) }()
	for d := range descs {
		if m := desc.FindStringSubmatch(d.String()); m != nil {
			out[m[1]] = m[2]
		}
	}
	return out
}

// TestMetricsAreDocumented checks that the table of docs/metrics.md has every metric, with its labels, and no other.
func TestMetricsAreDocumented(t *testing.T) {
	text, err := os.ReadFile("../../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	RegisterNodeMetrics()
	RegisterEndpointMetrics()
	served, documented := registered(t), map[string]string{}
	for _, m := range row.FindAllStringSubmatch(string(text), -1) {
		name, kind, labels := m[1], m[2], m[3]
		documented[name] = strings.NewReplacer("`", "", " ", "").Replace(labels)
		if (kind == "counter") != strings.HasSuffix(name, "_total") {
			t.Errorf("%s is documented as a %s", name, kind)
		}
	}
	if d := cmp.Diff(served, documented); d != "" {
		t.Errorf("docs/metrics.md differs from what is registered (-registered +documented):\n%s", d)
	}
	for _, name := range named.FindAllString(string(text), -1) {
		if _, ok := served[series.ReplaceAllString(name, "")]; !ok {
			t.Errorf("docs/metrics.md speaks of %s, which is not registered", name)
		}
	}
}
