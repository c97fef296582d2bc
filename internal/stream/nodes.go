package stream

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/http"

	"google.golang.org/protobuf/encoding/protowire"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// nodes reads Nodes, as protobuf, which the kinds of Kubernetes itself have: JSON costs the API server and us several
// times as much. It is decoded once, so the watch is client-go's. A Node that is shown has no status.
type nodes struct{ api rest.Interface }

// newNodes returns what reads Nodes by a client that decodes them as lean ones.
func newNodes(of *rest.Config, httpClient *http.Client) (nodes, error) {
	lean := runtime.NewScheme()
	metav1.AddToGroupVersion(lean, corev1.SchemeGroupVersion) // what is said of a watch
	lean.AddKnownTypeWithName(nodeKind, &leanNode{})
	cfg := rest.CopyConfig(of)
	cfg.APIPath, cfg.GroupVersion, cfg.ContentType = "/api", &corev1.SchemeGroupVersion, runtime.ContentTypeProtobuf
	cfg.NegotiatedSerializer = leanCodecs{serializer.NewCodecFactory(lean).WithoutConversion()}
	api, err := rest.RESTClientForConfigAndClient(cfg, httpClient)
	if err != nil {
		return nodes{}, fmt.Errorf("making a client for Nodes: %w", err)
	}
	return nodes{api}, nil
}

// leanCodecs show a Node in the place of a lean one.
type leanCodecs struct{ runtime.NegotiatedSerializer }

// DecoderToVersion implements runtime.NegotiatedSerializer.
func (c leanCodecs) DecoderToVersion(d runtime.Decoder, to runtime.GroupVersioner) runtime.Decoder {
	return leanDecoder{c.NegotiatedSerializer.DecoderToVersion(d, to)}
}

type leanDecoder struct{ runtime.Decoder }

// Decode implements runtime.Decoder.
func (d leanDecoder) Decode(data []byte, defaults *schema.GroupVersionKind, into runtime.Object) (runtime.Object, *schema.GroupVersionKind, error) {
	o, is, err := d.Decoder.Decode(data, defaults, into)
	if lean, ok := o.(*leanNode); ok {
		o = &lean.Node
	}
	return o, is, err
}

var nodeKind = corev1.SchemeGroupVersion.WithKind("Node")

// leanNode is a Node without its status and its managed fields, which are most of it.
type leanNode struct{ corev1.Node }

// Fields of corev1.Node and of metav1.ObjectMeta, from their generated.proto.
const (
	nodeMetadata      protowire.Number = 1
	nodeStatus        protowire.Number = 3
	metaManagedFields protowire.Number = 17
)

// Unmarshal reads protobuf. Unmarshalling a message field by field is the same as at once.
func (n *leanNode) Unmarshal(data []byte) error {
	return eachField(data, func(field protowire.Number, whole, value []byte) error {
		if field == nodeStatus {
			return nil
		}
		if field != nodeMetadata {
			return n.Node.Unmarshal(whole)
		}
		return eachField(value, func(field protowire.Number, whole, _ []byte) error {
			if field == metaManagedFields {
				return nil
			}
			return n.ObjectMeta.Unmarshal(whole)
		})
	})
}

// eachField shows the fields of a message, each whole and its value, of those that have a length.
func eachField(message []byte, show func(field protowire.Number, whole, value []byte) error) error {
	for len(message) > 0 {
		field, kind, tag := protowire.ConsumeTag(message)
		if tag < 0 {
			return protowire.ParseError(tag)
		}
		n := protowire.ConsumeFieldValue(field, kind, message[tag:])
		if n < 0 {
			return protowire.ParseError(n)
		}
		var value []byte
		if kind == protowire.BytesType {
			value, _ = protowire.ConsumeBytes(message[tag:])
		}
		if err := show(field, message[:tag+n], value); err != nil {
			return err
		}
		message = message[tag+n:]
	}
	return nil
}

func (n *nodes) watch(ctx context.Context, _ string, o metav1.ListOptions) (watch.Interface, error) {
	o.Watch = true
	return n.api.Get().Resource("nodes").SpecificallyVersionedParams(&o, metav1.ParameterCodec, schema.GroupVersion{Version: "v1"}).Watch(ctx)
}

func (*nodes) name() string { return "nodes" }

// list asks as the lists of other kinds do.
func (n *nodes) list(ctx context.Context, _ string, limit int, visit func(client.Object)) (version string, err error) {
	body, err := limited(n.api.Get().Resource("nodes"), limit).SetHeader("Accept", runtime.ContentTypeProtobuf).Stream(ctx)
	if err != nil {
		return "", fmt.Errorf("listing nodes: %w", err)
	}
	defer func() { err = errors.Join(err, body.Close()) }()
	version, err = nodeItems(body, func(o *corev1.Node) { visit(o) })
	if err != nil {
		return "", fmt.Errorf("listing nodes: %w", err)
	}
	return version, nil
}

// protobufMagic begins what the API server encodes as protobuf. A runtime.Unknown follows.
const protobufMagic = "k8s\x00"

// Fields of runtime.Unknown and of corev1.NodeList, from their generated.proto.
const (
	unknownRaw   protowire.Number = 2
	listMetadata protowire.Number = 1
	listItems    protowire.Number = 2
)

// nodeItems reads a NodeList, visits each of its items and returns its resource version.
func nodeItems(body io.Reader, visit func(*corev1.Node)) (version string, err error) {
	r := bufio.NewReader(body)
	begin := make([]byte, len(protobufMagic))
	if n, err := io.ReadFull(r, begin); err != nil || string(begin) != protobufMagic {
		return "", errors.Join(fmt.Errorf("the answer is no protobuf: it begins with %q", begin[:n]), err)
	}
	complete := false
	err = parts(r, func(field protowire.Number, part io.Reader) error {
		if field != unknownRaw {
			return nil
		}
		complete = true
		version, err = nodeList(bufio.NewReader(part), visit)
		return err
	})
	if err == nil && !complete {
		err = errors.New("the answer is not a list")
	}
	return version, err
}

func nodeList(r *bufio.Reader, visit func(*corev1.Node)) (version string, err error) {
	var buffer bytes.Buffer
	object := new(leanNode)
	err = parts(r, func(field protowire.Number, part io.Reader) error {
		buffer.Reset()
		if _, err := buffer.ReadFrom(part); err != nil {
			return err
		}
		if field == listMetadata {
			var meta metav1.ListMeta
			err := meta.Unmarshal(buffer.Bytes())
			version = meta.ResourceVersion
			return err
		}
		if field != listItems {
			return nil
		}
		*object = leanNode{}
		err := object.Unmarshal(buffer.Bytes())
		if err == nil {
			visit(&object.Node)
		}
		return err
	})
	return version, err
}

// parts reads a message of which every field has a length. What is not read of one is passed over.
func parts(r *bufio.Reader, read func(field protowire.Number, part io.Reader) error) error {
	for {
		tag, err := binary.ReadUvarint(r)
		if errors.Is(err, io.EOF) {
			return nil
		}
		field, kind := protowire.DecodeTag(tag)
		if err == nil && kind != protowire.BytesType {
			err = fmt.Errorf("field %d of a message is of wire type %d", field, kind)
		}
		if err != nil {
			return err
		}
		length, err := binary.ReadUvarint(r)
		if err != nil {
			return errors.Join(io.ErrUnexpectedEOF, err)
		}
		part := &io.LimitedReader{R: r, N: int64(length)}
		if err := read(field, part); err != nil {
			return err
		}
		if _, err := io.Copy(io.Discard, part); err != nil {
			return err
		}
		if part.N > 0 {
			return io.ErrUnexpectedEOF
		}
	}
}
