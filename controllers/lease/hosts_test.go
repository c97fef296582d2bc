package lease

import (
	"context"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/hostlb"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/hostlb/record"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/leaseports"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/faults"
)

// TestEnabledBackends checks that a manager that serves one load balancer reports for the others which flag is missing.
func TestEnabledBackends(t *testing.T) {
	for by, flag := range map[string]string{v1alpha1.ShownByMetalLB: "--service-leases", v1alpha1.ShownByHost: "--host-load-balancers"} {
		if got := (EnabledBackends{}).disabledMessage(by); !strings.Contains(got, flag) {
			t.Errorf("%s: %q", by, got)
		}
		if got := (EnabledBackends{MetalLB: true, Hosts: true}).disabledMessage(by); got != "" {
			t.Errorf("%s: %q", by, got)
		}
	}
	if got := (EnabledBackends{}).disabledMessage(""); got != "" {
		t.Errorf("a Service without requests gets %q", got)
	}
	for ways, want := range map[EnabledBackends]int{{}: 0, {MetalLB: true}: 3, {Hosts: true}: 2, {MetalLB: true, Hosts: true}: 4} {
		if got := len(ways.CacheOptions()); got != want {
			t.Errorf("%+v: the cache has %d kinds of its own", ways, got)
		}
	}
}

// TestHostDrainingReason checks P6: which locks keep a lease that is being deleted, and which are deleted with it.
func TestHostDrainingReason(t *testing.T) {
	a := netip.MustParseAddr("10.0.0.1")
	lock := func(network, holder, left string, of types.UID) *coordinationv1.Lease {
		o := &coordinationv1.Lease{}
		content := record.Lock{Address: a, Network: network, ReleasedBy: left}
		if of != "" {
			content.Report = &record.Report{LeaseUID: of, Announced: true}
		}
		content.WriteLease(o, holder)
		return o
	}
	unreadable := lock("", "", "", "")
	unreadable.Annotations[v1alpha1.HostLBAnnotation] = "{"
	heartbeat := func(name, network string) *coordinationv1.Lease {
		o := &coordinationv1.Lease{}
		record.WriteHeartbeat(o, &hostlb.Host{Name: name, Network: network, Networks: []hostlb.Network{{Prefix: netip.MustParsePrefix("10.0.0.0/24")}}}, "boot", metav1.NowMicro(), 10)
		return o
	}
	for name, c := range map[string]struct {
		network string
		locks   []*coordinationv1.Lease
		silent  []string
		want    string // empty if nothing keeps the lease
		left    int
	}{
		"no lock":                              {},
		"an empty one":                         {locks: []*coordinationv1.Lease{lock("", "", "", "")}},
		"held":                                 {locks: []*coordinationv1.Lease{lock("", "h1", "", "uid")}, want: "Confirming: host h1 is removing the address", left: 1},
		"held by a silent one":                 {locks: []*coordinationv1.Lease{lock("", "h1", "", "uid")}, silent: []string{"h1"}, want: "HostSilent: host h1", left: 1},
		"held by a silent one, of two":         {locks: []*coordinationv1.Lease{lock("", "h1", "", "uid"), heartbeat("h2", "")}, silent: []string{"h1"}, want: "Confirming: host h1 had", left: 2},
		"of two that are silent":               {locks: []*coordinationv1.Lease{lock("", "h1", "", "uid"), heartbeat("h2", "")}, silent: []string{"h1", "h2"}, want: "HostSilent", left: 2},
		"of two in other networks":             {locks: []*coordinationv1.Lease{lock("", "h1", "", "uid"), heartbeat("h2", "dmz")}, silent: []string{"h1"}, want: "HostSilent", left: 2},
		"left":                                 {locks: []*coordinationv1.Lease{lock("", "", "h1", "")}, want: "HostSilent: host h1", left: 1},
		"left by one that is back":             {locks: []*coordinationv1.Lease{lock("", "", "h1", ""), heartbeat("h1", "")}, want: "Confirming: host h1 had", left: 2},
		"it cannot be read":                    {locks: []*coordinationv1.Lease{unreadable}, want: "Confirming: the lock of the address, Lease butler-host-lb/ip-10-0-0-1, cannot be read", left: 1},
		"in a network":                         {network: "dmz", locks: []*coordinationv1.Lease{lock("dmz", "h1", "", "uid")}, want: "Confirming", left: 1},
		"of another network, another lease's":  {network: "dmz", locks: []*coordinationv1.Lease{lock("", "h1", "", "other")}, left: 1},
		"of the network that it was in before": {network: "dmz", locks: []*coordinationv1.Lease{lock("", "h1", "", "uid"), lock("dmz", "", "", "")}, want: "Confirming: host h1 is removing the address", left: 1},
	} {
		synctest.Test(t, func(t *testing.T) {
			api := faults.NewServer()
			for _, o := range c.locks {
				_ = api.Create(o)
			}
			cache, own := newCache(), api.NewClient("manager")
			for _, o := range api.List(faults.HostLeases) {
				cache.ShowChange(faults.Change{Object: o})
			}
			r := &Reconciler{Client: faults.NewCachedClient(own, cache), Live: own.LiveReader(), EnabledBackends: EnabledBackends{Hosts: true}, heartbeats: newHeartbeats()}
			for _, host := range c.silent {
				r.heartbeats.startTracking(host, time.Now()).liveness = livenessSilent
			}
			o := &v1alpha1.IPLease{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "shop", UID: "uid", DeletionTimestamp: ptr.To(metav1.Now())}}
			o.Status = v1alpha1.IPLeaseStatus{Address: "10.0.0.1", Network: c.network, ShownBy: v1alpha1.ShownByHost}
			locks := newScope(r, ns, time.Now()).locks
			got, err := callWithServer(t.Context(), api, func(ctx context.Context) (leaseports.Reason, error) { return locks.releaseLocks(ctx, o) })
			if text := got.Reason + ": " + got.Message; err != nil || (c.want == "") != (got == leaseports.Reason{}) || !strings.HasPrefix(text, c.want) {
				t.Errorf("%s: %s, %v", name, text, err)
			}
			if left := len(api.List(faults.HostLeases)); left != c.left {
				t.Errorf("%s: %d Leases are left", name, left)
			}
		})
	}
}

// callWithServer calls do while the server answers.
func callWithServer(ctx context.Context, api *faults.Server, do func(context.Context) (leaseports.Reason, error)) (v leaseports.Reason, err error) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		v, err = do(ctx)
	}()
	for {
		synctest.Wait()
		select {
		case <-done:
			return v, err
		default:
		}
		for _, r := range api.PendingRequests() {
			api.TakeRequest(r)
			r.Answer(api.ExecuteRequest(r))
		}
	}
}
