//go:build linux

package agent

import (
	"context"
	"errors"
	"net/netip"
	"testing"
	"time"

	"github.com/go-logr/logr"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/hostlb"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/hostlb/forward"
)

// unreadableCache is an empty cache that fails for a while.
type unreadableCache struct {
	client.Reader

	err error
}

func (u *unreadableCache) List(context.Context, client.ObjectList, ...client.ListOption) error {
	return u.err
}

// TestPortsAreSetAgain checks that a change is forwarded later if the Nodes cannot be read at first, even if nothing
// changes any more.
func TestPortsAreSetAgain(t *testing.T) {
	g := NewWithT(t)
	cache := &unreadableCache{err: errors.New("no answer")}
	a := New(Options{Name: "h1", Timing: hostlb.DefaultTiming(), ForwardTraffic: true}, cache, nil, nil, logr.Discard())
	a.TriggerPortSync()
	a.proxy.syncPorts(t.Context())
	g.Expect(a.proxy.needsPortSync(nil)).To(BeFalse(), "not at once")
	a.proxy.updatedAt = time.Now().Add(-a.Timing.RetryInterval)
	g.Expect(a.proxy.needsPortSync(nil)).To(BeTrue())
	cache.err = nil
	a.proxy.syncPorts(t.Context())
	a.proxy.updatedAt = time.Now().Add(-a.Timing.RetryInterval)
	g.Expect(a.proxy.needsPortSync(nil)).To(BeFalse(), "it rests")
}

// TestFullPortTracker checks that a port is reported to have no room for a minute after it last had none.
func TestFullPortTracker(t *testing.T) {
	g := NewWithT(t)
	port := forward.Port{Protocol: corev1.ProtocolUDP, Address: netip.MustParseAddrPort("192.0.2.100:53")}
	now, c := time.Now(), fullPortTracker{}
	countFullPorts := func(after time.Duration, counts forward.Counts) int {
		return len(c.observeCounts(now.Add(after), map[forward.Port]forward.Counts{port: counts}))
	}
	g.Expect(countFullPorts(0, forward.Counts{Sessions: 4096})).To(Equal(0))
	g.Expect(countFullPorts(time.Second, forward.Counts{DisplacedSessions: 3})).To(Equal(1))
	g.Expect(countFullPorts(time.Minute, forward.Counts{DisplacedSessions: 3})).To(Equal(1))
	g.Expect(countFullPorts(time.Minute+time.Second, forward.Counts{DisplacedSessions: 3})).To(Equal(0))
	g.Expect(countFullPorts(2*time.Minute, forward.Counts{DisplacedSessions: 3, RefusedConnections: 1})).To(Equal(1))
	g.Expect(c.observeCounts(now.Add(2*time.Minute), nil)).To(BeEmpty(), "it is not forwarded any more")
	g.Expect(countFullPorts(2*time.Minute, forward.Counts{})).To(Equal(0), "it was begun anew")
}
