package metrics

import (
	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
)

// siteLabels name the Cluster of the Nodes; both are empty for the manager's own.
var siteLabels = []string{"cluster_namespace", "cluster_name"}

// Metrics of the pod CIDRs of Nodes.
var (
	NodeCIDRWaiting   = gauge("node_cidrs_waiting", "Nodes that have no pod CIDRs, and no grant of any.", siteLabels...)
	NodeCIDRInFlight  = gauge("node_cidrs_in_flight", "Grants of pod CIDRs that no Node is known to have yet.", siteLabels...)
	NodeCIDRForeign   = gauge("node_cidrs_foreign", "Nodes whose pod CIDRs are in no ClusterCIDR.", siteLabels...)
	NodeCIDRConflicts = gauge("node_cidrs_conflicts", "Nodes whose pod CIDRs overlap those of another one.", siteLabels...)
	NodeCIDRCommits   = counter("node_cidrs_commits_total", "Commits of grants of pod CIDRs, by outcome: written, conflict or error.", "outcome")
	NodeCIDRTakeovers = counter("node_cidrs_takeovers_total", "Times this manager took the Nodes of a cluster over.", siteLabels...)
	AuditNodeCIDRs    = gauge("audit_duplicate_node_cidrs", "Nodes whose pod CIDRs overlap those of another living Node, by the last audit. Must be 0.", siteLabels...)
	AuditNodesTime    = gauge("last_node_cidrs_audit_timestamp_seconds", "When the last audit of Nodes ended that could read those of any cluster, in Unix time.")
)

// NodeCIDRSeconds is the time from seeing a Node without pod CIDRs until it has them.
var NodeCIDRSeconds = prometheus.NewHistogram(prometheus.HistogramOpts{
	Namespace: namespace, Name: "node_cidrs_seconds",
	Help:    "Time from seeing a Node without pod CIDRs until it has them.",
	Buckets: []float64{.01, .025, .05, .1, .2, .5, 1, 2.5, 5, 10, 30, 60, 300, 1800},
})

// multiCIDRSet is what node-ipam-controller calls its metrics of ranges: dashboards that know them go on.
const multiCIDRSet = "node_ipam_controller"

var rangeLabels = append([]string{"clusterCIDR", "clusterCIDRName"}, siteLabels...)

func rangeGauge(name, help string) *prometheus.GaugeVec {
	return prometheus.NewGaugeVec(prometheus.GaugeOpts{Namespace: multiCIDRSet, Subsystem: "multicidrset", Name: name, Help: help}, rangeLabels)
}

func rangeCounter(name, help string) *prometheus.CounterVec {
	return prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: multiCIDRSet, Subsystem: "multicidrset", Name: name, Help: help}, rangeLabels)
}

// Metrics of a ClusterCIDR.
var (
	NodeCIDRAllocations = rangeCounter("cidrs_allocations_total", "Nodes that were given pod CIDRs of the range.")
	NodeCIDRReleases    = rangeCounter("cidrs_releases_total", "Nodes with pod CIDRs of the range that are gone.")
	NodeCIDRUsage       = rangeGauge("usage_cidrs", "Nodes that have pod CIDRs of the range, as a part of all it can ever serve: 0 to 1.")
	NodeCIDRMax         = rangeGauge("max_cidrs", "Nodes that the range can ever serve.")
)

// NodeCIDRTries is how many ranges were looked at for a Node.
var NodeCIDRTries = prometheus.NewHistogram(prometheus.HistogramOpts{
	Namespace: multiCIDRSet, Subsystem: "multicidrset", Name: "allocation_tries_per_request",
	Help:    "ClusterCIDRs looked at until a Node was given pod CIDRs.",
	Buckets: prometheus.ExponentialBuckets(1, 5, 5),
})

// ServeNodes serves the metrics of Nodes, where their pod CIDRs are given at all. It is called once.
func ServeNodes() {
	metrics.Registry.MustRegister(NodeCIDRWaiting, NodeCIDRInFlight, NodeCIDRForeign, NodeCIDRConflicts, NodeCIDRCommits, NodeCIDRTakeovers,
		NodeCIDRSeconds, NodeCIDRAllocations, NodeCIDRReleases, NodeCIDRUsage, NodeCIDRMax, NodeCIDRTries, AuditNodeCIDRs, AuditNodesTime)
}
