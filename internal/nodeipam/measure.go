package nodeipam

import (
	"cmp"
	"maps"
	"slices"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/metrics"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/podcidr"
)

// measure shows what is known as metrics. What is shown stays while it is, so that a look between two writes finds it.
func (s *Site) measure(found Report) {
	for gauge, n := range map[*prometheus.GaugeVec]int{
		metrics.NodeCIDRWaiting: found.Waiting, metrics.NodeCIDRInFlight: found.InFlight,
		metrics.NodeCIDRForeign: found.Foreign, metrics.NodeCIDRConflicts: found.Conflicts,
	} {
		gauge.WithLabelValues(s.Key.Namespace, s.Key.Name).Set(float64(n))
	}
	shown := map[[2]string]bool{}
	// A migration may have one range in two kinds under one name: what is shown is the one that Nodes are counted for.
	for _, ref := range slices.SortedFunc(maps.Keys(found.Ranges), func(a, b podcidr.Ref) int {
		return cmp.Compare(found.Ranges[a].Allocated, found.Ranges[b].Allocated)
	}) {
		u := found.Ranges[ref]
		shown[[2]string{u.CIDRs, ref.Name}] = true
		of := s.labelsOf([2]string{u.CIDRs, ref.Name})
		if u.Capacity > 0 {
			metrics.NodeCIDRUsage.WithLabelValues(of...).Set(float64(u.Allocated) / float64(u.Capacity))
		} else {
			metrics.NodeCIDRUsage.DeleteLabelValues(of...)
		}
		metrics.NodeCIDRMax.WithLabelValues(of...).Set(float64(u.Capacity))
	}
	for is := range s.shown {
		if !shown[is] {
			metrics.NodeCIDRUsage.DeleteLabelValues(s.labelsOf(is)...)
			metrics.NodeCIDRMax.DeleteLabelValues(s.labelsOf(is)...)
		}
	}
	s.shown = shown
}

// labelsOf are the values of the labels of a range, which is named by its CIDRs and its name.
func (s *Site) labelsOf(is [2]string) []string {
	return []string{is[0], is[1], s.Key.Namespace, s.Key.Name}
}

// forget takes the metrics of the site away that say how it is.
func (s *Site) forget() {
	of := prometheus.Labels{"cluster_namespace": s.Key.Namespace, "cluster_name": s.Key.Name}
	for _, gauge := range []*prometheus.GaugeVec{
		metrics.NodeCIDRWaiting, metrics.NodeCIDRInFlight, metrics.NodeCIDRForeign, metrics.NodeCIDRConflicts,
		metrics.NodeCIDRUsage, metrics.NodeCIDRMax,
	} {
		gauge.DeletePartialMatch(of)
	}
}

// Close ends a site: it is not to be used any more. What it sends yet is no later than what a paused manager sends.
func (s *Site) Close() { s.forget() }
