package metrics

import (
	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
)

// Outcomes of a request for the endpoint of a Cluster.
const (
	EndpointServed  = "served"
	EndpointWaiting = "waiting"
	EndpointRefused = "refused"
	EndpointError   = "error"
)

// EndpointSeconds is how long answers to Cluster API take.
var EndpointSeconds = prometheus.NewHistogramVec(prometheus.HistogramOpts{
	Namespace: metricsNamespace, Name: "control_plane_endpoint_seconds",
	Help:    "Time of an answer to Cluster API that asks for the endpoint of a Cluster, by outcome: served, waiting, refused or error.",
	Buckets: []float64{.005, .01, .025, .05, .1, .2, .5, 1, 1.5, 2, 5},
}, []string{"outcome"})

// RegisterEndpointMetrics registers the metrics of endpoints, where Clusters get any. It must be called once.
func RegisterEndpointMetrics() { metrics.Registry.MustRegister(EndpointSeconds) }
