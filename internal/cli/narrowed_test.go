package cli

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/inspect"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

// free returns the output of the command `free` for a pool.
func (w *management) free(name string) string {
	w.t.Helper()
	obj := framework.MakePool(name).Namespace("ns").Obj()
	w.get(obj)
	v, err := loadPoolSnapshot(w.t.Context(), w, obj)
	if err != nil {
		w.t.Fatal(err)
	}
	p := &plugin{Env: EnvFromStreams(nil, nil, nil, time.Now)}
	return p.formatFreeResult(newFreeResult(pools.KeyForPool(obj), inspect.ClosedReason(obj), v, 1))
}

// TestAddressKeptOfNarrowedPoolIsNotFree checks that an address that a claim keeps of a narrowed pool is not
// granted by another pool. Until the claim is gone, the plugin reports the same as the manager, as both use the same
// facts.
func TestAddressKeptOfNarrowedPoolIsNotFree(t *testing.T) {
	older := framework.MakePool("elder").Namespace("ns").Addresses("10.0.0.1-10.0.0.2").Prefix(24)
	for name, tc := range map[string]struct {
		pool      *framework.PoolBuilder
		why, free string
	}{
		"it may give": {
			pool: framework.MakePool("p").Namespace("ns").Addresses("10.0.0.1").Prefix(24),
			why:  "NetworkPool ns/p has no free address: all are allocated, reserved or resting, or NetworkPool ns/elder has them too",
			free: "NetworkPool ns/p has no room for a claim; 1 other waits for this pool.\n0 addresses are free",
		},
		"it is to give": {
			pool: framework.MakePool("p").Namespace("ns").Addresses("10.0.0.1", "10.0.0.5").Prefix(24).PreAllocate("c", "10.0.0.1"),
			why:  "the preAllocated address 10.0.0.1 is held by NetworkPool ns/elder, which has it too",
			free: "A claim would get 10.0.0.5 of NetworkPool ns/p; 1 other waits for this pool.\n1 address is free",
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w, c := newManagement(t), framework.MakeClaim("ns", "c").Pool("p").Obj()
				w.create(older.Obj(), framework.MakeClaim("ns", "keeps").Pool("elder").Obj())
				w.serve()
				edit(w, &v1alpha1.NetworkPool{}, "elder", func(p *v1alpha1.NetworkPool) { p.Spec.Addresses = []string{"10.0.0.9"} })
				w.create(tc.pool.Obj(), c)
				w.serve()
				w.get(c)
				if condition := conditions.Get(c, v1alpha1.ReadyCondition); condition == nil || !strings.HasPrefix(condition.Message, tc.why) {
					t.Errorf("the manager says %v", condition)
				}
				if output := w.explain("claim/c"); !strings.Contains(output, tc.why) {
					t.Errorf("explain says %s", output)
				}
				if output := w.free("p"); !strings.HasPrefix(output, tc.free) {
					t.Errorf("free says %s", output)
				}
				w.delete(&ipamv1.IPAddressClaim{}, "keeps")
				w.serve()
				if output := w.explain("claim/c"); !strings.Contains(output, "has 10.0.0.1 of NetworkPool p") {
					t.Errorf("when that is gone, explain says %s", output)
				}
			})
		})
	}
}
