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

// lease is how long a leader may be silent: short, so that frozen ones are replaced.
const lease = 3 * time.Second

// faults are what goes wrong, and how often it has.
type faults struct {
	client.Client
	cp     *framework.ControlPlane
	h      *history
	binary string
	// nodes: managers give Nodes their pod CIDRs, and do nothing else.
	nodes bool
	// life is how long a manager lives at most, a fifth of it at least.
	life time.Duration

	kills, freezes, restarts, edits atomic.Int64
}

// options are those of a manager. One that elects waits for the lease; the others are active at once, beside the
// leader.
func (f *faults) options(elects bool) framework.ManagerOptions {
	args := append(framework.Components(), "--audit-interval=5s", "--orphan-grace=2s", "--shrink-grace=2s")
	if f.nodes {
		args = []string{"--node-cidrs=only"}
	}
	if elects {
		args = append(args, "--leader-elect-lease-duration="+lease.String(), "--leader-elect-renew-deadline=2s", "--leader-elect-retry-period=500ms")
	}
	return framework.ManagerOptions{Binary: f.binary, Kubeconfig: f.cp.Kubeconfig, LeaderElect: elects, Args: args}
}

// manager has a manager killed and started again until ctx ends. Now and then it is frozen first, for longer than the
// lease, and goes on.
func (f *faults) manager(ctx context.Context, elects bool, r *rand.Rand) error {
	for ctx.Err() == nil {
		// Most live from the moment they are ready, however slow the machine is; some die while they start.
		start := framework.LaunchManager
		if r.IntN(4) > 0 {
			start = framework.StartManager
		}
		m, err := start(ctx, f.options(elects))
		if err != nil {
			f.kills.Add(1) // it was not ready within a minute, and is gone
			continue
		}
		life := f.life/5 + time.Duration(r.Int64N(int64(f.life*4/5)))
		freezes := r.IntN(8) == 0
		within(ctx, m.Done(), life)
		if freezes {
			_ = m.Signal(syscall.SIGSTOP)
			within(ctx, m.Done(), lease+time.Duration(r.IntN(2000))*time.Millisecond)
			_ = m.Signal(syscall.SIGCONT)
			f.freezes.Add(1)
			within(ctx, m.Done(), time.Duration(r.IntN(2000))*time.Millisecond)
		}
		if err := m.Kill(); err != nil {
			return err
		}
		f.kills.Add(1)
	}
	return nil
}

// apiServer kills the API server now and then, and starts it again.
func (f *faults) apiServer(ctx context.Context, every time.Duration) error {
	for within(ctx, nil, every); ctx.Err() == nil; within(ctx, nil, every) {
		if err := f.cp.KillAPIServer(); err != nil {
			return err
		}
		if err := f.cp.StartAPIServer(); err != nil {
			return err
		}
		f.restarts.Add(1)
	}
	return nil
}

// hands are people who edit what is not theirs: they delete IPAddresses by force and blocks that
// are in use, touch claims, and change pools.
func (f *faults) hands(ctx context.Context, r *rand.Rand) {
	for n := 0; ctx.Err() == nil; n++ {
		within(ctx, nil, time.Duration(100+r.IntN(400))*time.Millisecond)
		var err error
		switch r.IntN(5) {
		case 0, 1:
			err = f.ripAddress(ctx, r)
		case 2:
			err = f.touch(ctx, r, n)
		case 3:
			err = f.takeBlock(ctx, r)
		default:
			err = f.reshape(ctx, r)
		}
		if err == nil {
			f.edits.Add(1)
		}
	}
}

// someone is a claim that has an address, if there is one.
func (f *faults) someone(r *rand.Rand) (name string) {
	for _, t := range f.h.living() {
		if t.kind == "claim" && (name == "" || r.IntN(4) == 0) {
			name = t.name
		}
	}
	return name
}

func (f *faults) ripAddress(ctx context.Context, r *rand.Rand) error {
	a := &ipamv1.IPAddress{}
	a.Namespace, a.Name = namespace, f.someone(r)
	if err := f.Delete(ctx, a); err != nil {
		return err
	}
	return f.Patch(ctx, a, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`)))
}

func (f *faults) touch(ctx context.Context, r *rand.Rand, n int) error {
	c := framework.MakeClaim(namespace, f.someone(r)).Obj()
	return f.Patch(ctx, c, client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"metadata":{"labels":{"touched":"%d"}}}`, n)))
}

// takeBlock deletes a block of a carved pool, whether or not that uses it.
func (f *faults) takeBlock(ctx context.Context, r *rand.Rand) error {
	a := framework.MakeAllocation(namespace, fmt.Sprintf("%s-%d", team(r.IntN(teams)), 1+r.IntN(4))).Obj()
	return f.Delete(ctx, a)
}

// reshape reserves a part of a pool, addresses in use too, or none.
func (f *faults) reshape(ctx context.Context, r *rand.Rand) error {
	change := `{"spec":{"reserved":null}}`
	if r.IntN(2) == 0 {
		change = fmt.Sprintf(`{"spec":{"reserved":[{"cidr":"10.2.%d.0/28"}]}}`, r.IntN(4))
	}
	return f.Patch(ctx, poolNamed["roomy"].Obj(), client.RawPatch(types.MergePatchType, []byte(change)))
}
