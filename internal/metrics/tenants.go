package metrics

import (
	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
)

var tenantLabels = []string{"cluster_namespace", "cluster_name"}

// Load-balancer addresses of Clusters.
var (
	Lacking = gauge("tenant_lacking_addresses", "Addresses that Services of a Cluster wait for and growth would give.", tenantLabels...)
	Stuck   = gauge("tenant_stuck_services", "Services of a Cluster that wait for an address and growth cannot help.", tenantLabels...)
	Supply  = gauge("tenant_free_addresses", "Addresses of a Cluster's blocks that no Service has.", tenantLabels...)
	Growths = counter("tenant_growths_total", "Blocks that a Cluster asked for because Services waited.", tenantLabels...)
	Shrinks = counter("tenant_shrinks_total", "Blocks that a Cluster gave back because no Service used them.", tenantLabels...)
)

// ServiceWait is how long a Service of a workload cluster waits for its address, where the cluster must grow.
var ServiceWait = prometheus.NewHistogram(prometheus.HistogramOpts{
	Namespace: namespace, Name: "tenant_service_wait_seconds",
	Help:    "Time from seeing that a Service lacks an address to its address, through growth.",
	Buckets: []float64{.1, .2, .3, .5, .75, 1, 1.5, 2, 5, 10, 30, 60, 300, 1800},
})

// ForgetTenant drops the metrics of a Cluster that is gone.
func ForgetTenant(namespace, cluster string) {
	for _, v := range []*prometheus.MetricVec{Lacking.MetricVec, Stuck.MetricVec, Supply.MetricVec, Growths.MetricVec, Shrinks.MetricVec} {
		v.DeleteLabelValues(namespace, cluster)
	}
}

func init() {
	metrics.Registry.MustRegister(Lacking, Stuck, Supply, Growths, Shrinks, ServiceWait)
}
