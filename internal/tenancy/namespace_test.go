package tenancy

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
)

func TestAdmitsNamespace(t *testing.T) {
	selects := &metav1.LabelSelector{MatchLabels: map[string]string{"stage": "prod"}}
	team := func(name string) map[string]string { return map[string]string{v1alpha1.TeamLabel: name} }
	scoped := func(name string) *v1alpha1.ProviderScope {
		return &v1alpha1.ProviderScope{Type: v1alpha1.TeamScope, TeamRef: &v1alpha1.TeamReference{Name: name}}
	}
	tests := map[string]struct {
		reason    string
		spec      v1alpha1.ProviderConfigSpec
		namespace Namespace
		want      string // part of the message; empty: allowed
	}{
		"Own":            {reason: "its own namespace may", namespace: Namespace{Name: "home"}},
		"OwnSelector":    {reason: "whatever else is selected", spec: v1alpha1.ProviderConfigSpec{NamespaceSelector: selects}, namespace: Namespace{Name: "home"}},
		"Team":           {reason: "a team's namespace may by default", namespace: Namespace{Name: "a", Labels: team("a")}},
		"TeamEmpty":      {reason: "the label counts, not its value", namespace: Namespace{Name: "a", Labels: team("")}},
		"Stranger":       {reason: "another team may not", namespace: Namespace{Name: "a"}, want: "label namespace a with butler.butlerlabs.dev/team"},
		"Selected":       {reason: "a selector decides", spec: v1alpha1.ProviderConfigSpec{NamespaceSelector: selects}, namespace: Namespace{Name: "a", Labels: map[string]string{"stage": "prod"}}},
		"NotSelected":    {reason: "even against the team label", spec: v1alpha1.ProviderConfigSpec{NamespaceSelector: selects}, namespace: Namespace{Name: "a", Labels: team("a")}, want: "label the namespace to match spec.namespaceSelector"},
		"SelectsAll":     {reason: "an empty selector selects all", spec: v1alpha1.ProviderConfigSpec{NamespaceSelector: &metav1.LabelSelector{}}, namespace: Namespace{Name: "a"}},
		"BadSelector":    {reason: "no namespace is admitted by mistake", spec: v1alpha1.ProviderConfigSpec{NamespaceSelector: &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "a", Operator: "Like"}}}}, namespace: Namespace{Name: "a"}, want: "is invalid"},
		"Platform":       {reason: "platform is the default", spec: v1alpha1.ProviderConfigSpec{Scope: &v1alpha1.ProviderScope{Type: v1alpha1.PlatformScope}}, namespace: Namespace{Name: "a", Labels: team("a")}},
		"ScopedTeam":     {reason: "a team's ProviderConfig is for the team", spec: v1alpha1.ProviderConfigSpec{Scope: scoped("a")}, namespace: Namespace{Name: "a", Labels: team("a")}},
		"ScopedOther":    {reason: "and for no other", spec: v1alpha1.ProviderConfigSpec{Scope: scoped("a")}, namespace: Namespace{Name: "b", Labels: team("b")}, want: "is for team a"},
		"ScopedNobody":   {reason: "nor for the unlabelled", spec: v1alpha1.ProviderConfigSpec{Scope: scoped("a")}, namespace: Namespace{Name: "b"}, want: "is for team a"},
		"ScopedNone":     {reason: "without a team it is admitted nowhere", spec: v1alpha1.ProviderConfigSpec{Scope: &v1alpha1.ProviderScope{Type: v1alpha1.TeamScope}}, namespace: Namespace{Name: "b", Labels: team("")}, want: "names no team"},
		"ScopedSelector": {reason: "a selector says more than a scope", spec: v1alpha1.ProviderConfigSpec{Scope: scoped("a"), NamespaceSelector: selects}, namespace: Namespace{Name: "b", Labels: map[string]string{"stage": "prod"}}},
	}
	for name, c := range tests {
		t.Run(name, func(t *testing.T) {
			config := &v1alpha1.ProviderConfig{Spec: c.spec}
			config.Name, config.Namespace = "config", "home"
			got := AdmitsNamespace(config, c.namespace)
			if got.Allowed != (c.want == "") || !strings.Contains(got.Message, c.want) || got.Allowed != (got.Message == "") {
				t.Errorf("%s: got %+v", c.reason, got)
			}
		})
	}
}
