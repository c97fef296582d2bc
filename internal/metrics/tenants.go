package metrics

import (
	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
)

var tenantLabels = []string{"cluster_namespace", "cluster_name"}

// Load-balancer addresses of Clusters.
var (
	TenantShortfall     = newGauge("tenant_lacking_addresses", "Addresses that Services of a Cluster wait for and growth would give.", tenantLabels...)
	TenantStuckServices = newGauge("tenant_stuck_services", "Services of a Cluster that wait for an address and growth cannot help.", tenantLabels...)
	TenantFreeAddresses = newGauge("tenant_free_addresses", "Addresses of a Cluster's blocks that no Service has.", tenantLabels...)
	TenantGrowths       = newCounter("tenant_growths_total", "Blocks that were requested because Services of the Cluster waited.", tenantLabels...)
	TenantShrinks       = newCounter("tenant_shrinks_total", "Blocks that were released because no Service of the Cluster used them.", tenantLabels...)
)

// TenantServiceWait is how long a Service of a workload cluster waits for its address, where the cluster must grow.
var TenantServiceWait = prometheus.NewHistogram(prometheus.HistogramOpts{
	Namespace: metricsNamespace, Name: "tenant_service_wait_seconds",
	Help:    "Time from seeing that a Service lacks an address to its address, through growth.",
	Buckets: []float64{.1, .2, .3, .5, .75, 1, 1.5, 2, 5, 10, 30, 60, 300, 1800},
})

// DeleteTenantMetrics deletes the metrics of a Cluster that is gone.
func DeleteTenantMetrics(namespace, cluster string) {
	for _, v := range []*prometheus.MetricVec{TenantShortfall.MetricVec, TenantStuckServices.MetricVec, TenantFreeAddresses.MetricVec, TenantGrowths.MetricVec, TenantShrinks.MetricVec} {
		v.DeleteLabelValues(namespace, cluster)
	}
}

func init() {
	metrics.Registry.MustRegister(TenantShortfall, TenantStuckServices, TenantFreeAddresses, TenantGrowths, TenantShrinks, TenantServiceWait)
}
