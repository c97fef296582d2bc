// Package exact deletes objects as they were read, and no others (R3: every write carries what it was decided on).
package exact

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// DeleteWithPreconditions deletes an object as it was read: the API server refuses the request with a conflict if
// another object has the name by now, or if this one has changed since. The caller must then read the object and
// decide again. An object without UID or resourceVersion is an error.
func DeleteWithPreconditions(ctx context.Context, c client.Writer, o client.Object, opts ...client.DeleteOption) error {
	uid, version := o.GetUID(), o.GetResourceVersion()
	if uid == "" || version == "" {
		return fmt.Errorf("%T %s was not read, so it is not deleted", o, client.ObjectKeyFromObject(o))
	}
	return c.Delete(ctx, o, append([]client.DeleteOption{client.Preconditions{UID: &uid, ResourceVersion: &version}}, opts...)...)
}

// WithUIDAndVersion sets UID and resourceVersion of an object, and returns it.
func WithUIDAndVersion[O client.Object](o O, uid types.UID, version string) O {
	o.SetUID(uid)
	o.SetResourceVersion(version)
	return o
}
