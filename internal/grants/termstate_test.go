package grants_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/grants"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/grantstest"
)

// TestWriteRefusal checks that a pool whose status is refused is written again after pauses that grow, that the
// refusal of its claimants changes with the cause alone, and that a write that succeeds ends both.
func TestWriteRefusal(t *testing.T) {
	p := grantstest.NewPool(t, "10.0.0.1-10.0.0.9")
	quota := apierrors.NewForbidden(v1alpha1.GroupVersion.WithResource("networkpools").GroupResource(), "pool", errors.New("a policy"))
	now, last := grantstest.Noon, time.Duration(0)
	var first *grants.Refusal
	for range 3 {
		p.Term.RecordWriteRefusal(fmt.Errorf("write the pool: %w", quota), now)
		pause := p.Term.CommitAfter.Sub(now)
		if pause <= last {
			t.Errorf("a pause of %v after one of %v", pause, last)
		}
		if !p.Term.IsWriteRefused(now) || p.Term.IsWriteRefused(p.Term.CommitAfter) {
			t.Error("the pool is refused exactly until the pause is over")
		}
		if first == nil {
			first = p.Term.WriteRefusal
		}
		if p.Term.WriteRefusal != first {
			t.Error("the same cause is another refusal, which each claimant is written for")
		}
		now, last = p.Term.CommitAfter, pause
	}
	if !strings.Contains(first.Message, "the API server refuses its status") || strings.Contains(first.Message, "write the pool") {
		t.Error(first.Message)
	}
	p.Term.RecordUnknownKind("Thing", now)
	if p.Term.WriteRefusal == first || !strings.Contains(p.Term.WriteRefusal.Message, "kind Thing") {
		t.Error(p.Term.WriteRefusal.Message)
	}
	p.Term.BeginCommit(p.PrepareCommit(now))
	p.CompleteCommit(p.Term.PendingCommit.Pool, now)
	if p.Term.WriteRefusal != nil || p.Term.IsWriteRefused(now) || p.Term.PendingCommit != nil {
		t.Errorf("after a write: %+v", p.Term)
	}
	p.Term.RecordWriteRefusal(quota, now)
	if pause := p.Term.CommitAfter.Sub(now); pause >= last {
		t.Errorf("the pauses begin anew after a write, not with %v", pause)
	}
}

// TestRequestsOfTermAreTakenOnce checks that the fenced term and the request to revalidate the pool have an effect
// once, and the latter only on the holder.
func TestRequestsOfTermAreTakenOnce(t *testing.T) {
	p := grantstest.NewPool(t, "10.0.0.1-10.0.0.9")
	p.Term.SetFenced(7)
	p.Term.ListDuration = time.Second
	for i, want := range []int64{7, 0} {
		if term, took := p.Term.TakeFenced(); term != want || took != time.Second {
			t.Errorf("%d: term %d after %v", i, term, took)
		}
	}
	for name, tc := range map[string]struct{ holder, requested, want bool }{
		"requested":     {holder: true, requested: true, want: true},
		"not requested": {holder: true},
		"standby":       {requested: true},
	} {
		p.Term.Holder = tc.holder
		if tc.requested {
			p.Term.RequestRevalidation()
		}
		if got := p.Term.TakeRevalidation(); got != tc.want || p.Term.TakeRevalidation() {
			t.Errorf("%s: %v, or twice", name, got)
		}
	}
	if got := p.Term.CurrentTerm(); got != (grants.PoolTerm{PoolUID: "pool-uid", Term: 3}) {
		t.Error(got)
	}
}
