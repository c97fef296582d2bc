package faults

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Client is what one manager has of the server. As a client.Client it writes, and reads as from a
// cache; methods that no manager needs are not there and panic.
type Client struct {
	client.Client
	name   string
	server *Server
	hidden Kind
}

// Client returns a client with a name.
func (s *Server) Client(name string) *Client { return &Client{name: name, server: s} }

// Lister returns what lists from the server.
func (c *Client) Lister() Lister { return Lister{c} }

// Hide has the cache show nothing of a kind, as one that lags behind does; of none, if it is empty.
func (c *Client) Hide(kind Kind) {
	c.server.mu.Lock()
	defer c.server.mu.Unlock()
	c.hidden = kind
}

// Get reads from a cache that is right, unless Hide says otherwise. It has no Namespaces.
func (c *Client) Get(_ context.Context, key client.ObjectKey, o client.Object, _ ...client.GetOption) error {
	c.server.mu.Lock()
	defer c.server.mu.Unlock()
	ref := RefOf(o)
	if ref.Kind != Clusters || c.hidden == Clusters {
		return apierrors.NewNotFound(ref.resource(), key.Name)
	}
	got, err := c.server.store.get(Ref{Clusters, key.Namespace, key.Name})
	if err == nil {
		assign(o, got)
	}
	return err
}

// List reads Clusters from the cache.
func (c *Client) List(_ context.Context, into client.ObjectList, opts ...client.ListOption) error {
	c.server.mu.Lock()
	defer c.server.mu.Unlock()
	o := (&client.ListOptions{}).ApplyOptions(opts)
	if kind := itemsOf(into); kind != Clusters || c.hidden == kind {
		return fill(into, nil, o)
	}
	return fill(into, c.server.store.list(Clusters, o.Namespace), o)
}

// Create implements client.Writer.
func (c *Client) Create(ctx context.Context, o client.Object, _ ...client.CreateOption) error {
	body := copyOf(o)
	r := &Request{Verb: "create", Ref: RefOf(o), do: func(s *store) (any, error) { return s.create(body) }}
	if _, untyped := o.(*unstructured.Unstructured); !untyped {
		return c.ask(ctx, r, o)
	}
	made, err := ask[client.Object](ctx, c, r)
	if err == nil { // the rest stays as it was sent
		o.SetUID(made.GetUID())
		o.SetResourceVersion(made.GetResourceVersion())
	}
	return err
}

// Update implements client.Writer.
func (c *Client) Update(ctx context.Context, o client.Object, _ ...client.UpdateOption) error {
	body := copyOf(o)
	r := &Request{Verb: "update", Ref: RefOf(o), do: func(s *store) (any, error) { return s.update(body, false) }}
	return c.ask(ctx, r, o)
}

// Patch implements client.Writer, for JSON merge patches.
func (c *Client) Patch(ctx context.Context, o client.Object, patch client.Patch, _ ...client.PatchOption) error {
	return c.patch(ctx, o, patch, false)
}

// Apply implements client.Writer, for the manager of fields that forces it.
func (c *Client) Apply(ctx context.Context, o runtime.ApplyConfiguration, _ ...client.ApplyOption) error {
	var says unstructured.Unstructured
	decode(encode(o), &says.Object)
	ref := RefOf(&says)
	unstructured.RemoveNestedField(says.Object, "apiVersion")
	unstructured.RemoveNestedField(says.Object, "kind")
	body := encode(says.Object)
	r := &Request{Verb: "apply", Ref: ref, do: func(s *store) (any, error) { return s.apply(ref, body) }}
	got, err := ask[client.Object](ctx, c, r)
	if applied, is := o.(metav1.Object); is && err == nil {
		applied.SetResourceVersion(got.GetResourceVersion())
	}
	return err
}

// Delete implements client.Writer.
func (c *Client) Delete(ctx context.Context, o client.Object, opts ...client.DeleteOption) error {
	var uid types.UID
	var version string
	if p := (&client.DeleteOptions{}).ApplyOptions(opts).Preconditions; p != nil {
		if p.UID != nil {
			uid = *p.UID
		}
		if p.ResourceVersion != nil {
			version = *p.ResourceVersion
		}
	}
	ref := RefOf(o)
	r := &Request{Verb: "delete", Ref: ref, do: func(s *store) (any, error) { return s.delete(ref, uid, version) }}
	return c.ask(ctx, r, nil)
}

// Status implements client.StatusClient.
func (c *Client) Status() client.SubResourceWriter { return status{c: c} }

func (c *Client) patch(ctx context.Context, o client.Object, patch client.Patch, status bool) error {
	if patch.Type() != types.MergePatchType {
		return fmt.Errorf("patches of type %s are not known here", patch.Type())
	}
	body, err := patch.Data(o)
	if err != nil {
		return err
	}
	ref := RefOf(o)
	r := &Request{Verb: "patch", Ref: ref, Status: status, do: func(s *store) (any, error) { return s.patch(ref, body, status) }}
	return c.ask(ctx, r, o)
}

// ask sends a call and makes into, where there is one, what the server answers.
func (c *Client) ask(ctx context.Context, r *Request, into client.Object) error {
	got, err := ask[client.Object](ctx, c, r)
	if err == nil && into != nil {
		assign(into, got)
	}
	return err
}

type status struct {
	client.SubResourceWriter
	c *Client
}

func (s status) Update(ctx context.Context, o client.Object, _ ...client.SubResourceUpdateOption) error {
	body := copyOf(o)
	r := &Request{Verb: "update", Ref: RefOf(o), Status: true, do: func(s *store) (any, error) { return s.update(body, true) }}
	return s.c.ask(ctx, r, o)
}

func (s status) Patch(ctx context.Context, o client.Object, patch client.Patch, _ ...client.SubResourcePatchOption) error {
	return s.c.patch(ctx, o, patch, true)
}

// Lister lists from the server.
type Lister struct{ c *Client }

type listing struct {
	objects []client.Object
	version string
}

// List has one object for all, as the real lists do: whoever keeps it has the last one.
func (l Lister) List(ctx context.Context, of client.Object, namespace string, visit func(client.Object)) (string, error) {
	kind := RefOf(of).Kind
	r := &Request{Verb: "list", Ref: Ref{Kind: kind, Namespace: namespace}, do: func(s *store) (any, error) {
		return listing{s.list(kind, namespace), fmt.Sprint(s.version)}, nil
	}}
	got, err := ask[listing](ctx, l.c, r)
	if err != nil {
		return "", err
	}
	visited := Ref{Kind: kind}.empty()
	for _, o := range got.objects {
		assign(visited, o)
		visit(visited)
	}
	return got.version, nil
}

// Server is what the client asks.
func (c *Client) Server() *Server { return c.server }
