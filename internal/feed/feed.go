// Package feed keeps the state of existing objects up to date, one kind of objects at a time. A feed is a reflector
// without a store of its own: its consumer is the store, so that the claims of a fleet are kept once and in the form
// in which they are used.
package feed

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// maxConcurrentConfirms bounds the concurrent live reads of a feed.
const maxConcurrentConfirms = 16

// Source reads the objects of the kind of an empty object in a namespace; an empty namespace means all.
type Source interface {
	// List visits all existing objects, one by one, and returns the resource version from which a watch continues.
	// The visitor must not keep an object after the visit.
	List(ctx context.Context, of client.Object, namespace string, visit func(client.Object)) (version string, err error)
	// Watch returns the changes.
	Watch(ctx context.Context, of client.Object, namespace string, o metav1.ListOptions) (watch.Interface, error)
}

// Store receives the objects of a feed.
type Store[Key comparable] interface {
	// ObserveObject stores an object as it was seen, ForgetObject the proof that one is gone. They return the key of
	// what the object belongs to, for example a pool, and whether that must be reconciled now.
	ObserveObject(o client.Object) (Key, bool)
	ForgetObject(o client.Object) (Key, bool)
	// ObjectsNotListed returns the stored objects of the kind of an empty object that a list does not contain:
	// objects with a name, a UID and the pool.
	ObjectsNotListed(of client.Object, listed map[types.UID]struct{}) []client.Object
}

// Feed is a source of a controller that keeps a Store up to date with one kind of objects.
type Feed[Key comparable] struct {
	// prototype is an empty object of the kind.
	prototype client.Object
	namespace string
	source    Source
	live      client.Reader
	store     Store[Key]

	ctx     context.Context //nolint:containedctx // the source's own, from Begin
	enqueue func(Key)
	synced  chan struct{}
	// listedUIDs are the UIDs of the list that Replace is called for next.
	listedUIDs map[types.UID]struct{}

	// OnRefusal, if it is set before the feed runs, is called when the API server begins to refuse a list or watch,
	// refuses it for another reason, or stops refusing it.
	OnRefusal  func()
	mu         sync.Mutex
	refusalErr error
}

// New returns a feed of the objects of the kind of an empty object in a namespace; an empty namespace means all. The
// feed reads live what a list does not contain any more.
func New[Key comparable](of client.Object, namespace string, source Source, live client.Reader, memory Store[Key]) *Feed[Key] {
	return &Feed[Key]{prototype: of, namespace: namespace, source: source, live: live, store: memory, synced: make(chan struct{})}
}

// listFirstListerWatcher makes the reflector begin with a list. A stream of watch events costs the API server and
// this process four times as much for each object, and a restart waits for all of them.
type listFirstListerWatcher struct{ *toolscache.ListWatch }

// IsWatchListSemanticsUnSupported makes the reflector list before it watches.
func (listFirstListerWatcher) IsWatchListSemanticsUnSupported() bool { return true }

// Start starts the watch, and enqueues keys to a queue.
func (f *Feed[Key]) Start(ctx context.Context, q workqueue.TypedRateLimitingInterface[Key]) error {
	f.Run(ctx, q.Add)
	return nil
}

// Run watches until the context ends, and calls wake with each key to reconcile.
func (f *Feed[Key]) Run(ctx context.Context, wake func(Key)) {
	f.Initialize(ctx, wake)
	r := toolscache.NewReflectorWithOptions(f.ListerWatcher(), f.prototype, f, toolscache.ReflectorOptions{Name: fmt.Sprintf("%T", f.prototype)})
	go r.RunWithContext(ctx)
}

// Initialize sets the function that enqueues a key, and the context that ends the feed. A reflector, or its
// replacement in a test, continues with ListerWatcher and the methods of a store.
func (f *Feed[Key]) Initialize(ctx context.Context, wake func(Key)) { f.ctx, f.enqueue = ctx, wake }

// ListerWatcher lists and watches the objects of the feed. Its lists have no items: the objects are in the store when
// a list ends.
func (f *Feed[Key]) ListerWatcher() toolscache.ListerWatcher {
	return listFirstListerWatcher{&toolscache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, _ metav1.ListOptions) (runtime.Object, error) { return f.listObjects(ctx) },
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			w, err := f.source.Watch(ctx, f.prototype, f.namespace, o)
			f.recordRefusal(err, true)
			return w, err
		},
	}}
}

// listObjects observes all existing objects, each as it arrives. Its result has no items, which would be most of the
// manager's memory.
func (f *Feed[Key]) listObjects(ctx context.Context) (runtime.Object, error) {
	f.listedUIDs = map[types.UID]struct{}{}
	version, err := f.source.List(ctx, f.prototype, f.namespace, func(o client.Object) {
		f.listedUIDs[o.GetUID()] = struct{}{}
		f.observeObject(o)
	})
	f.recordRefusal(err, false)
	return &metav1.PartialObjectMetadataList{ListMeta: metav1.ListMeta{ResourceVersion: version}}, err
}

// RefusalError returns why the API server refuses to list or to watch the objects: rights are missing, or the
// credentials have expired. It returns nil if it does not. A server that does not answer has not refused.
func (f *Feed[Key]) RefusalError() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.refusalErr
}

// recordRefusal records the result of a list or a watch. A successful list does not show that a watch is allowed.
func (f *Feed[Key]) recordRefusal(err error, watched bool) {
	refused := apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err)
	if !refused && (err != nil || !watched && f.HasSynced()) {
		return
	}
	if f.setRefusalError(err) && f.OnRefusal != nil {
		f.OnRefusal()
	}
}

func (f *Feed[Key]) setRefusalError(err error) (changed bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	changed = fmt.Sprint(f.refusalErr) != fmt.Sprint(err)
	f.refusalErr = err
	return changed
}

// WaitForSync waits until the store has all objects of the first list.
func (f *Feed[Key]) WaitForSync(ctx context.Context) error {
	select {
	case <-f.synced:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// HasSynced reports whether the store has all objects of the first list.
func (f *Feed[Key]) HasSynced() bool {
	select {
	case <-f.synced:
		return true
	default:
		return false
	}
}

// Add stores an object that is new to the watch.
func (f *Feed[Key]) Add(obj any) error { return f.Update(obj) }

// Update stores an object as the watch shows it.
func (f *Feed[Key]) Update(obj any) error {
	o, ok := obj.(client.Object)
	if !ok {
		return errors.New("the watch delivered no API object")
	}
	f.observeObject(o)
	return nil
}

func (f *Feed[Key]) observeObject(o client.Object) {
	if key, wake := f.store.ObserveObject(o); wake {
		f.enqueue(key)
	}
}

// Delete handles the proof that an object is gone.
func (f *Feed[Key]) Delete(obj any) error {
	o, ok := obj.(client.Object)
	if !ok {
		return errors.New("the watch delivered no API object")
	}
	f.forgetObject(o)
	return nil
}

func (f *Feed[Key]) forgetObject(o client.Object) {
	if key, wake := f.store.ForgetObject(o); wake {
		f.enqueue(key)
	}
}

// Replace ends a list. Stored objects that it does not contain are forgotten only when a live read shows that they
// are gone: a list can be older than what our own writes have shown (R7: a watch is late, and proves no absence).
func (f *Feed[Key]) Replace([]any, string) error {
	go f.confirmAllGone(f.store.ObjectsNotListed(f.prototype, f.listedUIDs))
	f.listedUIDs = nil
	if !f.HasSynced() {
		close(f.synced)
	}
	return nil
}

// confirmAllGone reads the objects that a list did not contain, a few at once: thousands may have gone while the
// watch was interrupted.
func (f *Feed[Key]) confirmAllGone(objects []client.Object) {
	var g errgroup.Group
	g.SetLimit(maxConcurrentConfirms)
	for _, o := range objects {
		g.Go(func() error {
			confirmGone(f.ctx, f.live, o, func() { f.forgetObject(o) })
			return nil
		})
	}
	_ = g.Wait()
}

// Resync does nothing, because the feed has no store of its own.
func (f *Feed[Key]) Resync() error { return nil }

// confirmGone calls gone when a live read shows that no object of that UID exists. It retries failed reads each
// second until ctx ends.
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
			return // it exists; the watch will show it again
		}
		select {
		case <-ctx.Done():
		case <-time.After(time.Second):
		}
	}
}
