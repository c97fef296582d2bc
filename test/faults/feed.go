package faults

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/feed"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"
)

// Feed is a feed of a manager, and the world is its reflector: it says when the watch shows a change, and when a list
// arrives.
type Feed interface {
	// Show shows a change.
	Show(c Change)
	// Replace ends a list of what there was when it was made.
	Replace(listed []client.Object)
}

// NewFeed returns a feed of objects of a kind, given an empty one, for as long as a manager lives.
func NewFeed[O client.Object](ctx context.Context, kind O, live client.Reader, memory feed.Memory[O], wake func(pools.Key)) Feed {
	out := &fed[O]{ctx: ctx}
	list := func(_ context.Context, _ string, visit func(O)) (string, error) {
		for _, o := range out.listed {
			visit(o.DeepCopyObject().(O))
		}
		return "", nil
	}
	out.feed = feed.New(kind, &metav1.PartialObjectMetadataList{}, "", list, nil, live, memory)
	out.feed.Begin(ctx, wake)
	return out
}

type fed[O client.Object] struct {
	ctx    context.Context //nolint:containedctx // the life of the manager
	feed   *feed.Feed[O]
	listed []client.Object
}

func (f *fed[O]) Show(c Change) {
	take := f.feed.Update
	if c.Deleted {
		take = f.feed.Delete
	}
	if err := take(c.Object.DeepCopyObject()); err != nil {
		panic(err)
	}
}

func (f *fed[O]) Replace(listed []client.Object) {
	f.listed = listed
	_, err := toolscache.ToListerWatcherWithContext(f.feed.ListerWatcher()).ListWithContext(f.ctx, metav1.ListOptions{})
	if err != nil {
		panic(err)
	}
	if err := f.feed.Replace(nil, ""); err != nil {
		panic(err)
	}
}
