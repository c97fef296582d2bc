package cli

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

// A claim that is deleted while the import runs is released, and not created again.
func TestImportDeletedMeanwhile(t *testing.T) {
	for name, back := range map[string]bool{"and on": false, "and back": true} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, false)
			if _, err := w.move(newDyingClient(5, false)).Apply(t.Context()); err == nil { // the pool exists, no claim is converted yet
				t.Fatal("it did not die")
			}
			if err := k8s.Delete(t.Context(), framework.MakeClaim(w.ns, "b").Obj()); err != nil {
				t.Fatal(err)
			}
			if _, err := w.move(k8s).Apply(t.Context()); err != nil {
				t.Fatal(err)
			}
			claim := w.listClaimsAndAddresses(t)["b"]
			if claim.Address != "" || len(claim.Finalizers) != 1 || claim.Finalizers[0] != foreignFinalizer {
				t.Errorf("the claim that was deleted is %+v", claim)
			}
			// The other controller removes its finalizer.
			none := client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":[]}}`))
			if err := k8s.Patch(t.Context(), framework.MakeClaim(w.ns, "b").Obj(), none); err != nil {
				t.Fatal(err)
			}
			delete(w.before, "b")
			w.expectMoved(t)
			if back {
				if err := w.move(k8s).Rollback(t.Context()); err != nil {
					t.Fatal(err)
				}
				w.expectBack(t)
			}
		})
	}
}

// Claims that were created after an import cannot be rolled back with it.
func TestRollbackLater(t *testing.T) {
	w := newWorld(t, false)
	if _, err := w.move(k8s).Apply(t.Context()); err != nil {
		t.Fatal(err)
	}
	later := framework.MakeClaim(w.ns, "later").Pool(w.source.Name).Obj()
	create(t, later)
	if err := w.move(k8s).Rollback(t.Context()); err == nil || !strings.Contains(err.Error(), "claim "+w.ns+"/later came after the import") {
		t.Fatal(err)
	}
	if err := k8s.Delete(t.Context(), later); err != nil {
		t.Fatal(err)
	}
	if err := w.move(k8s).Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.expectBack(t)
}

// The plugin itself: the plan, what blocks it, and its output.
func TestImportCommand(t *testing.T) {
	const ns = "team-b" // as in docs/migration.md
	createNamespace(t, ns, nil)
	w := newWorldIn(t, ns, "10.60.0", false)
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "manager", Labels: map[string]string{"cluster.x-k8s.io/provider": "ipam-in-cluster"}},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "manager", Image: "x"}}},
	}
	create(t, pod)
	w.unpause(t)
	out, errOut, code := run(t, "import", "machines", "-n", ns, "--apply")
	want := "Obstacles:\n" +
		"  the in-cluster provider runs: pod -n team-b manager\n    to do: wait until it has ended\n" +
		"  Cluster team-b/k is not paused\n    to do: kubectl patch cluster -n team-b k --type=merge -p '{\"spec\":{\"paused\":true}}'\n"
	if code != 1 || !strings.HasSuffix(out, want) {
		t.Errorf("exit code %d\n%s%s\nwant\n%s", code, out, errOut, want)
	}
	if err := k8s.Patch(t.Context(), w.cluster, pausePatch); err != nil {
		t.Fatal(err)
	}
	if err := k8s.Delete(t.Context(), pod, client.GracePeriodSeconds(0)); err != nil {
		t.Fatal(err)
	}
	w.before = w.listClaimsAndAddresses(t)
	createNamespace(t, "metal3", nil)
	metal3 := newMetal3WorldIn(t, "metal3", "10.61.0")
	for ns, want := range map[string]string{ns: "machines\n", "metal3": "ippool/hosts\n"} {
		if out, _, _ := run(t, "__complete", "import", "-n", ns, ""); !strings.Contains(out, want) {
			t.Errorf("import completes to\n%s\nwant\n%s", out, want)
		}
	}
	documented(t, "migration.md")
	w.expectBack(t)
	metal3.expectBack(t)
}

// The machine-readable output has the plan, the progress of the import, and the next steps.
func TestImportForPrograms(t *testing.T) {
	w := newWorld(t, false)
	imported, back := w.source.NextSteps()
	pool := "NetworkPool " + w.ns + "/machines"
	const resume = "--apply resumes it, --rollback undoes it, and --forget removes the journal of a finished one."
	for _, step := range []struct {
		flags []string
		want  string
	}{
		{[]string{"--apply"}, "Imported|" + pool + "|" + imported},
		{nil, "Imported||" + resume},
		{[]string{"--rollback"}, "RolledBack||" + back},
		{[]string{"--apply"}, "Imported|" + pool + "|" + imported},
		{[]string{"--forget"}, "Forgotten||"},
	} {
		const format = "jsonpath={.phase}|{.target}|{.next}"
		expect(t, 0, step.want, append([]string{"import", "machines", "-n", w.ns, "-o", format, "--allow-missing-template-keys"}, step.flags...)...)
	}
}

// The error for a global pool that is named as a pool of the namespace shows the correct syntax.
func TestImportOfNothing(t *testing.T) {
	ns := newNamespace(t, nil)
	for _, args := range [][]string{{}, {"--apply"}} {
		_, errOut, code := run(t, append([]string{"import", "dmz", "-n", ns}, args...)...)
		if want := "InClusterIPPool " + ns + "/dmz does not exist; is it a global one? Then write global/dmz"; code != 2 || !strings.Contains(errOut, want) {
			t.Errorf("exit code %d\n%s\nwant\n%s", code, errOut, want)
		}
	}
}

// CAPV writes its pool into a claim again at every reconcile, and Cluster API makes that field immutable: such a
// machine cannot be moved. Cluster API's own admission refuses here what CAPV would write.
func TestImportOfVSphere(t *testing.T) {
	w := newWorld(t, false)
	claim := framework.MakeClaim(w.ns, "a").Obj()
	get := func() {
		if err := k8s.Get(t.Context(), client.ObjectKeyFromObject(claim), claim); err != nil {
			t.Fatal(err)
		}
	}
	get()
	claim.OwnerReferences = append(claim.OwnerReferences, metav1.OwnerReference{
		APIVersion: "infrastructure.cluster.x-k8s.io/v1beta2", Kind: "VSphereVM", Name: "worker-0", UID: "vm",
	})
	if err := k8s.Update(t.Context(), claim); err != nil {
		t.Fatal(err)
	}
	before := w.listClaimsAndAddresses(t)
	out, errOut, code := run(t, "import", "machines", "-n", w.ns, "--apply")
	want := "Obstacles:\n" +
		"  claims of 1 VSphereVM (" + w.ns + "/worker-0): CAPV writes the pool of the network device into the claim at every reconcile, which Cluster API refuses for another pool; " +
		"these machines would fail until they are replaced\n" +
		"    to do: serve the pool in place, hand it over, and let the machines roll over: docs/in-cluster.md\n"
	if code != 1 || !strings.HasSuffix(out, want) {
		t.Errorf("exit code %d\n%s%s\nwant\n%s", code, out, errOut, want)
	}
	if diff := cmp.Diff(before, w.listClaimsAndAddresses(t)); diff != "" {
		t.Errorf("something was written: %s", diff)
	}
	w.expectNoJournal(t)
	get()
	claim.Spec.PoolRef = ipamv1.IPPoolReference{APIGroup: v1alpha1.GroupVersion.Group, Kind: v1alpha1.NetworkPoolKind, Name: "machines"}
	if err := k8s.Update(t.Context(), claim); err == nil || !strings.Contains(err.Error(), "spec is immutable") {
		t.Errorf("another pool in the claim: %v", err)
	}
}
