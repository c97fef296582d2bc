package leaseports

import (
	"cmp"
	"encoding/json"
	"net/netip"
	"slices"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/tenancy"
)

// NewLease converts an IPLease.
func NewLease(l *v1alpha1.IPLease) Lease {
	out := Lease{
		Name: l.Name, UID: l.UID, ResourceVersion: l.ResourceVersion, Created: l.CreationTimestamp.Time,
		Deleting: l.DeletionTimestamp != nil, ShownBy: l.Status.ShownBy, TriedPools: tenancy.ParseAttempts(l.Annotations[v1alpha1.TriedPoolsAnnotation]), AddressInUse: l.AddressInUse(), SelectorText: FormatSelector(l.Spec.NamespaceSelector),
	}
	out.Pool = v1alpha1.PoolReference{Kind: cmp.Or(l.Spec.PoolRef.Kind, v1alpha1.NetworkPoolKind), Name: l.Spec.PoolRef.Name}
	out.OnlyService, out.MadeForServices = l.Labels[v1alpha1.MadeForServicesLabel]
	if a, err := netip.ParseAddr(l.Status.Address); err == nil {
		out.Address = a
	}
	if condition := meta.FindStatusCondition(l.Status.Conditions, v1alpha1.ReadyCondition); condition != nil && condition.Status == metav1.ConditionFalse {
		out.Refusal = Reason{condition.Reason, condition.Message}
	}
	if condition := meta.FindStatusCondition(l.Status.Conditions, v1alpha1.InUseCondition); condition != nil && condition.Status == metav1.ConditionFalse {
		out.IdleSince = condition.LastTransitionTime.Time
	}
	if slices.Contains(l.Finalizers, v1alpha1.LeaseShownFinalizer) {
		out.ShownBy = cmp.Or(out.ShownBy, v1alpha1.ShownByMetalLB)
		out.ShownByMetalLB = out.ShownBy == v1alpha1.ShownByMetalLB
	}
	_, out.HasAddressRecord = l.Annotations[v1alpha1.AddressAnnotation]
	if l.Spec.NamespaceSelector != nil {
		others, err := metav1.LabelSelectorAsSelector(l.Spec.NamespaceSelector)
		if out.NamespaceSelector = others; err != nil {
			out.NamespaceSelector, out.SelectorError = nil, err.Error()
		}
	}
	if len(l.Spec.Ports) > 0 {
		out.DeclaredPorts = map[Port]ServiceRef{}
	}
	for _, p := range l.Spec.Ports {
		out.DeclaredPorts[Port{p.Protocol, p.Port}] = newServiceRef(l.Namespace, p.Namespace, p.Service)
	}
	for _, h := range l.Status.Ports {
		out.PortTable = append(out.PortTable, Holder{Port{h.Protocol, h.Port}, newServiceRef(l.Namespace, h.Namespace, h.Service), h.UID})
	}
	return out
}

// IsShared reports whether several Services have ports of the lease.
func (l *Lease) IsShared() bool {
	return slices.ContainsFunc(l.PortTable, func(h Holder) bool { return h.Service != l.PortTable[0].Service })
}

// newServiceRef returns a reference to a Service, relative to the namespace of the leases, which namespace may spell
// out.
func newServiceRef(leases, namespace, name string) ServiceRef {
	if namespace == leases || name == "" {
		namespace = ""
	}
	return ServiceRef{namespace, name}
}

// FormatSelector returns a namespace selector as text, empty if there is none. Equal selectors have equal texts.
func FormatSelector(s *metav1.LabelSelector) string {
	if s == nil {
		return ""
	}
	text, err := json.Marshal(s)
	if err != nil {
		panic(err) // it has only strings
	}
	return string(text)
}
