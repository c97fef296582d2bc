package nodeipam

import (
	"errors"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/carve"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/term"
)

// TestTakenNameIsAvoidedForAWhile checks that a name that another object has is not requested for as long as a carved
// pool avoids one, and no longer.
func TestTakenNameIsAvoidedForAWhile(t *testing.T) {
	s := NewClusterAllocator(Options{ClusterKey: ClusterKey{Namespace: "team", Name: "prod"}, BlockClient: blockCalls{}, Now: func() time.Time { return noon }})
	if err := s.blocks.createBlock(t.Context(), blockRequest{verb: carve.CreateBlock, name: "prod-pods-4-1", blockSource: &BlockSource{}}); err != nil {
		t.Fatal(err)
	}
	for _, after := range []time.Duration{0, carve.NameConflictTimeout - time.Second} {
		if !s.state.requests.IsNameTaken("prod-pods-4-1", noon.Add(after)) {
			t.Errorf("after %v the name is not avoided", after)
		}
	}
	if s.state.requests.IsNameTaken("prod-pods-4-1", noon.Add(carve.NameConflictTimeout)) {
		t.Error("the name is avoided for longer")
	}
}

// TestRefusedRequestsAreRetriedLikeWrites checks that a failed request for a block waits as any failed write does, also
// where the API server refuses it permanently.
func TestRefusedRequestsAreRetriedLikeWrites(t *testing.T) {
	forbidden := apierrors.NewForbidden(schema.GroupResource{Resource: "ipallocations"}, "prod-pods-4-1", errors.New("a policy refuses it"))
	for name, err := range map[string]error{"refused": forbidden, "failed": errors.New("etcd is slow")} {
		t.Run(name, func(t *testing.T) {
			requests := &blockRequests{}
			for failures := range int32(8) {
				want := term.NextRetryTime(noon, failures, 0, err).Sub(noon)
				if got := requests.recordResult(blockRequest{name: "prod-pods-4-1"}, err, noon); got != want {
					t.Errorf("after %d failures it waits %v, not %v", failures+1, got, want)
				}
			}
		})
	}
}
