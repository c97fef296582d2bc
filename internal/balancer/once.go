package balancer

import (
	"context"
	"fmt"
	"reflect"

	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Once reads each thing once, and answers with that from then on, an error too: who asks the same of many ranges of one workload
// cluster, at one moment, asks its API server for it once. It is for one goroutine, and for one look.
func Once(live client.Reader) client.Reader { return &once{live, map[string]read{}} }

type once struct {
	live client.Reader
	of   map[string]read
}

// read is what was read, or why it could not be.
type read struct {
	is  any
	err error
}

// Get implements client.Reader.
func (o *once) Get(ctx context.Context, key client.ObjectKey, into client.Object, opts ...client.GetOption) error {
	return o.answer(fmt.Sprintf("%T %v %s", into, into.GetObjectKind().GroupVersionKind(), key), into, func() error { return o.live.Get(ctx, key, into, opts...) })
}

// List implements client.Reader.
func (o *once) List(ctx context.Context, into client.ObjectList, opts ...client.ListOption) error {
	var by client.ListOptions
	by.ApplyOptions(opts)
	what := fmt.Sprintf("%T %v %s %v %v %d %s", into, into.GetObjectKind().GroupVersionKind(), by.Namespace, by.FieldSelector, by.LabelSelector, by.Limit, by.Continue)
	return o.answer(what, into, func() error { return o.live.List(ctx, into, opts...) })
}

// answer reads what was not read yet. Who is answered gets a shallow copy, and changes nothing in it.
func (o *once) answer(what string, into any, reads func() error) error {
	if was, known := o.of[what]; known {
		reflect.ValueOf(into).Elem().Set(reflect.ValueOf(was.is))
		return was.err
	}
	err := reads()
	o.of[what] = read{reflect.ValueOf(into).Elem().Interface(), err}
	return err
}
