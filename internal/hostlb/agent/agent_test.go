//go:build linux

package agent

import (
	"context"
	"errors"
	"net"
	"sync/atomic"
	"testing"

	"github.com/go-logr/logr"
	. "github.com/onsi/gomega"
	coordinationv1 "k8s.io/api/coordination/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/hostlb"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/hostlb/wire"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/wires"
)

// unfilled is a cache that shows nothing, and counts how often it is asked for the Leases: once a look.
type unfilled struct {
	client.Reader
	looks atomic.Int64
}

func (c *unfilled) List(_ context.Context, all client.ObjectList, _ ...client.ListOption) error {
	if _, is := all.(*coordinationv1.LeaseList); is {
		c.looks.Add(1)
	}
	return nil
}

// down is an API server that answers nothing.
type down struct{ client.Client }

func (down) Get(context.Context, client.ObjectKey, client.Object, ...client.GetOption) error {
	return errors.New("it does not answer")
}

// A machine that claims an address of the host again and again does not have it look each time, which is to read all interfaces and
// all that the cache has.
func TestClaimsDoNotDriveTheHost(t *testing.T) {
	wires.New(t)
	g := NewWithT(t)
	own(t, "wire0", "192.0.2.1/24")
	put(t, "wire0", shown)
	sees := &unfilled{}
	a := New(Options{Name: "h1", Timing: hostlb.DefaultTiming()}, sees, down{}, down{}, logr.Discard())
	ctx, cancel := context.WithCancel(t.Context())
	began := make(chan int64, 1)
	go func() {
		defer cancel()
		claim := wire.Claim{Address: shown, MAC: net.HardwareAddr{2, 0, 0, 0, 0, 9}}
		a.claims <- claim
		a.claims <- claim // the first one has had the host look
		began <- sees.looks.Load()
		for range 5000 {
			a.claims <- claim
		}
	}()
	g.Expect(a.Start(ctx)).To(Succeed())
	g.Expect(sees.looks.Load() - <-began).To(BeNumerically("<", 100))
}
