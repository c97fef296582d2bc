// Package stream lists objects one by one as the API server sends them. A list of all claims of a
// large namespace is some ten megabytes: whole, it would be most of the manager's memory.
package stream

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/rest"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
)

// Lists reads IPAddressClaims and IPAddresses with consistent reads: what it shows existed at some
// moment after the call.
type Lists struct{ rest rest.Interface }

// New returns lists of the API server that a configuration names.
func New(cfg *rest.Config, client *http.Client, scheme *runtime.Scheme) (*Lists, error) {
	gvk := ipamv1.GroupVersion.WithKind("IPAddressClaim")
	r, err := apiutil.RESTClientForGVK(gvk, true, false, cfg, serializer.NewCodecFactory(scheme), client)
	if err != nil {
		return nil, fmt.Errorf("making a client for %s: %w", gvk.GroupVersion(), err)
	}
	return &Lists{rest: r}, nil
}

// Claims visits the claims of a namespace; the empty one means all of them. It returns the resource
// version from which a watch goes on.
func (l *Lists) Claims(ctx context.Context, namespace string, visit func(*ipamv1.IPAddressClaim)) (string, error) {
	return list(ctx, l.rest, namespace, "ipaddressclaims", visit)
}

// Addresses visits the IPAddresses of a namespace; the empty one means all of them. It returns the
// resource version from which a watch goes on.
func (l *Lists) Addresses(ctx context.Context, namespace string, visit func(*ipamv1.IPAddress)) (string, error) {
	return list(ctx, l.rest, namespace, "ipaddresses", visit)
}

// list asks without a limit and a resource version: a consistent list that the API server answers
// from its watch cache. A list in pages would be decoded from etcd, page by page.
func list[T any](ctx context.Context, r rest.Interface, namespace, resource string, visit func(*T)) (version string, err error) {
	body, err := r.Get().NamespaceIfScoped(namespace, namespace != "").Resource(resource).Stream(ctx)
	if err != nil {
		return "", fmt.Errorf("listing %s: %w", resource, err)
	}
	defer func() { err = errors.Join(err, body.Close()) }()
	version, err = items(json.NewDecoder(body), visit)
	if err != nil {
		return "", fmt.Errorf("listing %s: %w", resource, err)
	}
	return version, nil
}

// items reads a list object, visits each of its items and returns its resource version. An answer
// that breaks off is an error: half a list must not pass for a whole one.
func items[T any](d *json.Decoder, visit func(*T)) (version string, err error) {
	if err := expect(d, '{'); err != nil {
		return "", err
	}
	complete := false
	for d.More() {
		key, err := d.Token()
		if err != nil {
			return "", err
		}
		switch key {
		case "items":
			err = elements(d, visit)
			complete = err == nil
		case "metadata":
			var meta metav1.ListMeta
			err = d.Decode(&meta)
			version = meta.ResourceVersion
		default:
			var skip json.RawMessage
			err = d.Decode(&skip)
		}
		if err != nil {
			return "", err
		}
	}
	if err := expect(d, '}'); err != nil {
		return "", err
	}
	if !complete {
		return "", errors.New("the answer is not a list")
	}
	return version, nil
}

func elements[T any](d *json.Decoder, visit func(*T)) error {
	if err := expect(d, '['); err != nil {
		return err
	}
	for d.More() {
		item := new(T)
		if err := d.Decode(item); err != nil {
			return err
		}
		visit(item)
	}
	return expect(d, ']')
}

func expect(d *json.Decoder, want json.Delim) error {
	got, err := d.Token()
	if err != nil {
		return err
	}
	if got != want {
		return fmt.Errorf("the answer has %v where a list has %v", got, want)
	}
	return nil
}
