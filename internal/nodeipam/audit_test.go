package nodeipam

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/metrics"
)

// listedNodesAPI is an API server that answers lists of Nodes, with its Nodes or an error.
type listedNodesAPI struct {
	nodes []*corev1.Node
	err   error
}

// List implements Lister.
func (l *listedNodesAPI) List(_ context.Context, _ client.Object, _ string, visit func(client.Object)) (string, error) {
	for _, n := range l.nodes {
		visit(n)
	}
	return "", l.err
}

// newNodeWithCIDRs returns a Node with pod CIDRs.
func newNodeWithCIDRs(name string, cidrs ...string) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("uid-" + name)}, Spec: corev1.NodeSpec{PodCIDRs: cidrs}}
}

// auditMetrics returns the audit metric of each cluster.
func auditMetrics(t *testing.T) map[string]int {
	t.Helper()
	out, all := map[string]int{}, make(chan prometheus.Metric, 100)
	metrics.AuditDuplicateNodeCIDRs.Collect(all)
	close(all)
	for m := range all {
		var metric dto.Metric
		if err := m.Write(&metric); err != nil {
			t.Fatal(err)
		}
		labels := metric.GetLabel() // in the order of their names
		out[fmt.Sprint(labels[1].GetValue(), "/", labels[0].GetValue())] = int(metric.GetGauge().GetValue())
	}
	return out
}

// TestAuditorCountsEachCluster checks K45: the audit counts by what a list shows, whatever is remembered, and each
// cluster separately.
func TestAuditorCountsEachCluster(t *testing.T) {
	const interval = 5 * time.Minute
	synctest.Test(t, func(t *testing.T) {
		own, prod := &listedNodesAPI{}, &listedNodesAPI{}
		sites := []*ClusterAllocator{
			NewClusterAllocator(Options{Lister: own, Now: time.Now}),
			NewClusterAllocator(Options{Lister: prod, ClusterKey: ClusterKey{Namespace: "team", Name: "prod"}, Now: time.Now}),
		}
		au := &Auditor{ClusterAllocators: func() []*ClusterAllocator { return sites }, Interval: interval, Clock: clock.RealClock{}}
		ctx, end := context.WithCancel(t.Context())
		go func() { _ = au.Start(ctx) }()
		for _, step := range []struct {
			reason string
			do     func()
			want   map[string]int
			stops  bool
		}{
			{"one CIDR in two clusters is right", func() {
				own.nodes = []*corev1.Node{newNodeWithCIDRs("a", "10.0.0.0/24"), newNodeWithCIDRs("waits")}
				prod.nodes = []*corev1.Node{newNodeWithCIDRs("a", "10.0.0.0/24", "fd00::/64"), newNodeWithCIDRs("b", "10.0.1.0/24")}
			}, map[string]int{"/": 0, "team/prod": 0}, false},
			{"each that shares counts, once, and one that is being deleted too", func() {
				going := newNodeWithCIDRs("c", "10.0.0.0/23")
				going.DeletionTimestamp = &metav1.Time{Time: time.Now()}
				prod.nodes = append(prod.nodes, going)
			}, map[string]int{"/": 0, "team/prod": 3}, false},
			{"what cannot be read is as it was", func() { prod.nodes, prod.err = nil, errors.New("away") }, map[string]int{"/": 0, "team/prod": 3}, false},
			{"a Cluster that is not served has no metric", func() { sites = slices.Delete(sites, 1, 2) }, map[string]int{"/": 0}, false},
			{"an audit that reads no Nodes is none", func() { own.err = errors.New("away") }, map[string]int{"/": 0}, true},
		} {
			step.do()
			var before, after dto.Metric
			_ = metrics.LastNodeAuditTime.WithLabelValues().Write(&before)
			<-time.After(interval)
			synctest.Wait()
			if d := cmp.Diff(step.want, auditMetrics(t)); d != "" {
				t.Errorf("%s (-want +got):\n%s", step.reason, d)
			}
			_ = metrics.LastNodeAuditTime.WithLabelValues().Write(&after)
			if stopped := before.GetGauge().GetValue() == after.GetGauge().GetValue(); stopped != step.stops {
				t.Errorf("%s: the audit stopped: %v", step.reason, stopped)
			}
		}
		end()
	})
}
