package cli

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	m3ipamv1 "github.com/metal3-io/ip-address-manager/api/v1alpha1"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/migrate"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

// The import from Metal3's IPAM dies at every write, and is resumed or rolled back, like the import from the
// in-cluster provider. CAPM3 finds all addresses at each of these moments: U60, U61, U64.
func TestImportMetal3(t *testing.T) {
	served := importDyingAnywhere(t, newMetal3World)
	t.Run("two pools of a namespace, of both families", func(t *testing.T) {
		v4 := newMetal3World(t)
		gateway := ptr.To(m3ipamv1.IPAddressStr("fe80::1"))
		v6 := newMetal3WorldOf(t, v4.ns, "hosts-v6", m3ipamv1.IPPoolSpec{
			NamePrefix: "six", Prefix: 64, Gateway: gateway, Pools: []m3ipamv1.Pool{{Subnet: ptr.To(m3ipamv1.IPSubnetStr("fd00:60::/64"))}},
		}, map[string]m3ipamv1.IPAddressSpec{"workers-0": {Address: "fd00:60::1", Prefix: 64, Gateway: gateway}})
		apply(t, v6.move(k8s))
		v6.expectMoved(t)
		if !v4.poolExists(t) {
			t.Error("the other pool is gone")
		}
		apply(t, v4.move(k8s))
		v4.expectMoved(t)
		if err := v6.move(k8s).Rollback(t.Context()); err != nil {
			t.Fatal(err)
		}
		v6.expectBack(t)
		v4.expectMoved(t)
	})
	t.Run("served", func(t *testing.T) { serve(t, served) })
}

func apply(t *testing.T, m *migrate.Import) {
	t.Helper()
	if _, err := m.Apply(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// releaseAsCAPM3 does what CAPM3 does when a machine is deleted whose template names the pool of Metal3. The garbage
// collector does not run here: it would delete our claim, which the IPClaim owns.
func (w *metal3World) releaseAsCAPM3(t *testing.T, name string) {
	t.Helper()
	claim := &m3ipamv1.IPClaim{ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: name}}
	mine := client.RawPatch(types.JSONPatchType, []byte(`[{"op": "test", "path": "/metadata/finalizers/0", "value": "`+framework.Metal3DataFinalizer+`"},`+
		`{"op": "remove", "path": "/metadata/finalizers/0"}]`))
	if err := k8s.Patch(t.Context(), claim, mine); err != nil {
		t.Fatal(err)
	}
	if err := client.IgnoreNotFound(k8s.Delete(t.Context(), claim)); err != nil { // it is gone already if it was deleted before
		t.Fatal(err)
	}
}

// forget removes a machine from the expected state.
func (w *metal3World) forget(name string) {
	for i := 0; i < len(w.before); i++ {
		claim, isClaim := w.before[i].(*m3ipamv1.IPClaim)
		address, isAddress := w.before[i].(*m3ipamv1.IPAddress)
		if isClaim && claim.Name == name || isAddress && address.Spec.Claim.Name == name {
			w.before = append(w.before[:i], w.before[i+1:]...)
			i--
		}
	}
	delete(w.given, name)
}

// A machine that is deleted meanwhile releases its address: U65.
func TestImportMetal3MachineGoes(t *testing.T) {
	const name = "workers-1-hosts"
	for when, write := range map[string]int{"before it has a claim of ours": 8, "when it has one": 16} {
		t.Run("between two runs, "+when, func(t *testing.T) {
			w := newMetal3World(t)
			if _, err := w.move(newDyingClient(write, false)).Apply(t.Context()); err == nil {
				t.Fatal("it did not die")
			}
			if _, ok := w.listOwnObjects(t)[name]; ok != (write == 16) {
				t.Fatalf("it has a claim of ours: %t", ok)
			}
			w.releaseAsCAPM3(t, name)
			apply(t, w.move(k8s)) // the import removes Metal3's finalizer, and CAPM3's is gone already
			claim := &m3ipamv1.IPClaim{}
			if err := k8s.Get(t.Context(), client.ObjectKey{Namespace: w.ns, Name: name}, claim); client.IgnoreNotFound(err) != nil || err == nil {
				t.Fatalf("the IPClaim is there, %v: %v", claim.Finalizers, err)
			}
			w.forget(name)
			w.expectMoved(t)
		})
	}
	t.Run("after the import, and back", func(t *testing.T) {
		w := newMetal3World(t)
		apply(t, w.move(k8s))
		w.releaseAsCAPM3(t, name)
		if err := k8s.Get(t.Context(), client.ObjectKey{Namespace: w.ns, Name: name}, &m3ipamv1.IPClaim{}); client.IgnoreNotFound(err) != nil || err == nil {
			t.Fatalf("CAPM3 has released the IPClaim, and it is there: %v", err)
		}
		if err := w.move(k8s).Rollback(t.Context()); err != nil {
			t.Fatal(err)
		}
		w.forget(name)
		w.expectBack(t)
	})
	t.Run("and another one comes that has its name and its address", func(t *testing.T) {
		w := newMetal3World(t)
		apply(t, w.move(k8s))
		w.releaseAsCAPM3(t, name)
		was := w.wantOwnObjects()[name]
		none := client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":[]}}`))
		for _, old := range []client.Object{&ipamv1.IPAddress{}, &ipamv1.IPAddressClaim{}} {
			old.SetNamespace(w.ns)
			old.SetName(name)
			if err := k8s.Patch(t.Context(), old, none); err != nil {
				t.Fatal(err)
			}
			if err := k8s.Delete(t.Context(), old); err != nil {
				t.Fatal(err)
			}
		}
		later := framework.MakeClaim(w.ns, name).Pool("hosts").Obj()
		create(t, later, &ipamv1.IPAddress{ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: name}, Spec: ipamv1.IPAddressSpec{
			ClaimRef: ipamv1.IPAddressClaimReference{Name: name}, PoolRef: was.PoolRef, Address: was.Address, Prefix: &was.Prefix,
		}})
		if err := w.move(k8s).Rollback(t.Context()); err == nil || !strings.Contains(err.Error(), "claim "+w.ns+"/"+name+" is not of the import: it came later; delete it first") {
			t.Errorf("its address would be given to the next one: %v", err)
		}
	})
	t.Run("its IPClaim alone was deleted, and back", func(t *testing.T) {
		w := newMetal3World(t)
		apply(t, w.move(k8s))
		w.releaseAsCAPM3(t, name)
		ours := &ipamv1.IPAddressClaim{}
		if err := k8s.Get(t.Context(), client.ObjectKey{Namespace: w.ns, Name: name}, ours); err != nil {
			t.Fatal(err)
		}
		// The garbage collector removes the reference to the owner that is gone, as the other owner, the Metal3Data,
		// exists.
		ours.OwnerReferences = slices.DeleteFunc(ours.OwnerReferences, func(r metav1.OwnerReference) bool { return r.Kind == "IPClaim" })
		if err := k8s.Update(t.Context(), ours); err != nil {
			t.Fatal(err)
		}
		if err := w.move(k8s).Rollback(t.Context()); err != nil {
			t.Fatal(err)
		}
		w.forget(name)
		w.expectBack(t)
	})
	t.Run("while it goes, and back", func(t *testing.T) {
		w := newMetal3World(t)
		apply(t, w.move(k8s))
		claim := &m3ipamv1.IPClaim{ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: name}}
		if err := k8s.Delete(t.Context(), claim); err != nil {
			t.Fatal(err)
		}
		if err := w.move(k8s).Rollback(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := w.readAddressAsCAPM3(t, name); got != w.given[name] {
			t.Errorf("CAPM3 finds %q, and the machine is there", got)
		}
		if err := k8s.Get(t.Context(), client.ObjectKeyFromObject(claim), claim); err != nil || len(claim.Finalizers) != 1 {
			t.Errorf("it has the finalizers %v: %v", claim.Finalizers, err)
		}
	})
}

// An IPClaim that waits can be released after the import, when no IPPool is left for which Metal3's IPAM would do it:
// also one that is being deleted, and one that was created meanwhile, which the import reports: U65.
func TestImportMetal3Waiting(t *testing.T) {
	w := newMetal3World(t)
	goes := w.createIPClaim(t, "goes")
	if err := framework.AddMetal3Finalizer(t.Context(), k8s, goes); err != nil {
		t.Fatal(err)
	}
	if err := k8s.Delete(t.Context(), goes); err != nil {
		t.Fatal(err)
	}
	if _, err := w.move(newDyingClient(6, false)).Apply(t.Context()); err == nil {
		t.Fatal("it did not die")
	}
	w.createIPClaim(t, "late")
	m := w.move(k8s)
	var lines []string
	m.Reportf = func(format string, args ...any) { lines = append(lines, fmt.Sprintf(format, args...)) }
	apply(t, m)
	for _, name := range []string{"waits-hosts", "goes-hosts", "late-hosts"} {
		want := "IPClaim " + w.ns + "/" + name + " waits, and is left as it is: CAPM3 looks for its address there, so replace its machine"
		if !slices.Contains(lines, want) {
			t.Errorf("it said\n%s\nwant\n%s", strings.Join(lines, "\n"), want)
		}
		w.releaseAsCAPM3(t, name)
		err := k8s.Get(t.Context(), client.ObjectKey{Namespace: w.ns, Name: name}, &m3ipamv1.IPClaim{})
		if client.IgnoreNotFound(err) != nil || err == nil {
			t.Errorf("CAPM3 has released %s, and it is there: %v", name, err)
		}
	}
	if err := w.move(k8s).Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.forget("waits-hosts")
	w.expectBack(t)
}

// A state that the journal does not expect stops an import: U61, U63.
func TestImportMetal3Stopped(t *testing.T) {
	begun := func(t *testing.T) *metal3World {
		t.Helper()
		w := newMetal3World(t)
		if _, err := w.move(newDyingClient(6, false)).Apply(t.Context()); err == nil {
			t.Fatal("it did not die")
		}
		if w.poolExists(t) {
			t.Fatal("the IPPool exists still")
		}
		return w
	}
	stops := func(t *testing.T, w *metal3World, why string) {
		t.Helper()
		if _, err := w.move(k8s).Apply(t.Context()); err == nil || !strings.Contains(err.Error(), why) {
			t.Errorf("%v, want %q", err, why)
		}
	}
	t.Run("its provider runs", func(t *testing.T) {
		w := begun(t)
		d := &appsv1.Deployment{
			ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: "ipam", Labels: map[string]string{"cluster.x-k8s.io/provider": "ipam-metal3"}},
			Spec: appsv1.DeploymentSpec{
				Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"a": "b"}},
				Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"a": "b"}}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "m", Image: "x"}}}},
			},
		}
		create(t, d)
		stops(t, w, "Metal3's IPAM runs: deployment -n "+w.ns+" ipam: kubectl scale deployment -n "+w.ns+" ipam --replicas=0")
		if err := k8s.Delete(t.Context(), d); err != nil {
			t.Fatal(err)
		}
		resume(t, w)
	})
	t.Run("the pool was made again", func(t *testing.T) {
		w := begun(t)
		again := &m3ipamv1.IPPool{ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: w.pool.Name}, Spec: w.pool.Spec}
		create(t, again)
		stops(t, w, "was recreated since the import began: delete it")
		if err := k8s.Delete(t.Context(), again); err != nil {
			t.Fatal(err)
		}
		resume(t, w)
		// After the import a user can create the pool again: an audit finds it (U66).
		again = &m3ipamv1.IPPool{ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: w.pool.Name}, Spec: w.pool.Spec}
		create(t, again)
		out, _, code := run(t, "audit")
		if want := "danger    Metal3 has an IPPool " + w.ns + "/hosts, and its IPAM gives addresses to claims on any pool of that name"; code != 1 || !strings.Contains(out, want) {
			t.Errorf("exit code %d\n%s\nwant\n%s", code, out, want)
		}
		if err := k8s.Delete(t.Context(), again); err != nil {
			t.Fatal(err)
		}
	})
	t.Run("an IPClaim was made again", func(t *testing.T) {
		w := begun(t)
		const name = "workers-0-hosts"
		none := client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":[]}}`))
		old := &m3ipamv1.IPClaim{ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: name}}
		if err := k8s.Patch(t.Context(), old, none); err != nil {
			t.Fatal(err)
		}
		if err := k8s.Delete(t.Context(), old); err != nil {
			t.Fatal(err)
		}
		create(t, &m3ipamv1.IPClaim{ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: name}, Spec: old.Spec})
		stops(t, w, "IPClaim "+w.ns+"/"+name+" or its IPAddress prov-")
	})
	t.Run("another claim was granted an address meanwhile", func(t *testing.T) {
		w := begun(t)
		late := w.createIPClaim(t, "late")
		if err := framework.FulfilAsMetal3(t.Context(), k8s, w.pool, late, m3ipamv1.IPAddressSpec{Address: m3ipamv1.IPAddressStr(w.given["workers-0-hosts"] + "1")}); err != nil {
			t.Fatal(err)
		}
		// Its provider may have stopped before it wrote the status.
		late.Status.Address = nil
		if err := k8s.Status().Update(t.Context(), late); err != nil {
			t.Fatal(err)
		}
		stops(t, w, "of IPPool hosts was created while the import ran")
	})
}

// Writes that the webhooks of Metal3's IPAM refuse while it is stopped would stop an import half way: the plan
// reports that, and an import does not begin. With the failurePolicy that the plan suggests, nothing is refused: U63.
func TestImportMetal3Webhooks(t *testing.T) {
	w := newMetal3World(t)
	crds, err := framework.FindProviderCRDs(t.Context(), framework.Metal3Module)
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(crds[0], "..", "..", "webhook", "manifests.yaml")) // its own manifest, from its module
	if err != nil {
		t.Fatal(err)
	}
	docs := bytes.Split(text, []byte("\n---\n"))
	mutating, validating := &admissionv1.MutatingWebhookConfiguration{}, &admissionv1.ValidatingWebhookConfiguration{}
	for i, obj := range []client.Object{mutating, validating} {
		if err := yaml.Unmarshal(docs[i], obj); err != nil {
			t.Fatal(err)
		}
		create(t, obj)
		t.Cleanup(func() {
			if err := k8s.Delete(context.Background(), obj); err != nil {
				t.Error(err)
			}
		})
	}
	refused := &m3ipamv1.IPClaim{ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: "x"}, Spec: m3ipamv1.IPClaimSpec{Pool: corev1.ObjectReference{Name: "hosts"}}}
	eventually(t, func(ctx context.Context) error { // the API server reads its webhooks after a while
		if err := k8s.Create(ctx, refused.DeepCopy(), client.DryRunAll); err == nil || !strings.Contains(err.Error(), "failed calling webhook") {
			return fmt.Errorf("an IPClaim is admitted: %w", err)
		}
		return nil
	})
	out, _, code := run(t, "import", "ippool/hosts", "-n", w.ns, "--apply")
	for _, webhook := range []string{"validatingwebhookconfiguration validating-webhook-configuration", "mutatingwebhookconfiguration mutating-webhook-configuration"} {
		want := "  Metal3's IPAM is asked about each write of its objects, and does not answer while it is stopped: " + webhook +
			"\n    to do: kubectl get " + webhook + " -o yaml | sed 's/failurePolicy: Fail/failurePolicy: Ignore/' | kubectl replace -f -"
		if code != 1 || !strings.Contains(out, want) {
			t.Errorf("exit code %d\n%s\nwant\n%s", code, out, want)
		}
	}
	w.expectBack(t) // the import wrote nothing
	for i := range mutating.Webhooks {
		mutating.Webhooks[i].FailurePolicy = ptr.To(admissionv1.Ignore)
	}
	for i := range validating.Webhooks {
		validating.Webhooks[i].FailurePolicy = ptr.To(admissionv1.Ignore)
	}
	for _, obj := range []client.Object{mutating, validating} {
		if err := k8s.Update(t.Context(), obj); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, func(ctx context.Context) error { return k8s.Create(ctx, refused.DeepCopy(), client.DryRunAll) })
	apply(t, w.move(k8s))
	w.expectMoved(t)
	if err := w.move(k8s).Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.expectBack(t)
}
