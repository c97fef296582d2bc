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

// nowhere is a namespace in which nothing is bound: who asks there is told what is bound in all.
const nowhere = "kube-node-lease"

// asker finds out what the manager may do.
type asker struct {
	api client.Client
	// namespace is the one that the manager watches; empty: all.
	namespace string
	// rights are what is bound, by namespace.
	rights map[string][]rbacv1.PolicyRule
}

// Report logs which components are on, which are off, and what those that are on lack: they wait until they have it. The
// namespace is the one that the manager watches; empty: all. It asks the API server once for each namespace that rights
// are needed in, and once for each right that seems to be missing. Without an answer it says so, and nothing else.
func Report(ctx context.Context, api client.Client, log logr.Logger, namespace string, all []Component) {
	var on, off []string
	for _, c := range all {
		if c.On {
			on = append(on, c.Name)
		} else {
			off = append(off, c.Name)
		}
	}
	log.Info("Components of the manager: docs/install.md#components says how to turn one on", "on", on, "off", off)
	a := asker{api, namespace, map[string][]rbacv1.PolicyRule{}}
	for _, c := range all {
		if !c.On {
			continue
		}
		lacks, err := a.missing(ctx, c)
		switch {
		case err != nil:
			log.Info("It is not known whether the manager has the rights that a component needs", "component", c.Name, "why", err.Error())
		case len(lacks) > 0:
			log.Error(nil, "The manager lacks rights, and a component waits for them: "+remedy(c), "component", c.Name, "missing", lacks)
		}
	}
}

// remedy says who gives a component its rights.
func remedy(c Component) string {
	if c.Name == Claims {
		return "apply the manifests of its release again"
	}
	return fmt.Sprintf("apply component-%s.yaml of its release (config/components/%s)", c.Name, c.Name)
}

// missing returns what a component lacks, one line for each resource.
func (a asker) missing(ctx context.Context, c Component) ([]string, error) {
	var out []string
	needs, err := c.needs()
	if err != nil {
		return nil, err
	}
	for _, n := range needs {
		in := cmp.Or(n.namespace, a.namespace, nowhere)
		has, err := a.rightsIn(ctx, in)
		if err != nil {
			return nil, err
		}
		_, lacks := validation.Covers(has, n.rules)
		// Some authorizers, that of Nodes among them, do not tell what they allow until they are asked for it.
		if lacks, err = a.denied(ctx, in, lacks); err != nil {
			return nil, err
		}
		for _, line := range lines(lacks) {
			if n.namespace != "" {
				line += " in namespace " + n.namespace
			}
			out = append(out, line)
		}
	}
	slices.Sort(out)
	return slices.Compact(out), nil
}

// rightsIn asks the API server what is bound to the manager in a namespace.
func (a asker) rightsIn(ctx context.Context, namespace string) ([]rbacv1.PolicyRule, error) {
	if has, known := a.rights[namespace]; known {
		return has, nil
	}
	review := &authorizationv1.SelfSubjectRulesReview{Spec: authorizationv1.SelfSubjectRulesReviewSpec{Namespace: namespace}}
	if err := a.api.Create(ctx, review); err != nil {
		return nil, fmt.Errorf("asking the API server what the manager may do: %w", err)
	}
	var out []rbacv1.PolicyRule
	for _, r := range review.Status.ResourceRules {
		out = append(out, rbacv1.PolicyRule{Verbs: r.Verbs, APIGroups: r.APIGroups, Resources: r.Resources, ResourceNames: r.ResourceNames})
	}
	a.rights[namespace] = out
	return out, nil
}

// denied returns those of some rules, which have one verb and one resource each, that the API server denies when asked.
func (a asker) denied(ctx context.Context, namespace string, rules []rbacv1.PolicyRule) ([]rbacv1.PolicyRule, error) {
	if namespace == nowhere {
		namespace = "" // in all
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

// lines are rules that each have one verb, as one line for each resource.
func lines(rules []rbacv1.PolicyRule) []string {
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
