package nodeipam

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/metrics"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/podcidr"
)

// What is shown is never taken away while it is so: a look between two reports finds it. What is not so any more goes.
func TestMetricsStayWhileTheyAreTrue(t *testing.T) {
	s := NewSite(Options{Key: Key{Namespace: "measured", Name: "measured"}})
	t.Cleanup(s.Close)
	stays, goes := podcidr.Ref{Name: "stays"}, podcidr.Ref{Name: "goes"}
	gauges := func() []prometheus.Gauge {
		return []prometheus.Gauge{
			metrics.NodeCIDRMax.WithLabelValues("10.0.0.0/16", "stays", "measured", "measured"),
			metrics.NodeCIDRUsage.WithLabelValues("10.0.0.0/16", "stays", "measured", "measured"),
			metrics.NodeCIDRWaiting.WithLabelValues("measured", "measured"),
		}
	}
	of := Usage{CIDRs: "10.0.0.0/16", Capacity: 256}
	s.measure(Report{Ranges: map[podcidr.Ref]Usage{stays: of, goes: of}})
	before := gauges()
	s.measure(Report{Ranges: map[podcidr.Ref]Usage{stays: of}})
	for i, g := range gauges() {
		if g != before[i] {
			t.Errorf("gauge %d was taken away, and made again", i)
		}
	}
	if metrics.NodeCIDRMax.DeleteLabelValues("10.0.0.0/16", "goes", "measured", "measured") {
		t.Error("what is gone is shown")
	}
}
