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

// watchObjects decodes events itself. client-go would decode them twice, with managed fields: see
// docs/adr/0011-a-watch-of-our-own.md.
func (k *kindReader[L, O, P]) watchObjects(ctx context.Context, namespace string, o metav1.ListOptions) (watch.Interface, error) {
	o.Watch = true
	body, err := k.newRequest(namespace).SpecificallyVersionedParams(&o, metav1.ParameterCodec, schema.GroupVersion{Version: "v1"}).Stream(ctx)
	if err != nil {
		return nil, fmt.Errorf("watching %s: %w", k.resource, err)
	}
	reporter := apierrors.NewClientErrorReporter(http.StatusInternalServerError, "GET", "ClientWatchDecoding")
	return watch.NewStreamWatcherWithLogger(klog.FromContext(ctx), &watchEventDecoder[L, O, P]{body: body, decoder: newJSONDecoder(body), convert: k.convert}, reporter), nil
}

// watchEventDecoder decodes the events of a watch (metav1.WatchEvent): a type and an object.
type watchEventDecoder[L, O any, P objectPointer[O]] struct {
	body    io.Closer
	decoder *jsontext.Decoder
	convert func(*L) O
}

// Close implements watch.Decoder.
func (r *watchEventDecoder[L, O, P]) Close() { _ = r.body.Close() }

// Decode implements watch.Decoder.
func (r *watchEventDecoder[L, O, P]) Decode() (watch.EventType, runtime.Object, error) {
	eventType, obj, err := r.readEvent()
	if errors.Is(err, io.ErrUnexpectedEOF) {
		err = io.ErrUnexpectedEOF // the caller compares it with ==: a watch may break off
	}
	return eventType, obj, err
}

func (r *watchEventDecoder[L, O, P]) readEvent() (eventType watch.EventType, obj runtime.Object, err error) {
	err = visitJSONFields(r.decoder, func(name string) (err error) {
		switch name {
		case "type":
			return json.UnmarshalDecode(r.decoder, &eventType)
		case "object":
			obj, err = r.readObject(eventType)
			return err
		}
		return r.decoder.SkipValue()
	})
	if err == nil && obj == nil {
		err = fmt.Errorf("an event of type %q has no object", eventType)
	}
	return eventType, obj, err
}

// readObject reads the object of an event. Its kind depends on the type of the event, which precedes it.
func (r *watchEventDecoder[L, O, P]) readObject(of watch.EventType) (runtime.Object, error) {
	switch of {
	case watch.Error:
		status := &metav1.Status{}
		return status, json.UnmarshalDecode(r.decoder, status)
	case watch.Added, watch.Modified, watch.Deleted, watch.Bookmark:
		item := new(L)
		if err := json.UnmarshalDecode(r.decoder, item); err != nil {
			return nil, err
		}
		return P(new(r.convert(item))), nil
	}
	return nil, fmt.Errorf("a watch sent an event of type %q", of)
}
