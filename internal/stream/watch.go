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
	"k8s.io/klog/v2"
)

// watch decodes by itself what client-go would decode twice, managed fields included:
// docs/adr/0011-a-watch-of-our-own.md.
func (k *kind[L, O, P]) watch(ctx context.Context, namespace string, o metav1.ListOptions) (watch.Interface, error) {
	o.Watch = true
	body, err := k.in(namespace).SpecificallyVersionedParams(&o, metav1.ParameterCodec, schema.GroupVersion{Version: "v1"}).Stream(ctx)
	if err != nil {
		return nil, fmt.Errorf("watching %s: %w", k.resource, err)
	}
	reporter := apierrors.NewClientErrorReporter(http.StatusInternalServerError, "GET", "ClientWatchDecoding")
	return watch.NewStreamWatcherWithLogger(klog.FromContext(ctx), &eventReader[L, O, P]{body: body, decoder: decoder(body), full: k.full}, reporter), nil
}

// eventReader reads the events of a watch (metav1.WatchEvent): a type and an object.
type eventReader[L, O any, P object[O]] struct {
	body    io.Closer
	decoder *jsontext.Decoder
	full    func(*L) O
}

// Close implements watch.Decoder.
func (r *eventReader[L, O, P]) Close() { _ = r.body.Close() }

// Decode implements watch.Decoder.
func (r *eventReader[L, O, P]) Decode() (watch.EventType, runtime.Object, error) {
	is, obj, err := r.event()
	if errors.Is(err, io.ErrUnexpectedEOF) {
		err = io.ErrUnexpectedEOF // it is compared: a watch may break off
	}
	return is, obj, err
}

func (r *eventReader[L, O, P]) event() (is watch.EventType, obj runtime.Object, err error) {
	err = fields(r.decoder, func(name string) (err error) {
		switch name {
		case "type":
			return json.UnmarshalDecode(r.decoder, &is)
		case "object":
			obj, err = r.object(is)
			return err
		}
		return r.decoder.SkipValue()
	})
	if err == nil && obj == nil {
		err = fmt.Errorf("an event of type %q has no object", is)
	}
	return is, obj, err
}

// object reads the object of an event: what it is depends on the type, which comes before it.
func (r *eventReader[L, O, P]) object(of watch.EventType) (runtime.Object, error) {
	switch of {
	case watch.Error:
		status := &metav1.Status{}
		return status, json.UnmarshalDecode(r.decoder, status)
	case watch.Added, watch.Modified, watch.Deleted, watch.Bookmark:
		item := new(L)
		if err := json.UnmarshalDecode(r.decoder, item); err != nil {
			return nil, err
		}
		return P(new(r.full(item))), nil
	}
	return nil, fmt.Errorf("a watch sent an event of type %q", of)
}
