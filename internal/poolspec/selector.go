package poolspec

import (
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
)

// operators are those of a label selector.
var operators = []metav1.LabelSelectorOperator{
	metav1.LabelSelectorOpIn, metav1.LabelSelectorOpNotIn, metav1.LabelSelectorOpExists, metav1.LabelSelectorOpDoesNotExist,
}

// Of is Compile for a whole pool: of a global one it checks the namespaceSelector too. An error there leaves the
// addresses what they are, so the layout is returned beside it.
func Of(pool v1alpha1.Pool) (*Layout, field.ErrorList) {
	layout, errs := Compile(pool.PoolSpec(), pool.PoolStatus().Blocks...)
	return layout, append(errs, checkSelector(SelectorOf(pool))...)
}

// SelectorOf returns which namespaces a pool serves; nil where it does not say, or is of one namespace.
func SelectorOf(pool v1alpha1.Pool) *metav1.LabelSelector {
	if global, ok := pool.(*v1alpha1.GlobalNetworkPool); ok {
		return global.Spec.NamespaceSelector
	}
	return nil
}

// checkSelector finds what the API server lets pass: the schema of a CRD does not know what a selector may say.
func checkSelector(s *metav1.LabelSelector) field.ErrorList {
	errs := validation.ValidateLabelSelector(s, validation.LabelSelectorValidationOptions{}, field.NewPath("spec", "namespaceSelector"))
	for i, err := range errs {
		if strings.HasSuffix(err.Field, ".operator") {
			errs[i] = field.NotSupported(field.NewPath(err.Field), err.BadValue, operators)
		}
	}
	return errs
}
