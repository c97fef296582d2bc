package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

const (
	namespace = "chaos"
	// again is how long a user waits before a call that failed is made again.
	again = 50 * time.Millisecond
	// unseen is how long a user relies on the watch: what comes and goes while the API server is away is never shown.
	unseen = 10 * time.Second
)

// poolNamed are the pools: one that is always full, one with room, and one whose addresses rest before they are used again.
var poolNamed = map[string]*framework.PoolBuilder{
	"full":    framework.MakePool("full").Namespace(namespace).Addresses("10.1.0.1-10.1.0.24"),
	"roomy":   framework.MakePool("roomy").Namespace(namespace).CIDR("10.2.0.0/22"),
	"resting": framework.MakePool("resting").Namespace(namespace).CIDR("10.3.0.0/25").Reuse(1),
}

// trunk is a pool that teams carve theirs from: they want more of it than there is.
const (
	trunk = "trunk"
	teams = 20
)

// carved are the pools that take their addresses from others, and the one that these come from.
func carved() []client.Object {
	out := []client.Object{framework.MakePool(trunk).Namespace(namespace).CIDR("10.4.0.0/24").AllocateReserved().Carvable().Obj()}
	for i := range teams {
		out = append(out, framework.MakePool(team(i)).Namespace(namespace).Carve(v1alpha1.NetworkPoolKind, trunk, 29, 0, 4).Obj())
	}
	return out
}

func team(i int) string { return fmt.Sprintf("team-%d", i) }

// users create claims and allocations, have them for a while, and delete them, until it is enough.
type users struct {
	client.Client
	*history
	// carved: they ask carved pools alone.
	carved  bool
	created atomic.Int64
	enough  func() bool
}

// user is one of them. The seed decides what it does; how long that takes is the machine's.
func (u *users) user(ctx context.Context, id int, r *rand.Rand) error {
	for n := 0; !u.enough() && ctx.Err() == nil; n++ {
		// Three in ten take the name of the one before.
		name := fmt.Sprintf("u%d-%d", id, n)
		if n > 0 && r.IntN(10) < 3 {
			name = fmt.Sprintf("u%d", id)
		}
		if err := u.live(ctx, name, r); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return ctx.Err()
}

func (u *users) live(ctx context.Context, name string, r *rand.Rand) error {
	own := team(r.IntN(teams))
	pool := []string{"full", "full", "roomy", "roomy", "roomy", "resting", own, own, own}[r.IntN(9)]
	if u.carved {
		pool = own
	}
	var obj client.Object = framework.MakeClaim(namespace, name).Pool(pool).Obj()
	kind := "claim"
	if r.IntN(10) == 0 {
		kind, obj = "allocation", framework.MakeAllocation(namespace, name).Pool(pool).Cluster(namespace, "tenant").Count(1+r.Int32N(16)).Obj()
	}
	patience, stay, ripped := time.Duration(r.IntN(3000))*time.Millisecond, time.Duration(r.IntN(500))*time.Millisecond, r.IntN(30) == 0
	asked := u.now()
	uid, err := u.create(ctx, obj)
	if err != nil {
		return err
	}
	u.created.Add(1)
	t := u.asks(uid, kind, name, asked)
	// Some do not wait to be served, or wait in vain: their deletion races their grant.
	if within(ctx, t.served, patience) {
		within(ctx, nil, stay)
	}
	u.leaves(t)
	if err := u.remove(ctx, obj, uid, ripped); err != nil {
		return err
	}
	for !within(ctx, t.ended, unseen) {
		if ctx.Err() != nil {
			return fmt.Errorf("its %s is not gone: %w", kind, ctx.Err())
		}
		if now, err := uidOf(ctx, u, obj); apierrors.IsNotFound(err) || (err == nil && now != uid) {
			u.ends(uid)
		}
	}
	return nil
}

// within waits for a channel to be closed, for so long at most.
func within(ctx context.Context, c <-chan struct{}, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-c:
		return true
	case <-timer.C:
	case <-ctx.Done():
	}
	return false
}

// create creates an object, whatever becomes of calls and answers.
func (u *users) create(ctx context.Context, obj client.Object) (types.UID, error) {
	for {
		fresh, ok := obj.DeepCopyObject().(client.Object)
		if !ok {
			return "", fmt.Errorf("%T is no object", obj)
		}
		err := u.Create(ctx, fresh)
		if err == nil {
			return fresh.GetUID(), nil
		}
		if apierrors.IsAlreadyExists(err) { // an answer was lost: nobody else takes these names
			if uid, err := uidOf(ctx, u, fresh); err == nil {
				return uid, nil
			}
		}
		if apierrors.IsInvalid(err) || ctx.Err() != nil {
			return "", err
		}
		within(ctx, nil, again)
	}
}

// remove deletes an object; ripped: without regard to its finalizers, as people in a hurry do.
func (u *users) remove(ctx context.Context, obj client.Object, uid types.UID, ripped bool) error {
	for {
		err := u.Delete(ctx, obj, client.Preconditions{UID: &uid})
		if err == nil && ripped {
			err = u.Patch(ctx, obj, client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"metadata":{"uid":%q,"finalizers":null}}`, uid)))
		}
		if err == nil || apierrors.IsNotFound(err) || apierrors.IsConflict(err) { // conflict: it is another one's name by now
			return nil
		}
		if ctx.Err() != nil {
			return err
		}
		within(ctx, nil, again)
	}
}
