package balancer

import (
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
)

// ReduceManagedFields reduces the managed fields of objects in a cache to their managers: the field sets use most of
// the memory.
func ReduceManagedFields(o any) (any, error) {
	if obj, ok := o.(client.Object); ok {
		entries := obj.GetManagedFields()
		for i := range entries {
			entries[i].FieldsV1 = nil
		}
	}
	return o, nil
}

// IsManaged reports whether this project created an object of a load balancer, or took it over: it has our label, or
// fields of our manager. A user who only removes the label does not take ownership.
func IsManaged(o client.Object) bool {
	return o.GetLabels()[ManagedByLabel] == ManagedByValue || slices.ContainsFunc(o.GetManagedFields(), IsOwnManagedFields)
}

// IsOwnManagedFields reports whether an entry is of this project's manager and not of the status.
func IsOwnManagedFields(e metav1.ManagedFieldsEntry) bool {
	return e.Manager == string(FieldOwner) && e.Subresource == ""
}

// IsHandedOver reports whether an object that we did not create has the annotation by which a user hands it over to
// us.
func IsHandedOver(o client.Object) bool {
	return !IsManaged(o) && o.GetAnnotations()[v1alpha1.HandOverAnnotation] == "true"
}

// DescribeManagers names the managers of an object, as far as its metadata shows them.
func DescribeManagers(o client.Object) string {
	var managers []string
	for _, e := range o.GetManagedFields() {
		if e.Subresource == "" && !slices.Contains(managers, e.Manager) {
			managers = append(managers, e.Manager)
		}
	}
	slices.Sort(managers)
	by := "no manager on record"
	if len(managers) > 0 {
		by = strings.Join(managers, ", ")
	}
	if label := o.GetLabels()[ManagedByLabel]; label != "" {
		by += ", " + ManagedByLabel + "=" + label
	}
	return by
}
