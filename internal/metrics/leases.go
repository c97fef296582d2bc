package metrics

import (
	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
)

// What Services have of leases, by namespace. A namespace without leases has no such series.
var (
	LeasePorts    = gauge("lease_ports", "Ports of leases that Services have.", "namespace")
	LeaseWaiting  = gauge("lease_waiting_services", "Services that name a lease and do not have its ports.", "namespace")
	LeaseDraining = gauge("lease_draining", "Leases that are being deleted, and may still be shown.", "namespace")
	LeaseRefusals = counter("lease_refusals_total", "Times a Service was told that it does not have the ports of a lease, by reason.", "namespace", "reason")
)

var leases = []*prometheus.GaugeVec{LeasePorts, LeaseWaiting, LeaseDraining}

// ForgetLeases drops the gauges of a namespace that has no leases.
func ForgetLeases(namespace string) {
	for _, g := range leases {
		g.DeleteLabelValues(namespace)
	}
}

func init() { metrics.Registry.MustRegister(LeasePorts, LeaseWaiting, LeaseDraining, LeaseRefusals) }
