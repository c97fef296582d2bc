package webhooks

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
)

// TestNamespaceSelectorIsValidated checks that an unknown operator is rejected. The API server accepts any text for an
// operator: no namespace would be served, and the pool would report no error.
func TestNamespaceSelectorIsValidated(t *testing.T) {
	bad := global("p", spec{CIDR: "10.0.0.0/24"})
	bad.Spec.NamespaceSelector = &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{
		{Key: "team", Operator: "Inn", Values: []string{"a"}},
	}}
	v := &PoolValidator[*v1alpha1.GlobalNetworkPool]{Holders: &fakeHolderLister{}, PoolReader: stored(t)}
	want := refusal{v1alpha1.GlobalNetworkPoolKind, "p", []string{"spec.namespaceSelector.matchExpressions[0].operator"}}
	_, created := v.ValidateCreate(t.Context(), bad)
	_, updated := v.ValidateUpdate(t.Context(), global("p", spec{CIDR: "10.0.0.0/24"}), bad) // nothing else is changed
	for _, err := range []error{created, updated} {
		if diff := cmp.Diff(want, refusalOf(t, err)); diff != "" {
			t.Error(diff)
		}
		if !strings.Contains(err.Error(), `"Inn": supported values: "In", "NotIn", "Exists", "DoesNotExist"`) {
			t.Error(err)
		}
	}
	labelled := bad.DeepCopy()
	labelled.Labels = map[string]string{"a": "b"}
	if _, err := v.ValidateUpdate(t.Context(), bad, labelled); err != nil {
		t.Errorf("a pool older than the rule can still be labelled: %v", err)
	}
}
