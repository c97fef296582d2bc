package grants_test

import (
	"strings"
	"testing"

	"k8s.io/utils/ptr"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/grants"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/poolutil"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/grantstest"
)

// podPool returns a pool of four blocks of /26; a Cluster has the first one.
func podPool(t *testing.T, change func(*v1alpha1.NetworkPoolSpec)) *grants.PoolState {
	t.Helper()
	p := grantstest.NewPool(t, "192.0.2.0/24", func(o *v1alpha1.NetworkPool) {
		o.Spec.AllocateReservedIPAddresses = true
		if change != nil {
			change(&o.Spec)
		}
	})
	grantstest.ObserveAllocation(p, "other-pods-4-1", 0, forPods(26, grantstest.WithBlock("192.0.2.0/26")))
	return p
}

func forPods(bits int32, change ...func(*v1alpha1.IPAllocation)) func(*v1alpha1.IPAllocation) {
	return func(o *v1alpha1.IPAllocation) {
		o.Spec.Type, o.Spec.PrefixLength = v1alpha1.PodsAllocation, ptr.To(bits)
		o.Spec.TenantClusterRef = v1alpha1.ClusterReference{Namespace: "ns", Name: "prod"}
		for _, f := range change {
			f(o)
		}
	}
}

// TestBlocksForPods checks that a block for the pod CIDRs of a Cluster is a prefix: the best fit, the one that it is
// pinned to, or none.
func TestBlocksForPods(t *testing.T) {
	pinned := func(first, last string) func(*v1alpha1.IPAllocation) {
		return func(o *v1alpha1.IPAllocation) {
			o.Spec.PinnedRange = &v1alpha1.PinnedRange{StartAddress: first, EndAddress: last}
		}
	}
	for name, tt := range map[string]struct {
		spec        func(*v1alpha1.NetworkPoolSpec)
		ask         func(*v1alpha1.IPAllocation)
		want        string
		wantRefusal string
	}{
		"the best fit":        {ask: forPods(26), want: "192.0.2.64/26"},
		"no room":             {ask: forPods(23), wantRefusal: "has no free prefix of /23"},
		"pinned":              {ask: forPods(26, pinned("192.0.2.192", "192.0.2.255")), want: "192.0.2.192/26"},
		"pinned to no prefix": {ask: forPods(26, pinned("192.0.2.65", "192.0.2.80")), wantRefusal: "is not a prefix of /26"},
		"of the other family": {ask: forPods(64), wantRefusal: "is no prefix of the addresses of"},
		"smaller than a unit": {spec: func(s *v1alpha1.NetworkPoolSpec) { s.AllocationPrefixLength = ptr.To[int32](26) }, ask: forPods(28), wantRefusal: "is smaller than one"},
		"of a pool of those":  {spec: func(s *v1alpha1.NetworkPoolSpec) { s.AllocationPrefixLength = ptr.To[int32](28) }, ask: forPods(26), want: "192.0.2.64/26"},
	} {
		t.Run(name, func(t *testing.T) {
			p := podPool(t, tt.spec)
			c := grantstest.ObserveAllocation(p, "prod-pods-4-1", 0, tt.ask)
			_, refused := p.Planner.PlanGrants(grantstest.Noon, 9, grantstest.AdmitAll)
			switch g := p.Grants.ByClaimant[c.Owner.UID]; {
			case tt.wantRefusal != "":
				if refusal := refused[c]; refusal == nil || !strings.Contains(refusal.Message, tt.wantRefusal) {
					t.Errorf("its refusal is %+v", refusal)
				}
			case g == nil:
				t.Errorf("it has nothing: %+v", refused[c])
			case poolutil.FormatRange(g.Range) != tt.want:
				t.Errorf("it has %v, want %s", g.Range, tt.want)
			}
		})
	}
}

// TestStatusOfPodBlock checks that the status of a block for pod CIDRs has no list of addresses, and that its
// event names the Cluster.
func TestStatusOfPodBlock(t *testing.T) {
	p := podPool(t, nil)
	c := grantstest.ObserveAllocation(p, "prod-pods-4-1", 0, forPods(26, grantstest.WithBlock("192.0.2.64/26")))
	step := c.Kind.NextServeStep(p.Inventory, c, &grants.Attempt{Now: grantstest.Noon})
	if listed, ok := step.StatusPatch["addresses"].([]string); !ok || len(listed) > 0 || step.StatusPatch["cidr"] != "192.0.2.64/26" {
		t.Errorf("%+v", step.StatusPatch)
	}
	if step.Event == nil || step.Event.Note != "allocated 192.0.2.64/26 to Cluster ns/prod" {
		t.Errorf("%+v", step.Event)
	}
}
