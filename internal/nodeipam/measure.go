package nodeipam

import (
	"cmp"
	"maps"
	"slices"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/metrics"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/podcidr"
)

// metricsExporter exports the metrics of a cluster.
type metricsExporter struct {
	*Options
	// exportedRanges are the CIDRs and names of the ranges that have metrics.
	exportedRanges map[[2]string]bool
}

// export sets the metrics from a report. Metrics that stay are not deleted in between, so that a scrape between
// two writes finds them.
func (me *metricsExporter) export(found Report) {
	for gauge, n := range map[*prometheus.GaugeVec]int{
		metrics.NodeCIDRWaiting: found.WaitingNodes, metrics.NodeCIDRInFlight: found.InFlightGrants,
		metrics.NodeCIDRForeign: found.ForeignNodes, metrics.NodeCIDRConflicts: found.ConflictingNodes,
	} {
		gauge.WithLabelValues(me.ClusterKey.Namespace, me.ClusterKey.Name).Set(float64(n))
	}
	shown := map[[2]string]bool{}
	// A migration may have one range in two kinds under one name: the metrics show the one that more Nodes count for.
	for _, ref := range slices.SortedFunc(maps.Keys(found.UsageByRange), func(a, b podcidr.Ref) int {
		return cmp.Compare(found.UsageByRange[a].Allocated, found.UsageByRange[b].Allocated)
	}) {
		u := found.UsageByRange[ref]
		shown[[2]string{u.CIDRText, ref.Name}] = true
		of := me.labels([2]string{u.CIDRText, ref.Name})
		if u.Capacity > 0 {
			metrics.NodeCIDRUsage.WithLabelValues(of...).Set(float64(u.Allocated) / float64(u.Capacity))
		} else {
			metrics.NodeCIDRUsage.DeleteLabelValues(of...)
		}
		metrics.NodeCIDRMax.WithLabelValues(of...).Set(float64(u.Capacity))
	}
	for exported := range me.exportedRanges {
		if !shown[exported] {
			metrics.NodeCIDRUsage.DeleteLabelValues(me.labels(exported)...)
			metrics.NodeCIDRMax.DeleteLabelValues(me.labels(exported)...)
		}
	}
	me.exportedRanges = shown
}

// labels returns the label values of a range, which is identified by its CIDRs and its name.
func (me *metricsExporter) labels(exported [2]string) []string {
	return []string{exported[0], exported[1], me.ClusterKey.Namespace, me.ClusterKey.Name}
}

// delete deletes the metrics that show the state of the cluster.
func (me *metricsExporter) delete() {
	of := prometheus.Labels{"cluster_namespace": me.ClusterKey.Namespace, "cluster_name": me.ClusterKey.Name}
	for _, gauge := range []*prometheus.GaugeVec{
		metrics.NodeCIDRWaiting, metrics.NodeCIDRInFlight, metrics.NodeCIDRForeign, metrics.NodeCIDRConflicts,
		metrics.NodeCIDRUsage, metrics.NodeCIDRMax,
	} {
		gauge.DeletePartialMatch(of)
	}
}

// Close ends the allocator, which must not be used afterwards. What it still sends lands no later than what a paused
// manager sends.
func (ca *ClusterAllocator) Close() { ca.metrics.delete() }
