package balancer

import (
	"context"
	"fmt"
	"reflect"

	"sigs.k8s.io/controller-runtime/pkg/client"
)

// NewMemoizedReader returns a reader that reads each thing once and repeats that result, also if it is an error. Code
// that asks the same for many ranges of one workload cluster at one moment then reads from its API server once. The
// reader is for one goroutine and one reconcile.
func NewMemoizedReader(live client.Reader) client.Reader {
	return &memoizedReader{live, map[string]readResult{}}
}

type memoizedReader struct {
	live    client.Reader
	results map[string]readResult
}

// readResult is the object that was read, or the error.
type readResult struct {
	object any
	err    error
}

// Get implements client.Reader.
func (mr *memoizedReader) Get(ctx context.Context, key client.ObjectKey, into client.Object, opts ...client.GetOption) error {
	return mr.readOnce(fmt.Sprintf("%T %v %s", into, into.GetObjectKind().GroupVersionKind(), key), into, func() error { return mr.live.Get(ctx, key, into, opts...) })
}

// List implements client.Reader.
func (mr *memoizedReader) List(ctx context.Context, into client.ObjectList, opts ...client.ListOption) error {
	var by client.ListOptions
	by.ApplyOptions(opts)
	request := fmt.Sprintf("%T %v %s %v %v %d %s", into, into.GetObjectKind().GroupVersionKind(), by.Namespace, by.FieldSelector, by.LabelSelector, by.Limit, by.Continue)
	return mr.readOnce(request, into, func() error { return mr.live.List(ctx, into, opts...) })
}

// readOnce calls reads unless the result is known. The caller gets a shallow copy, and must not modify its contents.
func (mr *memoizedReader) readOnce(request string, into any, reads func() error) error {
	if last, known := mr.results[request]; known {
		reflect.ValueOf(into).Elem().Set(reflect.ValueOf(last.object))
		return last.err
	}
	err := reads()
	mr.results[request] = readResult{reflect.ValueOf(into).Elem().Interface(), err}
	return err
}
