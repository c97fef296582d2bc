package metallb

import (
	"fmt"
	"slices"
	"strings"

	metallbv1beta1 "go.universe.tf/metallb/api/v1beta1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/elastic"
)

// KeepManagers reduces the managed fields of what a cache keeps to who they are: the rest is what it costs most for.
func KeepManagers(o any) (any, error) {
	if obj, is := o.(client.Object); is {
		entries := obj.GetManagedFields()
		for i := range entries {
			entries[i].FieldsV1 = nil
		}
	}
	return o, nil
}

// made reports whether this project made an object of MetalLB's, or took it over: it has our label, or fields of ours.
// Whoever takes the label off has not made it his.
func made(o client.Object) bool {
	return o.GetLabels()[ManagedLabel] == ManagedValue || slices.ContainsFunc(o.GetManagedFields(), isOurs)
}

// isOurs reports whether fields of an object, those of its status apart, are this project's.
func isOurs(e metav1.ManagedFieldsEntry) bool {
	return e.Manager == string(FieldOwner) && e.Subresource == ""
}

// handedOver reports whether somebody who may change an object that we did not make wants us to take it over.
func handedOver(o client.Object) bool {
	return !made(o) && o.GetAnnotations()[v1alpha1.HandOverAnnotation] == "true"
}

// mayWrite reports whether an object is ours to write: nobody else's is, unless it was handed over (ADR 30).
func mayWrite(o client.Object) bool { return made(o) || handedOver(o) }

// whose names who made an object, as far as it says so.
func whose(o client.Object) string {
	var managers []string
	for _, e := range o.GetManagedFields() {
		if e.Subresource == "" && !slices.Contains(managers, e.Manager) {
			managers = append(managers, e.Manager)
		}
	}
	slices.Sort(managers)
	by := "nobody on record"
	if len(managers) > 0 {
		by = strings.Join(managers, ", ")
	}
	if label := o.GetLabels()[ManagedLabel]; label != "" {
		by += ", " + ManagedLabel + "=" + label
	}
	return by
}

// foreign says of an object in whose place ours is to be what to do about it.
func foreign(kind string, o client.Object, taken string) string {
	return fmt.Sprintf("%s %s/%s in the Cluster was made by somebody else (%s), and is left as it is; give it another name, "+
		"or hand it over with kubectl annotate %s -n %s %s %s=true in the Cluster: %s",
		kind, Namespace, o.GetName(), whose(o), strings.ToLower(kind), Namespace, o.GetName(), v1alpha1.HandOverAnnotation, taken)
}

// ForeignPool says which IPAddressPool of somebody else has one of these names, and what to do; empty: none has.
func (o *Observed) ForeignPool(names ...string) string {
	for _, name := range names {
		if p := o.find(name); p != nil && !mayWrite(p) {
			return foreign("IPAddressPool", p, "the blocks of the Cluster then replace its addresses")
		}
	}
	return ""
}

// ForeignAdvertisement says that somebody else's L2Advertisement has the name of ours, and does not announce the pools that
// show the blocks; empty: it is not so.
func (o *Observed) ForeignAdvertisement(shown []elastic.Desired) string {
	if a := o.advertisement; a == nil || len(shown) == 0 || advertises(a, shown) || mayWrite(a) {
		return ""
	}
	return foreign("L2Advertisement", o.advertisement, "it then announces the blocks of the Cluster")
}

// advertises reports whether an L2Advertisement announces the pools that show blocks: by our label, as ours does, or, if it
// is somebody else's, because it is for all pools, or names them.
func advertises(a *metallbv1beta1.L2Advertisement, shown []elastic.Desired) bool {
	switch {
	case a.DeletionTimestamp != nil:
		return false
	case slices.ContainsFunc(a.Spec.IPAddressPoolSelectors, func(s metav1.LabelSelector) bool { return s.MatchLabels[ManagedLabel] == ManagedValue }):
		return true
	case made(a):
		return false
	case len(a.Spec.IPAddressPools)+len(a.Spec.IPAddressPoolSelectors) == 0:
		return true
	}
	return !slices.ContainsFunc(shown, func(d elastic.Desired) bool { return !slices.Contains(a.Spec.IPAddressPools, d.Name) })
}
