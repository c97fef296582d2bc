// Package stream lists objects one by one as the API server sends them, and watches them. A list of all claims of a
// large namespace has some ten megabytes: as a whole, it would be most of the manager's memory. Managed fields of
// each object are skipped: decoding them, twice, took a third of the manager's CPU time.
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

// Client reads IPAddressClaims, IPAddresses, IPAllocations, IPLeases and Nodes. Its lists are consistent reads: what
// they show existed at some moment after the call. A visitor may use an object only during its visit, because the
// next one replaces it. It may keep what the object points to.
type Client struct {
	claims      kindReader[trimmedClaim, ipamv1.IPAddressClaim, *ipamv1.IPAddressClaim]
	addresses   kindReader[trimmedAddress, ipamv1.IPAddress, *ipamv1.IPAddress]
	allocations kindReader[trimmedAllocation, v1alpha1.IPAllocation, *v1alpha1.IPAllocation]
	leases      kindReader[trimmedLease, v1alpha1.IPLease, *v1alpha1.IPLease]
	nodes       nodeReader

	// OnRollback is called if the API server has gone back to an older state; nil means that only the read fails.
	OnRollback func(*VersionRollbackError)
	history    versionHistory
}

// objectReader reads the objects of a kind, and patches one of them, or its subresource, with the response decoded
// into it.
type objectReader interface {
	// listObjects visits all objects, or the first ones up to a limit; 0 means no limit.
	listObjects(ctx context.Context, namespace string, limit int, visit func(client.Object)) (version string, err error)
	resourceName() string
	watchObjects(ctx context.Context, namespace string, o metav1.ListOptions) (watch.Interface, error)
	patchObject(ctx context.Context, o client.Object, patch client.Patch, part ...string) error
}

// kindReader requests objects O and decodes them as L.
type kindReader[L, O any, P objectPointer[O]] struct {
	restClient rest.Interface
	resource   string
	convert    func(*L) O
}

type objectPointer[O any] interface {
	*O
	client.Object
}

func newKindReader[L, O any, P objectPointer[O]](api rest.Interface, resource string, full func(*L) O) kindReader[L, O, P] {
	return kindReader[L, O, P]{restClient: api, resource: resource, convert: full}
}

// New returns a client of the API server that cfg names.
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
	nodes, err := newNodeReader(cfg, httpClient)
	if err != nil {
		return nil, err
	}
	return &Client{
		claims:      newKindReader(ipam, "ipaddressclaims", toIPAddressClaim),
		addresses:   newKindReader(ipam, "ipaddresses", toIPAddress),
		allocations: newKindReader(butler, "ipallocations", toIPAllocation),
		leases:      newKindReader(butler, "ipleases", toIPLease),
		nodes:       nodes,
	}, nil
}

// List visits the objects of the kind of an empty object in a namespace; an empty namespace means all. It returns the
// resource version from which a watch continues.
func (c *Client) List(ctx context.Context, of client.Object, namespace string, visit func(client.Object)) (string, error) {
	k, err := c.readerForObject(of)
	if err != nil {
		return "", err
	}
	before := c.history.newestVersion(k.resourceName())
	version, err := k.listObjects(ctx, namespace, 0, visit)
	if err != nil {
		return "", err
	}
	if err := c.checkRollback(k, version, before); err != nil {
		return "", err
	}
	c.history.recordList(k.resourceName(), version)
	return version, nil
}

// Watch watches the objects of the kind of an empty object in a namespace; an empty namespace means all. A watch that
// continues where another one broke off first reads the current resource version of the API server: a watch only
// waits for versions later than the given one, and shows nothing if that version is yet to come.
func (c *Client) Watch(ctx context.Context, of client.Object, namespace string, o metav1.ListOptions) (watch.Interface, error) {
	k, err := c.readerForObject(of)
	if err != nil {
		return nil, err
	}
	if o.ResourceVersion != "" && !c.history.isListVersion(k.resourceName(), o.ResourceVersion) {
		c.history.recordVersion(k.resourceName(), o.ResourceVersion)
		before := c.history.newestVersion(k.resourceName())
		version, err := k.listObjects(ctx, namespace, 1, func(client.Object) {})
		if err != nil {
			return nil, err
		}
		if err := c.checkRollback(k, version, before); err != nil {
			return nil, err
		}
	}
	return k.watchObjects(ctx, namespace, o)
}

// checkRollback returns an error if the API server has gone back, and calls OnRollback.
func (c *Client) checkRollback(k objectReader, version string, before uint64) error {
	err := checkNotOlder(k.resourceName(), version, before)
	var back *VersionRollbackError
	if errors.As(err, &back) && c.OnRollback != nil {
		c.OnRollback(back)
	}
	return err
}

func (c *Client) readerForObject(of client.Object) (objectReader, error) {
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

// listObjects sends no limit by default and no resource version, which makes it a consistent list that the API server
// serves from its watch cache. A list in pages would be decoded from etcd, page by page.
func (k *kindReader[L, O, P]) listObjects(ctx context.Context, namespace string, limit int, visit func(client.Object)) (version string, err error) {
	body, err := withLimit(k.newRequest(namespace), limit).Stream(ctx)
	if err != nil {
		return "", fmt.Errorf("listing %s: %w", k.resource, err)
	}
	defer func() { err = errors.Join(err, body.Close()) }()
	version, err = decodeList(newJSONDecoder(body), k.convert, func(o *O) { visit(P(o)) })
	if err != nil {
		return "", fmt.Errorf("listing %s: %w", k.resource, err)
	}
	return version, nil
}

func (k *kindReader[L, O, P]) resourceName() string { return k.resource }

// withLimit limits a list to a number of objects; 0 means no limit.
func withLimit(list *rest.Request, limit int) *rest.Request {
	if limit == 0 {
		return list
	}
	return list.Param("limit", strconv.Itoa(limit))
}

func (k *kindReader[L, O, P]) newRequest(namespace string) *rest.Request {
	return k.restClient.Get().NamespaceIfScoped(namespace, namespace != "").Resource(k.resource)
}

// newJSONDecoder returns a decoder for JSON of the API server. It skips checks for duplicate names and UTF-8, because
// the API server has parsed the objects and sends each name once.
func newJSONDecoder(from io.Reader) *jsontext.Decoder {
	return jsontext.NewDecoder(from, jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))
}

// decodeList decodes a list object, visits each of its items and returns its resource version. A response that breaks
// off is an error, so that an incomplete list does not pass for a complete one.
func decodeList[L, O any](d *jsontext.Decoder, full func(*L) O, visit func(*O)) (version string, err error) {
	complete := false
	err = visitJSONFields(d, func(name string) error {
		switch name {
		case "items":
			complete = true
			return decodeArray(d, full, visit)
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

// visitJSONFields reads an object and calls value for each name. value must read the value of that name.
func visitJSONFields(d *jsontext.Decoder, value func(name string) error) error {
	if err := expectToken(d, jsontext.KindBeginObject); err != nil {
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
	return expectToken(d, jsontext.KindEndObject)
}

func decodeArray[L, O any](d *jsontext.Decoder, full func(*L) O, visit func(*O)) error {
	if err := expectToken(d, jsontext.KindBeginArray); err != nil {
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
	return expectToken(d, jsontext.KindEndArray)
}

func expectToken(d *jsontext.Decoder, want jsontext.Kind) error {
	got, err := d.ReadToken()
	if err != nil {
		return err
	}
	if got.Kind() != want {
		return fmt.Errorf("the answer has %v in the place of %v", got, want)
	}
	return nil
}
