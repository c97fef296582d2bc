// Package exact deletes objects as they were read, and no others (R3).
package exact

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Delete deletes an object as it was read: the API server refuses it, by a conflict, where another object has the name by
// now, or this one has changed since. A caller that decided by what it read reads it again then.
func Delete(ctx context.Context, c client.Writer, o client.Object, opts ...client.DeleteOption) error {
	uid, version := o.GetUID(), o.GetResourceVersion()
	if uid == "" || version == "" {
		return fmt.Errorf("%T %s was not read, so it is not deleted", o, client.ObjectKeyFromObject(o))
	}
	return c.Delete(ctx, o, append([]client.DeleteOption{client.Preconditions{UID: &uid, ResourceVersion: &version}}, opts...)...)
}

// As has an object be the one of a UID, as it was in a version, and returns it.
func As[O client.Object](o O, uid types.UID, version string) O {
	o.SetUID(uid)
	o.SetResourceVersion(version)
	return o
}
