package faults

import (
	"cmp"
	"context"
	"fmt"
	"reflect"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// LiveReader returns a reader that reads from the server.
func (c *Client) LiveReader() client.Reader { return liveReader{c: c} }

// LiveClient returns a client that writes, and reads everything from the server.
func (c *Client) LiveClient() client.Client { return liveClient{c, liveReader{c: c}} }

// liveReader reads from the server. Of the options of a list it applies namespace and labels, but no field selectors.
type liveReader struct {
	client.Reader
	c *Client
}

func (l liveReader) Get(ctx context.Context, key client.ObjectKey, o client.Object, _ ...client.GetOption) error {
	ref := RefForObject(o)
	ref.Namespace, ref.Name = key.Namespace, key.Name
	r := &Request{Verb: "get", Ref: ref, execute: func(s *store) (any, error) { return s.get(ref) }}
	return l.c.sendRequest(ctx, r, o)
}

func (l liveReader) List(ctx context.Context, into client.ObjectList, opts ...client.ListOption) error {
	kind := kindForList(into)
	o := (&client.ListOptions{}).ApplyOptions(opts)
	r := &Request{Verb: "list", Ref: Ref{Kind: kind, Namespace: o.Namespace}, execute: func(s *store) (any, error) {
		return listResult{s.list(kind, o.Namespace), fmt.Sprint(s.version)}, nil
	}}
	got, err := callServer[listResult](ctx, l.c, r)
	if err != nil {
		return err
	}
	into.SetResourceVersion(got.version)
	return fillList(into, got.objects, o)
}

// fillList fills a list with the objects that its options select.
func fillList(into client.ObjectList, objects []client.Object, o *client.ListOptions) error {
	var out []runtime.Object
	for _, obj := range objects {
		if (o.Namespace == "" || o.Namespace == obj.GetNamespace()) && (o.LabelSelector == nil || o.LabelSelector.Matches(labels.Set(obj.GetLabels()))) {
			out = append(out, obj)
		}
	}
	return meta.SetList(into, out)
}

// liveClient is a client without a cache.
type liveClient struct {
	*Client
	reader liveReader
}

func (d liveClient) Get(ctx context.Context, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
	return d.reader.Get(ctx, key, o, opts...)
}

func (d liveClient) List(ctx context.Context, into client.ObjectList, opts ...client.ListOption) error {
	return d.reader.List(ctx, into, opts...)
}

// Scheme returns an empty scheme: no caller uses its kinds.
func (d liveClient) Scheme() *runtime.Scheme { return runtime.NewScheme() }

// RESTMapper returns nil.
func (d liveClient) RESTMapper() meta.RESTMapper { return nil }

// Cache holds what watches have shown to one manager. It lags behind the server as far as the test wants. The zero
// value is not usable.
type Cache struct {
	client.Reader
	// Indexes are the indexes that field selectors may name.
	Indexes map[string]client.IndexerFunc

	objects map[Ref]client.Object
}

// NewCache returns an empty cache.
func NewCache() *Cache { return &Cache{objects: map[Ref]client.Object{}} }

// ShowChange applies a change that a watch shows.
func (c *Cache) ShowChange(change Change) {
	if ref := RefForObject(change.Object); change.Deleted {
		delete(c.objects, ref)
	} else {
		c.objects[ref] = change.Object
	}
}

// ReplaceKind replaces all objects of a kind by a list. It returns the objects that were in the cache and are not in
// the list.
func (c *Cache) ReplaceKind(kind Kind, listed []client.Object) (gone []client.Object) {
	for ref, o := range c.objects {
		if ref.Kind == kind && !slices.ContainsFunc(listed, func(l client.Object) bool { return RefForObject(l) == ref }) {
			gone = append(gone, o)
		}
		if ref.Kind == kind {
			delete(c.objects, ref)
		}
	}
	for _, o := range listed {
		c.objects[RefForObject(o)] = o
	}
	return gone
}

// Object returns an object, nil if it is not in the cache. Callers must not change it.
func (c *Cache) Object(ref Ref) client.Object { return c.objects[ref] }

// Get implements client.Reader.
func (c *Cache) Get(_ context.Context, key client.ObjectKey, o client.Object, _ ...client.GetOption) error {
	ref := RefForObject(o)
	ref.Namespace, ref.Name = key.Namespace, key.Name
	got, has := c.objects[ref]
	if !has {
		return apierrors.NewNotFound(ref.groupResource(), key.Name)
	}
	assignObject(o, copyObject(got))
	return nil
}

// List implements client.Reader. The objects are ordered by name and namespace.
func (c *Cache) List(_ context.Context, into client.ObjectList, opts ...client.ListOption) error {
	kind, options := kindForList(into), (&client.ListOptions{}).ApplyOptions(opts)
	var out []client.Object
	for ref, o := range c.objects {
		if ref.Kind == kind && c.matchesIndexes(o, options) {
			out = append(out, copyObject(o))
		}
	}
	slices.SortFunc(out, func(a, b client.Object) int {
		return cmp.Or(cmp.Compare(a.GetName(), b.GetName()), cmp.Compare(a.GetNamespace(), b.GetNamespace()))
	})
	return fillList(into, out, options)
}

// matchesIndexes reports whether the field selector of a list selects an object.
func (c *Cache) matchesIndexes(o client.Object, options *client.ListOptions) bool {
	for name, index := range c.Indexes {
		if options.FieldSelector == nil {
			break
		}
		if value, asked := options.FieldSelector.RequiresExactMatch(name); asked && !slices.Contains(index(o), value) {
			return false
		}
	}
	return true
}

// NewCachedClient returns a client that writes with another client, and reads from a cache.
func NewCachedClient(to client.Client, from client.Reader) client.Client {
	return cachedClient{to, from}
}

type cachedClient struct {
	client.Client
	from client.Reader
}

func (c cachedClient) Get(ctx context.Context, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
	return c.from.Get(ctx, key, o, opts...)
}

func (c cachedClient) List(ctx context.Context, into client.ObjectList, opts ...client.ListOption) error {
	return c.from.List(ctx, into, opts...)
}

// assignObject overwrites an object with another of the same type.
func assignObject(to, from client.Object) {
	reflect.ValueOf(to).Elem().Set(reflect.ValueOf(from).Elem())
}
