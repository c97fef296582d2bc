package cli

import (
	"context"
	"fmt"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

// Entries that clusterctl has moved away are released by name, and nothing is written without --apply.
func TestReleaseHeld(t *testing.T) { // R9
	ns := newNamespace(t, nil)
	startManager(t, ns)
	pool := framework.MakePool("machines").Namespace(ns).CIDR("10.91.0.0/28").Gateway("10.91.0.1").Obj()
	create(t, pool)
	ready(t, pool, metav1.ConditionTrue)
	expect(t, 0, "Nothing of NetworkPool "+ns+"/machines is held.\n", "release-held", "machines", "-n", ns)
	before := pool.DeepCopy()
	for i, name := range []string{"a", "b", "c"} {
		address := fmt.Sprintf("10.91.0.%d", i+2)
		pool.Status.Held = append(pool.Status.Held, v1alpha1.HeldRange{First: address, Last: address, Reason: v1alpha1.MovedReason, Namespace: ns, Name: name})
	}
	if err := k8s.Status().Patch(t.Context(), pool, client.MergeFrom(before)); err != nil {
		t.Fatal(err)
	}
	ready(t, pool, metav1.ConditionFalse) // the manager has given the entries ids
	ids := map[string]string{}
	for _, h := range pool.Status.Held {
		ids[h.First] = h.ID
	}
	annotation := v1alpha1.ReleaseHeldAnnotation
	table := func(released ...string) string {
		return "RANGE      REASON  CLAIM" + strings.Repeat(" ", len(ns)+2-5+2) + "RELEASED\n" +
			"10.91.0.2  Moved   " + ns + "/a  " + released[0] + "\n10.91.0.3  Moved   " + ns + "/b  " + released[1] + "\n10.91.0.4  Moved   " + ns + "/c  " + released[2] + "\n"
	}
	note := "Nothing has been written yet. When nothing uses these addresses in the other management cluster, run again with --apply, or set\n" +
		"on NetworkPool " + ns + "/machines the annotation\n  " + annotation + ": "
	expect(t, 0, table("no", "yes", "yes")+note+"10.91.0.3@"+ids["10.91.0.3"]+",10.91.0.4@"+ids["10.91.0.4"]+"\n",
		"release-held", "machines", "10.91.0.3-10.91.0.9", "-n", ns)
	expect(t, 0, "10.91.0.2 10.91.0.3 10.91.0.4", "release-held", "machines", "-n", ns, "-o", "jsonpath={.entries[*].range}")
	for wrong, want := range map[string]string{
		"10.91.0.9": "no address in 10.91.0.9 is held",
		"nonsense":  "nonsense",
	} {
		if _, errOut, code := run(t, "release-held", "machines", wrong, "-n", ns); code != 2 || !strings.Contains(errOut, want) {
			t.Errorf("%s: exit code %d: %s", wrong, code, errOut)
		}
	}
	if err := k8s.Get(t.Context(), client.ObjectKeyFromObject(pool), pool); err != nil || len(pool.Status.Held) != 3 || pool.Annotations[annotation] != "" {
		t.Fatalf("a plan has changed the pool: %v %v", pool, err)
	}
	done := "NetworkPool " + ns + "/machines is annotated: the manager releases the addresses within seconds. If they stay in status.held, its Ready condition says why.\n"
	expect(t, 0, "true 10.91.0.3@"+ids["10.91.0.3"], "release-held", "machines", "10.91.0.3", "-n", ns, "--apply", "-o", "jsonpath={.annotated} {.annotation}")
	eventually(t, hasHeldEntries(pool, 2))
	expect(t, 0, done, "release-held", "np/machines", "-n", ns, "--apply")
	eventually(t, hasHeldEntries(pool, 0))
	ready(t, pool, metav1.ConditionTrue)
	if want := "10.91.0.2@" + ids["10.91.0.2"] + ",10.91.0.4@" + ids["10.91.0.4"]; pool.Annotations[annotation] != want {
		t.Errorf("the annotation is %q, want %q", pool.Annotations[annotation], want)
	}
}

// hasHeldEntries returns a condition that is met when the status of a pool holds n entries.
func hasHeldEntries(pool *v1alpha1.NetworkPool, n int) func(context.Context) error {
	return func(ctx context.Context) error {
		if err := k8s.Get(ctx, client.ObjectKeyFromObject(pool), pool); err != nil {
			return err
		}
		if len(pool.Status.Held) != n {
			return fmt.Errorf("%d entries are held, want %d: %v", len(pool.Status.Held), n, pool.Status.Held)
		}
		return nil
	}
}
