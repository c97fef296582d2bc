package allocator

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clocktesting "k8s.io/utils/clock/testing"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/grants"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/grantstest"
)

// arrivalAPI is an API server that has one Cluster, and answers a write with a given error.
type arrivalAPI struct {
	client.Client
	paused bool
	answer error
}

func (f *arrivalAPI) List(_ context.Context, l client.ObjectList, _ ...client.ListOption) error {
	c := clusterv1.Cluster{}
	c.Namespace, c.Name, c.Spec.Paused = "ns", "tenant", &f.paused
	l.(*clusterv1.ClusterList).Items = []clusterv1.Cluster{c}
	return nil
}

func (f *arrivalAPI) Patch(_ context.Context, o client.Object, _ client.Patch, _ ...client.PatchOption) error {
	o.SetResourceVersion("20")
	return f.answer
}

// failOnceLister is a Lister whose first list fails.
type failOnceLister struct {
	listedObjects
	lists int
	err   error
}

func (f *failOnceLister) List(ctx context.Context, of client.Object, namespace string, visit func(client.Object)) (string, error) {
	if f.lists++; f.err != nil {
		err := f.err
		f.err = nil
		return "", err
	}
	return f.listedObjects.List(ctx, of, namespace, visit)
}

// TestArrivedPoolIsListedBeforeItOpens checks that a pool that has arrived opens when everything is proven to be
// here, and a list that began after that proof has succeeded: the watches may be behind (R10). It checks that for each
// manager that may record the proof, and for each outcome of the write.
func TestArrivedPoolIsListedBeforeItOpens(t *testing.T) {
	busy := errors.New("the server is busy")
	forbidden := apierrors.NewForbidden(schema.GroupResource{Resource: "networkpools"}, "p", errors.New("a policy refuses it"))
	at := func(home string) func(client.Object) {
		return func(o client.Object) {
			marks := maps.Clone(o.GetAnnotations())
			marks[v1alpha1.ManagementClusterAnnotation] = home
			o.SetAnnotations(marks)
			o.SetResourceVersion("30")
		}
	}
	for name, tc := range map[string]struct {
		reason string
		// from is the management cluster that the pool comes from; pausedAtFirst reports whether a Cluster is paused at first.
		from          string
		pausedAtFirst bool
		// write and list are the errors of the first write and the first list.
		write, list error
		// shown changes the pool to what the watch shows after the first try.
		shown       func(client.Object)
		wantMessage string
	}{
		"ListFails":        {reason: "the mark is on record, and nothing was listed", from: "there", list: busy},
		"AnswerLost":       {reason: "the watch shows our mark", from: "there", write: busy, shown: at("here")},
		"MarkedByHand":     {reason: "there was nothing to lack", from: "there", write: busy, shown: at("")},
		"Restored":         {reason: "it came from this cluster", from: "here", pausedAtFirst: true, list: busy},
		"MarkRefused":      {reason: "the rest of the turn is done, and the pool says why it waits", from: "there", write: forbidden, wantMessage: "a policy refuses it"},
		"ListRefused":      {reason: "as above", from: "there", list: forbidden, wantMessage: "a policy refuses it"},
		"NothingWentWrong": {reason: "it is listed at once", from: "there"},
	} {
		t.Run(name, func(t *testing.T) {
			clock, lists := clocktesting.NewFakeClock(grantstest.Noon), &failOnceLister{err: tc.list}
			api := &arrivalAPI{answer: tc.write, paused: tc.pausedAtFirst}
			a := New(Options{Client: api, Live: api, Lister: lists, ManagerID: "me", ManagementCluster: "here", Clock: clock, Quarantine: 75 * time.Second})
			o := newNeighbour("p", "10.0.0.1-10.0.0.4", time.Hour)
			o.Annotations = map[string]string{v1alpha1.ManagementClusterAnnotation: tc.from, v1alpha1.ClustersAnnotation: "tenant"}
			o.Status.Conditions = []metav1.Condition{{
				Type: v1alpha1.ReadyCondition, Status: metav1.ConditionFalse, Reason: v1alpha1.AdoptingReason, LastTransitionTime: metav1.NewTime(grantstest.Noon),
			}}
			lists.addServedClaim(pools.KeyForPool(o), "unseen", "10.0.0.1")
			m := stateOfPool(a.pools.getOrCreatePool(pools.KeyForPool(o)))
			m.Quarantine.ManagementCluster = "here"
			m.SetBasePool(o)
			m.Quarantine.Adopting, m.Term.Holder, m.Term.TakeoverChecked, m.Term.Number = true, true, true, 1
			m.Quarantine.RestoreQuarantine(grantstest.Noon, a.Quarantine)
			check := func() error { return a.arrivals.checkArrival(t.Context(), grants.NewPool(m)) }
			if err := check(); err != nil || lists.lists > 0 {
				t.Fatalf("%s: at first: %v, %d lists", tc.reason, err, lists.lists)
			}
			clock.Step(80 * time.Second)
			api.paused = false
			err, failed := check(), tc.list != nil || tc.write != nil
			if (err != nil) != (failed && tc.wantMessage == "") || m.Quarantine.IsQuarantined(clock.Now()) != failed {
				t.Errorf("%s: the first try: %v; it is open: %t", tc.reason, err, !m.Quarantine.IsQuarantined(clock.Now()))
			}
			if _, message := m.Status.ClosedReason(clock.Now()); !strings.Contains(message, tc.wantMessage) {
				t.Errorf("%s: it says %q", tc.reason, message)
			}
			if tc.wantMessage != "" {
				tried := lists.lists
				if err := check(); err != nil || lists.lists != tried || m.NextWakeDelay(clock.Now(), 0) != openRetryDelay {
					t.Errorf("%s: it is tried again at once, or in %v: %v", tc.reason, m.NextWakeDelay(clock.Now(), 0), err)
				}
				clock.Step(openRetryDelay)
			}
			api.answer = nil
			if tc.shown != nil {
				next := o.DeepCopy()
				tc.shown(next)
				m.SetBasePool(next)
			}
			if err := check(); err != nil {
				t.Errorf("%s: the second try: %v", tc.reason, err)
			}
			if free := grantableAddresses(m); m.Quarantine.IsQuarantined(clock.Now()) || slices.Contains(free, "10.0.0.1") {
				t.Errorf("%s: it is open: %t; free are %v", tc.reason, !m.Quarantine.IsQuarantined(clock.Now()), free)
			}
			done := lists.lists
			if err := check(); err != nil || lists.lists != done {
				t.Errorf("%s: it is listed again: %v", tc.reason, err)
			}
		})
	}
}
