package guard

import (
	"errors"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
)

func TestShouldSkipCluster(t *testing.T) {
	paused := true
	tests := map[string]struct {
		reason      string
		change      func(*clusterv1.Cluster)
		watchFilter string
		want        bool
	}{
		"Usual":  {reason: "it is served", change: func(*clusterv1.Cluster) {}},
		"Paused": {reason: "its spec says so", change: func(c *clusterv1.Cluster) { c.Spec.Paused = &paused }, want: true},
		"Held":   {reason: "its annotation says so", change: func(c *clusterv1.Cluster) { c.Annotations = map[string]string{clusterv1.PausedAnnotation: ""} }, want: true},
		"Marked": {reason: "each user who may write it may mark it", change: func(c *clusterv1.Cluster) { c.Annotations = map[string]string{v1alpha1.DeleteForMoveAnnotation: ""} }},
		"Moved": {reason: "another management cluster has it", change: func(c *clusterv1.Cluster) {
			c.Annotations, c.DeletionTimestamp = map[string]string{v1alpha1.DeleteForMoveAnnotation: ""}, &metav1.Time{}
		}, want: true},
		"Filtered": {reason: "it is another manager's", change: func(c *clusterv1.Cluster) { c.Labels = map[string]string{clusterv1.WatchLabel: "x"} }, watchFilter: "y", want: true},
		"Ours":     {reason: "it has the label", change: func(c *clusterv1.Cluster) { c.Labels = map[string]string{clusterv1.WatchLabel: "y"} }, watchFilter: "y"},
		"AnyLabel": {reason: "a manager without a filter serves all", change: func(c *clusterv1.Cluster) { c.Labels = map[string]string{clusterv1.WatchLabel: "x"} }},
	}
	for name, c := range tests {
		t.Run(name, func(t *testing.T) {
			cluster := &clusterv1.Cluster{}
			c.change(cluster)
			if got := ShouldSkipCluster(cluster, c.watchFilter); got != c.want {
				t.Errorf("%s: %t", c.reason, got)
			}
		})
	}
}

func TestHasOnlyOurFinalizer(t *testing.T) {
	const ours = v1alpha1.TenantNetworkFinalizer
	tests := map[string]struct {
		finalizers []string
		want       bool
	}{
		"has machines":                 {finalizers: []string{clusterv1.ClusterFinalizer, ours}},
		"has machines, the foreground": {finalizers: []string{clusterv1.ClusterFinalizer, ours, metav1.FinalizerDeleteDependents}},
		"is left":                      {finalizers: []string{ours}, want: true},
		"is left in the foreground":    {finalizers: []string{metav1.FinalizerDeleteDependents, ours}, want: true},
		"is none of ours":              {finalizers: []string{metav1.FinalizerDeleteDependents}},
	}
	for name, tc := range tests {
		cluster := &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Finalizers: tc.finalizers}}
		if HasOnlyOurFinalizer(cluster) {
			t.Errorf("%s: it lives", name)
		}
		if cluster.DeletionTimestamp = new(metav1.Now()); HasOnlyOurFinalizer(cluster) != tc.want {
			t.Errorf("%s: it is left: %v, want %v", name, !tc.want, tc.want)
		}
	}
}

func TestAddWatchLabel(t *testing.T) {
	a := &v1alpha1.IPAllocation{}
	if AddWatchLabel(a, "") || a.Labels != nil {
		t.Error("a manager without a filter gives no label")
	}
	if !AddWatchLabel(a, "x") || a.Labels[clusterv1.WatchLabel] != "x" || AddWatchLabel(a, "x") {
		t.Errorf("%v: the label is given once", a.Labels)
	}
}

func TestRequeueOnConflict(t *testing.T) {
	broken := errors.New("broken")
	if result, err := RequeueOnConflict(nil, "writing"); err != nil || result != (reconcile.Result{}) {
		t.Errorf("what is written is done: %+v, %v", result, err)
	}
	if result, err := RequeueOnConflict(apierrors.NewConflict(corev1.Resource("pods"), "a", broken), "writing"); err != nil || result != RequeueWithBackoff() {
		t.Errorf("a conflict is no error, and the pause grows: %+v, %v", result, err)
	}
	if _, err := RequeueOnConflict(broken, "writing"); !errors.Is(err, broken) || err.Error() != "writing: broken" {
		t.Errorf("an error says what was being done: %v", err)
	}
}
