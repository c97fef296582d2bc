package api_test

import (
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

// allocationOf returns an IPAllocation with a spec in YAML, as kubectl apply would send it.
func allocationOf(g *WithT, spec string) *unstructured.Unstructured {
	content := map[string]any{}
	g.Expect(yaml.Unmarshal([]byte(spec), &content)).To(Succeed())
	u := &unstructured.Unstructured{Object: map[string]any{"spec": content}}
	u.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind(v1alpha1.IPAllocationKind))
	u.SetGenerateName("a-")
	u.SetNamespace(metav1.NamespaceDefault)
	return u
}

func TestBadAllocationsAreRefusedWhenApplied(t *testing.T) { // B11
	const rest = `, type: loadbalancer, tenantClusterRef: {name: c, namespace: ns}}`
	for name, c := range map[string]struct{ spec, want string }{
		"no pool":              {`{type: nodes, tenantClusterRef: {name: c, namespace: ns}}`, "spec.poolRef ... Required"},
		"a nameless pool":      {`{poolRef: {name: ""}` + rest, "spec.poolRef.name ... at least 1 chars"},
		"another kind":         {`{poolRef: {name: p, kind: InClusterIPPool}` + rest, "supported values ... GlobalNetworkPool"},
		"no cluster":           {`{poolRef: {name: p}, type: nodes}`, "spec.tenantClusterRef ... Required"},
		"no type":              {`{poolRef: {name: p}, tenantClusterRef: {name: c, namespace: ns}}`, "spec.type ... Required"},
		"another type":         {`{poolRef: {name: p}, type: services, tenantClusterRef: {name: c, namespace: ns}}`, "supported values"},
		"nothing":              {`{poolRef: {name: p}, count: 0` + rest, "spec.count ... greater than or equal to 1"},
		"too much":             {`{poolRef: {name: p}, count: 2147483648` + rest, "spec.count"},
		"no address":           {`{poolRef: {name: p}, pinnedRange: {startAddress: 10.0.0.300, endAddress: 10.0.1.0}` + rest, "spec.pinnedRange.startAddress"},
		"half a range":         {`{poolRef: {name: p}, pinnedRange: {startAddress: 10.0.0.3}` + rest, "spec.pinnedRange.endAddress ... Required"},
		"end before start":     {`{poolRef: {name: p}, pinnedRange: {startAddress: 10.0.0.3, endAddress: 10.0.0.2}` + rest, "endAddress is before startAddress"},
		"families of a range":  {`{poolRef: {name: p}, pinnedRange: {startAddress: 10.0.0.3, endAddress: "fd00::1"}` + rest, "one family"},
		"a block without pool": {`{poolRef: {name: p}, type: pool, prefixLength: 26}`, "has childPoolRef and prefixLength"},
		"a block of no size":   {`{poolRef: {name: p}, type: pool, childPoolRef: {name: q}}`, "has childPoolRef and prefixLength"},
		"a block of a count":   {`{poolRef: {name: p}, type: pool, childPoolRef: {name: q}, prefixLength: 26, count: 3}`, "neither tenantClusterRef nor count"},
		"a block of both":      {`{poolRef: {name: p}, childPoolRef: {name: q}, prefixLength: 26` + rest, "childPoolRef is for allocations of type pool ... prefixLength is for allocations of type pool or pods"},
		"a block for both":     {`{poolRef: {name: p}, type: pool, childPoolRef: {name: q}, prefixLength: 26, tenantClusterRef: {name: c, namespace: ns}}`, "neither tenantClusterRef nor count"},
		"pods of no size":      {`{poolRef: {name: p}, type: pods, tenantClusterRef: {name: c, namespace: ns}}`, "has prefixLength, and no count"},
		"pods of a count":      {`{poolRef: {name: p}, type: pods, prefixLength: 20, count: 3, tenantClusterRef: {name: c, namespace: ns}}`, "has prefixLength, and no count"},
		"pods without Cluster": {`{poolRef: {name: p}, type: pods, prefixLength: 20}`, "is for a Cluster"},
		"a prefix too long":    {`{poolRef: {name: p}, type: pool, childPoolRef: {name: q}, prefixLength: 129}`, "spec.prefixLength"},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			err := k8s.Create(t.Context(), allocationOf(g, c.spec), client.DryRunAll)
			g.Expect(err).To(HaveOccurred())
			for part := range strings.SplitSeq(c.want, " ... ") {
				g.Expect(err).To(MatchError(ContainSubstring(part)))
			}
		})
	}
}

func TestGoodAllocationsApply(t *testing.T) {
	for name, spec := range map[string]string{
		"the least":     `{poolRef: {name: p}, type: nodes, tenantClusterRef: {name: c, namespace: ns}}`,
		"a global pool": `{poolRef: {name: p, kind: GlobalNetworkPool}, type: nodes, tenantClusterRef: {name: c, namespace: ns}}`,
		"the most":      `{poolRef: {name: p}, count: 2147483647, type: nodes, tenantClusterRef: {name: c, namespace: ns}}`,
		"one address":   `{poolRef: {name: p}, type: nodes, tenantClusterRef: {name: c, namespace: ns}, pinnedRange: {startAddress: 10.0.0.9, endAddress: 10.0.0.9}}`,
		"for a pool":    `{poolRef: {name: p}, type: pool, childPoolRef: {name: q}, prefixLength: 26}`,
		"for a global":  `{poolRef: {name: p, kind: GlobalNetworkPool}, type: pool, childPoolRef: {kind: GlobalNetworkPool, name: q}, prefixLength: 56}`,
		"for Pods":      `{poolRef: {name: p}, type: pods, prefixLength: 20, tenantClusterRef: {name: c, namespace: ns}}`,
		"IPv6":          `{poolRef: {name: p}, type: nodes, tenantClusterRef: {name: c, namespace: ns}, pinnedRange: {startAddress: "fd00::1", endAddress: "fd00::f"}}`,
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			g.Expect(k8s.Create(t.Context(), allocationOf(g, spec), client.DryRunAll, client.FieldValidation("Strict"))).To(Succeed())
		})
	}
}

func TestAllocationsAreImmutableAndBeginPending(t *testing.T) { // B13
	g := NewWithT(t)
	o := framework.MakeAllocation(metav1.NamespaceDefault, "fixed").Count(4).Obj()
	g.Expect(k8s.Create(t.Context(), o)).To(Succeed())
	g.Expect(k8s.Get(t.Context(), client.ObjectKeyFromObject(o), o)).To(Succeed())
	g.Expect(o.Status.Phase).To(Equal(v1alpha1.AllocationPending))
	g.Expect(o.Spec.PoolRef.Kind).To(Equal(v1alpha1.NetworkPoolKind))
	for name, change := range map[string]func(*v1alpha1.IPAllocationSpec){
		"pool":    func(s *v1alpha1.IPAllocationSpec) { s.PoolRef.Name = "q" },
		"count":   func(s *v1alpha1.IPAllocationSpec) { *s.Count = 5 },
		"type":    func(s *v1alpha1.IPAllocationSpec) { s.Type = v1alpha1.NodesAllocation },
		"cluster": func(s *v1alpha1.IPAllocationSpec) { s.TenantClusterRef.Name = "other" },
		"pin": func(s *v1alpha1.IPAllocationSpec) {
			s.PinnedRange = &v1alpha1.PinnedRange{StartAddress: "10.0.0.1", EndAddress: "10.0.0.1"}
		},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			changed := o.DeepCopy()
			change(&changed.Spec)
			g.Expect(k8s.Update(t.Context(), changed)).To(MatchError(ContainSubstring("is immutable")))
		})
	}
	o.Labels = map[string]string{"butler.butlerlabs.dev/team": "a"}
	g.Expect(k8s.Update(t.Context(), o)).To(Succeed())
}

// Users of Butler apply their existing manifests (B11).
func TestButlersAllocationsApplyUnchanged(t *testing.T) {
	g := NewWithT(t)
	allocations := documents(g, read(g, "testdata/butler-allocations.yaml"))
	g.Expect(allocations).To(HaveLen(2))
	for _, u := range allocations {
		u.SetNamespace(metav1.NamespaceDefault)
		g.Expect(k8s.Create(t.Context(), u, client.FieldValidation("Strict"))).To(Succeed())
	}
}
