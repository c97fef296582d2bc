//go:build linux

package agent

import (
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/hostlb"
)

const metricsNamespace = "butler_host_lb"

// metrics are the metrics of a host.
type metrics struct {
	addresses            *prometheus.GaugeVec
	takeovers, conflicts *prometheus.CounterVec
	lastHeartbeat        prometheus.Gauge
}

func newMetrics() metrics {
	m := metrics{
		addresses: prometheus.NewGaugeVec(prometheus.GaugeOpts{Namespace: metricsNamespace, Name: "addresses", Help: "Addresses of leases, by state: wanted, locked by this host, shown by this host."}, []string{"state"}),
		takeovers: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: metricsNamespace, Name: "takeovers_total", Help: "Locks acquired, by reason: unowned, holder expired, re-acquired.",
		}, []string{"cause"}),
		conflicts: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: metricsNamespace, Name: "conflicts_total", Help: "Times another machine answered for an address that this host was about to add, or claimed an address that it has.",
		}, []string{"kind"}),
		lastHeartbeat: prometheus.NewGauge(prometheus.GaugeOpts{Namespace: metricsNamespace, Name: "heartbeat_timestamp_seconds", Help: "When the last heartbeat of this host was written."}),
	}
	for _, cause := range []string{"free", "dead", "sure"} {
		m.takeovers.WithLabelValues(cause)
	}
	for _, kind := range []string{"answer", "claim"} {
		m.conflicts.WithLabelValues(kind)
	}
	return m
}

// RegisterMetrics registers the metrics of the host.
func (a *Agent) RegisterMetrics() {
	ctrlmetrics.Registry.MustRegister(a.metrics.addresses, a.metrics.takeovers, a.metrics.conflicts, a.metrics.lastHeartbeat)
	if a.ForwardTraffic {
		ctrlmetrics.Registry.MustRegister(&a.proxy)
	}
}

// updateGauges sets the gauges of addresses.
func (m *metrics) updateGauges(a *Agent) {
	wanted, locked, shown := a.state.CountAddresses()
	m.addresses.WithLabelValues("wanted").Set(float64(wanted))
	m.addresses.WithLabelValues("locked").Set(float64(locked))
	m.addresses.WithLabelValues("shown").Set(float64(shown))
}

// countOp counts the result of an operation.
func (m *metrics) countOp(r *completedOp) {
	switch {
	case r.op.Kind == hostlb.WriteHeartbeat && r.Err == nil:
		m.lastHeartbeat.Set(float64(time.Now().Unix()))
	case r.op.Kind == hostlb.ProbeAddress && r.ReplyMAC != "":
		m.conflicts.WithLabelValues("answer").Inc()
	case r.op.Kind != hostlb.AcquireLock || (r.Err != nil && !errors.Is(r.Err, hostlb.ErrLeaseGone)):
	case r.op.DeadHost != "":
		m.takeovers.WithLabelValues("dead").Inc()
	case r.op.Lock.Holder != "":
		m.takeovers.WithLabelValues("sure").Inc()
	default:
		m.takeovers.WithLabelValues("free").Inc()
	}
}
