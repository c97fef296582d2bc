package poolspec

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
)

func TestInvalidSelectorIsRejected(t *testing.T) {
	expression := func(key string, operator metav1.LabelSelectorOperator, values ...string) *metav1.LabelSelector {
		return &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: key, Operator: operator, Values: values}}}
	}
	tests := map[string]struct {
		selector *metav1.LabelSelector
		want     string // the error; empty if the pool can be served
	}{
		"none":             {},
		"empty":            {selector: &metav1.LabelSelector{}},
		"labels":           {selector: &metav1.LabelSelector{MatchLabels: map[string]string{"team": "a"}}},
		"an expression":    {selector: expression("team", metav1.LabelSelectorOpIn, "a", "b")},
		"no such operator": {selector: expression("team", "Inn", "a"), want: `spec.namespaceSelector.matchExpressions[0].operator: Unsupported value: "Inn": supported values: "In", "NotIn", "Exists", "DoesNotExist"`},
		"In of nothing":    {selector: expression("team", metav1.LabelSelectorOpIn), want: "spec.namespaceSelector.matchExpressions[0].values: Required value"},
		"Exists of values": {selector: expression("team", metav1.LabelSelectorOpExists, "a"), want: "spec.namespaceSelector.matchExpressions[0].values: Forbidden"},
		"no label":         {selector: &metav1.LabelSelector{MatchLabels: map[string]string{"a b": "c"}}, want: `spec.namespaceSelector.matchLabels: Invalid value: "a b"`},
		"no value":         {selector: expression("team", metav1.LabelSelectorOpIn, "a b"), want: "spec.namespaceSelector.matchExpressions[0].values[0]: Invalid value"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			pool := &v1alpha1.GlobalNetworkPool{}
			pool.Spec.CIDR, pool.Spec.NamespaceSelector = "10.0.0.0/24", tt.selector
			layout, errs := CompilePool(pool)
			if layout == nil {
				t.Error("there is no layout: the addresses are those of the spec, whichever namespaces it serves")
			}
			if got := errs.ToAggregate(); (got == nil) != (tt.want == "") || (got != nil && !strings.HasPrefix(got.Error(), tt.want)) {
				t.Errorf("got %v, want %s", got, tt.want)
			}
		})
	}
}

func TestPoolWithoutAddressesIsRejected(t *testing.T) {
	pool := &v1alpha1.NetworkPool{}
	if _, errs := CompilePool(pool); len(errs) != 1 {
		t.Errorf("a pool without addresses: %v", errs)
	}
}
