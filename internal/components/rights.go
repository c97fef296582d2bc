package components

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/go-logr/logr"
	authorizationv1 "k8s.io/api/authorization/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/component-helpers/auth/rbac/validation"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// unboundNamespace is a namespace in which no role is bound: a review for it returns what is bound in all namespaces.
const unboundNamespace = "kube-node-lease"

// rightsChecker finds out which rights the manager has.
type rightsChecker struct {
	api client.Client
	// namespace is the namespace that the manager watches; empty means all.
	namespace string
	// boundRules are the rules that are bound, by namespace.
	boundRules map[string][]rbacv1.PolicyRule
}

// LogComponents logs which components are enabled, which are not, and the missing rights of those that are enabled:
// they wait until they have them. The namespace is the one that the manager watches; empty means all. LogComponents
// sends the API server one request for each namespace that rights are needed in, and one for each right that seems to
// be missing. Without an answer it logs that, and nothing else.
func LogComponents(ctx context.Context, api client.Client, log logr.Logger, namespace string, all []Component) {
	var on, off []string
	for _, c := range all {
		if c.Enabled {
			on = append(on, c.Name)
		} else {
			off = append(off, c.Name)
		}
	}
	log.Info("Components of the manager: docs/install.md#components describes how to turn one on", "on", on, "off", off)
	a := rightsChecker{api, namespace, map[string][]rbacv1.PolicyRule{}}
	for _, c := range all {
		if !c.Enabled {
			continue
		}
		missing, err := a.missingRights(ctx, c)
		switch {
		case err != nil:
			log.Info("Failed to check whether the manager has the rights that a component needs", "component", c.Name, "why", err.Error())
		case len(missing) > 0:
			log.Error(nil, "The manager lacks rights, and a component waits for them: "+remedyForComponent(c), "component", c.Name, "missing", missing)
		}
	}
}

// remedyForComponent returns what gives a component its rights.
func remedyForComponent(c Component) string {
	if c.Name == ClaimsComponent {
		return "apply the manifests of its release again"
	}
	return fmt.Sprintf("apply component-%s.yaml of its release (config/components/%s)", c.Name, c.Name)
}

// missingRights returns the rights that a component needs and does not have, one line for each resource.
func (a rightsChecker) missingRights(ctx context.Context, c Component) ([]string, error) {
	var out []string
	needs, err := c.requirements()
	if err != nil {
		return nil, err
	}
	for _, n := range needs {
		in := cmp.Or(n.namespace, a.namespace, unboundNamespace)
		rules, err := a.rulesInNamespace(ctx, in)
		if err != nil {
			return nil, err
		}
		_, missing := validation.Covers(rules, n.rules)
		// Some authorizers, that of Nodes among them, do not report what they allow before an access review asks for it.
		if missing, err = a.filterDenied(ctx, in, missing); err != nil {
			return nil, err
		}
		for _, line := range formatRules(missing) {
			if n.namespace != "" {
				line += " in namespace " + n.namespace
			}
			out = append(out, line)
		}
	}
	slices.Sort(out)
	return slices.Compact(out), nil
}

// rulesInNamespace returns the rules that are bound to the manager in a namespace, by the API server.
func (a rightsChecker) rulesInNamespace(ctx context.Context, namespace string) ([]rbacv1.PolicyRule, error) {
	if rules, known := a.boundRules[namespace]; known {
		return rules, nil
	}
	review := &authorizationv1.SelfSubjectRulesReview{Spec: authorizationv1.SelfSubjectRulesReviewSpec{Namespace: namespace}}
	if err := a.api.Create(ctx, review); err != nil {
		return nil, fmt.Errorf("reading the permissions of the manager: %w", err)
	}
	var out []rbacv1.PolicyRule
	for _, r := range review.Status.ResourceRules {
		out = append(out, rbacv1.PolicyRule{Verbs: r.Verbs, APIGroups: r.APIGroups, Resources: r.Resources, ResourceNames: r.ResourceNames})
	}
	a.boundRules[namespace] = out
	return out, nil
}

// filterDenied returns the rules that the API server denies in an access review. Each rule has one verb and one
// resource.
func (a rightsChecker) filterDenied(ctx context.Context, namespace string, rules []rbacv1.PolicyRule) ([]rbacv1.PolicyRule, error) {
	if namespace == unboundNamespace {
		namespace = "" // in all namespaces
	}
	var out []rbacv1.PolicyRule
	for _, r := range rules {
		resource, subresource, _ := strings.Cut(strings.Join(r.Resources, ""), "/")
		review := &authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{
			ResourceAttributes: &authorizationv1.ResourceAttributes{
				Namespace: namespace, Verb: strings.Join(r.Verbs, ""), Group: strings.Join(r.APIGroups, ""),
				Resource: resource, Subresource: subresource, Name: strings.Join(r.ResourceNames, ""),
			},
		}}
		if err := a.api.Create(ctx, review); err != nil {
			return nil, fmt.Errorf("asking the API server whether the manager may %s %s: %w", strings.Join(r.Verbs, ""), resource, err)
		}
		if !review.Status.Allowed {
			out = append(out, r)
		}
	}
	return out, nil
}

// formatRules formats rules that have one verb each, as one line for each resource.
func formatRules(rules []rbacv1.PolicyRule) []string {
	verbs := map[string][]string{}
	for _, r := range rules {
		of := strings.Join(r.Resources, ",")
		if group := strings.Join(r.APIGroups, ","); group != "" {
			of += "." + group
		}
		if len(r.ResourceNames) > 0 {
			of += " " + strings.Join(r.ResourceNames, ",")
		}
		verbs[of] = append(verbs[of], r.Verbs...)
	}
	var out []string
	for of, may := range verbs {
		slices.Sort(may)
		out = append(out, strings.Join(slices.Compact(may), ", ")+" "+of)
	}
	return out
}
