package controllers

import (
	"context"
	"errors"
	"time"

	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"
)

// confirmers bounds the live reads of a feed that run at once.
const confirmers = 16

// lister shows what exists, one by one, and returns the resource version from which a watch goes on.
type lister[O any] func(ctx context.Context, namespace string, visit func(O)) (version string, err error)

// feed is a source that keeps the allocator's memory of one kind up to date. It is a reflector
// without a store: the allocator's memory is the store, so a fleet's claims are kept once and in
// the form that is used.
type feed[O client.Object] struct {
	name string
	// kind and kinds are an empty object and an empty list.
	kind      O
	kinds     client.ObjectList
	list      lister[O]
	watch     func(ctx context.Context, namespace string, o metav1.ListOptions) (watch.Interface, error)
	namespace string
	live      client.Reader
	observe   func(O) (pools.Key, bool)
	forget    func(O) (pools.Key, bool)
	// missing returns what the memory has beyond a list.
	missing func(listed map[types.UID]struct{}) []O

	ctx    context.Context //nolint:containedctx // the source's own, from Start
	queue  queue
	synced chan struct{}
	// listed are the UIDs of the list that Replace is about to be told of.
	listed map[types.UID]struct{}
}

// streamed has the reflector begin with a list. A stream of watch events costs the API server and us
// four times as much for each object, and a restart waits for all of them.
type streamed struct{ *toolscache.ListWatch }

// IsWatchListSemanticsUnSupported is the reflector's question.
func (streamed) IsWatchListSemanticsUnSupported() bool { return true }

// Start starts to watch.
func (f *feed[O]) Start(ctx context.Context, q queue) error {
	f.ctx, f.queue = ctx, q
	lw := streamed{&toolscache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, _ metav1.ListOptions) (runtime.Object, error) { return f.read(ctx) },
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			return f.watch(ctx, f.namespace, o)
		},
	}}
	r := toolscache.NewReflectorWithOptions(lw, f.kind, f, toolscache.ReflectorOptions{Name: f.name})
	go r.RunWithContext(ctx)
	return nil
}

// read observes all that exists, each object as it arrives. What it returns has no items: they would
// be most of the manager's memory.
func (f *feed[O]) read(ctx context.Context) (runtime.Object, error) {
	f.listed = map[types.UID]struct{}{}
	version, err := f.list(ctx, f.namespace, func(o O) {
		f.listed[o.GetUID()] = struct{}{}
		f.take(o)
	})
	empty, ok := f.kinds.DeepCopyObject().(client.ObjectList)
	if !ok {
		return nil, errors.New("a list of another kind")
	}
	empty.SetResourceVersion(version)
	return empty, err
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

// hasSynced reports whether the memory holds what the API server held.
func (f *feed[O]) hasSynced() bool {
	select {
	case <-f.synced:
		return true
	default:
		return false
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
	f.take(o)
	return nil
}

func (f *feed[O]) take(o O) {
	if key, wake := f.observe(o); wake {
		f.queue.Add(key)
	}
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

// Replace ends a list. What the memory has beyond it is forgotten only when a live read shows that it
// is gone: a list can be older than what our own writes have shown (R7).
func (f *feed[O]) Replace([]any, string) error {
	go f.confirm(f.missing(f.listed))
	f.listed = nil
	if !f.hasSynced() {
		close(f.synced)
	}
	return nil
}

// confirm looks for objects that a list did not have, a few at once: thousands may have gone while the watch was
// interrupted.
func (f *feed[O]) confirm(objects []O) {
	var g errgroup.Group
	g.SetLimit(confirmers)
	for _, o := range objects {
		g.Go(func() error {
			confirmGone(f.ctx, f.live, o, func() { f.gone(o) })
			return nil
		})
	}
	_ = g.Wait()
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
