package balancer

import (
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
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

// Made reports whether this project made an object of a load balancer's, or took it over: it has our label, or fields of ours.
// Whoever takes the label off has not made it his.
func Made(o client.Object) bool {
	return o.GetLabels()[ManagedLabel] == ManagedValue || slices.ContainsFunc(o.GetManagedFields(), IsOurs)
}

// IsOurs reports whether fields of an object, those of its status apart, are this project's.
func IsOurs(e metav1.ManagedFieldsEntry) bool {
	return e.Manager == string(FieldOwner) && e.Subresource == ""
}

// HandedOver reports whether somebody who may change an object that we did not make wants us to take it over.
func HandedOver(o client.Object) bool {
	return !Made(o) && o.GetAnnotations()[v1alpha1.HandOverAnnotation] == "true"
}

// Maker names who made an object, as far as it says so.
func Maker(o client.Object) string {
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
