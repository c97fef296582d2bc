package lease

import (
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

func heartbeatAt(renewed int64) *coordinationv1.Lease {
	return &coordinationv1.Lease{Spec: coordinationv1.LeaseSpec{RenewTime: ptr.To(metav1.NewMicroTime(time.Unix(renewed, 0))), LeaseDurationSeconds: ptr.To(int32(4))}}
}

// TestHeartbeatLiveness checks T1: a host is alive while its heartbeat changes, by the clock of the manager, whatever
// the clock of the host shows.
func TestHeartbeatLiveness(t *testing.T) {
	h, begin := newHeartbeats(), time.Now()
	at := func(seconds int) time.Time { return begin.Add(time.Duration(seconds) * time.Second) }
	steps := []struct {
		name   string
		at     int
		renew  int64 // 0 means that no heartbeat is observed
		isNew  bool
		woke   bool
		want   liveness
		silent bool
	}{
		{name: "it was there before", at: 0, renew: 100, want: livenessUnknown},
		{name: "a watch shows it once more", at: 1, renew: 100, want: livenessUnknown},
		{name: "it changes, backwards", at: 3, renew: 50, woke: true, want: livenessAlive},
		{name: "it changes", at: 5, renew: 60, want: livenessAlive},
		{name: "not yet", at: 14, want: livenessAlive},
		{name: "2.5 times 4 seconds", at: 15, want: livenessSilent, silent: true},
		{name: "it is said once", at: 16, want: livenessSilent},
		{name: "it is shown once more", at: 17, renew: 60, want: livenessSilent},
		{name: "it lives again", at: 18, renew: 70, woke: true, want: livenessAlive},
	}
	for _, c := range steps {
		woke := false
		if c.renew > 0 {
			woke = h.observeHeartbeat("h1", heartbeatAt(c.renew), c.isNew, at(c.at))
		}
		hosts, _ := h.expireHosts(at(c.at))
		if got := h.livenessForHost("h1", at(c.at)); woke != c.woke || got != c.want || (len(hosts) > 0) != c.silent {
			t.Errorf("%s: woke %v, lives %v, silent %v", c.name, woke, got, hosts)
		}
	}
	if !h.observeHeartbeat("h2", heartbeatAt(1), true, at(20)) || h.livenessForHost("h2", at(20)) != livenessAlive {
		t.Error("one that is made meanwhile lives")
	}
	// A host without a heartbeat is tracked, and then silent.
	if h.livenessForHost("h3", at(20)) != livenessUnknown {
		t.Error("it is not known at once")
	}
	if _, next := h.expireHosts(at(20)); next != 8*time.Second {
		t.Errorf("the next one is silent in %s", next)
	}
	if hosts, next := h.expireHosts(at(60)); len(hosts) != 3 || next != 0 {
		t.Errorf("%v, next %s", hosts, next)
	}
}

// TestSilentHostsAreReported checks that a host that becomes silent is reported once, in time, and that nothing
// blocks meanwhile.
func TestSilentHostsAreReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, begin := newHeartbeats(), time.Now()
		done := make(chan error, 1)
		go func() { done <- h.Start(t.Context()) }()
		h.observeHeartbeat("h1", heartbeatAt(1), true, time.Now())
		<-time.After(3 * time.Second)
		h.observeHeartbeat("h1", heartbeatAt(2), false, time.Now())
		if e := <-h.silentHosts; e.Object != "h1" || time.Since(begin) != 13*time.Second {
			t.Errorf("%s is silent after %s", e.Object, time.Since(begin))
		}
		h.observeHeartbeat("h1", heartbeatAt(3), false, time.Now())
		if e := <-h.silentHosts; e.Object != "h1" || time.Since(begin) != 23*time.Second {
			t.Errorf("%s is silent after %s", e.Object, time.Since(begin))
		}
	})
}
