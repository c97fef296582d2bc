//go:build unix

package allocator

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/grants"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/grantstest"
)

// instantAPI is an API server that answers at once: only the allocator's own work is measured.
type instantAPI struct {
	client.Client

	version atomic.Int64
	claims  sync.Map
}

func (c *instantAPI) next() string { return strconv.FormatInt(c.version.Add(1), 10) }

func (c *instantAPI) Status() client.SubResourceWriter { return &instantStatus{of: c} }

func (c *instantAPI) Create(_ context.Context, obj client.Object, _ ...client.CreateOption) error {
	obj.SetUID(types.UID("address of " + obj.GetName()))
	obj.SetResourceVersion(c.next())
	return nil
}

func (c *instantAPI) Patch(_ context.Context, obj client.Object, patch client.Patch, _ ...client.PatchOption) error {
	return c.patch(obj, patch)
}

// patch merges a patch into a claim that the API server has.
func (c *instantAPI) patch(obj client.Object, patch client.Patch) error {
	body, err := patch.Data(obj)
	if err != nil {
		return err
	}
	stored, _ := c.claims.Load(client.ObjectKeyFromObject(obj))
	claim := stored.(*ipamv1.IPAddressClaim).DeepCopy()
	if err := json.Unmarshal(body, claim); err != nil {
		return err
	}
	claim.ResourceVersion = c.next()
	c.claims.Store(client.ObjectKeyFromObject(obj), claim)
	claim.DeepCopyInto(obj.(*ipamv1.IPAddressClaim))
	return nil
}

type instantStatus struct {
	client.SubResourceWriter

	of *instantAPI
}

func (s *instantStatus) Patch(_ context.Context, obj client.Object, patch client.Patch, _ ...client.SubResourcePatchOption) error {
	return s.of.patch(obj, patch)
}

func (s *instantStatus) Update(_ context.Context, obj client.Object, _ ...client.SubResourceUpdateOption) error {
	obj.SetResourceVersion(s.of.next())
	return nil
}

// noopRecorder drops events.
type noopRecorder struct{}

func (noopRecorder) Eventf(runtime.Object, runtime.Object, string, string, string, string, ...any) {}

// BenchmarkPools measures what it takes to serve a claim where the API server costs nothing, each core with a pool of
// its own. With -cpu 1,2 the time halves where two cores are free, and the CPU time stays the same: pools do not wait
// for each other.
func BenchmarkPools(b *testing.B) {
	const batch = 64
	api := &instantAPI{}
	a := New(Options{Client: api, Recorder: noopRecorder{}, ManagerID: "bench"})
	woken := sync.Map{}
	a.Start(b.Context(), func(key pools.Key) {
		if c, ok := woken.Load(key); ok {
			select {
			case c.(chan struct{}) <- struct{}{}:
			default:
			}
		}
	})
	var made atomic.Int64
	var before, after syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &before)
	b.RunParallel(func(pb *testing.PB) {
		ns := fmt.Sprint("ns-", made.Add(1))
		obj := &v1alpha1.NetworkPool{ObjectMeta: metav1.ObjectMeta{
			Namespace: ns, Name: "pool", UID: types.UID(ns), ResourceVersion: "1", Generation: 1, Finalizers: []string{v1alpha1.PoolFinalizer},
		}}
		obj.Spec.CIDR, obj.Spec.Network = "10.0.0.0/8", ns
		key := pools.KeyForPool(obj)
		wake := make(chan struct{}, 1)
		woken.Store(key, wake)
		p := stateOfPool(a.pools.getOrCreatePool(key))
		p.SetBasePool(obj)
		p.Term.Holder, p.Term.TakeoverChecked = true, true
		obj.Status.Allocator = &v1alpha1.AllocatorStatus{Holder: "bench"}
		n := 0
		serve := func() {
			for ; ; <-wake {
				if _, err := a.Reconcile(b.Context(), key, obj); err != nil {
					b.Error(err)
					return
				}
				grants.NewPool(p).Lock()
				left := p.Queues.Waiting.Len() + len(p.Queues.ToWrite) + p.Grants.UnconfirmedGrantCount()
				p.Unlock()
				if left == 0 {
					return
				}
			}
		}
		for pb.Next() {
			claim := &ipamv1.IPAddressClaim{ObjectMeta: metav1.ObjectMeta{
				Namespace: ns, Name: fmt.Sprint("claim-", n), UID: types.UID(fmt.Sprint(ns, "/", n)), ResourceVersion: api.next(), CreationTimestamp: metav1.NewTime(grantstest.Noon),
			}}
			claim.Spec.PoolRef = key.PoolReference()
			api.claims.Store(client.ObjectKeyFromObject(claim), claim)
			a.ObserveObject(claim)
			if n++; n%batch == 0 {
				serve()
			}
		}
		serve()
	})
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &after)
	spent := after.Utime.Nano() + after.Stime.Nano() - before.Utime.Nano() - before.Stime.Nano()
	b.ReportMetric(float64(spent)/1e3/float64(b.N), "µs-CPU/op")
}
