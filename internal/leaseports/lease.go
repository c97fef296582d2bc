package leaseports

import (
	"cmp"
	"encoding/json"
	"net/netip"
	"slices"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
)

// LeaseOf is what is known of a lease.
func LeaseOf(l *v1alpha1.IPLease) Lease {
	out := Lease{
		Name: l.Name, UID: l.UID, Version: l.ResourceVersion, Created: l.CreationTimestamp.Time,
		Deleting: l.DeletionTimestamp != nil, By: l.Status.ShownBy, Tried: triedOf(l), UsedByOthers: l.AddressInUse(), Selector: SelectorText(l.Spec.NamespaceSelector),
	}
	out.Pool = v1alpha1.PoolReference{Kind: cmp.Or(l.Spec.PoolRef.Kind, v1alpha1.NetworkPoolKind), Name: l.Spec.PoolRef.Name}
	out.For, out.Made = l.Labels[v1alpha1.MadeForServicesLabel]
	if a, err := netip.ParseAddr(l.Status.Address); err == nil {
		out.Address = a
	}
	if is := meta.FindStatusCondition(l.Status.Conditions, v1alpha1.ReadyCondition); is != nil && is.Status == metav1.ConditionFalse {
		out.Refused = Verdict{is.Reason, is.Message}
	}
	if is := meta.FindStatusCondition(l.Status.Conditions, v1alpha1.InUseCondition); is != nil && is.Status == metav1.ConditionFalse {
		out.IdleSince = is.LastTransitionTime.Time
	}
	if controllerutil.ContainsFinalizer(l, v1alpha1.LeaseShownFinalizer) {
		out.By = cmp.Or(out.By, v1alpha1.ShownByMetalLB)
		out.Shown = out.By == v1alpha1.ShownByMetalLB
	}
	_, out.Recorded = l.Annotations[v1alpha1.AddressAnnotation]
	if l.Spec.NamespaceSelector != nil {
		others, err := metav1.LabelSelectorAsSelector(l.Spec.NamespaceSelector)
		if out.Others = others; err != nil {
			out.Others, out.Invalid = nil, err.Error()
		}
	}
	if len(l.Spec.Ports) > 0 {
		out.Declared = map[Port]Ref{}
	}
	for _, p := range l.Spec.Ports {
		out.Declared[Port{p.Protocol, p.Port}] = refIn(l.Namespace, p.Namespace, p.Service)
	}
	for _, h := range l.Status.Ports {
		out.Table = append(out.Table, Holder{Port{h.Protocol, h.Port}, refIn(l.Namespace, h.Namespace, h.Service), h.UID})
	}
	return out
}

// Shared reports whether several Services have ports of the lease.
func (l *Lease) Shared() bool {
	return slices.ContainsFunc(l.Table, func(h Holder) bool { return h.Service != l.Table[0].Service })
}

// refIn names a Service to the leases of a namespace, which may be written out.
func refIn(leases, namespace, name string) Ref {
	if namespace == leases || name == "" {
		namespace = ""
	}
	return Ref{namespace, name}
}

// SelectorText is how a selector of namespaces is written: equal ones are equal texts. Empty: there is none.
func SelectorText(s *metav1.LabelSelector) string {
	if s == nil {
		return ""
	}
	text, err := json.Marshal(s)
	if err != nil {
		panic(err) // it is strings
	}
	return string(text)
}

// tried is an entry of the annotation of the pools that a lease was tried with.
type tried struct {
	v1alpha1.PoolReference

	Was string `json:"was"`
}

// triedOf reads with which pools a lease was tried. What cannot be read counts as nothing: they are tried again.
func triedOf(l *v1alpha1.IPLease) map[v1alpha1.PoolReference]string {
	text, is := l.Annotations[v1alpha1.TriedPoolsAnnotation]
	if !is {
		return nil
	}
	var all []tried
	if json.Unmarshal([]byte(text), &all) != nil {
		return nil
	}
	out := map[v1alpha1.PoolReference]string{}
	for _, t := range all {
		out[t.PoolReference] = t.Was
	}
	return out
}
