package metallb

import (
	"fmt"
	"slices"
	"strings"

	metallbv1beta1 "go.universe.tf/metallb/api/v1beta1"
	"go4.org/netipx"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/utils/ptr"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/balancer"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/elastic"
)

// NewPool converts an IPAddressPool as MetalLB reads it. It leaves out ranges that cannot be parsed, and the error
// names them: MetalLB then keeps the configuration that it had. namespaces are the labels of each namespace, for
// pools that select namespaces by label.
func NewPool(p *metallbv1beta1.IPAddressPool, namespaces map[string]map[string]string) (elastic.Pool, error) {
	out := elastic.Pool{Name: p.Name, AutoAssign: ptr.Deref(p.Spec.AutoAssign, true), AvoidBuggyIPs: p.Spec.AvoidBuggyIPs}
	var bad []string
	for _, text := range p.Spec.Addresses {
		r, err := parseRange(text)
		if err != nil {
			bad = append(bad, text)
			continue
		}
		out.Ranges = append(out.Ranges, r)
	}
	restriction, err := newRestriction(p.Spec.AllocateTo, namespaces)
	if err != nil {
		return out, fmt.Errorf("IPAddressPool %s: %w", p.Name, err)
	}
	out.Restriction = restriction
	if len(bad) > 0 {
		return out, fmt.Errorf("IPAddressPool %s: spec.addresses has %s, which is not a range", p.Name, strings.Join(bad, ", "))
	}
	return out, nil
}

func newRestriction(to *metallbv1beta1.ServiceAllocation, namespaces map[string]map[string]string) (*elastic.Restriction, error) {
	if to == nil {
		return nil, nil //nolint:nilnil // none is an answer
	}
	out := &elastic.Restriction{Priority: to.Priority, Namespaces: slices.Clone(to.Namespaces)}
	if len(to.Namespaces)+len(to.NamespaceSelectors)+len(to.ServiceSelectors) == 0 {
		out.Selectors = append(out.Selectors, func(map[string]string) bool { return true })
		return out, nil
	}
	for i := range to.NamespaceSelectors {
		selector, err := metav1.LabelSelectorAsSelector(&to.NamespaceSelectors[i])
		if err != nil {
			return nil, fmt.Errorf("spec.serviceAllocation.namespaceSelectors: %w", err)
		}
		for name, namespaceLabels := range namespaces {
			if selector.Matches(labels.Set(namespaceLabels)) {
				out.Namespaces = append(out.Namespaces, name)
			}
		}
	}
	for i := range to.ServiceSelectors {
		selector, err := metav1.LabelSelectorAsSelector(&to.ServiceSelectors[i])
		if err != nil {
			return nil, fmt.Errorf("spec.serviceAllocation.serviceSelectors: %w", err)
		}
		out.Selectors = append(out.Selectors, func(l map[string]string) bool { return selector.Matches(labels.Set(l)) })
	}
	return out, nil
}

// isProjectedPool reports whether an IPAddressPool contains blocks, or is the default pool and writable.
func isProjectedPool(p *metallbv1beta1.IPAddressPool) bool {
	return p.Labels[balancer.ManagedByLabel] == balancer.ManagedByValue || (p.Name == DefaultPool && isWritable(p))
}

// overlapsRange reports whether an IPAddressPool overlaps with a range. An entry that cannot be parsed counts as
// overlapping.
func overlapsRange(p *metallbv1beta1.IPAddressPool, r netipx.IPRange) bool {
	return slices.ContainsFunc(p.Spec.Addresses, func(text string) bool {
		other, err := parseRange(text)
		return err != nil || other.Overlaps(r)
	})
}
