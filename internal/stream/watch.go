package stream

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
)

// WatchClaims watches the claims of a namespace; the empty one means all of them.
func (c *Client) WatchClaims(ctx context.Context, namespace string, o metav1.ListOptions) (watch.Interface, error) {
	return follow(ctx, c.ipam, namespace, "ipaddressclaims", o, func(o *claim) runtime.Object { return new(fullClaim(o)) })
}

// WatchAddresses watches the IPAddresses of a namespace; the empty one means all of them.
func (c *Client) WatchAddresses(ctx context.Context, namespace string, o metav1.ListOptions) (watch.Interface, error) {
	return follow(ctx, c.ipam, namespace, "ipaddresses", o, func(o *address) runtime.Object { return new(fullAddress(o)) })
}

// WatchAllocations watches the IPAllocations of a namespace; the empty one means all of them.
func (c *Client) WatchAllocations(ctx context.Context, namespace string, o metav1.ListOptions) (watch.Interface, error) {
	return follow(ctx, c.butler, namespace, "ipallocations", o, func(o *allocation) runtime.Object { return new(fullAllocation(o)) })
}

func follow[L any](ctx context.Context, r rest.Interface, namespace, resource string, o metav1.ListOptions, full func(*L) runtime.Object) (watch.Interface, error) {
	o.Watch = true
	body, err := r.Get().NamespaceIfScoped(namespace, namespace != "").Resource(resource).
		SpecificallyVersionedParams(&o, metav1.ParameterCodec, schema.GroupVersion{Version: "v1"}).Stream(ctx)
	if err != nil {
		return nil, fmt.Errorf("watching %s: %w", resource, err)
	}
	reporter := apierrors.NewClientErrorReporter(http.StatusInternalServerError, "GET", "ClientWatchDecoding")
	return watch.NewStreamWatcherWithLogger(klog.FromContext(ctx), &eventReader[L]{body: body, decoder: decoder(body), full: full}, reporter), nil
}

// eventReader reads the events of a watch (metav1.WatchEvent): a type and an object.
type eventReader[L any] struct {
	body    io.Closer
	decoder *jsontext.Decoder
	full    func(*L) runtime.Object
}

// Close implements watch.Decoder.
func (r *eventReader[L]) Close() { _ = r.body.Close() }

// Decode implements watch.Decoder.
func (r *eventReader[L]) Decode() (watch.EventType, runtime.Object, error) {
	is, obj, err := r.event()
	if errors.Is(err, io.ErrUnexpectedEOF) {
		err = io.ErrUnexpectedEOF // it is compared: a watch may break off
	}
	return is, obj, err
}

func (r *eventReader[L]) event() (is watch.EventType, obj runtime.Object, err error) {
	if err := expect(r.decoder, jsontext.KindBeginObject); err != nil {
		return "", nil, err
	}
	for r.decoder.PeekKind() == jsontext.KindString {
		key, err := r.decoder.ReadToken()
		if err != nil {
			return "", nil, err
		}
		switch key.String() {
		case "type":
			err = json.UnmarshalDecode(r.decoder, &is)
		case "object":
			obj, err = r.object(is)
		default:
			err = r.decoder.SkipValue()
		}
		if err != nil {
			return "", nil, err
		}
	}
	if err := expect(r.decoder, jsontext.KindEndObject); err != nil {
		return "", nil, err
	}
	if obj == nil {
		return "", nil, fmt.Errorf("an event of type %q has no object", is)
	}
	return is, obj, nil
}

// object reads the object of an event: what it is depends on the type, which comes before it.
func (r *eventReader[L]) object(of watch.EventType) (runtime.Object, error) {
	switch of {
	case watch.Error:
		status := &metav1.Status{}
		return status, json.UnmarshalDecode(r.decoder, status)
	case watch.Added, watch.Modified, watch.Deleted, watch.Bookmark:
		item := new(L)
		if err := json.UnmarshalDecode(r.decoder, item); err != nil {
			return nil, err
		}
		return r.full(item), nil
	}
	return nil, fmt.Errorf("a watch sent an event of type %q", of)
}
