package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"syscall"
	"time"

	"k8s.io/apimachinery/pkg/types"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

// leaseDuration is the lease duration of the leader election: it is short, so that frozen leaders are replaced.
const leaseDuration = 3 * time.Second

// faultInjector injects faults and counts them.
type faultInjector struct {
	client.Client
	controlPlane  *framework.ControlPlane
	history       *history
	managerBinary string
	// nodesOnly reports whether managers run only the Node CIDR allocator.
	nodesOnly bool
	// maxLifetime is the longest lifetime of a manager; the shortest is a fifth of it.
	maxLifetime time.Duration

	kills, freezes, restarts, edits atomic.Int64
}

// managerOptions returns the options of a manager. A manager that elects waits for the lease; the others are active
// at once, concurrently with the leader.
func (f *faultInjector) managerOptions(elects bool) framework.ManagerOptions {
	args := append(framework.ComponentFlags(), "--audit-interval=5s", "--orphan-grace=2s", "--shrink-grace=2s")
	if f.nodesOnly {
		args = []string{"--node-cidrs=only"}
	}
	if elects {
		args = append(args, "--leader-elect-lease-duration="+leaseDuration.String(), "--leader-elect-renew-deadline=2s", "--leader-elect-retry-period=500ms")
	}
	return framework.ManagerOptions{Binary: f.managerBinary, Kubeconfig: f.controlPlane.Kubeconfig, LeaderElect: elects, Args: args}
}

// crashManager kills a manager and starts it again until ctx ends. Now and then it freezes the manager first, for
// longer than the lease, and resumes it.
func (f *faultInjector) crashManager(ctx context.Context, elects bool, r *rand.Rand) error {
	for ctx.Err() == nil {
		// The lifetime of most managers begins when they are ready, however slow the machine is; some are killed
		// while they start.
		start := framework.LaunchManager
		if r.IntN(4) > 0 {
			start = framework.StartManager
		}
		m, err := start(ctx, f.managerOptions(elects))
		if err != nil {
			f.kills.Add(1) // it was not ready within a minute, and was killed
			continue
		}
		life := f.maxLifetime/5 + time.Duration(r.Int64N(int64(f.maxLifetime*4/5)))
		freezes := r.IntN(8) == 0
		waitWithin(ctx, m.Done(), life)
		if freezes {
			_ = m.Signal(syscall.SIGSTOP)
			waitWithin(ctx, m.Done(), leaseDuration+time.Duration(r.IntN(2000))*time.Millisecond)
			_ = m.Signal(syscall.SIGCONT)
			f.freezes.Add(1)
			waitWithin(ctx, m.Done(), time.Duration(r.IntN(2000))*time.Millisecond)
		}
		if err := m.Kill(); err != nil {
			return err
		}
		f.kills.Add(1)
	}
	return nil
}

// crashAPIServer kills the API server once in each interval, and starts it again.
func (f *faultInjector) crashAPIServer(ctx context.Context, every time.Duration) error {
	for waitWithin(ctx, nil, every); ctx.Err() == nil; waitWithin(ctx, nil, every) {
		if err := f.controlPlane.KillAPIServer(); err != nil {
			return err
		}
		if err := f.controlPlane.StartAPIServer(); err != nil {
			return err
		}
		f.restarts.Add(1)
	}
	return nil
}

// editObjects acts as users who edit objects that they do not own: they delete IPAddresses by force and blocks in
// use, touch claims, and change pools.
func (f *faultInjector) editObjects(ctx context.Context, r *rand.Rand) {
	for n := 0; ctx.Err() == nil; n++ {
		waitWithin(ctx, nil, time.Duration(100+r.IntN(400))*time.Millisecond)
		var err error
		switch r.IntN(5) {
		case 0, 1:
			err = f.forceDeleteAddress(ctx, r)
		case 2:
			err = f.labelClaim(ctx, r, n)
		case 3:
			err = f.deleteBlock(ctx, r)
		default:
			err = f.changeReservedRange(ctx, r)
		}
		if err == nil {
			f.edits.Add(1)
		}
	}
}

// pickServedClaim returns the name of a random claim that has an address, or "".
func (f *faultInjector) pickServedClaim(r *rand.Rand) (name string) {
	for _, t := range f.history.activeTenures() {
		if t.kind == "claim" && (name == "" || r.IntN(4) == 0) {
			name = t.name
		}
	}
	return name
}

func (f *faultInjector) forceDeleteAddress(ctx context.Context, r *rand.Rand) error {
	a := &ipamv1.IPAddress{}
	a.Namespace, a.Name = namespace, f.pickServedClaim(r)
	if err := f.Delete(ctx, a); err != nil {
		return err
	}
	return f.Patch(ctx, a, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`)))
}

func (f *faultInjector) labelClaim(ctx context.Context, r *rand.Rand, n int) error {
	c := framework.MakeClaim(namespace, f.pickServedClaim(r)).Obj()
	return f.Patch(ctx, c, client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"metadata":{"labels":{"touched":"%d"}}}`, n)))
}

// deleteBlock deletes a random block of a carved pool, in use or not.
func (f *faultInjector) deleteBlock(ctx context.Context, r *rand.Rand) error {
	a := framework.MakeAllocation(namespace, fmt.Sprintf("%s-%d", teamPoolName(r.IntN(teamCount)), 1+r.IntN(4))).Obj()
	return f.Delete(ctx, a)
}

// changeReservedRange reserves a part of a pool, including addresses in use, or removes the reservation.
func (f *faultInjector) changeReservedRange(ctx context.Context, r *rand.Rand) error {
	change := `{"spec":{"reserved":null}}`
	if r.IntN(2) == 0 {
		change = fmt.Sprintf(`{"spec":{"reserved":[{"cidr":"10.2.%d.0/28"}]}}`, r.IntN(4))
	}
	return f.Patch(ctx, poolsByName["roomy"].Obj(), client.RawPatch(types.MergePatchType, []byte(change)))
}
