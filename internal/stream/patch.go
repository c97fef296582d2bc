package stream

import (
	"bytes"
	"context"
	"fmt"

	"github.com/go-json-experiment/json"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Patching returns a client that patches objects of the kinds that are read here as another one does, and decodes of the
// answer what a list and a watch show of them: the rest is half of it, and of a Node most of it.
func (c *Client) Patching(of client.Client) client.Client { return patching{of, c} }

type patching struct {
	client.Client

	streams *Client
}

// Patch implements client.Writer.
func (p patching) Patch(ctx context.Context, o client.Object, patch client.Patch, opts ...client.PatchOption) error {
	k, err := p.streams.kind(o)
	if err != nil || len(opts) > 0 {
		return p.Client.Patch(ctx, o, patch, opts...)
	}
	return p.streams.patch(ctx, k, o, patch)
}

// patch notes the moment of an answer, too.
func (c *Client) patch(ctx context.Context, k reader, o client.Object, patch client.Patch, part ...string) error {
	err := k.patch(ctx, o, patch, part...)
	if err == nil {
		c.history.note(k.name(), o.GetResourceVersion())
	}
	return err
}

// Status implements client.StatusClient.
func (p patching) Status() client.SubResourceWriter {
	return patchingStatus{p.Client.Status(), p.streams}
}

type patchingStatus struct {
	client.SubResourceWriter

	streams *Client
}

// Patch implements client.SubResourceWriter.
func (p patchingStatus) Patch(ctx context.Context, o client.Object, patch client.Patch, opts ...client.SubResourcePatchOption) error {
	k, err := p.streams.kind(o)
	if err != nil || len(opts) > 0 {
		return p.SubResourceWriter.Patch(ctx, o, patch, opts...)
	}
	return p.streams.patch(ctx, k, o, patch, "status")
}

func (k *kind[L, O, P]) patch(ctx context.Context, o client.Object, patch client.Patch, part ...string) error {
	body, err := patch.Data(o)
	if err != nil {
		return fmt.Errorf("making a patch of %s %s: %w", k.resource, o.GetName(), err)
	}
	answered := k.api.Patch(patch.Type()).NamespaceIfScoped(o.GetNamespace(), o.GetNamespace() != "").
		Resource(k.resource).Name(o.GetName()).SubResource(part...).Body(body).Do(ctx)
	if err := answered.Error(); err != nil {
		return err // as it is: callers look at its reason. That of Raw has no message of the API server.
	}
	answer, err := answered.Raw()
	if err != nil {
		return err
	}
	item := new(L)
	if err := json.UnmarshalDecode(decoder(bytes.NewReader(answer)), item); err != nil {
		return fmt.Errorf("reading the answer to a patch of %s %s: %w", k.resource, o.GetName(), err)
	}
	*o.(P) = k.full(item)
	return nil
}

func (n *nodes) patch(ctx context.Context, o client.Object, patch client.Patch, part ...string) error {
	body, err := patch.Data(o)
	if err != nil {
		return fmt.Errorf("making a patch of Node %s: %w", o.GetName(), err)
	}
	answer, err := n.api.Patch(patch.Type()).Resource("nodes").Name(o.GetName()).SubResource(part...).Body(body).Do(ctx).Get()
	if err != nil {
		return err // as it is: callers look at its reason
	}
	lean, is := answer.(*corev1.Node)
	if !is {
		return fmt.Errorf("the answer to a patch of Node %s is a %T", o.GetName(), answer)
	}
	*o.(*corev1.Node) = *lean
	return nil
}
