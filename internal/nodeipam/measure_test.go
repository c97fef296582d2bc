package nodeipam

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/metrics"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/podcidr"
)

// TestMetricsStayWhileTheyAreTrue checks that a metric is never deleted while it is true, so that a scrape between two
// reports finds it, and that it is deleted afterwards.
func TestMetricsStayWhileTheyAreTrue(t *testing.T) {
	s := NewClusterAllocator(Options{ClusterKey: ClusterKey{Namespace: "measured", Name: "measured"}})
	t.Cleanup(s.Close)
	stays, goes := podcidr.Ref{Name: "stays"}, podcidr.Ref{Name: "goes"}
	gauges := func() []prometheus.Gauge {
		return []prometheus.Gauge{
			metrics.NodeCIDRMax.WithLabelValues("10.0.0.0/16", "stays", "measured", "measured"),
			metrics.NodeCIDRUsage.WithLabelValues("10.0.0.0/16", "stays", "measured", "measured"),
			metrics.NodeCIDRWaiting.WithLabelValues("measured", "measured"),
		}
	}
	of := Usage{CIDRText: "10.0.0.0/16", Capacity: 256}
	s.metrics.export(Report{UsageByRange: map[podcidr.Ref]Usage{stays: of, goes: of}})
	before := gauges()
	s.metrics.export(Report{UsageByRange: map[podcidr.Ref]Usage{stays: of}})
	for i, g := range gauges() {
		if g != before[i] {
			t.Errorf("gauge %d was taken away, and made again", i)
		}
	}
	if metrics.NodeCIDRMax.DeleteLabelValues("10.0.0.0/16", "goes", "measured", "measured") {
		t.Error("what is gone is shown")
	}
}
