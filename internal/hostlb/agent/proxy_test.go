//go:build linux

package agent

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/go-logr/logr"
	. "github.com/onsi/gomega"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/hostlb"
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
