package nodecidr

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/nodeipam"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/workers"
)

// newScheme returns a scheme with the kinds of the manager's own cluster.
func newScheme(t *testing.T) *runtime.Scheme {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{v1alpha1.AddToScheme, corev1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	return scheme
}

// newReconciler returns a manager without leader election.
func newReconciler(c client.Client, id string, recorder events.EventRecorder) *Reconciler {
	return &Reconciler{Client: c, Now: time.Now, statusWrittenAt: map[string]time.Time{}, Allocator: nodeipam.NewClusterAllocator(nodeipam.Options{
		Client: c, Live: c, Lister: clusterNodes{c}, ObjectProtector: nodeipam.ClusterCIDRProtector{Client: c, Live: c}, ManagerID: id, Recorder: recorder,
		Workers: workers.New[nodeipam.ClusterKey](1), Enqueue: func(nodeipam.ClusterKey) {}, Now: time.Now,
	})}
}

// TestStatusOfFormerHolderIsCorrected checks that a manager without leader election corrects a status of the manager
// before it, where the status becomes outdated while no manager runs, and no Node waits for CIDRs that it can have.
func TestStatusOfFormerHolderIsCorrected(t *testing.T) {
	right := v1alpha1.ClusterCIDRStatus{ObservedGeneration: 1, Capacity: 256, Free: 256}
	condition := func(of string, status metav1.ConditionStatus, reason, message string) metav1.Condition {
		return metav1.Condition{Type: of, Status: status, Reason: reason, Message: message, ObservedGeneration: 1}
	}
	ready := condition(v1alpha1.ReadyCondition, metav1.ConditionTrue, v1alpha1.ReadyReason, "256 of 256 node CIDRs are free")
	room := condition(v1alpha1.ExhaustedCondition, metav1.ConditionFalse, v1alpha1.RoomLeftReason, "")
	alone := condition(v1alpha1.OverlapCondition, metav1.ConditionFalse, v1alpha1.NoOverlapReason, "")
	with := func(change func(*v1alpha1.ClusterCIDRStatus), conditions ...metav1.Condition) v1alpha1.ClusterCIDRStatus {
		out := *right.DeepCopy()
		out.Conditions = conditions
		change(&out)
		return out
	}
	same := func(*v1alpha1.ClusterCIDRStatus) {}
	for name, was := range map[string]v1alpha1.ClusterCIDRStatus{
		"it counts Nodes": with(func(s *v1alpha1.ClusterCIDRStatus) { s.Allocated, s.Free = 4, 252 }, ready, room, alone),
		"what is free, as another ClusterCIDR is gone": with(func(s *v1alpha1.ClusterCIDRStatus) { s.Free = 252 }, ready, room, alone),
		"another ClusterCIDR overlaps":                 with(same, ready, room, condition(v1alpha1.OverlapCondition, metav1.ConditionTrue, v1alpha1.SharedRangeReason, "d share some of the addresses; an address that one grants is not granted by the others")),
		"Nodes wait":                                   with(same, ready, condition(v1alpha1.ExhaustedCondition, metav1.ConditionTrue, v1alpha1.ExhaustedReason, "all 256 node CIDRs are taken and 3 Nodes wait"), alone),
		"the ConfigMap is damaged":                     with(same, condition(v1alpha1.ReadyCondition, metav1.ConditionFalse, v1alpha1.FenceDamagedReason, "it cannot be read"), room, alone),
		"a message":                                    with(same, condition(v1alpha1.ReadyCondition, metav1.ConditionTrue, v1alpha1.ReadyReason, "252 of 256 node CIDRs are free"), room, alone),
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				cc := &v1alpha1.ClusterCIDR{ObjectMeta: metav1.ObjectMeta{Name: "edge", UID: "u", Generation: 1}, Status: was}
				cc.Spec = v1alpha1.ClusterCIDRSpec{PerNodeHostBits: 8, IPv4: "10.0.0.0/16"}
				c := fake.NewClientBuilder().WithScheme(newScheme(t)).WithObjects(cc).WithStatusSubresource(cc).Build()
				r := newReconciler(c, "second", nil)
				want := with(same, ready, room, alone)
				for began := time.Now(); ; {
					result, err := r.Reconcile(t.Context(), nodeipam.ClusterKey{})
					if err != nil {
						t.Fatal(err)
					}
					if err := c.Get(t.Context(), client.ObjectKeyFromObject(cc), cc); err != nil {
						t.Fatal(err)
					}
					current := *cc.Status.DeepCopy()
					for i := range current.Conditions {
						current.Conditions[i].LastTransitionTime = metav1.Time{}
					}
					if equality.Semantic.DeepEqual(current, want) {
						break
					}
					if time.Since(began) > 2*outdatedTimeout {
						t.Fatalf("%v later it says %+v", time.Since(began), current)
					}
					<-time.After(result.RequeueAfter)
				}
			})
		})
	}
}

// clusterNodes lists the Nodes of the cluster.
type clusterNodes struct{ client.Client }

func (n clusterNodes) List(ctx context.Context, _ client.Object, _ string, visit func(client.Object)) (string, error) {
	var all corev1.NodeList
	if err := n.Client.List(ctx, &all); err != nil {
		return "", err
	}
	for i := range all.Items {
		visit(&all.Items[i])
	}
	return all.ResourceVersion, nil
}

// TestManagersDoNotAlternateForStatus checks that, of two managers without leader election that see the same Nodes, and
// refuse some of them, the one that does not hold the cluster leaves it to the holder although statuses change, and
// that the holder records the event of each Node once.
func TestManagersDoNotAlternateForStatus(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cc := &v1alpha1.ClusterCIDR{ObjectMeta: metav1.ObjectMeta{Name: "edge", UID: "u", Generation: 1}}
		cc.Spec = v1alpha1.ClusterCIDRSpec{PerNodeHostBits: 8, IPv4: "10.0.0.0/24"}
		c := fake.NewClientBuilder().WithScheme(newScheme(t)).WithObjects(cc).WithStatusSubresource(cc).Build()
		recorder := events.NewFakeRecorder(100)
		managers := []*Reconciler{newReconciler(c, "first", recorder), newReconciler(c, "second", recorder)}
		changes := 0
		for i := range 2 * 60 * 60 {
			if i%(20*60) == 0 {
				n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("n", i), UID: types.UID(fmt.Sprint("n", i))}}
				if err := c.Create(t.Context(), n); err != nil {
					t.Fatal(err)
				}
			}
			var all corev1.NodeList
			if err := c.List(t.Context(), &all); err != nil {
				t.Fatal(err)
			}
			for _, r := range managers {
				for j := range all.Items {
					r.Allocator.ObserveObject(&all.Items[j])
				}
				held := r.Allocator.IsHolder()
				if _, err := r.Reconcile(t.Context(), nodeipam.ClusterKey{}); err != nil {
					t.Fatal(err)
				}
				if r.Allocator.IsHolder() && !held {
					changes++
				}
			}
			synctest.Wait()
			<-time.After(time.Second)
		}
		if changes != 1 || len(recorder.Events) != 5 {
			t.Errorf("the cluster was taken over %d times, and %d of 5 Nodes got an event", changes, len(recorder.Events))
		}
	})
}

// newRanges returns ClusterCIDRs of the given names, with the same addresses.
func newRanges(names ...string) (all []client.Object) {
	for _, name := range names {
		cc := &v1alpha1.ClusterCIDR{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name), Generation: 1}}
		cc.Spec = v1alpha1.ClusterCIDRSpec{PerNodeHostBits: 8, IPv4: "10.0.0.0/16"}
		all = append(all, cc)
	}
	return all
}

// TestConflictIsRetriedSoon checks that a status that could not be written, as the cache is behind, is retried
// after a second, whatever another status waits for.
func TestConflictIsRetriedSoon(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		all := newRanges("a", "b")
		conflicts := 0
		c := interceptor.NewClient(fake.NewClientBuilder().WithScheme(newScheme(t)).WithObjects(all...).WithStatusSubresource(all...).Build(), interceptor.Funcs{
			SubResourcePatch: func(ctx context.Context, in client.Client, of string, o client.Object, p client.Patch, opts ...client.SubResourcePatchOption) error {
				if o.GetName() == "a" && conflicts == 0 {
					conflicts++
					return apierrors.NewConflict(schema.GroupResource{Resource: "clustercidrs"}, "a", nil)
				}
				return in.SubResource(of).Patch(ctx, o, p, opts...)
			},
		})
		r := newReconciler(c, "leader", nil)
		r.Allocator.Elected = true
		reconcile := func() time.Duration {
			t.Helper()
			result, err := r.Reconcile(t.Context(), nodeipam.ClusterKey{})
			if err != nil {
				t.Fatal(err)
			}
			return result.RequeueAfter
		}
		if wait := reconcile(); conflicts != 1 || wait > reportInterval {
			t.Fatalf("%d conflicts, and the next look is in %v", conflicts, wait)
		}
		// Only numbers of b differ, which are not written again yet.
		b := &v1alpha1.ClusterCIDR{}
		if err := c.Get(t.Context(), client.ObjectKey{Name: "b"}, b); err != nil {
			t.Fatal(err)
		}
		b.Status.Free--
		if err := c.Status().Update(t.Context(), b); err != nil {
			t.Fatal(err)
		}
		conflicts = 0
		a := &v1alpha1.ClusterCIDR{}
		if err := c.Get(t.Context(), client.ObjectKey{Name: "a"}, a); err != nil {
			t.Fatal(err)
		}
		a.Status.Conditions = nil
		if err := c.Status().Update(t.Context(), a); err != nil {
			t.Fatal(err)
		}
		<-time.After(2 * time.Second)
		if wait := reconcile(); conflicts != 1 || wait > reportInterval {
			t.Errorf("%d conflicts, and the next look is in %v", conflicts, wait)
		}
	})
}

// TestRefusedStatusDelaysNoOther checks that the status of each ClusterCIDR is written, also where the API server refuses
// that of another one.
func TestRefusedStatusDelaysNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		all := newRanges("a", "b")
		var written []string
		c := interceptor.NewClient(fake.NewClientBuilder().WithScheme(newScheme(t)).WithObjects(all...).WithStatusSubresource(all...).Build(), interceptor.Funcs{
			SubResourcePatch: func(ctx context.Context, in client.Client, of string, o client.Object, p client.Patch, opts ...client.SubResourcePatchOption) error {
				if o.GetName() == "a" {
					return apierrors.NewForbidden(schema.GroupResource{Resource: "clustercidrs"}, "a", nil)
				}
				written = append(written, o.GetName())
				return in.SubResource(of).Patch(ctx, o, p, opts...)
			},
		})
		r := newReconciler(c, "leader", nil)
		r.Allocator.Elected = true
		if _, err := r.Reconcile(t.Context(), nodeipam.ClusterKey{}); !apierrors.IsForbidden(err) || !slices.Equal(written, []string{"b"}) {
			t.Errorf("of %q the status is written: %v", written, err)
		}
	})
}
