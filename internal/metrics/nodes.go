package metrics

import (
	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
)

// clusterLabels name the Cluster of the Nodes; both are empty for the manager's own cluster.
var clusterLabels = []string{"cluster_namespace", "cluster_name"}

// Metrics of the pod CIDRs of Nodes.
var (
	NodeCIDRWaiting         = newGauge("node_cidrs_waiting", "Nodes that have no pod CIDRs, and no grant of any.", clusterLabels...)
	NodeCIDRInFlight        = newGauge("node_cidrs_in_flight", "Grants of pod CIDRs that no Node is known to have yet.", clusterLabels...)
	NodeCIDRForeign         = newGauge("node_cidrs_foreign", "Nodes whose pod CIDRs are in no ClusterCIDR.", clusterLabels...)
	NodeCIDRConflicts       = newGauge("node_cidrs_conflicts", "Nodes whose pod CIDRs overlap those of another one.", clusterLabels...)
	NodeCIDRCommits         = newCounter("node_cidrs_commits_total", "Commits of grants of pod CIDRs, by outcome: written, conflict or error.", "outcome")
	NodeCIDRTakeovers       = newCounter("node_cidrs_takeovers_total", "Times this manager took the Nodes of a cluster over.", clusterLabels...)
	AuditDuplicateNodeCIDRs = newGauge("audit_duplicate_node_cidrs", "Nodes whose pod CIDRs overlap those of another living Node, by the last audit. Must be 0.", clusterLabels...)
	LastNodeAuditTime       = newGauge("last_node_cidrs_audit_timestamp_seconds", "When the last audit of Nodes ended that could read those of any cluster, in Unix time.")
)

// NodeCIDRSeconds is the time from seeing a Node without pod CIDRs until it has them.
var NodeCIDRSeconds = prometheus.NewHistogram(prometheus.HistogramOpts{
	Namespace: metricsNamespace, Name: "node_cidrs_seconds",
	Help:    "Time from seeing a Node without pod CIDRs until it has them.",
	Buckets: []float64{.01, .025, .05, .1, .2, .5, 1, 2.5, 5, 10, 30, 60, 300, 1800},
})

// nodeIPAMNamespace is the prefix that node-ipam-controller has for its metrics of ranges: existing dashboards go on.
const nodeIPAMNamespace = "node_ipam_controller"

var clusterCIDRLabels = append([]string{"clusterCIDR", "clusterCIDRName"}, clusterLabels...)

func newClusterCIDRGauge(name, help string) *prometheus.GaugeVec {
	return prometheus.NewGaugeVec(prometheus.GaugeOpts{Namespace: nodeIPAMNamespace, Subsystem: "multicidrset", Name: name, Help: help}, clusterCIDRLabels)
}

func newClusterCIDRCounter(name, help string) *prometheus.CounterVec {
	return prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: nodeIPAMNamespace, Subsystem: "multicidrset", Name: name, Help: help}, clusterCIDRLabels)
}

// Metrics of a ClusterCIDR.
var (
	NodeCIDRAllocations = newClusterCIDRCounter("cidrs_allocations_total", "Nodes that were given pod CIDRs of the range.")
	NodeCIDRReleases    = newClusterCIDRCounter("cidrs_releases_total", "Nodes with pod CIDRs of the range that are gone.")
	NodeCIDRUsage       = newClusterCIDRGauge("usage_cidrs", "Nodes that have pod CIDRs of the range, as a part of all it can ever serve: 0 to 1.")
	NodeCIDRMax         = newClusterCIDRGauge("max_cidrs", "Nodes that the range can ever serve.")
)

// NodeCIDRAllocationTries is the number of ClusterCIDRs that were checked for a Node.
var NodeCIDRAllocationTries = prometheus.NewHistogram(prometheus.HistogramOpts{
	Namespace: nodeIPAMNamespace, Subsystem: "multicidrset", Name: "allocation_tries_per_request",
	Help:    "ClusterCIDRs tried until a Node was granted pod CIDRs.",
	Buckets: prometheus.ExponentialBuckets(1, 5, 5),
})

// RegisterNodeMetrics registers the metrics of Nodes, where they get pod CIDRs at all. It must be called once.
func RegisterNodeMetrics() {
	metrics.Registry.MustRegister(NodeCIDRWaiting, NodeCIDRInFlight, NodeCIDRForeign, NodeCIDRConflicts, NodeCIDRCommits, NodeCIDRTakeovers,
		NodeCIDRSeconds, NodeCIDRAllocations, NodeCIDRReleases, NodeCIDRUsage, NodeCIDRMax, NodeCIDRAllocationTries, AuditDuplicateNodeCIDRs, LastNodeAuditTime)
}
