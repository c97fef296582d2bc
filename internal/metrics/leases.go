package metrics

import (
	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
)

// Metrics of the leases of Services, by namespace. A namespace without leases has none of these series.
var (
	LeasePorts           = newGauge("lease_ports", "Ports of leases that Services have.", "namespace")
	LeaseWaitingServices = newGauge("lease_waiting_services", "Services that name a lease and do not have its ports.", "namespace")
	LeaseDraining        = newGauge("lease_draining", "Leases that are being deleted, and may still be shown.", "namespace")
	LeaseNotAnnounced    = newGauge("lease_not_announced", "Leases that Services have, and whose address MetalLB refuses or no host shows correctly.", "namespace")
	LeaseRefusals        = newCounter("lease_refusals_total", "Times a condition reported that a Service does not have the ports of a lease, by reason.", "namespace", "reason")
)

var leaseGauges = []*prometheus.GaugeVec{LeasePorts, LeaseWaitingServices, LeaseDraining, LeaseNotAnnounced}

// LeaseServiceWait is how long it takes until a Service is published with the address of its lease.
var LeaseServiceWait = prometheus.NewHistogram(prometheus.HistogramOpts{
	Namespace: metricsNamespace, Name: "lease_service_seconds",
	Help:    "Time from the creation of a Service to its publication with the address of its lease.",
	Buckets: []float64{.05, .1, .2, .5, 1, 2, 5, 10, 30, 60, 300, 1800},
})

// DeleteLeaseGauges deletes the gauges of a namespace that has no leases.
func DeleteLeaseGauges(namespace string) {
	for _, g := range leaseGauges {
		g.DeleteLabelValues(namespace)
	}
}

func init() {
	metrics.Registry.MustRegister(LeasePorts, LeaseWaitingServices, LeaseDraining, LeaseNotAnnounced, LeaseRefusals, LeaseServiceWait)
}
