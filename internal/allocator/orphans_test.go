package allocator

import (
	"context"
	"errors"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/events"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/grants"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/grantstest"
)

// deleteCounter is an API server that answers a live read of the Cluster, and counts deletes.
type deleteCounter struct {
	client.Client
	read, answer error
	fences       []client.Preconditions
}

func (d *deleteCounter) Get(_ context.Context, _ client.ObjectKey, obj client.Object, _ ...client.GetOption) error {
	if _, ok := obj.(*v1alpha1.IPAllocation); ok {
		obj.SetUID("uid-x") // after a conflict: it is unchanged
		return nil
	}
	return d.read
}

func (d *deleteCounter) Delete(_ context.Context, _ client.Object, opts ...client.DeleteOption) error {
	d.fences = append(d.fences, client.Preconditions(*(&client.DeleteOptions{}).ApplyOptions(opts).Preconditions))
	return d.answer
}

func TestCheckOrphanedClaimant(t *testing.T) {
	gone := apierrors.NewNotFound(schema.GroupResource{}, "tenant")
	tests := map[string]struct {
		api     deleteCounter
		since   time.Duration // before noon; 0: never seen without its Cluster
		deleted int
		want    time.Duration // before noon, when it was first seen so; -1: not so
		fails   bool
		reason  string
	}{
		"the Cluster is there":   {want: -1, reason: "nothing to do"},
		"it is there again":      {since: time.Hour, want: -1, reason: "the first sighting counts no more"},
		"the first sighting":     {api: deleteCounter{read: gone}, want: 0, reason: "once is not enough"},
		"the second, too soon":   {api: deleteCounter{read: gone}, since: time.Second, want: time.Second, reason: "a restore may bring the Cluster"},
		"the second":             {api: deleteCounter{read: gone}, since: 75 * time.Second, deleted: 1, want: 75 * time.Second, reason: "it is an orphan"},
		"forbidden":              {api: deleteCounter{read: apierrors.NewForbidden(schema.GroupResource{}, "tenant", nil)}, since: time.Hour, want: time.Hour, fails: true, reason: "no proof"},
		"the API server is away": {api: deleteCounter{read: errors.New("connection refused")}, since: time.Hour, want: time.Hour, fails: true, reason: "no proof"},
		"it has changed since":   {api: deleteCounter{read: gone, answer: apierrors.NewConflict(schema.GroupResource{}, "x", nil)}, since: time.Hour, deleted: 1, want: time.Hour, reason: "read again"},
		"the delete fails":       {api: deleteCounter{read: gone, answer: errors.New("timeout")}, since: time.Hour, deleted: 1, want: time.Hour, fails: true, reason: "it is tried again"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			a := New(Options{Client: &tt.api, Live: &tt.api, Recorder: events.NewFakeRecorder(9), Clock: clocktesting.NewFakeClock(grantstest.Noon)})
			p := grantstest.NewPool(t, "10.0.0.1-10.0.0.9")
			c := grantstest.ObserveAllocation(p, "x", 4, grantstest.WithBlock("10.0.0.4/30"))
			if tt.since > 0 {
				c.OwnerMissingSince = grantstest.Noon.Add(-tt.since)
			}
			snapshot := *c
			if err := a.owners.checkOrphanedClaimant(t.Context(), grants.NewPool(p), snapshot); (err != nil) != tt.fails {
				t.Errorf("%s: %v", tt.reason, err)
			}
			if len(tt.api.fences) != tt.deleted {
				t.Errorf("%s: %d deletes", tt.reason, len(tt.api.fences))
			}
			for _, f := range tt.api.fences {
				if *f.UID != "uid-x" || *f.ResourceVersion != "1" {
					t.Errorf("the delete is for %s at %s", *f.UID, *f.ResourceVersion)
				}
			}
			want := grantstest.Noon.Add(-tt.want)
			if tt.want < 0 {
				want = time.Time{}
			}
			if got := p.Claimants.ByUID["uid-x"].OwnerMissingSince; !got.Equal(want) {
				t.Errorf("%s: first seen at %v, want %v", tt.reason, got, want)
			}
		})
	}
}
