package controllers

import (
	"context"
	"errors"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/allocator"
)

// feed is a source that keeps the allocator's memory of one kind up to date. It is a reflector
// without a store: the allocator's memory is the store, so a fleet's claims are kept once and in
// the form that is used.
type feed[O client.Object] struct {
	name string
	// kind and list are empty objects of the kind.
	kind      O
	list      client.ObjectList
	namespace string
	watcher   client.WithWatch
	live      client.Reader
	observe   func(O) (allocator.PoolKey, bool)
	forget    func(O) (allocator.PoolKey, bool)
	// missing returns what the memory has beyond a list.
	missing func(listed map[types.UID]struct{}) []O

	ctx    context.Context //nolint:containedctx // the source's own, from Start
	queue  queue
	synced chan struct{}
}

// Start starts to watch.
func (f *feed[O]) Start(ctx context.Context, q queue) error {
	f.ctx, f.queue, f.synced = ctx, q, make(chan struct{})
	options := func(o metav1.ListOptions) *client.ListOptions {
		return &client.ListOptions{Namespace: f.namespace, Raw: &o}
	}
	lw := &toolscache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			list, ok := f.list.DeepCopyObject().(client.ObjectList)
			if !ok {
				return nil, errors.New("not a list")
			}
			return list, f.watcher.List(ctx, list, options(o))
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			return f.watcher.Watch(ctx, f.list, options(o))
		},
	}
	r := toolscache.NewReflectorWithOptions(lw, f.kind, f, toolscache.ReflectorOptions{Name: f.name})
	go r.RunWithContext(ctx)
	return nil
}

// WaitForSync waits until the memory holds what the API server held.
func (f *feed[O]) WaitForSync(ctx context.Context) error {
	select {
	case <-f.synced:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Add takes an object that is new to the watch.
func (f *feed[O]) Add(obj any) error { return f.Update(obj) }

// Update takes an object as the watch shows it.
func (f *feed[O]) Update(obj any) error {
	o, ok := obj.(O)
	if !ok {
		return errors.New("an object of another kind")
	}
	if key, wake := f.observe(o); wake {
		f.queue.Add(key)
	}
	return nil
}

// Delete takes the proof that an object is gone.
func (f *feed[O]) Delete(obj any) error {
	o, ok := obj.(O)
	if !ok {
		return errors.New("an object of another kind")
	}
	f.gone(o)
	return nil
}

func (f *feed[O]) gone(o O) {
	if key, wake := f.forget(o); wake {
		f.queue.Add(key)
	}
}

// Replace takes a list. What the memory has beyond it is forgotten only when a live read shows that
// it is gone: a list can be older than what the watch has shown before (R7).
func (f *feed[O]) Replace(objs []any, _ string) error {
	listed := make(map[types.UID]struct{}, len(objs))
	for i, obj := range objs {
		if o, ok := obj.(O); ok {
			listed[o.GetUID()] = struct{}{}
		}
		if err := f.Update(obj); err != nil {
			return err
		}
		objs[i] = nil // ours now, and not needed any more
	}
	for _, o := range f.missing(listed) {
		go confirmGone(f.ctx, f.live, o, func() { f.gone(o) })
	}
	select {
	case <-f.synced:
	default:
		close(f.synced)
	}
	return nil
}

// Resync has no meaning without a store.
func (f *feed[O]) Resync() error { return nil }

// confirmGone calls gone when a live read shows that an object of that UID does not exist.
func confirmGone(ctx context.Context, live client.Reader, obj client.Object, gone func()) {
	uid := obj.GetUID()
	key := client.ObjectKeyFromObject(obj)
	read, ok := obj.DeepCopyObject().(client.Object)
	for ok && ctx.Err() == nil {
		err := live.Get(ctx, key, read)
		if apierrors.IsNotFound(err) || (err == nil && read.GetUID() != uid) {
			gone()
			return
		}
		if err == nil {
			return // it exists; the watch will speak of it again
		}
		select {
		case <-ctx.Done():
		case <-time.After(time.Second):
		}
	}
}
