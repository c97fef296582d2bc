//go:build linux

package agent

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/hostlb/forward"
)

// What is forwarded, by Service. There are no bytes: counting them would cost the splice.
var forwarded = []struct {
	desc *prometheus.Desc
	kind prometheus.ValueType
	of   func(*forward.Counts) int64
}{
	counted("connections_total", "Connections of TCP that were accepted.", prometheus.CounterValue, func(c *forward.Counts) int64 { return c.Connections }),
	counted("connections", "Connections of TCP that are open.", prometheus.GaugeValue, func(c *forward.Counts) int64 { return c.Open }),
	counted("refused_connections_total", "Connections of TCP that there were no files left for.", prometheus.CounterValue, func(c *forward.Counts) int64 { return c.Refused }),
	counted("dial_errors_total", "Backends that could not be reached, and connections that there was none for.", prometheus.CounterValue, func(c *forward.Counts) int64 { return c.DialErrors }),
	counted("denied_total", "Connections of TCP, and packets of UDP, of clients that the loadBalancerSourceRanges of the Service do not have.", prometheus.CounterValue, func(c *forward.Counts) int64 { return c.Denied }),
	counted("udp_sessions", "Clients of UDP.", prometheus.GaugeValue, func(c *forward.Counts) int64 { return c.Sessions }),
	counted("udp_displaced_total", "Clients of UDP that were ended for others, as there were as many as may be.", prometheus.CounterValue, func(c *forward.Counts) int64 { return c.Displaced }),
	counted("udp_dropped_total", "Packets of UDP that no session or backend was there for.", prometheus.CounterValue, func(c *forward.Counts) int64 { return c.Dropped }),
}

type series = struct {
	desc *prometheus.Desc
	kind prometheus.ValueType
	of   func(*forward.Counts) int64
}

func counted(name, help string, kind prometheus.ValueType, of func(*forward.Counts) int64) series {
	return series{prometheus.NewDesc(prometheus.BuildFQName(prefix, "", name), help, []string{"namespace", "service", "protocol", "port"}, nil), kind, of}
}

// Describe is of prometheus.Collector.
func (p *proxy) Describe(out chan<- *prometheus.Desc) {
	for _, s := range forwarded {
		out <- s.desc
	}
}

// Collect is of prometheus.Collector.
func (p *proxy) Collect(out chan<- prometheus.Metric) {
	byPort, _ := p.Counts()
	p.mu.Lock()
	of := p.of
	p.mu.Unlock()
	for port, counts := range byPort {
		s := of[port]
		for _, is := range forwarded {
			out <- prometheus.MustNewConstMetric(is.desc, is.kind, float64(is.of(&counts)), s.Namespace, s.Name, string(port.Protocol), port.Address.String())
		}
	}
}
