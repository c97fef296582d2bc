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

// unread is a cache that has nothing, and says so for a while.
type unread struct {
	client.Reader

	err error
}

func (u *unread) List(context.Context, client.ObjectList, ...client.ListOption) error { return u.err }

// What has changed while the Nodes could not be read is forwarded later, though nothing changes any more.
func TestPortsAreSetAgain(t *testing.T) {
	g := NewWithT(t)
	cache := &unread{err: errors.New("no answer")}
	a := New(Options{Name: "h1", Timing: hostlb.DefaultTiming(), Forward: true}, cache, nil, nil, logr.Discard())
	a.Changed()
	a.proxy.set(t.Context())
	g.Expect(a.proxy.due(nil)).To(BeFalse(), "not at once")
	a.proxy.at = time.Now().Add(-a.Timing.Again)
	g.Expect(a.proxy.due(nil)).To(BeTrue())
	cache.err = nil
	a.proxy.set(t.Context())
	a.proxy.at = time.Now().Add(-a.Timing.Again)
	g.Expect(a.proxy.due(nil)).To(BeFalse(), "it rests")
}

// A port that had no room is said to have none for a minute after it last had not.
func TestCrowds(t *testing.T) {
	g := NewWithT(t)
	port := forward.Port{Protocol: corev1.ProtocolUDP, Address: netip.MustParseAddrPort("192.0.2.100:53")}
	now, c := time.Now(), crowds{}
	look := func(after time.Duration, counts forward.Counts) int {
		return len(c.look(now.Add(after), map[forward.Port]forward.Counts{port: counts}))
	}
	g.Expect(look(0, forward.Counts{Sessions: 4096})).To(Equal(0))
	g.Expect(look(time.Second, forward.Counts{Displaced: 3})).To(Equal(1))
	g.Expect(look(time.Minute, forward.Counts{Displaced: 3})).To(Equal(1))
	g.Expect(look(time.Minute+time.Second, forward.Counts{Displaced: 3})).To(Equal(0))
	g.Expect(look(2*time.Minute, forward.Counts{Displaced: 3, Refused: 1})).To(Equal(1))
	g.Expect(c.look(now.Add(2*time.Minute), nil)).To(BeEmpty(), "it is not forwarded any more")
	g.Expect(look(2*time.Minute, forward.Counts{})).To(Equal(0), "it was begun anew")
}
