package faults

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/feed"
)

// Feed is a feed of a manager. The test takes the place of its reflector: it decides when the watch shows a change
// and when a list arrives.
type Feed interface {
	// ShowChange delivers a change.
	ShowChange(c Change)
	// ReplaceAll delivers a list of all objects, as they were when the list was made.
	ReplaceAll(listed []client.Object)
}

// NewFeed returns a feed for the kind of the empty object of. The feed runs as long as the manager.
func NewFeed[Key comparable](ctx context.Context, of client.Object, live client.Reader, memory feed.Store[Key], wake func(Key)) Feed {
	out := &feedAdapter[Key]{ctx: ctx}
	out.feed = feed.New(of, "", out, live, memory)
	out.feed.Initialize(ctx, wake)
	return out
}

type feedAdapter[Key comparable] struct {
	ctx           context.Context //nolint:containedctx // the life of the manager
	feed          *feed.Feed[Key]
	listedObjects []client.Object
}

// List implements feed.Source: it returns the objects that the test has passed to ReplaceAll.
func (f *feedAdapter[Key]) List(_ context.Context, _ client.Object, _ string, visit func(client.Object)) (string, error) {
	for _, o := range f.listedObjects {
		visit(o.DeepCopyObject().(client.Object))
	}
	return "", nil
}

// Watch implements feed.Source. Its watch is empty: the test delivers changes with ShowChange.
func (f *feedAdapter[Key]) Watch(context.Context, client.Object, string, metav1.ListOptions) (watch.Interface, error) {
	return watch.NewFake(), nil
}

func (f *feedAdapter[Key]) ShowChange(c Change) {
	take := f.feed.Update
	if c.Deleted {
		take = f.feed.Delete
	}
	if err := take(c.Object.DeepCopyObject()); err != nil {
		panic(err)
	}
}

func (f *feedAdapter[Key]) ReplaceAll(listed []client.Object) {
	f.listedObjects = listed
	_, err := toolscache.ToListerWatcherWithContext(f.feed.ListerWatcher()).ListWithContext(f.ctx, metav1.ListOptions{})
	if err != nil {
		panic(err)
	}
	if err := f.feed.Replace(nil, ""); err != nil {
		panic(err)
	}
}
