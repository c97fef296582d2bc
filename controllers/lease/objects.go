package lease

import (
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/leaseports"
)

// leaseAddress returns the address of a lease, or that of its record: after a move or a restore there is no status yet.
func leaseAddress(o *v1alpha1.IPLease) netip.Addr {
	a, err := netip.ParseAddr(o.Status.Address)
	if err != nil {
		a, _ = netip.ParseAddr(o.Annotations[v1alpha1.AddressAnnotation])
	}
	return a
}

// isShownByHost reports whether hosts show a lease.
func isShownByHost(o *v1alpha1.IPLease) bool { return o.Status.ShownBy == v1alpha1.ShownByHost }

// shouldBeInPool reports whether the address of a lease should be in an IPAddressPool: from its first port on, or the
// first port of another lease of the namespace, until it is deleted.
func shouldBeInPool(o *v1alpha1.IPLease) bool { return mayBeShown(o, v1alpha1.ShownByMetalLB) }

// mayBeShown reports whether the load balancer by may show a lease.
func mayBeShown(o *v1alpha1.IPLease, by string) bool {
	shownByOther := isShownByHost(o) != (by == v1alpha1.ShownByHost)
	return isShowable(o) && !shownByOther && controllerutil.ContainsFinalizer(o, v1alpha1.LeaseShownFinalizer)
}

// isShowable reports whether a lease can be shown at all: it has an address, it keeps that for now, and it selects
// namespaces in a valid way.
func isShowable(o *v1alpha1.IPLease) bool {
	keepsAddress := o.DeletionTimestamp == nil && controllerutil.ContainsFinalizer(o, v1alpha1.IPLeaseFinalizer)
	return keepsAddress && leaseAddress(o).IsValid() && leaseports.NewLease(o).SelectorError == ""
}

// isLeaseRelated reports whether a Service requests a lease, or carries what a Service that requests one gets.
func isLeaseRelated(s *corev1.Service) bool {
	_, asks := leaseports.ParseServiceRequest(s)
	_, names := s.Annotations[v1alpha1.LeaseAnnotation]
	_, published := s.Annotations[v1alpha1.LeasedAddressesAnnotation]
	_, labelled := s.Labels[v1alpha1.LeasedLabel]
	return asks || names || published || labelled || leaseCondition(s) != nil
}

// isReportedSatisfied reports whether the condition of a Service shows that it has its ports.
func isReportedSatisfied(s *corev1.Service) bool {
	c := leaseCondition(s)
	return c != nil && (c.Status == metav1.ConditionTrue || c.Reason == v1alpha1.NotPlacedReason)
}

// isReportedNotPlaced reports whether the condition of a Service shows that MetalLB has not assigned its address.
func isReportedNotPlaced(s *corev1.Service) bool {
	c := leaseCondition(s)
	return c != nil && c.Reason == v1alpha1.NotPlacedReason
}

// isReportedWithoutLease reports whether the condition of a Service shows that it has no lease, although it could have
// one.
func isReportedWithoutLease(s *corev1.Service) bool {
	c := leaseCondition(s)
	return c != nil && (c.Reason == v1alpha1.IdleReason || c.Reason == v1alpha1.NoPoolReason)
}

// leaseCondition returns the condition LeaseSatisfied of a Service, nil if it has none.
func leaseCondition(s *corev1.Service) *metav1.Condition {
	return meta.FindStatusCondition(s.Status.Conditions, v1alpha1.LeaseSatisfiedCondition)
}

// newCondition returns a condition that is true or false.
func newCondition(kind string, isTrue bool, reason, message string) *metav1.Condition {
	c := &metav1.Condition{Type: kind, Status: metav1.ConditionFalse, Reason: reason, Message: message}
	if isTrue {
		c.Status = metav1.ConditionTrue
	}
	return c
}

// isSameCondition reports whether a condition, nil if there is none, shows the same as another one.
func isSameCondition(old, next *metav1.Condition) bool {
	return old != nil && old.Status == next.Status && old.Reason == next.Reason && old.Message == next.Message
}
