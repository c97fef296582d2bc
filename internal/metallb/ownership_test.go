package metallb

import (
	"slices"
	"strings"
	"testing"

	metallbv1beta1 "go.universe.tf/metallb/api/v1beta1"
	"go4.org/netipx"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/balancer"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/elastic"
)

func writtenBy(o metav1.Object, managers ...string) {
	for _, m := range managers {
		o.SetManagedFields(append(o.GetManagedFields(), metav1.ManagedFieldsEntry{Manager: m, Operation: metav1.ManagedFieldsOperationUpdate}))
	}
}

func defaultPool(change ...func(*metallbv1beta1.IPAddressPool)) metallbv1beta1.IPAddressPool {
	p := metallbv1beta1.IPAddressPool{ObjectMeta: metav1.ObjectMeta{Namespace: Namespace, Name: DefaultPool}}
	p.Spec.Addresses = []string{"10.9.0.1-10.9.0.9"}
	for _, f := range change {
		f(&p)
	}
	return p
}

func showing(text string) []elastic.DesiredPool {
	return []elastic.DesiredPool{{Name: DefaultPool, Ranges: []netipx.IPRange{netipx.MustParseIPRange(text)}, AutoAssign: true}}
}

// TestForeignDefaultPool checks that a default-pool of another owner is left alone until it is handed over.
func TestForeignDefaultPool(t *testing.T) { // F23 (a pool that is handed over is taken over), B56 (other pools are left alone)
	for name, tc := range map[string]struct {
		pool        func(*metallbv1beta1.IPAddressPool)
		writes      bool
		wantMessage string
	}{
		"a person's":   {pool: func(p *metallbv1beta1.IPAddressPool) { writtenBy(p, "kubectl-create", "kubectl-create") }, wantMessage: "(kubectl-create)"},
		"of several":   {pool: func(p *metallbv1beta1.IPAddressPool) { writtenBy(p, "helm", "argocd") }, wantMessage: "(argocd, helm)"},
		"with a label": {pool: func(p *metallbv1beta1.IPAddressPool) { p.Labels = map[string]string{balancer.ManagedByLabel: "Helm"} }, wantMessage: "(no manager on record, app.kubernetes.io/managed-by=Helm)"},
		"counted by MetalLB": {pool: func(p *metallbv1beta1.IPAddressPool) {
			p.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: string(balancer.FieldOwner), Subresource: "status"}}
		}, wantMessage: "(no manager on record)"},
		"not handed over": {pool: func(p *metallbv1beta1.IPAddressPool) {
			p.Annotations = map[string]string{v1alpha1.HandOverAnnotation: "false"}
		}, wantMessage: v1alpha1.HandOverAnnotation + "=true"},
		"handed over": {pool: func(p *metallbv1beta1.IPAddressPool) {
			p.Annotations = map[string]string{v1alpha1.HandOverAnnotation: "true"}
		}, writes: true},
		"ours": {pool: func(p *metallbv1beta1.IPAddressPool) {
			p.Labels = map[string]string{balancer.ManagedByLabel: balancer.ManagedByValue}
		}, writes: true},
		"ours, without a label": {pool: func(p *metallbv1beta1.IPAddressPool) { writtenBy(p, "kubectl-edit", string(balancer.FieldOwner)) }, writes: true},
	} {
		t.Run(name, func(t *testing.T) {
			o := &ObservedCluster{pools: []metallbv1beta1.IPAddressPool{defaultPool(tc.pool)}, parsedPools: make([]elastic.Pool, 1)}
			changes := o.PlanChanges(showing("10.0.0.1-10.0.0.8"))
			if changes.HasPoolChanges() != tc.writes {
				t.Errorf("it is written: %v", changes.HasPoolChanges())
			}
			message := o.ForeignPool(DefaultPool)
			if (message == "") != tc.writes || !strings.Contains(message, tc.wantMessage) {
				t.Errorf("it says %q", message)
			}
			if empty := o.PlanChanges(nil); len(empty.deletions) > 0 != (o.pools[0].Labels[balancer.ManagedByLabel] == balancer.ManagedByValue) {
				t.Errorf("without blocks it is taken away: %v", empty.deletions)
			}
			if other := o.ForeignPool("ours-1"); other != "" {
				t.Errorf("of another name: %s", other)
			}
		})
	}
}

// TestParseOriginalPool checks that a pool gets back the state that it had when it was handed over, unless that
// overlaps with the current addresses.
func TestParseOriginalPool(t *testing.T) {
	was := defaultPool(func(p *metallbv1beta1.IPAddressPool) {
		p.Annotations = map[string]string{v1alpha1.HandOverAnnotation: "true"}
		p.Labels = map[string]string{balancer.ManagedByLabel: "Helm"}
		p.Spec.AutoAssign = ptr.To(false)
	})
	u := newPoolObject(&showing("10.0.0.1-10.0.0.8")[0], []string{"10.0.0.1-10.0.0.8"})
	if err := recordOriginalPool(u, &was); err != nil {
		t.Fatal(err)
	}
	taken := defaultPool(func(p *metallbv1beta1.IPAddressPool) {
		p.Annotations, p.Labels, p.Spec.Addresses = u.GetAnnotations(), u.GetLabels(), []string{"10.0.0.1-10.0.0.8"}
	})
	had, ok := parseOriginalPool(&taken)
	if !ok || !slices.Equal(had.Addresses, was.Spec.Addresses) || ptr.Deref(had.AutoAssign, true) || had.ManagedBy != "Helm" {
		t.Errorf("restored: %v, %+v", ok, had)
	}
	again := newPoolObject(&showing("10.0.0.1-10.0.0.9")[0], nil)
	if err := recordOriginalPool(again, &taken); err != nil || again.GetAnnotations()[v1alpha1.HandedOverAnnotation] != u.GetAnnotations()[v1alpha1.HandedOverAnnotation] {
		t.Errorf("the next write forgets: %v %v", again.GetAnnotations(), err)
	}
	taken.Spec.Addresses = []string{"10.9.0.9-10.9.0.9"}
	if _, ok := parseOriginalPool(&taken); ok {
		t.Error("an address is restored that a block had until now")
	}
	plain := defaultPool()
	if _, ok := parseOriginalPool(&plain); ok {
		t.Error("what was never handed over is restored")
	}
}

func TestPlanAdvertisement(t *testing.T) {
	label := metav1.LabelSelector{MatchLabels: map[string]string{balancer.ManagedByLabel: balancer.ManagedByValue}}
	for name, tc := range map[string]struct {
		spec    metallbv1beta1.L2AdvertisementSpec
		ours    bool
		foreign bool
		writes  bool
	}{
		"by the label":         {spec: metallbv1beta1.L2AdvertisementSpec{IPAddressPoolSelectors: []metav1.LabelSelector{label}}, ours: true},
		"a foreign label":      {spec: metallbv1beta1.L2AdvertisementSpec{IPAddressPoolSelectors: []metav1.LabelSelector{label}}},
		"of all pools":         {},
		"ours, emptied":        {ours: true, writes: true},
		"of the pool":          {spec: metallbv1beta1.L2AdvertisementSpec{IPAddressPools: []string{"x", DefaultPool}}},
		"ours, of other pools": {spec: metallbv1beta1.L2AdvertisementSpec{IPAddressPools: []string{"x"}}, ours: true, writes: true},
		"of other pools":       {spec: metallbv1beta1.L2AdvertisementSpec{IPAddressPools: []string{"x"}}, foreign: true},
	} {
		t.Run(name, func(t *testing.T) {
			a := &metallbv1beta1.L2Advertisement{ObjectMeta: metav1.ObjectMeta{Name: DefaultPool}, Spec: tc.spec}
			if tc.ours {
				writtenBy(a, string(balancer.FieldOwner))
			}
			o, want := &ObservedCluster{advertisement: a}, showing("10.0.0.1-10.0.0.8")
			if got := o.PlanChanges(want).needsAdvertisement; got != tc.writes {
				t.Errorf("it is written: %v", got)
			}
			if got := o.DescribeForeignAdvertisement(want) != ""; got != tc.foreign {
				t.Errorf("it is in the way: %v", got)
			}
			if o.DescribeForeignAdvertisement(nil) != "" {
				t.Error("there is nothing to announce")
			}
		})
	}
}
