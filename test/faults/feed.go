package faults

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/feed"
)

// Feed is a feed of a manager, and the world is its reflector: it says when the watch shows a change, and when a list
// arrives.
type Feed interface {
	// Show shows a change.
	Show(c Change)
	// Replace ends a list of what there was when it was made.
	Replace(listed []client.Object)
}

// NewFeed returns a feed of objects of the kind of an empty one, for as long as a manager lives.
func NewFeed[Key comparable](ctx context.Context, of client.Object, live client.Reader, memory feed.Memory[Key], wake func(Key)) Feed {
	out := &fed[Key]{ctx: ctx}
	out.feed = feed.New(of, "", out, live, memory)
	out.feed.Begin(ctx, wake)
	return out
}

type fed[Key comparable] struct {
	ctx    context.Context //nolint:containedctx // the life of the manager
	feed   *feed.Feed[Key]
	listed []client.Object
}

// List implements feed.Source: it shows what the world has said that there is.
func (f *fed[Key]) List(_ context.Context, _ client.Object, _ string, visit func(client.Object)) (string, error) {
	for _, o := range f.listed {
		visit(o.DeepCopyObject().(client.Object))
	}
	return "", nil
}

// Watch implements feed.Source. The world shows changes by itself.
func (f *fed[Key]) Watch(context.Context, client.Object, string, metav1.ListOptions) (watch.Interface, error) {
	return watch.NewFake(), nil
}

func (f *fed[Key]) Show(c Change) {
	take := f.feed.Update
	if c.Deleted {
		take = f.feed.Delete
	}
	if err := take(c.Object.DeepCopyObject()); err != nil {
		panic(err)
	}
}

func (f *fed[Key]) Replace(listed []client.Object) {
	f.listed = listed
	_, err := toolscache.ToListerWatcherWithContext(f.feed.ListerWatcher()).ListWithContext(f.ctx, metav1.ListOptions{})
	if err != nil {
		panic(err)
	}
	if err := f.feed.Replace(nil, ""); err != nil {
		panic(err)
	}
}
