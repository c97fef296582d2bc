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
	LeaseRefused  = gauge("lease_not_announced", "Leases that Services have, and whose address MetalLB refuses, or no host shows as it should.", "namespace")
	LeaseRefusals = counter("lease_refusals_total", "Times a Service was told that it does not have the ports of a lease, by reason.", "namespace", "reason")
)

var leases = []*prometheus.GaugeVec{LeasePorts, LeaseWaiting, LeaseDraining, LeaseRefused}

// LeaseServiceWait is how long it takes until a Service is published with the address of its lease.
var LeaseServiceWait = prometheus.NewHistogram(prometheus.HistogramOpts{
	Namespace: namespace, Name: "lease_service_seconds",
	Help:    "Time from the creation of a Service to its publication with the address of its lease.",
	Buckets: []float64{.05, .1, .2, .5, 1, 2, 5, 10, 30, 60, 300, 1800},
})

// ForgetLeases drops the gauges of a namespace that has no leases.
func ForgetLeases(namespace string) {
	for _, g := range leases {
		g.DeleteLabelValues(namespace)
	}
}

func init() {
	metrics.Registry.MustRegister(LeasePorts, LeaseWaiting, LeaseDraining, LeaseRefused, LeaseRefusals, LeaseServiceWait)
}
