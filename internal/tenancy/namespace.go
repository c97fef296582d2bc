package tenancy

import (
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/text"
)

// Namespace is what decides on access.
type Namespace struct {
	// Name of the namespace.
	Name string
	// Labels of the Namespace object.
	Labels map[string]string
}

// Admission is whether Clusters of a namespace may use a ProviderConfig.
type Admission struct {
	// Allowed is whether they may.
	Allowed bool
	// Message says why not, and what to do about it.
	Message string
}

// Admits decides whether Clusters of a namespace may use a ProviderConfig. Its own namespace always may;
// any other, if namespaceSelector selects it; without a selector, if it has the team label, which must name
// the team where the ProviderConfig is scoped to one.
func Admits(config *v1alpha1.ProviderConfig, namespace Namespace) Admission {
	if namespace.Name == config.Namespace {
		return Admission{Allowed: true}
	}
	who := fmt.Sprintf("ProviderConfig %s/%s", config.Namespace, config.Name)
	if selector := config.Spec.NamespaceSelector; selector != nil {
		selected, err := namespace.matches(selector)
		switch {
		case err != nil:
			return Admission{Message: fmt.Sprintf("spec.namespaceSelector of %s is invalid: %v", who, err)}
		case !selected:
			return Admission{Message: fmt.Sprintf("%s does not serve namespace %s; label the namespace to match spec.namespaceSelector, or change the selector", who, namespace.Name)}
		}
		return Admission{Allowed: true}
	}
	team, labelled := namespace.Labels[v1alpha1.TeamLabel]
	if scope := config.Spec.Scope; scope != nil && scope.Type == v1alpha1.TeamScope {
		switch {
		case scope.TeamRef == nil:
			return Admission{Message: fmt.Sprintf("%s has scope team but names no team; set spec.scope.teamRef, or spec.namespaceSelector", who)}
		case !labelled || team != text.Shorten(scope.TeamRef.Name, maxLabel):
			return Admission{Message: fmt.Sprintf("%s is for team %s; if namespace %s belongs to that team, label it %s=%s",
				who, scope.TeamRef.Name, namespace.Name, v1alpha1.TeamLabel, text.Shorten(scope.TeamRef.Name, maxLabel))}
		}
		return Admission{Allowed: true}
	}
	if !labelled {
		return Admission{Message: fmt.Sprintf("%s serves only namespaces that belong to a team; label namespace %s with %s, or set spec.namespaceSelector",
			who, namespace.Name, v1alpha1.TeamLabel)}
	}
	return Admission{Allowed: true}
}

// matches reports whether a selector selects the namespace.
func (n Namespace) matches(selector *metav1.LabelSelector) (bool, error) {
	s, err := metav1.LabelSelectorAsSelector(selector)
	if err != nil {
		return false, err
	}
	return s.Matches(labels.Set(n.Labels)), nil
}
