package faults

import (
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

// Live returns a reader that asks the server.
func (c *Client) Live() client.Reader { return live{c: c} }

// Direct returns a client that writes, and asks the server for all that it reads.
func (c *Client) Direct() client.Client { return direct{c, live{c: c}} }

// live asks the server. Of what a list asks for, namespaces and labels are looked at; fields are not.
type live struct {
	client.Reader
	c *Client
}

func (l live) Get(ctx context.Context, key client.ObjectKey, o client.Object, _ ...client.GetOption) error {
	ref := RefOf(o)
	ref.Namespace, ref.Name = key.Namespace, key.Name
	r := &Request{Verb: "get", Ref: ref, do: func(s *store) (any, error) { return s.get(ref) }}
	return l.c.ask(ctx, r, o)
}

func (l live) List(ctx context.Context, into client.ObjectList, opts ...client.ListOption) error {
	kind := itemsOf(into)
	o := (&client.ListOptions{}).ApplyOptions(opts)
	r := &Request{Verb: "list", Ref: Ref{Kind: kind, Namespace: o.Namespace}, do: func(s *store) (any, error) {
		return listing{s.list(kind, o.Namespace), fmt.Sprint(s.version)}, nil
	}}
	got, err := ask[listing](ctx, l.c, r)
	if err != nil {
		return err
	}
	into.SetResourceVersion(got.version)
	return fill(into, got.objects, o)
}

// fill makes a list of those objects that it asks for.
func fill(into client.ObjectList, objects []client.Object, o *client.ListOptions) error {
	var out []runtime.Object
	for _, obj := range objects {
		if (o.Namespace == "" || o.Namespace == obj.GetNamespace()) && (o.LabelSelector == nil || o.LabelSelector.Matches(labels.Set(obj.GetLabels()))) {
			out = append(out, obj)
		}
	}
	return meta.SetList(into, out)
}

// direct is a client without a cache.
type direct struct {
	*Client
	live live
}

func (d direct) Get(ctx context.Context, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
	return d.live.Get(ctx, key, o, opts...)
}

func (d direct) List(ctx context.Context, into client.ObjectList, opts ...client.ListOption) error {
	return d.live.List(ctx, into, opts...)
}

// Scheme has no kinds: nobody asks it for any.
func (d direct) Scheme() *runtime.Scheme { return runtime.NewScheme() }

// RESTMapper is none.
func (d direct) RESTMapper() meta.RESTMapper { return nil }

// Cache is what watches have shown to one manager. It is as far behind the server as the test wants. The zero value
// is not usable.
type Cache struct {
	client.Reader
	objects map[Ref]client.Object
}

// NewCache returns an empty cache.
func NewCache() *Cache { return &Cache{objects: map[Ref]client.Object{}} }

// Show takes what a watch shows.
func (c *Cache) Show(change Change) {
	if ref := RefOf(change.Object); change.Deleted {
		delete(c.objects, ref)
	} else {
		c.objects[ref] = change.Object
	}
}

// Replace takes a list of all objects of a kind. It returns those that were there and are not listed.
func (c *Cache) Replace(kind Kind, listed []client.Object) (gone []client.Object) {
	for ref, o := range c.objects {
		if ref.Kind == kind && !slices.ContainsFunc(listed, func(l client.Object) bool { return RefOf(l) == ref }) {
			gone = append(gone, o)
		}
		if ref.Kind == kind {
			delete(c.objects, ref)
		}
	}
	for _, o := range listed {
		c.objects[RefOf(o)] = o
	}
	return gone
}

// Get implements client.Reader.
func (c *Cache) Get(_ context.Context, key client.ObjectKey, o client.Object, _ ...client.GetOption) error {
	ref := RefOf(o)
	ref.Namespace, ref.Name = key.Namespace, key.Name
	got, has := c.objects[ref]
	if !has {
		return apierrors.NewNotFound(ref.resource(), key.Name)
	}
	assign(o, copyOf(got))
	return nil
}

// List implements client.Reader.
func (c *Cache) List(_ context.Context, into client.ObjectList, opts ...client.ListOption) error {
	kind := itemsOf(into)
	var out []client.Object
	for ref, o := range c.objects {
		if ref.Kind == kind {
			out = append(out, copyOf(o))
		}
	}
	slices.SortFunc(out, func(a, b client.Object) int { return compare(RefOf(a), RefOf(b)) })
	return fill(into, out, (&client.ListOptions{}).ApplyOptions(opts))
}

// assign makes an object what another of its kind is.
func assign(to, from client.Object) {
	reflect.ValueOf(to).Elem().Set(reflect.ValueOf(from).Elem())
}
