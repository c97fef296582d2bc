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

// unfilledCache is a cache that shows nothing, and counts how often the Leases are listed: once a sync.
type unfilledCache struct {
	client.Reader
	listCount atomic.Int64
}

func (c *unfilledCache) List(_ context.Context, all client.ObjectList, _ ...client.ListOption) error {
	if _, ok := all.(*coordinationv1.LeaseList); ok {
		c.listCount.Add(1)
	}
	return nil
}

// unreachableAPI is an API server that does not answer.
type unreachableAPI struct{ client.Client }

func (unreachableAPI) Get(context.Context, client.ObjectKey, client.Object, ...client.GetOption) error {
	return errors.New("it does not answer")
}

// TestClaimsDoNotDriveTheHost checks that a machine that claims an address of the host again and again does not have it
// sync each time, which reads all interfaces and everything in the cache.
func TestClaimsDoNotDriveTheHost(t *testing.T) {
	wires.New(t)
	g := NewWithT(t)
	addHostAddress(t, "wire0", "192.0.2.1/24")
	addAddress(t, "wire0", shown)
	sees := &unfilledCache{}
	a := New(Options{Name: "h1", Timing: hostlb.DefaultTiming()}, sees, unreachableAPI{}, unreachableAPI{}, logr.Discard())
	ctx, cancel := context.WithCancel(t.Context())
	began := make(chan int64, 1)
	go func() {
		defer cancel()
		claim := wire.Claim{Address: shown, MAC: net.HardwareAddr{2, 0, 0, 0, 0, 9}}
		a.claims <- claim
		a.claims <- claim // the first one has had the host sync
		began <- sees.listCount.Load()
		for range 5000 {
			a.claims <- claim
		}
	}()
	g.Expect(a.Start(ctx)).To(Succeed())
	g.Expect(sees.listCount.Load() - <-began).To(BeNumerically("<", 100))
}
