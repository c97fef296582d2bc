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
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/rest"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
)

// Lists reads IPAddressClaims, IPAddresses and IPAllocations with consistent reads: what it shows existed
// at some moment after the call.
type Lists struct{ ipam, butler rest.Interface }

// New returns lists of the API server that a configuration names.
func New(cfg *rest.Config, client *http.Client, scheme *runtime.Scheme) (*Lists, error) {
	codecs := serializer.NewCodecFactory(scheme)
	clientFor := func(gv schema.GroupVersion) (rest.Interface, error) {
		r, err := apiutil.RESTClientForGVK(gv.WithKind(""), true, false, cfg, codecs, client)
		if err != nil {
			return nil, fmt.Errorf("making a client for %s: %w", gv, err)
		}
		return r, nil
	}
	ipam, err := clientFor(ipamv1.GroupVersion)
	if err != nil {
		return nil, err
	}
	butler, err := clientFor(v1alpha1.GroupVersion)
	return &Lists{ipam: ipam, butler: butler}, err
}

// Claims visits the claims of a namespace; the empty one means all of them. It returns the resource
// version from which a watch goes on.
func (l *Lists) Claims(ctx context.Context, namespace string, visit func(*ipamv1.IPAddressClaim)) (string, error) {
	return list(ctx, l.ipam, namespace, "ipaddressclaims", func(c *claim) { visit(fullClaim(c)) })
}

// Addresses visits the IPAddresses of a namespace; the empty one means all of them. It returns the
// resource version from which a watch goes on.
func (l *Lists) Addresses(ctx context.Context, namespace string, visit func(*ipamv1.IPAddress)) (string, error) {
	return list(ctx, l.ipam, namespace, "ipaddresses", func(a *address) { visit(fullAddress(a)) })
}

// Allocations visits the IPAllocations of a namespace; the empty one means all of them. It returns the
// resource version from which a watch goes on.
func (l *Lists) Allocations(ctx context.Context, namespace string, visit func(*v1alpha1.IPAllocation)) (string, error) {
	return list(ctx, l.butler, namespace, "ipallocations", func(a *allocation) { visit(fullAllocation(a)) })
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
