package grants_test

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/grants"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/grantstest"
)

// TestInvalidSelectorIsReportedOnPool checks that an invalid selector, which selects nothing, is reported on the pool,
// not on its claims.
func TestInvalidSelectorIsReportedOnPool(t *testing.T) {
	p := grants.NewPoolState(pools.Key{Kind: v1alpha1.GlobalNetworkPoolKind, Name: "p"}, grantstest.ClaimantKinds, grants.NewQuota(func(pools.Key) {}))
	obj := &v1alpha1.GlobalNetworkPool{ObjectMeta: metav1.ObjectMeta{Name: "p", Generation: 1}}
	obj.Spec.CIDR = "10.0.0.0/24"
	obj.Spec.NamespaceSelector = &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "team", Operator: "Inn"}}}
	p.SetBasePool(obj)
	if reason, message := p.Status.ClosedReason(grantstest.Noon); reason != v1alpha1.ValidationFailedReason || !strings.Contains(message, `"Inn"`) {
		t.Errorf("%s: %s", reason, message)
	}
	if p.Space.Layout == nil || p.Space.Ledger.Counts().Total == 0 {
		t.Error("what is in use is not counted")
	}
}
