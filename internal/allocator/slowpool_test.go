//go:build unix

package allocator

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/grants"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/grantstest"
)

// partlyHangingAPI is an API server that answers at once, except the calls that hangs selects.
type partlyHangingAPI struct {
	*instantAPI
	hangs func(client.Object) bool
}

func (p *partlyHangingAPI) wait(ctx context.Context, o client.Object) error {
	if p.hangs(o) {
		<-ctx.Done()
		return ctx.Err()
	}
	return nil
}

func (p *partlyHangingAPI) Get(ctx context.Context, _ client.ObjectKey, _ client.Object, _ ...client.GetOption) error {
	<-ctx.Done() // only what hangs is read
	return ctx.Err()
}

func (p *partlyHangingAPI) Patch(ctx context.Context, o client.Object, patch client.Patch, opts ...client.PatchOption) error {
	if err := p.wait(ctx, o); err != nil {
		return err
	}
	return p.instantAPI.Patch(ctx, o, patch, opts...)
}

func (p *partlyHangingAPI) Status() client.SubResourceWriter {
	return &partlyHangingStatus{instantStatus{of: p.instantAPI}, p}
}

type partlyHangingStatus struct {
	instantStatus
	of *partlyHangingAPI
}

func (s *partlyHangingStatus) Update(ctx context.Context, o client.Object, opts ...client.SubResourceUpdateOption) error {
	if err := s.of.wait(ctx, o); err != nil {
		return err
	}
	return s.instantStatus.Update(ctx, o, opts...)
}

// TestSlowPoolBesideAFastOne checks that a pool whose writes hang delays no other pool (W5).
func TestSlowPoolBesideAFastOne(t *testing.T) {
	const writers = 32
	for name, hangs := range map[string]func(client.Object) bool{
		"its commits hang": func(o client.Object) bool { _, ok := o.(v1alpha1.Pool); return ok && o.GetNamespace() == "slow" },
		"its claims hang":  func(o client.Object) bool { _, ok := o.(v1alpha1.Pool); return !ok && o.GetNamespace() == "slow" },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				defer synctest.Wait() // or a job outlives the test
				defer cancel()
				api := &partlyHangingAPI{&instantAPI{}, hangs}
				a := New(Options{Client: api, Live: api, Recorder: noopRecorder{}, ManagerID: "us", Writers: writers})
				wakes := map[string]chan struct{}{"slow": make(chan struct{}, 1), "fast": make(chan struct{}, 1)}
				a.Start(ctx, func(key pools.Key) {
					select {
					case wakes[key.Namespace] <- struct{}{}:
					default:
					}
				})
				slow, fast := heldPool(a, "slow"), heldPool(a, "fast")
				for i := range 2 * writers {
					a.ObserveObject(waitingClaim(api, "slow", i))
				}
				go func() { _, _ = a.Reconcile(ctx, pools.KeyForPool(slow), slow) }()
				synctest.Wait() // the calls that hang are in progress
				begin := time.Now()
				for i := range 3 * writers {
					a.ObserveObject(waitingClaim(api, "fast", i))
				}
				p := stateOfPool(a.pools.getOrCreatePool(pools.KeyForPool(fast)))
				for {
					if _, err := a.Reconcile(ctx, pools.KeyForPool(fast), fast); err != nil {
						t.Fatal(err)
					}
					synctest.Wait()
					grants.NewPool(p).Lock()
					left := p.Queues.Waiting.Len() + len(p.Queues.ToWrite) + p.Grants.UnconfirmedGrantCount()
					p.Unlock()
					if left == 0 {
						break
					}
					<-wakes["fast"]
				}
				if took := time.Since(begin); took > time.Second {
					t.Errorf("the other pool was served after %v", took)
				}
			})
		})
	}
}

// heldPool returns a pool of a namespace, and of a network of its own, that the allocator has taken over.
func heldPool(a *Allocator, ns string) *v1alpha1.NetworkPool {
	o := &v1alpha1.NetworkPool{ObjectMeta: metav1.ObjectMeta{
		Namespace: ns, Name: "pool", UID: types.UID(ns), ResourceVersion: "1", Generation: 1, Finalizers: []string{v1alpha1.PoolFinalizer},
	}}
	o.Spec.CIDR, o.Spec.Network = "10.0.0.0/16", ns
	o.Status.Allocator = &v1alpha1.AllocatorStatus{Holder: a.ManagerID}
	p := stateOfPool(a.pools.getOrCreatePool(pools.KeyForPool(o)))
	p.SetBasePool(o)
	p.Term.Holder, p.Term.TakeoverChecked = true, true
	return o
}

// waitingClaim returns a claim of the pool of a namespace, that the API server has.
func waitingClaim(api *partlyHangingAPI, ns string, i int) *ipamv1.IPAddressClaim {
	c := &ipamv1.IPAddressClaim{ObjectMeta: metav1.ObjectMeta{
		Namespace: ns, Name: fmt.Sprint("claim-", i), UID: types.UID(fmt.Sprint(ns, "/", i)), ResourceVersion: api.next(), CreationTimestamp: metav1.NewTime(grantstest.Noon),
	}}
	c.Spec.PoolRef = pools.Key{Kind: v1alpha1.NetworkPoolKind, Namespace: ns, Name: "pool"}.PoolReference()
	api.claims.Store(client.ObjectKeyFromObject(c), c)
	return c
}
