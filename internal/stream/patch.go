package stream

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Patching returns a client that patches Nodes as another one does, and decodes of the answer what a list and a watch show
// of a Node: the rest is most of it.
func (c *Client) Patching(of client.Client) client.Client { return patching{of, c.nodes} }

type patching struct {
	client.Client

	nodes nodes
}

// Patch implements client.Writer.
func (p patching) Patch(ctx context.Context, o client.Object, patch client.Patch, opts ...client.PatchOption) error {
	n, is := o.(*corev1.Node)
	if !is || len(opts) > 0 {
		return p.Client.Patch(ctx, o, patch, opts...)
	}
	body, err := patch.Data(n)
	if err != nil {
		return fmt.Errorf("making a patch of Node %s: %w", n.Name, err)
	}
	answer, err := p.nodes.api.Patch(patch.Type()).Resource("nodes").Name(n.Name).Body(body).Do(ctx).Get()
	if err != nil {
		return err // as it is: callers look at its reason
	}
	lean, is := answer.(*corev1.Node)
	if !is {
		return fmt.Errorf("the answer to a patch of Node %s is a %T", n.Name, answer)
	}
	*n = *lean
	return nil
}
