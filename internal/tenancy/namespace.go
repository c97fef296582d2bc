package tenancy

import (
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/text"
)

// Namespace is the part of a Namespace object that decides on access.
type Namespace struct {
	// Name is the name of the namespace.
	Name string
	// Labels are the labels of the Namespace object.
	Labels map[string]string
}

// Admission is the result of AdmitsNamespace.
type Admission struct {
	// Allowed reports whether Clusters of the namespace may use the ProviderConfig.
	Allowed bool
	// Message states why they may not, and what to do about it.
	Message string
}

// AdmitsNamespace decides whether Clusters of a namespace may use a ProviderConfig. The namespace of the
// ProviderConfig always may. Any other namespace may if namespaceSelector selects it; without a selector, it needs
// the team label, which must name the team if the ProviderConfig is scoped to one.
func AdmitsNamespace(config *v1alpha1.ProviderConfig, namespace Namespace) Admission {
	if namespace.Name == config.Namespace {
		return Admission{Allowed: true}
	}
	owner := fmt.Sprintf("ProviderConfig %s/%s", config.Namespace, config.Name)
	if selector := config.Spec.NamespaceSelector; selector != nil {
		selected, err := namespace.matchesSelector(selector)
		switch {
		case err != nil:
			return Admission{Message: fmt.Sprintf("spec.namespaceSelector of %s is invalid: %v", owner, err)}
		case !selected:
			return Admission{Message: fmt.Sprintf("%s does not serve namespace %s; label the namespace to match spec.namespaceSelector, or change the selector", owner, namespace.Name)}
		}
		return Admission{Allowed: true}
	}
	team, labelled := namespace.Labels[v1alpha1.TeamLabel]
	if scope := config.Spec.Scope; scope != nil && scope.Type == v1alpha1.TeamScope {
		switch {
		case scope.TeamRef == nil:
			return Admission{Message: fmt.Sprintf("%s has scope team but names no team; set spec.scope.teamRef, or spec.namespaceSelector", owner)}
		case !labelled || team != text.ShortenText(scope.TeamRef.Name, maxLabelLength):
			return Admission{Message: fmt.Sprintf("%s is for team %s; if namespace %s belongs to that team, label it %s=%s",
				owner, scope.TeamRef.Name, namespace.Name, v1alpha1.TeamLabel, text.ShortenText(scope.TeamRef.Name, maxLabelLength))}
		}
		return Admission{Allowed: true}
	}
	if !labelled {
		return Admission{Message: fmt.Sprintf("%s serves only namespaces that belong to a team; label namespace %s with %s, or set spec.namespaceSelector",
			owner, namespace.Name, v1alpha1.TeamLabel)}
	}
	return Admission{Allowed: true}
}

// matchesSelector reports whether a selector selects the namespace.
func (n Namespace) matchesSelector(selector *metav1.LabelSelector) (bool, error) {
	s, err := metav1.LabelSelectorAsSelector(selector)
	if err != nil {
		return false, err
	}
	return s.Matches(labels.Set(n.Labels)), nil
}
