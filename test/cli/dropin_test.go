package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/dropin"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/incluster"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

// oldPool creates a pool of the in-cluster provider.
func oldPool(t *testing.T, ns, name string, marks map[string]string, spec map[string]any) *unstructured.Unstructured {
	t.Helper()
	pool := incluster.PoolKinds[0].NewPool()
	pool.SetNamespace(ns)
	pool.SetName(name)
	pool.SetAnnotations(marks)
	pool.Object["spec"] = spec
	create(t, pool)
	return pool
}

// Before a swap, the command lists the pools that are not served.
func TestDropIn(t *testing.T) {
	ns := newNamespace(t, nil)
	oldPool(t, ns, "fine", nil, map[string]any{"addresses": []any{"10.95.0.10-10.95.0.19"}, "prefix": int64(24)})
	oldPool(t, ns, "far", nil, map[string]any{"addresses": []any{"10.95.1.10-10.95.1.19"}, "prefix": int64(24), "gateway": "10.99.0.1"})
	expect(t, 0, fmt.Sprintf(""+
		"NAMESPACE  NAME  KIND             SERVED\n"+
		"%-9[1]s  far   InClusterIPPool  yes\n"+
		"%-9[1]s  fine  InClusterIPPool  yes\n"+
		"InClusterIPPool %[1]s/far: the gateway 10.99.0.1 is in no network of the pool: IPAddresses name it all the same\n", ns), "drop-in", "-n", ns)
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "old", Labels: map[string]string{"cluster.x-k8s.io/provider": "ipam-in-cluster"}},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "manager", Image: "x"}}},
	}
	create(t, pod)
	want := "note: the in-cluster provider runs (pod -n " + ns + " old); before you swap: wait until it has ended\n"
	if _, errOut, code := run(t, "drop-in", "-n", ns); code != 0 || errOut != want {
		t.Errorf("exit code %d\n%s\nwant\n%s", code, errOut, want)
	}
	if err := k8s.Delete(t.Context(), pod, client.GracePeriodSeconds(0)); err != nil {
		t.Fatal(err)
	}
	oldPool(t, ns, "mapped", nil, map[string]any{"addresses": []any{"::ffff:10.95.2.10-::ffff:10.95.2.19"}, "prefix": int64(120)})
	out, _, code := run(t, "drop-in", "-A")
	if want := "InClusterIPPool " + ns + "/mapped: this pool is not served: spec.addresses: "; code != 1 || !strings.Contains(out, want) {
		t.Errorf("exit code %d\n%s\nwant\n%s", code, out, want)
	}
}

// The way back: the command lists what blocks it, and leaves nothing behind that keeps a pool or a namespace from
// deletion.
func TestHandBack(t *testing.T) {
	ns := newNamespace(t, nil)
	oldPool(t, ns, "kept", nil, map[string]any{"addresses": []any{"10.96.0.10-10.96.0.19"}, "prefix": int64(24)})
	handedOver := oldPool(t, ns, "given", map[string]string{incluster.HandedOverAnnotation: "", "note": "x"},
		map[string]any{"addresses": []any{"10.96.1.10-10.96.1.19"}, "prefix": int64(24)})
	m, err := framework.StartManager(t.Context(), framework.ManagerOptions{Kubeconfig: cp.Kubeconfig, Args: []string{"--namespace=" + ns, "--serve-in-cluster-pools"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = m.Kill() })
	old := framework.MakeClaim(ns, "old").PoolRef(incluster.GroupVersion.Group, incluster.IPPoolKind, "kept").Obj()
	direct := framework.MakeClaim(ns, "direct").Pool("given.in-cluster").Obj()
	create(t, old, direct)
	ready(t, old, metav1.ConditionTrue)
	ready(t, direct, metav1.ConditionTrue)
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "manager", Labels: map[string]string{"cluster.x-k8s.io/provider": "ipam-butler"}},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "manager", Image: "x", Args: []string{"--leader-elect", "--serve-in-cluster-pools"}}}},
	}
	create(t, pod)
	besideInCluster(t, ns)
	expect(t, 1, "a manager serves the pools: pod -n "+ns+" manager", "hand-back", "--apply", "-o", "jsonpath={.problems[0].what}")
	plan := "2 pools are handed back to the in-cluster provider:\n  InClusterIPPool " + ns + "/given\n  InClusterIPPool " + ns + "/kept\n"
	eventually(t, settled(&v1alpha1.NetworkPool{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "kept.in-cluster"}}, 1))
	expect(t, 1, plan+"Obstacles:\n"+
		"  a manager serves the pools: pod -n "+ns+" manager\n    to do: take --serve-in-cluster-pools off its arguments, and wait until its Pod is gone\n"+
		"  IPAddress "+ns+"/direct has 10.96.1.10 of NetworkPool "+ns+"/given.in-cluster\n"+
		"    to do: delete it, or move its machine to a pool that the in-cluster provider does not have\n", "hand-back", "--apply")
	if err := k8s.Delete(t.Context(), direct); err != nil {
		t.Fatal(err)
	}
	eventually(t, gone(direct))
	if err := errors.Join(m.Stop(), k8s.Delete(t.Context(), pod, client.GracePeriodSeconds(0))); err != nil {
		t.Fatal(err)
	}
	// A component sets the flag in the environment of the manager: the conditions of the mirrors show that they are
	// served until a manager without the flag has reconciled them.
	pod.ObjectMeta = metav1.ObjectMeta{Namespace: ns, Name: "manager", Labels: pod.Labels}
	pod.Spec.Containers[0].Args = nil
	create(t, pod)
	expect(t, 1, plan+"Obstacles:\n"+
		"  a manager serves NetworkPool "+ns+"/given.in-cluster: pod -n "+ns+" manager\n"+
		"    to do: remove the component in-cluster-pools, restart the manager, and wait until the pool has the reason NotServed; or stop the manager\n", "hand-back", "--apply")
	if err := k8s.Delete(t.Context(), pod, client.GracePeriodSeconds(0)); err != nil {
		t.Fatal(err)
	}
	expect(t, 0, plan+"There are no obstacles. Nothing has been written yet: run again with --apply.\n", "hand-back")
	expect(t, 0, "given kept", "drop-in", "-n", ns, "-o", "jsonpath={.items[*].name}")
	expect(t, 0, "true InClusterIPPool "+ns+"/given InClusterIPPool "+ns+"/kept []", "hand-back", "--apply", "-o", "jsonpath={.handedBack} {.pools[*]} {.problems}")
	expect(t, 0, "0 pools are handed back: start the in-cluster provider.\n", "hand-back", "--apply")
	expect(t, 0, "There is nothing to hand back.\n", "hand-back")
	mirrors := &v1alpha1.NetworkPoolList{}
	if err := errors.Join(k8s.List(t.Context(), mirrors, client.InNamespace(ns)), k8s.Get(t.Context(), client.ObjectKeyFromObject(handedOver), handedOver)); err != nil {
		t.Fatal(err)
	}
	if marks := handedOver.GetAnnotations(); len(mirrors.Items) > 0 || len(marks) != 1 {
		t.Errorf("%d mirrors are left, the pool has the annotations %v", len(mirrors.Items), marks)
	}
}

// besideInCluster scales the in-cluster provider up beside a manager, as a user might: only these two commands report
// that.
func besideInCluster(t *testing.T, ns string) {
	t.Helper()
	about := map[string]string{"cluster.x-k8s.io/provider": "ipam-in-cluster"}
	d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "old", Labels: about}, Spec: appsv1.DeploymentSpec{
		Selector: &metav1.LabelSelector{MatchLabels: about},
		Template: corev1.PodTemplateSpec{
			ObjectMeta: metav1.ObjectMeta{Labels: about},
			Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "manager", Image: "x"}}},
		},
	}}
	create(t, d)
	want := "the in-cluster provider runs (deployment -n " + ns + " old) beside a manager that serves its pools, and would give an address twice: " +
		"kubectl scale deployment -n " + ns + " old --replicas=0, and have nothing start it again (docs/in-cluster.md)\n"
	if _, errOut, code := run(t, "drop-in", "-n", ns); code != 1 || errOut != "note: "+want {
		t.Errorf("exit code %d\n%s\nwant\n%s", code, errOut, want)
	}
	if out, _, code := run(t, "audit"); code != 1 || !strings.HasSuffix(out, "  danger    "+want) {
		t.Errorf("exit code %d\n%s\nwant\n%s", code, out, want)
	}
	d.Spec.Replicas = ptr.To[int32](0)
	if err := k8s.Update(t.Context(), d); err != nil {
		t.Fatal(err)
	}
	for _, command := range []string{"drop-in", "audit"} {
		if out, errOut, code := run(t, command, "-n", ns); code != 0 || errOut != "" || strings.Contains(out, "danger") {
			t.Errorf("%s: exit code %d\n%s%s", command, code, out, errOut)
		}
	}
}

// U86: after a move no object has a status. The command explains that the pool is a copy, and why it is not served.
func TestExplainMovedMirror(t *testing.T) {
	ns := newNamespace(t, nil)
	m, err := framework.StartManager(t.Context(), framework.ManagerOptions{Kubeconfig: cp.Kubeconfig, Args: []string{"--namespace=" + ns}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = m.Kill() })
	mirror := framework.MakePool("p.in-cluster").Namespace(ns).Addresses("10.98.0.10-10.98.0.19").Obj()
	claim := framework.MakeClaim(ns, "c").PoolRef(incluster.GroupVersion.Group, incluster.IPPoolKind, "p").Obj()
	address := &ipamv1.IPAddress{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "c"}, Spec: ipamv1.IPAddressSpec{
		ClaimRef: ipamv1.IPAddressClaimReference{Name: "c"}, PoolRef: claim.Spec.PoolRef, Address: "10.98.0.10", Prefix: ptr.To[int32](24),
	}}
	create(t, mirror, claim, address)
	eventually(t, func(ctx context.Context) error {
		if err := k8s.Get(ctx, client.ObjectKeyFromObject(mirror), mirror); err != nil {
			return err
		}
		if len(mirror.Status.Conditions) == 0 {
			return errors.New("it says nothing")
		}
		return nil
	})
	why := "NetworkPool " + ns + "/p.in-cluster mirrors a pool of the in-cluster provider, and this manager runs without --serve-in-cluster-pools; " +
		"add the component in-cluster-pools, or hand the pools back with kubectl butler-ipam hand-back\n"
	expect(t, 1, "NetworkPool "+ns+"/p.in-cluster grants nothing\n  why:    NotServed: "+why, "explain", "np/p.in-cluster", "-n", ns)
	expect(t, 1, "IPAddressClaim "+ns+"/c has 10.98.0.10 of NetworkPool p.in-cluster, which its status does not show yet: its requester waits\n"+
		"  why:    NetworkPool "+ns+"/p.in-cluster grants nothing now (NotServed): "+why, "explain", "claim/c", "-n", ns)
}

// The command dies at each of its writes, before and after it, and is repeated. The pool is not opened as long as its
// mirror exists.
func TestHandBackDies(t *testing.T) {
	const writes = 3
	for at := 1; at <= writes; at++ {
		for _, lost := range []bool{false, true} {
			t.Run(fmt.Sprintf("at %d lost=%t", at, lost), func(t *testing.T) {
				ns := newNamespace(t, nil)
				pool := oldPool(t, ns, "p", map[string]string{incluster.HandedOverAnnotation: "", clusterv1.PausedAnnotation: ""},
					map[string]any{"addresses": []any{"10.97.0.10-10.97.0.19"}, "prefix": int64(24)})
				mirror := framework.MakePool("p.in-cluster").Namespace(ns).Addresses("10.97.0.10-10.97.0.19").Obj()
				mirror.Finalizers = []string{v1alpha1.PoolFinalizer}
				mirror.OwnerReferences = []metav1.OwnerReference{{
					APIVersion: incluster.GroupVersion.String(), Kind: incluster.IPPoolKind, Name: "p", UID: pool.GetUID(), Controller: ptr.To(true),
				}}
				create(t, mirror)
				back := func(c client.Client) error {
					_, err := (&dropin.HandBack{Client: c, Now: time.Now, Reportf: func(string, ...any) {}}).Apply(t.Context())
					return err
				}
				if err := back(newDyingClient(at, lost)); !errors.Is(err, errDied) {
					t.Fatalf("it did not die: %v", err)
				}
				if err := k8s.Get(t.Context(), client.ObjectKeyFromObject(pool), pool); err != nil {
					t.Fatal(err)
				}
				if gone(mirror)(t.Context()) != nil && !incluster.IsHandedOver(pool) {
					t.Error("the pool is open, and its mirror is there")
				}
				if err := back(k8s); err != nil {
					t.Fatal(err)
				}
				if err := errors.Join(gone(mirror)(t.Context()), k8s.Get(t.Context(), client.ObjectKeyFromObject(pool), pool)); err != nil || len(pool.GetAnnotations()) > 0 {
					t.Errorf("the pool has the annotations %v: %v", pool.GetAnnotations(), err)
				}
			})
		}
	}
}
