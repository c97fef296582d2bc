package consumers

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"sync"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/apimachinery/pkg/watch"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/invariants"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"
)

// recorder keeps every change of the claims and IPAddresses of a namespace, so that the invariants can be checked at
// each moment, and not only at the times of reads.
type recorder struct {
	mu     sync.Mutex
	events []change
}

type change struct {
	gone bool
	obj  client.Object
}

// record starts to record an empty namespace, until the spec ends.
func record(ctx context.Context, namespace string) *recorder {
	GinkgoHelper()
	r := &recorder{}
	for _, list := range []client.ObjectList{&ipamv1.IPAddressClaimList{}, &ipamv1.IPAddressList{}} {
		w, err := k8s.Watch(ctx, list, client.InNamespace(namespace))
		Expect(err).NotTo(HaveOccurred())
		DeferCleanup(w.Stop)
		go r.follow(w)
	}
	return r
}

func (r *recorder) follow(w watch.Interface) {
	for event := range w.ResultChan() {
		if obj, ok := event.Object.(client.Object); ok {
			r.mu.Lock()
			r.events = append(r.events, change{gone: event.Type == watch.Deleted, obj: obj})
			r.mu.Unlock()
		}
	}
}

// wrong returns the violations at any moment so far, of a namespace in which nothing changes any more.
func (r *recorder) wrong(ctx context.Context, namespace string) []string {
	GinkgoHelper()
	var bad []string
	var last, now []string
	Eventually(func() []string {
		last, bad = r.replay()
		o := objects(ctx, namespace)
		now = nil
		for i := range o.Claims {
			now = append(now, string(o.Claims[i].UID)+"/"+o.Claims[i].ResourceVersion)
		}
		for i := range o.Addresses {
			now = append(now, string(o.Addresses[i].UID)+"/"+o.Addresses[i].ResourceVersion)
		}
		slices.Sort(now)
		return now
	}).Should(WithTransform(func(now []string) bool { return slices.Equal(now, last) }, BeTrue()), "the watch has not shown everything")
	return bad
}

// replay applies the changes in their order. It returns the objects that exist at the end, and the violations on the
// way.
func (r *recorder) replay() (last, bad []string) {
	r.mu.Lock()
	events := slices.Clone(r.events)
	r.mu.Unlock()
	slices.SortStableFunc(events, func(a, b change) int {
		order, err := resourceversion.CompareResourceVersion(a.obj.GetResourceVersion(), b.obj.GetResourceVersion())
		return cmp.Or(order, map[bool]int{true: -1}[err != nil])
	})
	history := &invariants.History{}
	claims, addresses := map[types.UID]ipamv1.IPAddressClaim{}, map[types.UID]ipamv1.IPAddress{}
	for _, e := range events {
		switch obj := e.obj.(type) {
		case *ipamv1.IPAddressClaim:
			claims[obj.UID] = *obj
			if e.gone {
				delete(claims, obj.UID)
			}
		case *ipamv1.IPAddress:
			addresses[obj.UID] = *obj
			if e.gone {
				delete(addresses, obj.UID)
			}
		}
		bad = append(bad, history.CheckMoment(pools.Objects{
			Claims: slices.Collect(maps.Values(claims)), Addresses: slices.Collect(maps.Values(addresses)),
		})...)
	}
	for uid := range claims {
		last = append(last, string(uid)+"/"+claims[uid].ResourceVersion)
	}
	for uid := range addresses {
		last = append(last, string(uid)+"/"+addresses[uid].ResourceVersion)
	}
	slices.Sort(last)
	return last, bad
}
