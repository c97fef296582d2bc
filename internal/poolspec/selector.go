package poolspec

import (
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
)

// selectorOperators are the operators of a label selector.
var selectorOperators = []metav1.LabelSelectorOperator{
	metav1.LabelSelectorOpIn, metav1.LabelSelectorOpNotIn, metav1.LabelSelectorOpExists, metav1.LabelSelectorOpDoesNotExist,
}

// CompilePool is Compile for a whole pool: for a global one it also checks the namespaceSelector. An error there does
// not change the addresses, so the layout is returned together with it.
func CompilePool(pool v1alpha1.Pool) (*Layout, field.ErrorList) {
	layout, errs := Compile(pool.PoolSpec(), pool.PoolStatus().Blocks...)
	return layout, append(errs, validateSelector(NamespaceSelectorForPool(pool))...)
}

// NamespaceSelectorForPool returns the selector of the namespaces that a pool serves; nil where it has none, or is of
// one namespace.
func NamespaceSelectorForPool(pool v1alpha1.Pool) *metav1.LabelSelector {
	if global, ok := pool.(*v1alpha1.GlobalNetworkPool); ok {
		return global.Spec.NamespaceSelector
	}
	return nil
}

// validateSelector finds the errors that the API server does not: the schema of a CRD cannot check a selector.
func validateSelector(s *metav1.LabelSelector) field.ErrorList {
	errs := validation.ValidateLabelSelector(s, validation.LabelSelectorValidationOptions{}, field.NewPath("spec", "namespaceSelector"))
	for i, err := range errs {
		if strings.HasSuffix(err.Field, ".operator") {
			errs[i] = field.NotSupported(field.NewPath(err.Field), err.BadValue, selectorOperators)
		}
	}
	return errs
}
