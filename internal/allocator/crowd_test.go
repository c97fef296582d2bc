package allocator

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/grants"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"
)

// failingCreateAPI is an API server that cannot create IPAddresses in namespaces whose webhook does not answer.
type failingCreateAPI struct{ *instantAPI }

func (f *failingCreateAPI) Create(ctx context.Context, o client.Object, opts ...client.CreateOption) error {
	if _, ok := o.(*ipamv1.IPAddress); ok && strings.HasPrefix(o.GetNamespace(), "barred") {
		return apierrors.NewInternalError(errors.New("failed calling webhook"))
	}
	return f.instantAPI.Create(ctx, o, opts...)
}

func (f *failingCreateAPI) Get(_ context.Context, key client.ObjectKey, _ client.Object, _ ...client.GetOption) error {
	return apierrors.NewNotFound(schema.GroupResource{}, key.Name)
}

// TestFailingNamespacesLeaveRoom checks that claims of many namespaces whose IPAddresses cannot be written at the
// moment, each with an unknown outcome and in flight, delay no claim of another namespace.
func TestFailingNamespacesLeaveRoom(t *testing.T) { // W31
	for _, namespaces := range []int{1, 3, 20} {
		t.Run(fmt.Sprint(namespaces, " namespaces fail"), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				defer synctest.Wait()
				defer cancel()
				api := &failingCreateAPI{&instantAPI{}}
				a := New(Options{Client: api, Live: api, Recorder: noopRecorder{}, ManagerID: "us", Writers: 32})
				woken := make(chan struct{}, 1)
				a.Start(ctx, func(pools.Key) {
					select {
					case woken <- struct{}{}:
					default:
					}
				})
				o := &v1alpha1.GlobalNetworkPool{ObjectMeta: metav1.ObjectMeta{Name: "global", UID: "g", ResourceVersion: "1", Generation: 1, Finalizers: []string{v1alpha1.PoolFinalizer}}}
				o.Spec.CIDR = "10.0.0.0/16"
				o.Status.Allocator = &v1alpha1.AllocatorStatus{Holder: "us"}
				key := pools.KeyForPool(o)
				p := stateOfPool(a.pools.getOrCreatePool(key))
				p.SetBasePool(o)
				p.Term.Holder, p.Term.TakeoverChecked = true, true
				add := func(ns string, i int, at time.Time) *ipamv1.IPAddressClaim {
					c := &ipamv1.IPAddressClaim{ObjectMeta: metav1.ObjectMeta{
						Namespace: ns, Name: fmt.Sprint("claim-", i), UID: types.UID(fmt.Sprint(ns, "/", i)), ResourceVersion: api.next(), CreationTimestamp: metav1.NewTime(at),
					}}
					c.Spec.PoolRef = key.PoolReference()
					api.claims.Store(client.ObjectKeyFromObject(c), c)
					a.ObserveObject(c)
					return c
				}
				for n := range namespaces {
					for i := range 140 {
						add(fmt.Sprintf("barred-%02d", n), i, time.Now())
					}
				}
				one := add("one", 0, time.Now().Add(time.Second))
				begin, reconciles, served := time.Now(), 0, false
				for ; !served && time.Since(begin) < 3*time.Minute; reconciles++ {
					r, err := a.Reconcile(ctx, key, o)
					if err != nil {
						t.Fatal(err)
					}
					synctest.Wait()
					grants.NewPool(p).Lock()
					served = p.Addresses.AddressFor(p.Claimants.ByUID[one.UID]) != nil
					p.Unlock()
					wait := r.RequeueAfter
					if wait == 0 || wait > time.Minute {
						wait = time.Minute
					}
					select {
					case <-woken:
					case <-time.After(wait):
					}
				}
				if !served || reconciles > 400 {
					t.Errorf("after %v and %d reconciles, the claim of the other namespace is served: %v", time.Since(begin), reconciles, served)
				}
			})
		})
	}
}
