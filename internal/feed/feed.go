// Package feed keeps the memory of what exists up to date, one kind of objects at a time. A feed is a reflector without a
// store: the memory is the store, so a fleet's claims are kept once and in the form that is used.
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

// confirmers bounds the live reads of a feed that run at once.
const confirmers = 16

// Source reads the objects of the kind of an empty one in a namespace; the empty one means all.
type Source interface {
	// List shows what exists, one by one, and returns the resource version from which a watch goes on. An object is the
	// visitor's during the visit alone.
	List(ctx context.Context, of client.Object, namespace string, visit func(client.Object)) (version string, err error)
	// Watch shows what changes.
	Watch(ctx context.Context, of client.Object, namespace string, o metav1.ListOptions) (watch.Interface, error)
}

// Memory is what is fed.
type Memory[Key comparable] interface {
	// Observe takes an object as it was seen, Forget the proof that one is gone. They return whose it is, a pool's for
	// example, and whether that has something to do now.
	Observe(o client.Object) (Key, bool)
	Forget(o client.Object) (Key, bool)
	// Beyond returns what the memory has of the kind of an empty object, beyond a list: objects that have a name, a UID
	// and the pool.
	Beyond(of client.Object, listed map[types.UID]struct{}) []client.Object
}

// Feed is a source of a controller that keeps a memory up to date with one kind of objects.
type Feed[Key comparable] struct {
	// of is an empty object of the kind.
	of        client.Object
	namespace string
	source    Source
	live      client.Reader
	memory    Memory[Key]

	ctx    context.Context //nolint:containedctx // the source's own, from Begin
	wake   func(Key)
	synced chan struct{}
	// listed are the UIDs of the list that Replace is about to be told of.
	listed map[types.UID]struct{}

	// OnRefusal, where it is set before the feed runs, is called when the API server begins to refuse what is asked, refuses it
	// for another reason, or does so no longer.
	OnRefusal func()
	mu        sync.Mutex
	refused   error
}

// New returns a feed of the objects of the kind of an empty one in a namespace; the empty one means all. It reads live
// what a list does not have any more.
func New[Key comparable](of client.Object, namespace string, source Source, live client.Reader, memory Memory[Key]) *Feed[Key] {
	return &Feed[Key]{of: of, namespace: namespace, source: source, live: live, memory: memory, synced: make(chan struct{})}
}

// streamed has the reflector begin with a list. A stream of watch events costs the API server and us
// four times as much for each object, and a restart waits for all of them.
type streamed struct{ *toolscache.ListWatch }

// IsWatchListSemanticsUnSupported is the reflector's question.
func (streamed) IsWatchListSemanticsUnSupported() bool { return true }

// Start starts to watch, and wakes whose they are by a queue.
func (f *Feed[Key]) Start(ctx context.Context, q workqueue.TypedRateLimitingInterface[Key]) error {
	f.Run(ctx, q.Add)
	return nil
}

// Run watches until the context ends, and wakes whose they are.
func (f *Feed[Key]) Run(ctx context.Context, wake func(Key)) {
	f.Begin(ctx, wake)
	r := toolscache.NewReflectorWithOptions(f.ListerWatcher(), f.of, f, toolscache.ReflectorOptions{Name: fmt.Sprintf("%T", f.of)})
	go r.RunWithContext(ctx)
}

// Begin says whom to wake, and how long. A reflector, or what stands in for one, goes on with ListerWatcher and the methods of a store.
func (f *Feed[Key]) Begin(ctx context.Context, wake func(Key)) { f.ctx, f.wake = ctx, wake }

// ListerWatcher lists and watches the objects of the feed. Its lists have no items: what they show is in the memory when they end.
func (f *Feed[Key]) ListerWatcher() toolscache.ListerWatcher {
	return streamed{&toolscache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, _ metav1.ListOptions) (runtime.Object, error) { return f.read(ctx) },
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			w, err := f.source.Watch(ctx, f.of, f.namespace, o)
			f.noteRefusal(err, true)
			return w, err
		},
	}}
}

// read observes all that exists, each object as it arrives. What it returns has no items: they would
// be most of the manager's memory.
func (f *Feed[Key]) read(ctx context.Context) (runtime.Object, error) {
	f.listed = map[types.UID]struct{}{}
	version, err := f.source.List(ctx, f.of, f.namespace, func(o client.Object) {
		f.listed[o.GetUID()] = struct{}{}
		f.take(o)
	})
	f.noteRefusal(err, false)
	return &metav1.PartialObjectMetadataList{ListMeta: metav1.ListMeta{ResourceVersion: version}}, err
}

// Refused returns why the API server refuses to list or to watch the objects: the rights are missing, or the credentials are
// not good any more. Nil: it does not. A server that does not answer has not refused.
func (f *Feed[Key]) Refused() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.refused
}

// noteRefusal notes what came of a list or of a watch. That something is listed does not show that it may be watched.
func (f *Feed[Key]) noteRefusal(err error, watched bool) {
	is := apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err)
	if !is && (err != nil || !watched && f.HasSynced()) {
		return
	}
	if f.setRefused(err) && f.OnRefusal != nil {
		f.OnRefusal()
	}
}

func (f *Feed[Key]) setRefused(err error) (changed bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	changed = fmt.Sprint(f.refused) != fmt.Sprint(err)
	f.refused = err
	return changed
}

// WaitForSync waits until the memory holds what the API server held.
func (f *Feed[Key]) WaitForSync(ctx context.Context) error {
	select {
	case <-f.synced:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// HasSynced reports whether the memory holds what the API server held.
func (f *Feed[Key]) HasSynced() bool {
	select {
	case <-f.synced:
		return true
	default:
		return false
	}
}

// Add takes an object that is new to the watch.
func (f *Feed[Key]) Add(obj any) error { return f.Update(obj) }

// Update takes an object as the watch shows it.
func (f *Feed[Key]) Update(obj any) error {
	o, ok := obj.(client.Object)
	if !ok {
		return errors.New("what is fed is no object")
	}
	f.take(o)
	return nil
}

func (f *Feed[Key]) take(o client.Object) {
	if key, wake := f.memory.Observe(o); wake {
		f.wake(key)
	}
}

// Delete takes the proof that an object is gone.
func (f *Feed[Key]) Delete(obj any) error {
	o, ok := obj.(client.Object)
	if !ok {
		return errors.New("what is fed is no object")
	}
	f.gone(o)
	return nil
}

func (f *Feed[Key]) gone(o client.Object) {
	if key, wake := f.memory.Forget(o); wake {
		f.wake(key)
	}
}

// Replace ends a list. What the memory has beyond it is forgotten only when a live read shows that it
// is gone: a list can be older than what our own writes have shown (R7).
func (f *Feed[Key]) Replace([]any, string) error {
	go f.confirm(f.memory.Beyond(f.of, f.listed))
	f.listed = nil
	if !f.HasSynced() {
		close(f.synced)
	}
	return nil
}

// confirm looks for objects that a list did not have, a few at once: thousands may have gone while the watch was
// interrupted.
func (f *Feed[Key]) confirm(objects []client.Object) {
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
func (f *Feed[Key]) Resync() error { return nil }

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
