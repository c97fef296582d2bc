// Package stream lists objects one by one as the API server sends them, and watches them. A list of all claims of a
// large namespace is some ten megabytes: whole, it would be most of the manager's memory. And of each object it
// passes over the managed fields: decoding those, twice, was a third of the manager's CPU.
package stream

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
)

// Client reads IPAddressClaims, IPAddresses, IPAllocations, IPLeases and Nodes. Its lists are consistent reads: what it shows
// existed at some moment after the call. An object is the visitor's only during the visit: the next one takes its
// place. What it points to may be kept.
type Client struct {
	claims      kind[claim, ipamv1.IPAddressClaim, *ipamv1.IPAddressClaim]
	addresses   kind[address, ipamv1.IPAddress, *ipamv1.IPAddress]
	allocations kind[allocation, v1alpha1.IPAllocation, *v1alpha1.IPAllocation]
	leases      kind[lease, v1alpha1.IPLease, *v1alpha1.IPLease]
	nodes       nodes

	// WentBack takes a proof that the API server has gone back to an older state; nil: the read fails, and that is all.
	WentBack func(*WentBackError)
	history  history
}

// reader reads the objects of a kind, and what the API server answers to a patch of one, or of its part "status".
type reader interface {
	// list shows all, or the first ones up to a limit.
	list(ctx context.Context, namespace string, limit int, visit func(client.Object)) (version string, err error)
	name() string
	watch(ctx context.Context, namespace string, o metav1.ListOptions) (watch.Interface, error)
	patch(ctx context.Context, o client.Object, patch client.Patch, part ...string) error
}

// kind is how objects O are asked for, and decoded: as L.
type kind[L, O any, P object[O]] struct {
	api      rest.Interface
	resource string
	full     func(*L) O
}

type object[O any] interface {
	*O
	client.Object
}

func kindOf[L, O any, P object[O]](api rest.Interface, resource string, full func(*L) O) kind[L, O, P] {
	return kind[L, O, P]{api: api, resource: resource, full: full}
}

// New returns a client of the API server that a configuration names.
func New(cfg *rest.Config, httpClient *http.Client, scheme *runtime.Scheme) (*Client, error) {
	codecs := serializer.NewCodecFactory(scheme)
	clientFor := func(gvk schema.GroupVersionKind) (rest.Interface, error) {
		r, err := apiutil.RESTClientForGVK(gvk, false, false, cfg, codecs, httpClient)
		if err != nil {
			return nil, fmt.Errorf("making a client for %s: %w", gvk.GroupVersion(), err)
		}
		return r, nil
	}
	ipam, err := clientFor(ipamv1.GroupVersion.WithKind("IPAddressClaim"))
	if err != nil {
		return nil, err
	}
	butler, err := clientFor(v1alpha1.GroupVersion.WithKind(v1alpha1.IPAllocationKind))
	if err != nil {
		return nil, err
	}
	nodes, err := newNodes(cfg, httpClient)
	if err != nil {
		return nil, err
	}
	return &Client{
		claims:      kindOf(ipam, "ipaddressclaims", fullClaim),
		addresses:   kindOf(ipam, "ipaddresses", fullAddress),
		allocations: kindOf(butler, "ipallocations", fullAllocation),
		leases:      kindOf(butler, "ipleases", fullLease),
		nodes:       nodes,
	}, nil
}

// List visits the objects of the kind of an empty one in a namespace, the empty one means all of them. It returns the
// resource version from which a watch goes on.
func (c *Client) List(ctx context.Context, of client.Object, namespace string, visit func(client.Object)) (string, error) {
	k, err := c.kind(of)
	if err != nil {
		return "", err
	}
	before := c.history.moment(k.name())
	version, err := k.list(ctx, namespace, 0, visit)
	if err != nil {
		return "", err
	}
	if err := c.check(k, version, before); err != nil {
		return "", err
	}
	c.history.noteList(k.name(), version)
	return version, nil
}

// Watch watches the objects of the kind of an empty one in a namespace, the empty one means all of them. One that goes on
// where another one broke off begins with a look at the moment that the API server is at: it would wait for what is later
// than the one that it is given, and says nothing if that is to come.
func (c *Client) Watch(ctx context.Context, of client.Object, namespace string, o metav1.ListOptions) (watch.Interface, error) {
	k, err := c.kind(of)
	if err != nil {
		return nil, err
	}
	if o.ResourceVersion != "" && !c.history.isOfList(k.name(), o.ResourceVersion) {
		c.history.note(k.name(), o.ResourceVersion)
		before := c.history.moment(k.name())
		version, err := k.list(ctx, namespace, 1, func(client.Object) {})
		if err != nil {
			return nil, err
		}
		if err := c.check(k, version, before); err != nil {
			return nil, err
		}
	}
	return k.watch(ctx, namespace, o)
}

// check reports an error if the API server has gone back, and says so to WentBack.
func (c *Client) check(k reader, version string, before uint64) error {
	err := check(k.name(), version, before)
	var back *WentBackError
	if errors.As(err, &back) && c.WentBack != nil {
		c.WentBack(back)
	}
	return err
}

func (c *Client) kind(of client.Object) (reader, error) {
	switch of.(type) {
	case *ipamv1.IPAddressClaim:
		return &c.claims, nil
	case *ipamv1.IPAddress:
		return &c.addresses, nil
	case *v1alpha1.IPAllocation:
		return &c.allocations, nil
	case *v1alpha1.IPLease:
		return &c.leases, nil
	case *corev1.Node:
		return &c.nodes, nil
	}
	return nil, fmt.Errorf("objects of type %T are not read one by one", of)
}

// list asks without a limit and a resource version: a consistent list that the API server answers
// from its watch cache. A list in pages would be decoded from etcd, page by page.
func (k *kind[L, O, P]) list(ctx context.Context, namespace string, limit int, visit func(client.Object)) (version string, err error) {
	body, err := limited(k.in(namespace), limit).Stream(ctx)
	if err != nil {
		return "", fmt.Errorf("listing %s: %w", k.resource, err)
	}
	defer func() { err = errors.Join(err, body.Close()) }()
	version, err = items(decoder(body), k.full, func(o *O) { visit(P(o)) })
	if err != nil {
		return "", fmt.Errorf("listing %s: %w", k.resource, err)
	}
	return version, nil
}

func (k *kind[L, O, P]) name() string { return k.resource }

// limited is a list of so many; 0: of all.
func limited(list *rest.Request, limit int) *rest.Request {
	if limit == 0 {
		return list
	}
	return list.Param("limit", strconv.Itoa(limit))
}

func (k *kind[L, O, P]) in(namespace string) *rest.Request {
	return k.api.Get().NamespaceIfScoped(namespace, namespace != "").Resource(k.resource)
}

// decoder reads JSON of the API server, which has parsed all of it and sends each name once.
func decoder(from io.Reader) *jsontext.Decoder {
	return jsontext.NewDecoder(from, jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))
}

// items reads a list object, visits each of its items and returns its resource version. An answer
// that breaks off is an error: half a list must not pass for a whole one.
func items[L, O any](d *jsontext.Decoder, full func(*L) O, visit func(*O)) (version string, err error) {
	complete := false
	err = fields(d, func(name string) error {
		switch name {
		case "items":
			complete = true
			return elements(d, full, visit)
		case "metadata":
			var meta metav1.ListMeta
			err := json.UnmarshalDecode(d, &meta)
			version = meta.ResourceVersion
			return err
		}
		return d.SkipValue()
	})
	if err != nil {
		return "", err
	}
	if !complete {
		return "", errors.New("the answer is not a list")
	}
	return version, nil
}

// fields reads an object: value is called for each name, and reads what it has.
func fields(d *jsontext.Decoder, value func(name string) error) error {
	if err := expect(d, jsontext.KindBeginObject); err != nil {
		return err
	}
	for d.PeekKind() == jsontext.KindString {
		name, err := d.ReadToken()
		if err != nil {
			return err
		}
		if err := value(name.String()); err != nil {
			return err
		}
	}
	return expect(d, jsontext.KindEndObject)
}

func elements[L, O any](d *jsontext.Decoder, full func(*L) O, visit func(*O)) error {
	if err := expect(d, jsontext.KindBeginArray); err != nil {
		return err
	}
	item, object := new(L), new(O)
	for d.PeekKind() == jsontext.KindBeginObject {
		*item = *new(L)
		if err := json.UnmarshalDecode(d, item); err != nil {
			return err
		}
		*object = full(item)
		visit(object)
	}
	return expect(d, jsontext.KindEndArray)
}

func expect(d *jsontext.Decoder, want jsontext.Kind) error {
	got, err := d.ReadToken()
	if err != nil {
		return err
	}
	if got.Kind() != want {
		return fmt.Errorf("the answer has %v in the place of %v", got, want)
	}
	return nil
}
