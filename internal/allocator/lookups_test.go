//go:build unix

package allocator

import (
	"context"
	"fmt"
	"sync/atomic"
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
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/term"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/grantstest"
)

// TestHangingLookupsDoNotBlockReconcile checks that a pool is reconciled while the owners of many claims cannot be
// read, as the API server of their kind hangs: the claims without a Machine, or with one that is found, get their
// addresses.
func TestHangingLookupsDoNotBlockReconcile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer synctest.Wait()
		defer cancel()
		api := &instantAPI{}
		var hangs atomic.Bool
		var lookups atomic.Int64
		hangs.Store(true)
		a := New(Options{Client: api, Live: api, Recorder: noopRecorder{}, ManagerID: "us", FindMachine: func(ctx context.Context, ns string, owners []metav1.OwnerReference) (grants.Machine, error) {
			if owners[0].Name == "vm-in-c" && hangs.Load() {
				lookups.Add(1)
				<-ctx.Done()
				return grants.Machine{}, ctx.Err()
			}
			return grants.Machine{Name: types.NamespacedName{Namespace: ns, Name: "m"}, FailureDomain: "a"}, nil
		}})
		a.Writers = 1000 // all at once, so that the count of lookups shows how many hang
		a.Start(ctx, func(pools.Key) {})
		o := &v1alpha1.NetworkPool{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p", UID: "u", ResourceVersion: "1", Generation: 1, Finalizers: []string{v1alpha1.PoolFinalizer}}}
		o.Spec.Addresses = []string{"10.0.0.1-10.0.0.200", "10.1.0.1-10.1.0.200"}
		o.Spec.Subnets = []v1alpha1.Subnet{{CIDR: "10.0.0.0/24"}, {CIDR: "10.1.0.0/24", FailureDomains: []string{"a"}}}
		o.Status.Allocator = &v1alpha1.AllocatorStatus{Holder: "us"}
		key := pools.KeyForPool(o)
		p := stateOfPool(a.pools.getOrCreatePool(key))
		p.SetBasePool(o)
		p.Term.Holder, p.Term.TakeoverChecked = true, true
		add := func(name string, second int, change ...func(*ipamv1.IPAddressClaim)) {
			c := grantstest.NewClaim(name, second, change...)
			c.Spec.PoolRef, c.ResourceVersion = key.PoolReference(), api.next()
			api.claims.Store(client.ObjectKeyFromObject(c), c)
			a.ObserveObject(c)
		}
		for i := range maxGrantsPerCommit - 1 {
			add(fmt.Sprintf("hangs-%03d", i), 0, grantstest.OfMachine("c"))
		}
		add("found", 1, grantstest.OfMachine("a"))
		add("plain", 2)
		isServed := func(name string) bool {
			m := grants.NewPool(p).Lock()
			defer m.Unlock()
			return m.Addresses.AddressFor(m.Claimants.ByUID[types.UID("uid-"+name)]) != nil
		}
		pass := func(d time.Duration) { <-time.After(d) }
		turn := func() time.Duration {
			t.Helper()
			began := time.Now()
			r, err := a.Reconcile(ctx, key, o)
			if took := time.Since(began); err != nil || took > 0 {
				t.Fatalf("a turn takes %v, %v", took, err)
			}
			synctest.Wait()
			return r.RequeueAfter
		}
		wait := turn()
		if !isServed("plain") || lookups.Load() != maxGrantsPerCommit-1 {
			t.Errorf("who has no Machine is served: %v; %d lookups hang", isServed("plain"), lookups.Load())
		}
		if wait <= 0 || wait > time.Second {
			t.Errorf("what is found meanwhile is used after %v", wait)
		}
		for range 3 {
			pass(time.Second)
			turn()
		}
		if !isServed("found") || lookups.Load() != maxGrantsPerCommit-1 {
			t.Errorf("whose Machine is found is served: %v; %d lookups, each again", isServed("found"), lookups.Load())
		}
		pass(term.RequestTimeout)
		synctest.Wait()
		hangs.Store(false)
		for range 10 {
			pass(max(turn(), time.Second))
		}
		if !isServed("hangs-000") || !isServed(fmt.Sprintf("hangs-%03d", maxGrantsPerCommit-2)) {
			t.Error("those are not served whose Machines can be read again")
		}
	})
}
