package lease

import (
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/leaseports"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/metrics"
)

// updateMetrics sets the gauges of the namespace.
func updateMetrics(st *state, d *leaseports.Decision) {
	if len(st.leases) == 0 && len(d.Reasons) == 0 {
		metrics.DeleteLeaseGauges(st.namespace)
		return
	}
	ports, waiting, draining, refused := 0, 0, 0, 0
	for _, o := range st.leases {
		ports += len(o.Status.Ports)
		if o.DeletionTimestamp != nil && controllerutil.ContainsFinalizer(o, v1alpha1.LeaseShownFinalizer) {
			draining++
		}
		if meta.IsStatusConditionFalse(o.Status.Conditions, v1alpha1.AnnouncedCondition) && len(o.Status.Ports) > 0 {
			refused++
		}
	}
	for _, v := range d.Reasons {
		if v.Reason != v1alpha1.GrantedReason {
			waiting++
		}
	}
	metrics.LeasePorts.WithLabelValues(st.namespace).Set(float64(ports))
	metrics.LeaseWaitingServices.WithLabelValues(st.namespace).Set(float64(waiting))
	metrics.LeaseDraining.WithLabelValues(st.namespace).Set(float64(draining))
	metrics.LeaseNotAnnounced.WithLabelValues(st.namespace).Set(float64(refused))
}
