package cli

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

// An audit before a move lists what clusterctl would leave behind: claims whose owners lead to no Cluster.
func TestAuditBeforeMove(t *testing.T) { // C51
	ns, other := newNamespace(t, nil), newNamespace(t, nil)
	startManager(t, "")
	cluster := &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "prod"}}
	cluster.Spec.ControlPlaneEndpoint = clusterv1.APIEndpoint{Host: "h", Port: 1}
	machine := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "machine"}}
	foreign := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "foreign"}}
	pool := framework.MakeGlobalPool(ns).CIDR("10.91.6.0/28").Obj()
	create(t, cluster)
	machine.OwnerReferences = []metav1.OwnerReference{{APIVersion: clusterv1.GroupVersion.String(), Kind: "Cluster", Name: "prod", UID: cluster.UID}}
	for _, o := range []client.Object{machine, foreign, pool} {
		create(t, o)
	}
	ready(t, pool, metav1.ConditionTrue)
	of := func(namespace, name string, owner *corev1.ConfigMap, labels ...string) {
		claim := framework.MakeClaim(namespace, name).GlobalPool(ns).Obj()
		if owner != nil {
			claim.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "ConfigMap", Name: owner.Name, UID: owner.UID}}
		}
		for _, l := range labels {
			metav1.SetMetaDataLabel(&claim.ObjectMeta, l, "")
		}
		create(t, claim)
		ready(t, claim, metav1.ConditionTrue)
	}
	of(ns, "of-the-cluster", machine)
	of(ns, "labelled", foreign, v1alpha1.MoveLabel)
	of(ns, "alone", nil) // the manager labels it
	out, _, code := run(t, "audit", "--move")
	if code != 0 || strings.Contains(out, "move ") {
		t.Errorf("exit code %d\n%s", code, out)
	}
	of(ns, "stays", foreign)
	of(other, "elsewhere", nil)
	out, _, code = run(t, "audit", "--move")
	pair := []string{ns, other}
	if other < ns {
		pair = []string{other, ns}
	}
	for _, want := range []string{
		"move      IPAddressClaim " + ns + "/stays has an address of GlobalNetworkPool " + ns + ", and its owners lead to no Cluster",
		"move      GlobalNetworkPool " + ns + " is used in the namespaces " + strings.Join(pair, ", ") + ": clusterctl copies it with each",
	} {
		if code != 1 || strings.Count(out, "  move  ") != 2 || !strings.Contains(out, want) {
			t.Errorf("exit code %d, and it does not say %q:\n%s", code, want, out)
		}
	}
	// W29: a labelled claim is moved along.
	stays := framework.MakeClaim(ns, "stays").Obj()
	label := client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"labels":{"`+v1alpha1.MoveLabel+`":""}}}`))
	if err := k8s.Patch(t.Context(), stays, label); err != nil {
		t.Fatal(err)
	}
	if out, _, code := run(t, "audit", "--move"); code != 1 || strings.Contains(out, "/stays") || strings.Count(out, "  move  ") != 1 {
		t.Errorf("exit code %d, when it is labelled:\n%s", code, out)
	}
}
