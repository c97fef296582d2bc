//go:build linux

package agent

import (
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/hostlb"
)

const prefix = "butler_host_lb"

// metrics are those of a host.
type metrics struct {
	addresses            *prometheus.GaugeVec
	takeovers, conflicts *prometheus.CounterVec
	beaten               prometheus.Gauge
}

func newMetrics() metrics {
	m := metrics{
		addresses: prometheus.NewGaugeVec(prometheus.GaugeOpts{Namespace: prefix, Name: "addresses", Help: "Addresses of leases: wanted by anybody, locked by this host, and shown by it."}, []string{"state"}),
		takeovers: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: prefix, Name: "takeovers_total", Help: "Locks that this host has taken: of nobody, of a host that is dead, or once more, to be sure.",
		}, []string{"cause"}),
		conflicts: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: prefix, Name: "conflicts_total", Help: "Times somebody answered for an address that this host was to add, or claimed one that it has.",
		}, []string{"kind"}),
		beaten: prometheus.NewGauge(prometheus.GaugeOpts{Namespace: prefix, Name: "heartbeat_timestamp_seconds", Help: "When the last heartbeat of this host was written."}),
	}
	for _, cause := range []string{"free", "dead", "sure"} {
		m.takeovers.WithLabelValues(cause)
	}
	for _, kind := range []string{"answer", "claim"} {
		m.conflicts.WithLabelValues(kind)
	}
	return m
}

// Register has the metrics of the host served.
func (a *Agent) Register() {
	ctrlmetrics.Registry.MustRegister(a.metrics.addresses, a.metrics.takeovers, a.metrics.conflicts, a.metrics.beaten)
	if a.Forward {
		ctrlmetrics.Registry.MustRegister(&a.proxy)
	}
}

// measure counts what there is.
func (m *metrics) measure(a *Agent) {
	wanted, locked, shown := a.memory.Count()
	m.addresses.WithLabelValues("wanted").Set(float64(wanted))
	m.addresses.WithLabelValues("locked").Set(float64(locked))
	m.addresses.WithLabelValues("shown").Set(float64(shown))
}

// count counts what became of something.
func (m *metrics) count(r *result) {
	switch {
	case r.op.Kind == hostlb.Beat && r.Err == nil:
		m.beaten.Set(float64(time.Now().Unix()))
	case r.op.Kind == hostlb.Probe && r.MAC != "":
		m.conflicts.WithLabelValues("answer").Inc()
	case r.op.Kind != hostlb.Take || (r.Err != nil && !errors.Is(r.Err, hostlb.ErrGone)):
	case r.op.Dead != "":
		m.takeovers.WithLabelValues("dead").Inc()
	case r.op.Lock.Holder != "":
		m.takeovers.WithLabelValues("sure").Inc()
	default:
		m.takeovers.WithLabelValues("free").Inc()
	}
}
