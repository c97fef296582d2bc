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
	// retryInterval is how long a user waits before it retries a failed call.
	retryInterval = 50 * time.Millisecond
	// watchTimeout is how long a user relies on the watch alone: an object that is created and deleted while the API
	// server is down is never shown.
	watchTimeout = 10 * time.Second
)

// poolsByName are the pools: one that is always full, one with room, and one with a reuse grace period.
var poolsByName = map[string]*framework.PoolBuilder{
	"full":    framework.MakePool("full").Namespace(namespace).Addresses("10.1.0.1-10.1.0.24"),
	"roomy":   framework.MakePool("roomy").Namespace(namespace).CIDR("10.2.0.0/22"),
	"resting": framework.MakePool("resting").Namespace(namespace).CIDR("10.3.0.0/25").ReuseGracePeriod(1),
}

// parentPool is a pool that teams carve their pools from: together they request more than it has.
const (
	parentPool = "trunk"
	teamCount  = 20
)

// carvedPools returns the pool that is carved, and the pools that take their addresses from it.
func carvedPools() []client.Object {
	out := []client.Object{framework.MakePool(parentPool).Namespace(namespace).CIDR("10.4.0.0/24").AllocateReservedAddresses().Carvable().Obj()}
	for i := range teamCount {
		out = append(out, framework.MakePool(teamPoolName(i)).Namespace(namespace).Carve(v1alpha1.NetworkPoolKind, parentPool, 29, 0, 4).Obj())
	}
	return out
}

func teamPoolName(i int) string { return fmt.Sprintf("team-%d", i) }

// users create claims and allocations, keep them for a while, and delete them, until the run is done.
type users struct {
	client.Client
	*history
	// carvedOnly reports whether they request addresses of carved pools alone.
	carvedOnly   bool
	createdCount atomic.Int64
	isDone       func() bool
}

// runUser runs one user. The seed decides its actions; the machine decides how long they take.
func (u *users) runUser(ctx context.Context, id int, r *rand.Rand) error {
	for n := 0; !u.isDone() && ctx.Err() == nil; n++ {
		// Three in ten reuse the name of the one before.
		name := fmt.Sprintf("u%d-%d", id, n)
		if n > 0 && r.IntN(10) < 3 {
			name = fmt.Sprintf("u%d", id)
		}
		if err := u.runLifecycle(ctx, name, r); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return ctx.Err()
}

func (u *users) runLifecycle(ctx context.Context, name string, r *rand.Rand) error {
	own := teamPoolName(r.IntN(teamCount))
	pool := []string{"full", "full", "roomy", "roomy", "roomy", "resting", own, own, own}[r.IntN(9)]
	if u.carvedOnly {
		pool = own
	}
	var obj client.Object = framework.MakeClaim(namespace, name).Pool(pool).Obj()
	kind := "claim"
	if r.IntN(10) == 0 {
		kind, obj = "allocation", framework.MakeAllocation(namespace, name).Pool(pool).Cluster(namespace, "tenant").Count(1+r.Int32N(16)).Obj()
	}
	patience, stay, ripped := time.Duration(r.IntN(3000))*time.Millisecond, time.Duration(r.IntN(500))*time.Millisecond, r.IntN(30) == 0
	asked := u.elapsed()
	uid, err := u.createWithRetry(ctx, obj)
	if err != nil {
		return err
	}
	u.createdCount.Add(1)
	t := u.recordRequest(uid, kind, name, asked)
	// Some do not wait until they are served, or are never served: their deletion races their grant.
	if waitWithin(ctx, t.servedCh, patience) {
		waitWithin(ctx, nil, stay)
	}
	u.recordDeletion(t)
	if err := u.deleteWithRetry(ctx, obj, uid, ripped); err != nil {
		return err
	}
	for !waitWithin(ctx, t.goneCh, watchTimeout) {
		if ctx.Err() != nil {
			return fmt.Errorf("its %s is not gone: %w", kind, ctx.Err())
		}
		if now, err := getUID(ctx, u, obj); apierrors.IsNotFound(err) || (err == nil && now != uid) {
			u.recordGone(uid)
		}
	}
	return nil
}

// waitWithin waits until a channel is closed, for d at most, and reports whether it was closed.
func waitWithin(ctx context.Context, c <-chan struct{}, d time.Duration) bool {
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

// createWithRetry creates an object, and retries after failed calls and lost answers.
func (u *users) createWithRetry(ctx context.Context, obj client.Object) (types.UID, error) {
	for {
		toCreate, ok := obj.DeepCopyObject().(client.Object)
		if !ok {
			return "", fmt.Errorf("%T is no object", obj)
		}
		err := u.Create(ctx, toCreate)
		if err == nil {
			return toCreate.GetUID(), nil
		}
		if apierrors.IsAlreadyExists(err) { // an answer was lost: no other user takes these names
			if uid, err := getUID(ctx, u, toCreate); err == nil {
				return uid, nil
			}
		}
		if apierrors.IsInvalid(err) || ctx.Err() != nil {
			return "", err
		}
		waitWithin(ctx, nil, retryInterval)
	}
}

// deleteWithRetry deletes an object; ripped: it removes all finalizers too, as users in a hurry do.
func (u *users) deleteWithRetry(ctx context.Context, obj client.Object, uid types.UID, ripped bool) error {
	for {
		err := u.Delete(ctx, obj, client.Preconditions{UID: &uid})
		if err == nil && ripped {
			err = u.Patch(ctx, obj, client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"metadata":{"uid":%q,"finalizers":null}}`, uid)))
		}
		if err == nil || apierrors.IsNotFound(err) || apierrors.IsConflict(err) { // conflict: the name belongs to another object by now
			return nil
		}
		if ctx.Err() != nil {
			return err
		}
		waitWithin(ctx, nil, retryInterval)
	}
}
