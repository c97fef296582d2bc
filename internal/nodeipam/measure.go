package nodeipam

import (
	"cmp"
	"maps"
	"slices"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/metrics"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/podcidr"
)

// measure shows what is known as metrics.
func (s *Site) measure(found Report) {
	s.forget()
	for gauge, n := range map[*prometheus.GaugeVec]int{
		metrics.NodeCIDRWaiting: found.Waiting, metrics.NodeCIDRInFlight: found.InFlight,
		metrics.NodeCIDRForeign: found.Foreign, metrics.NodeCIDRConflicts: found.Conflicts,
	} {
		gauge.WithLabelValues(s.Key.Namespace, s.Key.Name).Set(float64(n))
	}
	// A migration may have one range in two kinds under one name: what is shown is the one that Nodes are counted for.
	for _, ref := range slices.SortedFunc(maps.Keys(found.Ranges), func(a, b podcidr.Ref) int {
		return cmp.Compare(found.Ranges[a].Allocated, found.Ranges[b].Allocated)
	}) {
		u := found.Ranges[ref]
		of := []string{u.CIDRs, ref.Name, s.Key.Namespace, s.Key.Name}
		if u.Capacity > 0 {
			metrics.NodeCIDRUsage.WithLabelValues(of...).Set(float64(u.Allocated) / float64(u.Capacity))
		}
		metrics.NodeCIDRMax.WithLabelValues(of...).Set(float64(u.Capacity))
	}
}

// forget takes the metrics of the site away that say how it is.
func (s *Site) forget() {
	of := prometheus.Labels{"namespace": s.Key.Namespace, "cluster": s.Key.Name}
	for _, gauge := range []*prometheus.GaugeVec{
		metrics.NodeCIDRWaiting, metrics.NodeCIDRInFlight, metrics.NodeCIDRForeign, metrics.NodeCIDRConflicts,
		metrics.NodeCIDRUsage, metrics.NodeCIDRMax,
	} {
		gauge.DeletePartialMatch(of)
	}
}

// Close ends a site: it is not to be used any more. What it sends yet is no later than what a paused manager sends.
func (s *Site) Close() { s.forget() }
