package api_test

import (
	"context"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

// leaseOf returns an IPLease with a spec in YAML, as kubectl apply would send it.
func leaseOf(g *WithT, spec string) *unstructured.Unstructured {
	content := map[string]any{}
	g.Expect(yaml.Unmarshal([]byte(spec), &content)).To(Succeed())
	u := &unstructured.Unstructured{Object: map[string]any{"spec": content}}
	u.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind(v1alpha1.IPLeaseKind))
	u.SetGenerateName("l-")
	u.SetNamespace(metav1.NamespaceDefault)
	return u
}

func TestBadLeasesAreRefusedWhenApplied(t *testing.T) { // H4
	for name, c := range map[string]struct{ spec, want string }{
		"no pool":            {`{}`, "spec.poolRef ... Required"},
		"a nameless pool":    {`{poolRef: {name: ""}}`, "spec.poolRef.name ... at least 1 chars"},
		"another kind":       {`{poolRef: {name: p, kind: InClusterIPPool}}`, "supported values ... GlobalNetworkPool"},
		"no address":         {`{poolRef: {name: p}, address: 10.0.0.300}`, "spec.address ... must be one IPv4 or IPv6 address"},
		"a prefix":           {`{poolRef: {name: p}, address: 10.0.0.0/28}`, "spec.address ... must be one IPv4 or IPv6 address"},
		"an address at rest": {`{poolRef: {name: p}, address: "FD00::1"}`, "spec.address ... canonical form"},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			err := k8s.Create(t.Context(), leaseOf(g, c.spec), client.DryRunAll)
			g.Expect(err).To(HaveOccurred())
			for part := range strings.SplitSeq(c.want, " ... ") {
				g.Expect(err).To(MatchError(ContainSubstring(part)))
			}
		})
	}
}

// A lease keeps its address: the fields that determine it are immutable, and a second lease of the same name cannot
// be created.
func TestLeasesAreImmutable(t *testing.T) { // A3
	g := NewWithT(t)
	plain, asked := framework.MakeLease(metav1.NamespaceDefault, "plain").Obj(), framework.MakeLease(metav1.NamespaceDefault, "asked").RequestAddress("10.0.0.1").Obj()
	for _, l := range []*v1alpha1.IPLease{plain, asked} {
		g.Expect(k8s.Create(t.Context(), l)).To(Succeed())
		t.Cleanup(func() { g.Expect(k8s.Delete(context.WithoutCancel(t.Context()), l)).To(Succeed()) })
		g.Expect(k8s.Create(t.Context(), framework.MakeLease(l.Namespace, l.Name).Obj())).To(Satisfy(apierrors.IsAlreadyExists))
	}
	for name, l := range map[string]*v1alpha1.IPLease{
		"another pool":    framework.MakeLease("", "plain").Pool("q").Obj(),
		"a global pool":   framework.MakeLease("", "plain").GlobalPool("p").Obj(),
		"an address":      framework.MakeLease("", "plain").RequestAddress("10.0.0.1").Obj(),
		"another address": framework.MakeLease("", "asked").RequestAddress("10.0.0.2").Obj(),
		"no address":      framework.MakeLease("", "asked").Obj(),
	} {
		updated := map[string]*v1alpha1.IPLease{"plain": plain, "asked": asked}[l.Name].DeepCopy()
		updated.Spec = l.Spec
		err := k8s.Update(t.Context(), updated)
		g.Expect(err).To(Satisfy(apierrors.IsInvalid), name)
		g.Expect(err).To(MatchError(ContainSubstring("a lease keeps its address; delete this IPLease and create another one")), name)
	}
}

// No other load balancer implements the class of these Services.
func TestClassesOfLeases(t *testing.T) {
	for class, good := range map[string]bool{
		"":                               true,
		"butler.butlerlabs.dev/host":     true,
		"butler.butlerlabs.dev/a.b-c1":   true,
		"butler.butlerlabs.dev/":         false,
		"butler.butlerlabs.dev/Upper":    false,
		"butler.butlerlabs.dev/a/b":      false,
		"xbutler.butlerlabs.dev/a":       false,
		"metallb.io/metallb":             false,
		"metallb":                        false,
		"butler.butlerlabs.dev/ends-in-": false,
	} {
		g := NewWithT(t)
		pool := framework.MakePool("classes").Namespace(metav1.NamespaceDefault).CIDR("10.0.0.0/28").Obj()
		pool.Spec.Leases = &v1alpha1.Leases{LoadBalancerClass: class}
		err := k8s.Create(t.Context(), pool, client.DryRunAll)
		if good {
			g.Expect(err).NotTo(HaveOccurred(), class)
			continue
		}
		g.Expect(err).To(MatchError(And(ContainSubstring("spec.leases.loadBalancerClass"), ContainSubstring("such as butler.butlerlabs.dev/metallb"))), class)
	}
}
