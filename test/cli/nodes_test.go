package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

func clusterCIDR(name, ipv4 string, clusters *metav1.LabelSelector, label ...string) *v1alpha1.ClusterCIDR {
	c := &v1alpha1.ClusterCIDR{ObjectMeta: metav1.ObjectMeta{Name: name}}
	c.Spec = v1alpha1.ClusterCIDRSpec{PerNodeHostBits: 8, IPv4: ipv4, ClusterSelector: clusters}
	if len(label) == 2 {
		c.Spec.NodeSelector = &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
			MatchExpressions: []corev1.NodeSelectorRequirement{{Key: label[0], Operator: corev1.NodeSelectorOpIn, Values: label[1:]}},
		}}}
	}
	return c
}

// createNodes creates Nodes, one after the other: each waits until the one before has its pod CIDR, so that it is
// predictable which Node waits.
func createNodes(t *testing.T, c client.Client, served int, names ...string) {
	t.Helper()
	for i, name := range names {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
		if err := c.Create(t.Context(), n); err != nil {
			t.Fatal(err)
		}
		eventually(t, func(ctx context.Context) error {
			if i >= served {
				return expectWaitingEvent(ctx, c, name)
			}
			if err := c.Get(ctx, client.ObjectKeyFromObject(n), n); err != nil {
				return err
			}
			if len(n.Spec.PodCIDRs) == 0 {
				return fmt.Errorf("Node %s has no pod CIDR", name)
			}
			return nil
		})
	}
}

// expectWaitingEvent returns an error unless the manager has recorded an event that a Node waits.
func expectWaitingEvent(ctx context.Context, c client.Client, node string) error {
	list := &corev1.EventList{}
	if err := c.List(ctx, list, client.MatchingFields{"involvedObject.name": node, "reason": "CIDRNotAvailable"}); err != nil {
		return err
	}
	if len(list.Items) == 0 {
		return errors.New("nothing is said of Node " + node)
	}
	return nil
}

// waitForNodeCount waits until the status of a ClusterCIDR shows the number of Nodes that use it, and no grant is in
// flight.
func waitForNodeCount(t *testing.T, c *v1alpha1.ClusterCIDR, at client.Client, nodes int64) {
	t.Helper()
	eventually(t, func(ctx context.Context) error {
		if err := k8s.Get(ctx, client.ObjectKeyFromObject(c), c); err != nil {
			return err
		}
		if c.Status.Allocated != nodes || len(c.Status.Conditions) == 0 {
			return fmt.Errorf("ClusterCIDR %s: %+v", c.Name, c.Status)
		}
		fence := &corev1.ConfigMap{}
		if err := at.Get(ctx, client.ObjectKey{Namespace: "kube-system", Name: "butler-node-cidrs"}, fence); err != nil {
			return err
		}
		if strings.Contains(fence.Data["state"], "inFlight") {
			return errors.New("grants are on record")
		}
		return nil
	})
}

// createNodesToInspect creates a range that two Nodes use, and for which a third one waits, as in docs/plugin.md. The
// end of the test deletes it.
func createNodesToInspect(t *testing.T) {
	t.Helper()
	pods, gpu := clusterCIDR("pods", "10.244.0.0/23", nil), clusterCIDR("gpu", "10.244.8.0/22", nil, "gpu", "yes")
	create(t, pods, gpu)
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		if err := k8s.DeleteAllOf(ctx, &corev1.Node{}); err != nil {
			t.Error(err)
		}
		if err := k8s.DeleteAllOf(ctx, &v1alpha1.ClusterCIDR{}); err != nil {
			t.Error(err)
		}
	})
	createNodes(t, k8s, 2, "w1", "w2", "w3")
	waitForNodeCount(t, pods, k8s, 2)
	waitForNodeCount(t, gpu, k8s, 0)
}

// checkNodeCommands runs the commands on what createNodesToInspect has created.
func checkNodeCommands(t *testing.T) {
	tried := "  tried:  1. pods, 10.244.0.0/23: full (2/2)\n          -  gpu, 10.244.8.0/22: does not select it; it is for Nodes with gpu in (yes)\n"
	from := "  from:   its annotation butler.butlerlabs.dev/cluster-cidr names ClusterCIDR pods: 10.244.0.0/23\n"
	for name, c := range map[string]struct {
		code int
		want string
		args []string
	}{
		"who has it":        {0, "10.244.1.7 is used in ClusterCIDR pods\n  Node  w2, 10.244.1.0/24\n", []string{"who", "10.244.1.7"}},
		"who has some":      {0, "10.244.0.0/16 is used in ClusterCIDR pods\n  Node  w1, 10.244.0.0/24\n  Node  w2, 10.244.1.0/24\n", []string{"who", "10.244.0.0/16"}},
		"it is free":        {0, "10.244.8.1 is free in ClusterCIDR gpu\n", []string{"who", "10.244.8.1"}},
		"it is for no Node": {0, "10.0.0.1 is reserved: 10.0.0.0/16 is for Services\n", []string{"who", "10.0.0.1"}},
		"a Node has it":     {0, "Node w1 has 10.244.0.0/24 of ClusterCIDR pods\n" + from, []string{"explain", "node/w1"}},
		"a Node waits": {1, "Node w3 waits for its pod CIDR\n  why:    all ClusterCIDRs that match are full: pods (2 Nodes); add a ClusterCIDR, or delete Nodes\n" +
			"  to do:  docs/node-cidrs.md#a-cluster-that-is-full; `kubectl get clustercidrs -o wide` shows how full they are\n" + tried, []string{"explain", "node/w3"}},
		"a range is full": {1, "ClusterCIDR pods is full\n  why:    all 2 node CIDRs are taken and 1 Node waits: add a ClusterCIDR for more\n" +
			"  to do:  add a ClusterCIDR for more: docs/node-cidrs.md#a-cluster-that-is-full\n  range:  10.244.0.0/23, for all Nodes\n" +
			"  users:  w1 10.244.0.0/24\n          w2 10.244.1.0/24\n  waits:  w3\n", []string{"explain", "cc/pods"}},
		"a range has room": {0, "ClusterCIDR gpu gives CIDRs: 4 of 4 node CIDRs are free\n  range:  10.244.8.0/22, for Nodes with gpu in (yes)\n", []string{"explain", "clustercidr/gpu"}},
	} {
		t.Run(name, func(t *testing.T) { expect(t, c.code, c.want, c.args...) })
	}
	t.Run("completion", func(t *testing.T) {
		for begun, want := range map[string]string{"node/": "node/w1 node/w2 node/w3", "cc/": "cc/gpu cc/pods"} {
			out, _, _ := run(t, "__complete", "explain", begun)
			for name := range strings.FieldsSeq(want) {
				if !strings.Contains(out, name+"\n") {
					t.Errorf("%s is not offered for %s: %s", name, begun, out)
				}
			}
		}
	})
	t.Run("without rights", func(t *testing.T) {
		path := unprivilegedKubeconfig(t, cp, "plugin-viewer")
		mayList(t, "plugin-viewer", []string{v1alpha1.GroupVersion.Group, "ipam.cluster.x-k8s.io"})
		out, errOut, code := runAs(t, path, "who", "10.244.1.7")
		want := "10.244.1.7 is unknown in ClusterCIDR pods: you may not list Nodes, so its holder is unknown\n"
		if code != 0 || out != want || !strings.Contains(errOut, "note: you have no permission to list nodes") {
			t.Errorf("exit code %d\n%s%s", code, out, errOut)
		}
	})
}

// unprivilegedKubeconfig returns the path of a kubeconfig of a user without rights.
func unprivilegedKubeconfig(t *testing.T, of *framework.ControlPlane, name string) string {
	t.Helper()
	text, err := of.NewUserKubeconfig(name)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "kubeconfig")
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// mayList allows a user to list all resources of API groups.
func mayList(t *testing.T, user string, groups []string) {
	t.Helper()
	about := metav1.ObjectMeta{Name: user}
	create(t, &rbacv1.ClusterRole{ObjectMeta: about, Rules: []rbacv1.PolicyRule{{APIGroups: groups, Resources: []string{"*"}, Verbs: []string{"get", "list"}}}},
		&rbacv1.ClusterRoleBinding{
			ObjectMeta: about, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: user},
			Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: user}},
		})
}

// A fleet is inspected from its management cluster, and each workload cluster, which has no CRDs of this provider,
// with its own kubeconfig.
func TestInspectFleet(t *testing.T) {
	workload, err := framework.StartControlPlane(framework.Options{NoCRDs: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := workload.Stop(); err != nil {
			t.Error(err)
		}
	})
	there, err := workload.NewClient()
	if err != nil {
		t.Fatal(err)
	}
	ns := newNamespace(t, nil)
	edge := clusterCIDR("edge", "10.245.0.0/23", &metav1.LabelSelector{MatchLabels: map[string]string{"net": ns}})
	create(t, edge)
	t.Cleanup(func() { // its finalizer is removed with the Cluster
		if err := k8s.Delete(context.WithoutCancel(t.Context()), edge); err != nil {
			t.Error(err)
		}
	})
	t.Run("that does not use it", func(t *testing.T) {
		expect(t, 0, "10.245.0.7 is per cluster in ClusterCIDR edge: each Cluster has the whole range for itself; none uses it yet\n", "who", "10.245.0.7")
		expect(t, 1, "ClusterCIDR edge gives nothing yet\n  why:    no manager has reconciled it\n  to do:  is a manager running, with the component fleet-node-cidrs or node-cidrs (--node-cidrs=fleet or on)?\n"+
			"  range:  10.245.0.0/23, for all Nodes\n", "explain", "cc/edge")
	})
	t.Run("a cluster without a manager", func(t *testing.T) {
		if err := there.Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "early"}}); err != nil {
			t.Fatal(err)
		}
		out, _, code := runAs(t, workload.Kubeconfig, "explain", "node/early")
		if code != 1 || !strings.Contains(out, "why:    no manager has given CIDRs to Nodes of this cluster yet: there is no ConfigMap kube-system/butler-node-cidrs\n") {
			t.Errorf("exit code %d\n%s", code, out)
		}
		if err := there.Delete(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "early"}}); err != nil {
			t.Fatal(err)
		}
	})
	startManager(t, "", "--node-cidrs=fleet")
	cluster, err := framework.CreateCluster(t.Context(), k8s, workload, metav1.ObjectMeta{
		Namespace: ns, Name: "prod", Labels: map[string]string{v1alpha1.NodeCIDRsLabel: "", "net": ns},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := k8s.Delete(context.WithoutCancel(t.Context()), cluster); err != nil {
			t.Error(err)
		}
	})
	createNodes(t, there, 2, "e1", "e2", "e3")
	waitForNodeCount(t, edge, there, 2)
	eventually(t, func(_ context.Context) error {
		out, _, _ := run(t, "explain", "cc/edge")
		if !strings.Contains(out, "0 are free; Exhausted: ") {
			return errors.New(out)
		}
		return nil
	})

	t.Run("that uses it", func(t *testing.T) {
		expect(t, 0, "10.245.0.7 is per cluster in ClusterCIDR edge: each Cluster has the whole range for itself, and only there it can be seen which Node has it\n"+
			"  Cluster  "+ns+"/prod  2 Nodes  0 free\n"+
			"  to do    clusterctl get kubeconfig prod -n "+ns+" > prod.kubeconfig && kubectl butler-ipam who 10.245.0.7 --kubeconfig=prod.kubeconfig\n", "who", "10.245.0.7")
		out, _, code := run(t, "explain", "cc/edge")
		if want := "  fleet:  " + ns + "/prod: 2 Nodes have a CIDR of it, 0 are free; Exhausted: "; code != 1 || !strings.Contains(out, want) {
			t.Errorf("exit code %d\n%s\nwant\n%s", code, out, want)
		}
	})
	elsewhere := "note: this cluster has no pools and no ClusterCIDRs; where it is a workload cluster, they are in its management cluster\n"
	for name, c := range map[string]struct {
		code      int
		out, errs string
		args      []string
	}{
		"who has it there":    {0, "10.245.1.7 is used in ClusterCIDR edge\n  Node  e2, 10.245.1.0/24\n", elsewhere, []string{"who", "10.245.1.7"}},
		"no Node has it":      {0, "10.9.0.1 is in no pod CIDR of a Node.\n", elsewhere, []string{"who", "10.9.0.1"}},
		"a Node there has it": {0, "Node e1 has 10.245.0.0/24 of ClusterCIDR edge\n  from:   its annotation butler.butlerlabs.dev/cluster-cidr names ClusterCIDR edge\n", "", []string{"explain", "node/e1"}},
		"a Node there waits": {
			1, "Node e3 waits for its pod CIDR\n  why:    event of the manager: all ClusterCIDRs that match are full: edge (2 Nodes); add a ClusterCIDR, or delete Nodes\n" +
				"  why:    the ClusterCIDRs for it are in the management cluster, where this cluster is Cluster " + ns + "/prod\n" +
				"  to do:  there: kubectl get clustercidrs -o wide; kubectl get cluster -n " + ns + ` prod -o jsonpath='{.status.conditions[?(@.type=="PodCIDRsReady")].message}'` + "\n",
			"", []string{"explain", "node/e3"},
		},
		"no such Node": {2, "", "error: this cluster has no Node e9; for one of a workload cluster, use the kubeconfig of that\n", []string{"explain", "node/e9"}},
		"no such kind": {2, "", "error: this cluster has no ClusterCIDRs; for those of a fleet, use the kubeconfig of its management cluster\n", []string{"explain", "cc/edge"}},
	} {
		t.Run(name, func(t *testing.T) {
			out, errOut, code := runAs(t, workload.Kubeconfig, c.args...)
			if diff := cmp.Diff([]any{c.code, c.out, c.errs}, []any{code, out, errOut}); diff != "" {
				t.Error(diff)
			}
		})
	}
	t.Run("nothing may be read there", func(t *testing.T) {
		out, errOut, code := runAs(t, unprivilegedKubeconfig(t, workload, "plugin-unprivileged"), "who", "10.245.1.7")
		notes := regexp.MustCompile("(?m)^note: you have no permission to ").FindAllString(errOut, -1)
		if code != 0 || out != "The holder of 10.245.1.7 cannot be determined.\n" || len(notes) != 3 {
			t.Errorf("exit code %d\n%s%s", code, out, errOut)
		}
	})
}
