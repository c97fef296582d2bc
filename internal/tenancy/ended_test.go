package tenancy

import (
	"fmt"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
)

// TestDecideWithdrawal checks what stays and what is deleted when a Cluster gets no more blocks (B82). Each block is
// "name phase", followed by + and its other properties.
func TestDecideWithdrawal(t *testing.T) {
	many, names := []string{}, []string{}
	for i := range maxNamesInMessage + 2 {
		many = append(many, fmt.Sprintf("n%d Allocated", i))
		names = append(names, fmt.Sprintf("ns/n%d", i))
	}
	tests := map[string]struct {
		reason      string
		allocations []string
		unanswered  string
		stays       []string
	}{
		"Nothing":  {reason: "there is nothing to end"},
		"Given":    {reason: "a Service may use it", allocations: []string{"b Allocated", "a Allocated"}, stays: []string{"ns/a, ns/b"}},
		"Waits":    {reason: "nothing was granted", allocations: []string{"a Pending", "b Failed", "c -"}, unanswered: "a b c"},
		"Leaving":  {reason: "it is not gone yet, and is deleted once", allocations: []string{"a Pending +deleting", "b Allocated +deleting"}, stays: []string{"ns/a, ns/b"}},
		"ByHand":   {reason: "who made it takes it away", allocations: []string{"a Pending +hand", "b Pending +pinned"}, stays: []string{"ns/a, ns/b"}},
		"Pods":     {reason: "they are the Nodes'", allocations: []string{"a Allocated +pods", "b Pending +pods"}},
		"Together": {reason: "each for itself", allocations: []string{"a Allocated", "b Pending", "c Allocated +pods"}, unanswered: "b", stays: []string{"ns/a"}},
		"Many":     {reason: "as many as a person reads", allocations: many, stays: append([]string{strings.Join(names[:maxNamesInMessage], ", ") + " and 2 more"}, names[0])},
	}
	for name, c := range tests {
		t.Run(name, func(t *testing.T) {
			var allocations []*v1alpha1.IPAllocation
			for _, text := range c.allocations {
				fields := strings.Fields(text)
				a := &v1alpha1.IPAllocation{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: fields[0]}}
				a.Labels = map[string]string{v1alpha1.ProviderConfigLabel: "config"}
				a.Spec.Count = ptr.To[int32](8)
				a.Status.Phase = v1alpha1.AllocationPhase(strings.Trim(fields[1], "-"))
				switch strings.Join(fields[2:], "") {
				case "+deleting":
					a.DeletionTimestamp = &metav1.Time{}
				case "+hand":
					a.Labels = nil
				case "+pinned":
					a.Spec.PinnedRange = &v1alpha1.PinnedRange{}
				case "+pods":
					a.Spec.Type = v1alpha1.PodsAllocation
				}
				allocations = append(allocations, a)
			}
			unanswered, message := DecideWithdrawal(allocations, "why")
			var got []string
			for _, a := range unanswered {
				got = append(got, a.Name)
			}
			if strings.Join(got, " ") != c.unanswered {
				t.Errorf("%s: deletes %v, not %q", c.reason, got, c.unanswered)
			}
			if (message == "") != (len(c.stays) == 0) {
				t.Errorf("%s: says %q", c.reason, message)
			}
			for _, part := range c.stays {
				if !strings.HasPrefix(message, "why; ") || !strings.Contains(message, part) {
					t.Errorf("%s: says %q, without %q", c.reason, message, part)
				}
			}
		})
	}
}
