package integration

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

// flood creates claims c0, c1 and so on until end is called, each as soon as an earlier one is Ready: so the load
// lasts as long as the test needs it, however fast the manager is. It waits for an API server that is down.
type flood struct {
	next atomic.Int64
	stop chan struct{}
	all  errgroup.Group
}

// flooders is the number of claims that are pending at a time.
const flooders = 24

func startFlood(ctx context.Context, ns string) *flood {
	f := &flood{stop: make(chan struct{})}
	for range flooders {
		f.all.Go(func() error {
			for !f.ended() {
				if err := f.createClaim(ctx, framework.MakeClaim(ns, fmt.Sprintf("c%d", f.next.Add(1)-1)).Pool("p").Obj()); err != nil {
					return err
				}
			}
			return nil
		})
	}
	return f
}

// createClaim creates a claim, and waits until it is Ready or the flood ends.
func (f *flood) createClaim(ctx context.Context, claim *ipamv1.IPAddressClaim) error {
	const interval = 50 * time.Millisecond
	err := wait.PollUntilContextCancel(ctx, interval, true, func(ctx context.Context) (bool, error) {
		err := k8s.Create(ctx, claim)
		return err == nil || apierrors.IsAlreadyExists(err), nil
	})
	if err != nil {
		return err
	}
	return wait.PollUntilContextCancel(ctx, interval, false, func(ctx context.Context) (bool, error) {
		err := k8s.Get(ctx, client.ObjectKeyFromObject(claim), claim)
		return f.ended() || (err == nil && readyOf(claim).Status == metav1.ConditionTrue), nil
	})
}

func (f *flood) ended() bool {
	select {
	case <-f.stop:
		return true
	default:
		return false
	}
}

// end stops the flood and returns how many claims it has created.
func (f *flood) end() int {
	GinkgoHelper()
	close(f.stop)
	Expect(f.all.Wait()).To(Succeed())
	return int(f.next.Load())
}
