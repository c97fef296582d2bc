package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

const (
	fulfilmentMetric = "butler_ipam_claim_fulfilment_seconds_count"
	releasesMetric   = "butler_ipam_releases_total"
	// turnSize is the number of claims that the bare client or the manager serves in a turn: so many that the delay
	// until the benchmark notices the end of a turn, a tenth of a second or two, is negligible. Each has turnsPerSize
	// turns at each size.
	turnSize, turnsPerSize = 1000, 3
	// releaseCount is the number of claims that each of them releases at the end.
	releaseCount = 2 * turnSize
)

// Limits of the share of the bare client's pace.
const (
	claimsLimit   = 0.6
	singlesLimit  = 0.8
	releasesLimit = 0.7
)

// claimFleet is one control plane with a growing number of claims. The claims are spread evenly over some pools, in the
// order of their numbers.
type claimFleet struct {
	*clients
	binary     string
	pools      int
	manager    *framework.Manager
	baseMemory memoryUsage // the memory of the manager without claims
	// claimCount is the number of claims, and servedCount the number of them that the running manager has served;
	// singleCount is the number of claims that were created one at a time, bareCount of those of the bare client.
	claimCount, servedCount, singleCount, bareCount int
}

// start creates the pools, paused, and starts the manager.
func (f *claimFleet) start(ctx context.Context) error {
	for i := range f.pools {
		if err := f.createPausedPool(ctx, framework.MakePool(f.pool(i)).Namespace(namespace).CIDR(fmt.Sprintf("10.%d.0.0/16", i)).Obj()); err != nil {
			return err
		}
	}
	return f.restartManager(ctx)
}

// restartManager kills the manager, if one runs, and starts one.
func (f *claimFleet) restartManager(ctx context.Context) error {
	f.kill()
	m, err := f.startManager(ctx, framework.ManagerOptions{Binary: f.binary, Args: framework.ComponentFlags()})
	if err != nil {
		return err
	}
	f.manager, f.servedCount = m, 0
	return nil
}

// kill ends the manager, if one runs, and with it its log.
func (f *claimFleet) kill() {
	if f.manager != nil {
		_ = f.manager.Kill()
	}
	f.manager = nil
}

// stop ends the manager as kill does, but by SIGTERM.
func (f *claimFleet) stop() error {
	m := f.manager
	f.manager = nil
	return m.Stop()
}

// addLog adds the end of the manager's log to an error, if a manager runs.
func (f *claimFleet) addLog(err error) error {
	if err == nil || f.manager == nil {
		return err
	}
	return fmt.Errorf("%w\n%s", err, f.manager.LogTail(20))
}

func (f *claimFleet) pool(i int) string { return fmt.Sprintf("%s-%02d", poolName, i%f.pools) }

func claimName(i int) string     { return fmt.Sprintf("claim-%05d", i) }
func bareClaimName(i int) string { return fmt.Sprintf("bare-%05d", i) }

// address returns the address of copy i: the manager hands out the addresses of a pool in order, starting after the
// network address. The first claims of a pool have its first addresses; which claim has which depends on the order of
// arrival.
func (f *claimFleet) address(i int) string {
	n := i/f.pools + 1
	return fmt.Sprintf("10.%d.%d.%d", i%f.pools, n/256, n%256)
}

// measureClaims adds, at each number of claims, the paces of a bare client and the manager in alternation, and the
// memory of both servers; and at the last number single claims, restarts, takeovers and releases.
func measureClaims(ctx context.Context, o options, t *table) error {
	return withControlPlane(func(c *clients) error {
		f := &claimFleet{clients: c, binary: o.manager, pools: o.pools}
		defer f.kill() // the last manager that was started
		if err := f.start(ctx); err != nil {
			return err
		}
		return f.addLog(f.measureAll(ctx, o.claims, t))
	})
}

func (f *claimFleet) measureAll(ctx context.Context, sizes []int, t *table) error {
	if err := f.growToSizes(ctx, sizes, t); err != nil {
		return err
	}
	if err := f.addObjectSizes(ctx, t); err != nil {
		return err
	}
	if err := f.pausePools(ctx, false); err != nil {
		return err
	}
	for _, step := range []func(context.Context, *table) error{f.measureSingles, f.measureRestarts, f.measureTakeovers, f.compareReleases} {
		if err := step(ctx, t); err != nil {
			return err
		}
	}
	if err := f.checkRest(ctx, f.manager); err != nil {
		return err
	}
	return f.checkClaims(ctx)
}

func (f *claimFleet) growToSizes(ctx context.Context, sizes []int, t *table) error {
	// The garbage of the start is returned to the system within a second.
	if err := sleepContext(ctx, 3*time.Second); err != nil {
		return err
	}
	var err error
	if f.baseMemory, err = readMemory(ctx, f.manager); err != nil {
		return err
	}
	t.add("manager memory, no claims", fmt.Sprintf("%.0f MB", f.baseMemory.resident/1e6), fmt.Sprintf("%.1f MB of it live objects", f.baseMemory.live/1e6))
	// The first writes of every client are slow, and there is nothing to copy yet.
	if _, err := f.runBareTurn(ctx, turnSize); err != nil {
		return fmt.Errorf("by a bare client: %w", err)
	}
	if _, err := f.runManagedTurn(ctx, turnSize); err != nil {
		return err
	}
	for _, n := range sizes {
		if err := f.fillStorage(ctx, f.claimCount, n); err != nil {
			return fmt.Errorf("filling up to %d: %w", n, err)
		}
		f.claimCount = max(f.claimCount, n)
		what := fmt.Sprintf("claims %d to %d in %d pools", f.claimCount+1, f.claimCount+turnsPerSize*turnSize, f.pools)
		if err := compareTurns(t, what, turnsPerSize*turnSize, turnsPerSize, claimsLimit,
			func(from, to int) (pace, error) { return f.runBareTurn(ctx, to-from) },
			func(from, to int) (pace, error) { return f.runManagedTurn(ctx, to-from) }); err != nil {
			return err
		}
		if err := f.addMemory(ctx, t); err != nil {
			return err
		}
	}
	return nil
}

// runBareTurn returns the pace at which a bare client serves n claims of a pool that the manager does not serve.
func (f *claimFleet) runBareTurn(ctx context.Context, n int) (pace, error) {
	from := f.bareCount
	f.bareCount += n
	if err := runEach(ctx, n, func(ctx context.Context, i int) error {
		return f.createUnservedClaim(ctx, bareClaimName(from+i))
	}); err != nil {
		return pace{}, err
	}
	return f.measureBareTurn(ctx, n, func(ctx context.Context, i int) error { return f.writeClaim(ctx, bareClaimName(from+i), from+i) })
}

// runManagedTurn returns the pace at which the manager serves n claims.
func (f *claimFleet) runManagedTurn(ctx context.Context, n int) (pace, error) {
	from := f.claimCount
	f.claimCount += n
	f.servedCount += n
	return f.measureResumedTurn(ctx, f.manager, n, func(ctx context.Context, i int) error {
		return f.Create(ctx, framework.MakeClaim(namespace, claimName(from+i)).Pool(f.pool(from+i)).Obj())
	}, fulfilmentMetric, f.servedCount)
}

// addMemory adds the memory of the manager and of the API server.
func (f *claimFleet) addMemory(ctx context.Context, t *table) error {
	now, err := readMemory(ctx, f.manager)
	if err != nil {
		return err
	}
	t.add(fmt.Sprintf("manager memory beyond that, %d claims", f.claimCount), fmt.Sprintf("%.2f KB a claim", (now.resident-f.baseMemory.resident)/float64(f.claimCount)/1e3),
		fmt.Sprintf("%.0f MB; %.2f KB a claim of it live objects", now.resident/1e6, (now.live-f.baseMemory.live)/float64(f.claimCount)/1e3))
	server, err := f.readServerMetric(ctx, residentBytes)
	if err != nil {
		return err
	}
	t.add(fmt.Sprintf("API server memory, %d claims", f.claimCount), fmt.Sprintf("%.1f GB", server/1e9), fmt.Sprintf("with %d more of the bare client", f.bareCount))
	return nil
}

const residentBytes = "process_resident_memory_bytes"

// memoryUsage is the memory of a manager in bytes: resident, and live objects.
type memoryUsage struct{ resident, live float64 }

func readMemory(ctx context.Context, m *framework.Manager) (out memoryUsage, err error) {
	if out.resident, err = m.ReadMetric(ctx, residentBytes); err != nil {
		return out, err
	}
	out.live, err = m.ReadMetric(ctx, "go_gc_heap_live_bytes")
	return out, err
}

// addObjectSizes adds the size of a claim and of its IPAddress.
func (f *claimFleet) addObjectSizes(ctx context.Context, t *table) error {
	size := map[string]int{}
	for _, of := range []storedKind{claimKind, addressKind} {
		all, err := f.readTemplates(ctx, of)
		if err != nil {
			return err
		}
		size[of.kind] = len(all[0].text)
	}
	t.add("a claim and its IPAddress, as JSON", fmt.Sprintf("%d bytes", size[claimKind.kind]+size[addressKind.kind]),
		fmt.Sprintf("%d and %d, managed fields included", size[claimKind.kind], size[addressKind.kind]))
	return nil
}

// compareReleases alternates between a bare client and the manager, each of which releases claims that it has served.
func (f *claimFleet) compareReleases(ctx context.Context, t *table) error {
	return compareTurns(t, fmt.Sprintf("release of %d claims", releaseCount), releaseCount, turnsPerSize, releasesLimit,
		func(from, to int) (pace, error) {
			return f.measureBareTurn(ctx, to-from, func(ctx context.Context, i int) error { return f.releaseClaim(ctx, bareClaimName(from+i)) })
		},
		func(from, to int) (pace, error) {
			return f.measureRequestedTurn(ctx, f.manager, to-from, func() error {
				if err := runEach(ctx, to-from, func(ctx context.Context, i int) error {
					return f.Delete(ctx, framework.MakeClaim(namespace, claimName(from+i)).Obj())
				}); err != nil {
					return err
				}
				return waitForMetric(ctx, f.manager, releasesMetric, float64(to))
			})
		})
}

// checkClaims returns an error unless each claim that was not released has an address, and no two have the same. The
// claims of the bare client are left out: it uses addresses several times.
func (f *claimFleet) checkClaims(ctx context.Context) error {
	claims, addresses := &ipamv1.IPAddressClaimList{}, &ipamv1.IPAddressList{}
	for _, list := range []client.ObjectList{claims, addresses} {
		if err := f.List(ctx, list, client.InNamespace(namespace)); err != nil {
			return err
		}
	}
	claims.Items = slices.DeleteFunc(claims.Items, func(c ipamv1.IPAddressClaim) bool { return c.Spec.PoolRef == unservedPool })
	addresses.Items = slices.DeleteFunc(addresses.Items, func(a ipamv1.IPAddress) bool { return a.Spec.PoolRef == unservedPool })
	for i := range claims.Items {
		if claim := &claims.Items[i]; !isReady(claim) {
			return fmt.Errorf("claim %s is not Ready", claim.Name)
		}
	}
	if want := f.claimCount + f.singleCount - releaseCount; len(claims.Items) != want || len(addresses.Items) != want {
		return fmt.Errorf("there are %d addresses of %d claims, not %d of each", len(addresses.Items), len(claims.Items), want)
	}
	return checkUnique(pools.Objects{Claims: claims.Items, Addresses: addresses.Items})
}

func isReady(claim *ipamv1.IPAddressClaim) bool {
	return meta.IsStatusConditionTrue(claim.Status.Conditions, ipamv1.IPAddressClaimReadyCondition) && claim.Status.AddressRef.Name != ""
}
