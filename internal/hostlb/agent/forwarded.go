//go:build linux

package agent

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/hostlb/forward"
)

// forwardMetrics are the metrics of forwarded traffic, by Service. They have no bytes: counting them would rule out
// splice.
var forwardMetrics = []struct {
	desc *prometheus.Desc
	kind prometheus.ValueType
	of   func(*forward.Counts) int64
}{
	newForwardMetric("connections_total", "Connections of TCP that were accepted.", prometheus.CounterValue, func(c *forward.Counts) int64 { return c.Connections }),
	newForwardMetric("connections", "Connections of TCP that are open.", prometheus.GaugeValue, func(c *forward.Counts) int64 { return c.OpenConnections }),
	newForwardMetric("refused_connections_total", "Connections of TCP that there were no files left for.", prometheus.CounterValue, func(c *forward.Counts) int64 { return c.RefusedConnections }),
	newForwardMetric("dial_errors_total", "Backends that could not be reached, and connections that there was none for.", prometheus.CounterValue, func(c *forward.Counts) int64 { return c.DialErrors }),
	newForwardMetric("denied_total", "Connections of TCP, and packets of UDP, of clients that the loadBalancerSourceRanges of the Service do not have.", prometheus.CounterValue, func(c *forward.Counts) int64 { return c.Denied }),
	newForwardMetric("udp_sessions", "Clients of UDP.", prometheus.GaugeValue, func(c *forward.Counts) int64 { return c.Sessions }),
	newForwardMetric("udp_displaced_total", "Clients of UDP that were ended for others, as there were as many as may be.", prometheus.CounterValue, func(c *forward.Counts) int64 { return c.DisplacedSessions }),
	newForwardMetric("udp_dropped_total", "Packets of UDP that no session or backend was there for.", prometheus.CounterValue, func(c *forward.Counts) int64 { return c.DroppedPackets }),
}

type forwardMetric = struct {
	desc *prometheus.Desc
	kind prometheus.ValueType
	of   func(*forward.Counts) int64
}

func newForwardMetric(name, help string, kind prometheus.ValueType, of func(*forward.Counts) int64) forwardMetric {
	return forwardMetric{prometheus.NewDesc(prometheus.BuildFQName(metricsNamespace, "", name), help, []string{"namespace", "service", "protocol", "port"}, nil), kind, of}
}

// Describe implements prometheus.Collector.
func (p *proxy) Describe(out chan<- *prometheus.Desc) {
	for _, s := range forwardMetrics {
		out <- s.desc
	}
}

// Collect implements prometheus.Collector.
func (p *proxy) Collect(out chan<- prometheus.Metric) {
	byPort, _ := p.Counts()
	p.mu.Lock()
	of := p.servicesByPort
	p.mu.Unlock()
	for port, counts := range byPort {
		s := of[port]
		for _, metric := range forwardMetrics {
			out <- prometheus.MustNewConstMetric(metric.desc, metric.kind, float64(metric.of(&counts)), s.Namespace, s.Name, string(port.Protocol), port.Address.String())
		}
	}
}
