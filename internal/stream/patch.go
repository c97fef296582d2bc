package stream

import (
	"bytes"
	"context"
	"fmt"

	"github.com/go-json-experiment/json"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// NewPatchingClient returns a client that patches objects of the kinds that are read here, with the semantics of
// another client, and decodes of the response only what a list and a watch show: the rest is half of an object, and
// most of a Node. Everything else goes to the other client.
func (c *Client) NewPatchingClient(of client.Client) client.Client { return patchingClient{of, c} }

type patchingClient struct {
	client.Client

	streamClient *Client
}

// Patch implements client.Writer.
func (p patchingClient) Patch(ctx context.Context, o client.Object, patch client.Patch, opts ...client.PatchOption) error {
	k, err := p.streamClient.readerForObject(o)
	if err != nil || len(opts) > 0 {
		return p.Client.Patch(ctx, o, patch, opts...)
	}
	return p.streamClient.patchAndRecord(ctx, k, o, patch)
}

// patchAndRecord patches an object and records the resource version of the response.
func (c *Client) patchAndRecord(ctx context.Context, k objectReader, o client.Object, patch client.Patch, part ...string) error {
	err := k.patchObject(ctx, o, patch, part...)
	if err == nil {
		c.history.recordVersion(k.resourceName(), o.GetResourceVersion())
	}
	return err
}

// Status implements client.StatusClient.
func (p patchingClient) Status() client.SubResourceWriter {
	return patchingStatusWriter{p.Client.Status(), p.streamClient}
}

type patchingStatusWriter struct {
	client.SubResourceWriter

	streamClient *Client
}

// Patch implements client.SubResourceWriter.
func (p patchingStatusWriter) Patch(ctx context.Context, o client.Object, patch client.Patch, opts ...client.SubResourcePatchOption) error {
	k, err := p.streamClient.readerForObject(o)
	if err != nil || len(opts) > 0 {
		return p.SubResourceWriter.Patch(ctx, o, patch, opts...)
	}
	return p.streamClient.patchAndRecord(ctx, k, o, patch, "status")
}

func (k *kindReader[L, O, P]) patchObject(ctx context.Context, o client.Object, patch client.Patch, part ...string) error {
	body, err := patch.Data(o)
	if err != nil {
		return fmt.Errorf("making a patch of %s %s: %w", k.resource, o.GetName(), err)
	}
	answered := k.restClient.Patch(patch.Type()).NamespaceIfScoped(o.GetNamespace(), o.GetNamespace() != "").
		Resource(k.resource).Name(o.GetName()).SubResource(part...).Body(body).Do(ctx)
	if err := answered.Error(); err != nil {
		return err // unwrapped: callers check its reason. The error of Raw has no message of the API server.
	}
	answer, err := answered.Raw()
	if err != nil {
		return err
	}
	item := new(L)
	if err := json.UnmarshalDecode(newJSONDecoder(bytes.NewReader(answer)), item); err != nil {
		return fmt.Errorf("reading the answer to a patch of %s %s: %w", k.resource, o.GetName(), err)
	}
	*o.(P) = k.convert(item)
	return nil
}

func (n *nodeReader) patchObject(ctx context.Context, o client.Object, patch client.Patch, part ...string) error {
	body, err := patch.Data(o)
	if err != nil {
		return fmt.Errorf("making a patch of Node %s: %w", o.GetName(), err)
	}
	answer, err := n.restClient.Patch(patch.Type()).Resource("nodes").Name(o.GetName()).SubResource(part...).Body(body).Do(ctx).Get()
	if err != nil {
		return err // unwrapped: callers check its reason
	}
	trimmed, ok := answer.(*corev1.Node)
	if !ok {
		return fmt.Errorf("the answer to a patch of Node %s is a %T", o.GetName(), answer)
	}
	*o.(*corev1.Node) = *trimmed
	return nil
}
