package nodecidr

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
)

// newClusterCIDR returns a ClusterCIDR with a name and a range.
func newClusterCIDR(name, ipv4 string, change ...func(*v1alpha1.ClusterCIDR)) v1alpha1.ClusterCIDR {
	c := v1alpha1.ClusterCIDR{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.ClusterCIDRSpec{PerNodeHostBits: 8, IPv4: ipv4}}
	for _, do := range change {
		do(&c)
	}
	return c
}

func deleting(c *v1alpha1.ClusterCIDR) {
	c.DeletionTimestamp, c.Finalizers = new(metav1.Now()), []string{v1alpha1.ClusterCIDRFinalizer}
}

func ofFleet(c *v1alpha1.ClusterCIDR) { c.Spec.ClusterSelector = &metav1.LabelSelector{} }

func TestPlanOfFlags(t *testing.T) { // K24, K25
	f := &FlagsReconciler{ClusterCIDRSpec: newClusterCIDR("", "10.1.0.0/16").Spec}
	mine, next := f.clusterCIDRName(0), f.clusterCIDRName(1)
	tests := map[string]struct {
		all     []v1alpha1.ClusterCIDR
		missing string
		others  []string
	}{
		"nothing is there":               {missing: mine},
		"it is there":                    {all: []v1alpha1.ClusterCIDR{newClusterCIDR(mine, "10.1.0.0/16")}},
		"that of other flags is there":   {all: []v1alpha1.ClusterCIDR{newClusterCIDR(flagsNamePrefix+"other", "10.2.0.0/16")}, missing: mine, others: []string{flagsNamePrefix + "other"}},
		"both are":                       {all: []v1alpha1.ClusterCIDR{newClusterCIDR(mine, "10.1.0.0/16"), newClusterCIDR(flagsNamePrefix+"other", "10.2.0.0/16")}, others: []string{flagsNamePrefix + "other"}},
		"two are of these flags":         {all: []v1alpha1.ClusterCIDR{newClusterCIDR(mine, "10.1.0.0/16"), newClusterCIDR(next, "10.1.0.0/16")}, others: []string{next}},
		"that of other flags is going":   {all: []v1alpha1.ClusterCIDR{newClusterCIDR(flagsNamePrefix+"other", "10.2.0.0/16", deleting)}, missing: mine},
		"it is going, and is to be back": {all: []v1alpha1.ClusterCIDR{newClusterCIDR(mine, "10.1.0.0/16", deleting)}, missing: next},
		"another object has its name":    {all: []v1alpha1.ClusterCIDR{newClusterCIDR(mine, "10.3.0.0/16")}, missing: next, others: []string{mine}},
		"another has its range":          {all: []v1alpha1.ClusterCIDR{newClusterCIDR("default", "10.1.0.0/16")}, missing: mine},
		"one of a fleet":                 {all: []v1alpha1.ClusterCIDR{newClusterCIDR(flagsNamePrefix+"fleet", "10.2.0.0/16", ofFleet)}, missing: mine},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			missing, others := f.diffClusterCIDRs(tt.all)
			var got string
			if missing != nil {
				got = missing.Name
			}
			var names []string
			for _, o := range others {
				names = append(names, o.Name)
			}
			if got != tt.missing || !slices.Equal(names, tt.others) {
				t.Errorf("creates %q and deletes %q, want %q and %q", got, names, tt.missing, tt.others)
			}
		})
	}
	if len(mine) != len(flagsNamePrefix)+8 {
		t.Errorf("%s has not eight digits", mine)
	}
}

// TestFlagsRefused checks that, while the API server refuses the new ClusterCIDR, the old one stays, and one event is
// recorded however often the request is retried.
func TestFlagsRefused(t *testing.T) { // K25
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	old := newClusterCIDR(flagsNamePrefix+"old", "10.2.0.0/16")
	old.UID = "uid"
	refuses, tried := true, 0
	c := interceptor.NewClient(fake.NewClientBuilder().WithScheme(scheme).WithObjects(&old).Build(), interceptor.Funcs{
		Create: func(ctx context.Context, in client.WithWatch, o client.Object, opts ...client.CreateOption) error {
			if tried++; refuses {
				return apierrors.NewForbidden(schema.GroupResource{Resource: "clustercidrs"}, o.GetName(), nil)
			}
			return in.Create(ctx, o, opts...)
		},
	})
	now := time.Unix(1e9, 0)
	recorder := events.NewFakeRecorder(9)
	f := &FlagsReconciler{Client: c, Live: c, Recorder: recorder, ClusterCIDRSpec: newClusterCIDR("", "10.1.0.0/16").Spec, Now: func() time.Time { return now }}
	if !f.needsHolder([]v1alpha1.ClusterCIDR{old}) || f.needsHolder([]v1alpha1.ClusterCIDR{old}) {
		t.Error("the site is not claimed once")
	}
	for range 3 {
		wait, err := f.ensureClusterCIDR(t.Context())
		if err != nil || wait < 5*time.Second {
			t.Fatalf("waits for %v: %v", wait, err)
		}
		if again, err := f.ensureClusterCIDR(t.Context()); again != wait || err != nil {
			t.Errorf("waits for %v: %v", again, err)
		}
		now = now.Add(wait)
	}
	if tried != 3 {
		t.Errorf("was tried %d times", tried)
	}
	if note := <-recorder.Events; !strings.Contains(note, "for --cluster-cidr") || len(recorder.Events) > 0 {
		t.Errorf("%q, and %d more", note, len(recorder.Events))
	}
	if err := c.Get(t.Context(), client.ObjectKeyFromObject(&old), &old); err != nil {
		t.Error(err)
	}
	refuses = false
	if wait, err := f.ensureClusterCIDR(t.Context()); wait != 0 || err != nil {
		t.Fatalf("waits for %v: %v", wait, err)
	}
	var all v1alpha1.ClusterCIDRList
	if err := c.List(t.Context(), &all); err != nil || len(all.Items) != 1 || all.Items[0].Name != f.clusterCIDRName(0) {
		t.Errorf("there are %v: %v", all.Items, err)
	}
}

// TestNoFlags checks that a manager without these flags changes nothing.
func TestNoFlags(t *testing.T) { // K25
	var f *FlagsReconciler
	if f.needsHolder([]v1alpha1.ClusterCIDR{newClusterCIDR(flagsNamePrefix+"other", "10.2.0.0/16")}) {
		t.Error("it wants something")
	}
	if wait, err := f.ensureClusterCIDR(t.Context()); wait != 0 || err != nil {
		t.Errorf("waits for %v: %v", wait, err)
	}
}
