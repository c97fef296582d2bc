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

// Client is the client of one manager. It implements the writes of client.Client, and reads as from a cache. Methods
// that no manager needs are not implemented and panic.
type Client struct {
	client.Client
	name       string
	server     *Server
	hiddenKind Kind
}

// NewClient returns a client with the given name.
func (s *Server) NewClient(name string) *Client { return &Client{name: name, server: s} }

// Lister returns a lister that reads from the server.
func (c *Client) Lister() Lister { return Lister{c} }

// HideKind makes the cache show no objects of a kind, as a cache that lags behind does. An empty kind hides nothing.
func (c *Client) HideKind(kind Kind) {
	c.server.mu.Lock()
	defer c.server.mu.Unlock()
	c.hiddenKind = kind
}

// Get reads from a cache that is up to date, except for the kind that HideKind hides. The cache has no Namespaces.
func (c *Client) Get(_ context.Context, key client.ObjectKey, o client.Object, _ ...client.GetOption) error {
	c.server.mu.Lock()
	defer c.server.mu.Unlock()
	ref := RefForObject(o)
	if ref.Kind != Clusters || c.hiddenKind == Clusters {
		return apierrors.NewNotFound(ref.groupResource(), key.Name)
	}
	got, err := c.server.store.get(Ref{Clusters, key.Namespace, key.Name})
	if err == nil {
		assignObject(o, got)
	}
	return err
}

// List reads Clusters from the cache.
func (c *Client) List(_ context.Context, into client.ObjectList, opts ...client.ListOption) error {
	c.server.mu.Lock()
	defer c.server.mu.Unlock()
	o := (&client.ListOptions{}).ApplyOptions(opts)
	if kind := kindForList(into); kind != Clusters || c.hiddenKind == kind {
		return fillList(into, nil, o)
	}
	return fillList(into, c.server.store.list(Clusters, o.Namespace), o)
}

// Create implements client.Writer.
func (c *Client) Create(ctx context.Context, o client.Object, _ ...client.CreateOption) error {
	body := copyObject(o)
	r := &Request{Verb: "create", Ref: RefForObject(o), execute: func(s *store) (any, error) { return s.create(body) }}
	if _, untyped := o.(*unstructured.Unstructured); !untyped {
		return c.sendRequest(ctx, r, o)
	}
	made, err := callServer[client.Object](ctx, c, r)
	if err == nil { // other fields stay as they were sent
		o.SetUID(made.GetUID())
		o.SetResourceVersion(made.GetResourceVersion())
	}
	return err
}

// Update implements client.Writer.
func (c *Client) Update(ctx context.Context, o client.Object, _ ...client.UpdateOption) error {
	body := copyObject(o)
	r := &Request{Verb: "update", Ref: RefForObject(o), execute: func(s *store) (any, error) { return s.update(body, false) }}
	return c.sendRequest(ctx, r, o)
}

// Patch implements client.Writer, for JSON merge patches.
func (c *Client) Patch(ctx context.Context, o client.Object, patch client.Patch, _ ...client.PatchOption) error {
	return c.sendPatch(ctx, o, patch, false)
}

// Apply implements client.Writer, for a single field manager that forces conflicts.
func (c *Client) Apply(ctx context.Context, o runtime.ApplyConfiguration, _ ...client.ApplyOption) error {
	var content unstructured.Unstructured
	decodeJSON(encodeJSON(o), &content.Object)
	ref := RefForObject(&content)
	unstructured.RemoveNestedField(content.Object, "apiVersion")
	unstructured.RemoveNestedField(content.Object, "kind")
	body := encodeJSON(content.Object)
	r := &Request{Verb: "apply", Ref: ref, execute: func(s *store) (any, error) { return s.apply(ref, body) }}
	got, err := callServer[client.Object](ctx, c, r)
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
	ref := RefForObject(o)
	r := &Request{Verb: "delete", Ref: ref, execute: func(s *store) (any, error) { return s.delete(ref, uid, version) }}
	return c.sendRequest(ctx, r, nil)
}

// Status implements client.StatusClient.
func (c *Client) Status() client.SubResourceWriter { return statusWriter{c: c} }

func (c *Client) sendPatch(ctx context.Context, o client.Object, patch client.Patch, status bool) error {
	if patch.Type() != types.MergePatchType {
		return fmt.Errorf("patches of type %s are not known here", patch.Type())
	}
	body, err := patch.Data(o)
	if err != nil {
		return err
	}
	ref := RefForObject(o)
	r := &Request{Verb: "patch", Ref: ref, Status: status, execute: func(s *store) (any, error) { return s.patch(ref, body, status) }}
	return c.sendRequest(ctx, r, o)
}

// sendRequest sends a call, and stores the server's answer in into unless that is nil.
func (c *Client) sendRequest(ctx context.Context, r *Request, into client.Object) error {
	got, err := callServer[client.Object](ctx, c, r)
	if err == nil && into != nil {
		assignObject(into, got)
	}
	return err
}

type statusWriter struct {
	client.SubResourceWriter
	c *Client
}

func (s statusWriter) Update(ctx context.Context, o client.Object, _ ...client.SubResourceUpdateOption) error {
	body := copyObject(o)
	r := &Request{Verb: "update", Ref: RefForObject(o), Status: true, execute: func(s *store) (any, error) { return s.update(body, true) }}
	return s.c.sendRequest(ctx, r, o)
}

func (s statusWriter) Patch(ctx context.Context, o client.Object, patch client.Patch, _ ...client.SubResourcePatchOption) error {
	return s.c.sendPatch(ctx, o, patch, true)
}

// Lister lists objects from the server.
type Lister struct{ c *Client }

type listResult struct {
	objects []client.Object
	version string
}

// List passes the same object to each call of visit, as the real lists do: a caller that keeps it ends up with the
// last item.
func (l Lister) List(ctx context.Context, of client.Object, namespace string, visit func(client.Object)) (string, error) {
	kind := RefForObject(of).Kind
	r := &Request{Verb: "list", Ref: Ref{Kind: kind, Namespace: namespace}, execute: func(s *store) (any, error) {
		return listResult{s.list(kind, namespace), fmt.Sprint(s.version)}, nil
	}}
	got, err := callServer[listResult](ctx, l.c, r)
	if err != nil {
		return "", err
	}
	visited := Ref{Kind: kind}.newObject()
	for _, o := range got.objects {
		assignObject(visited, o)
		visit(visited)
	}
	return got.version, nil
}

// Server returns the server that the client calls.
func (c *Client) Server() *Server { return c.server }
