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

// nodeReader reads Nodes as protobuf, which Kubernetes' own kinds support: JSON costs the API server and this process
// several times as much. It decodes each object once, so it uses client-go's watch. The Nodes that it returns have no
// status.
type nodeReader struct{ restClient rest.Interface }

// newNodeReader returns a nodeReader with a client that decodes Nodes as trimmedNodes.
func newNodeReader(of *rest.Config, httpClient *http.Client) (nodeReader, error) {
	trimmed := runtime.NewScheme()
	metav1.AddToGroupVersion(trimmed, corev1.SchemeGroupVersion) // the events of a watch
	trimmed.AddKnownTypeWithName(nodeGVK, &trimmedNode{})
	cfg := rest.CopyConfig(of)
	cfg.APIPath, cfg.GroupVersion, cfg.ContentType = "/api", &corev1.SchemeGroupVersion, runtime.ContentTypeProtobuf
	cfg.NegotiatedSerializer = trimmedCodecs{serializer.NewCodecFactory(trimmed).WithoutConversion()}
	api, err := rest.RESTClientForConfigAndClient(cfg, httpClient)
	if err != nil {
		return nodeReader{}, fmt.Errorf("making a client for Nodes: %w", err)
	}
	return nodeReader{api}, nil
}

// trimmedCodecs decode a trimmedNode and return the Node in it.
type trimmedCodecs struct{ runtime.NegotiatedSerializer }

// DecoderToVersion implements runtime.NegotiatedSerializer.
func (c trimmedCodecs) DecoderToVersion(d runtime.Decoder, to runtime.GroupVersioner) runtime.Decoder {
	return trimmedDecoder{c.NegotiatedSerializer.DecoderToVersion(d, to)}
}

type trimmedDecoder struct{ runtime.Decoder }

// Decode implements runtime.Decoder.
func (d trimmedDecoder) Decode(data []byte, defaults *schema.GroupVersionKind, into runtime.Object) (runtime.Object, *schema.GroupVersionKind, error) {
	o, gvk, err := d.Decoder.Decode(data, defaults, into)
	if trimmed, ok := o.(*trimmedNode); ok {
		o = &trimmed.Node
	}
	return o, gvk, err
}

var nodeGVK = corev1.SchemeGroupVersion.WithKind("Node")

// trimmedNode is a Node that is decoded without its status and its managed fields, which make up most of it.
type trimmedNode struct{ corev1.Node }

// Fields of corev1.Node and of metav1.ObjectMeta, from their generated.proto.
const (
	nodeMetadataField  protowire.Number = 1
	nodeStatusField    protowire.Number = 3
	managedFieldsField protowire.Number = 17
)

// Unmarshal decodes protobuf. Unmarshaling a message field by field has the same result as unmarshaling it at once.
func (n *trimmedNode) Unmarshal(data []byte) error {
	return visitFields(data, func(field protowire.Number, whole, value []byte) error {
		if field == nodeStatusField {
			return nil
		}
		if field != nodeMetadataField {
			return n.Node.Unmarshal(whole)
		}
		return visitFields(value, func(field protowire.Number, whole, _ []byte) error {
			if field == managedFieldsField {
				return nil
			}
			return n.ObjectMeta.Unmarshal(whole)
		})
	})
}

// visitFields calls show for each field of a message, with the encoded field and, for a length-delimited field, its
// value.
func visitFields(message []byte, show func(field protowire.Number, whole, value []byte) error) error {
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

func (n *nodeReader) watchObjects(ctx context.Context, _ string, o metav1.ListOptions) (watch.Interface, error) {
	o.Watch = true
	return n.restClient.Get().Resource("nodes").SpecificallyVersionedParams(&o, metav1.ParameterCodec, schema.GroupVersion{Version: "v1"}).Watch(ctx)
}

func (*nodeReader) resourceName() string { return "nodes" }

// listObjects sends the same request as the lists of other kinds.
func (n *nodeReader) listObjects(ctx context.Context, _ string, limit int, visit func(client.Object)) (version string, err error) {
	body, err := withLimit(n.restClient.Get().Resource("nodes"), limit).SetHeader("Accept", runtime.ContentTypeProtobuf).Stream(ctx)
	if err != nil {
		return "", fmt.Errorf("listing nodes: %w", err)
	}
	defer func() { err = errors.Join(err, body.Close()) }()
	version, err = decodeNodeResponse(body, func(o *corev1.Node) { visit(o) })
	if err != nil {
		return "", fmt.Errorf("listing nodes: %w", err)
	}
	return version, nil
}

// protobufMagic is the prefix of what the API server encodes as protobuf. A runtime.Unknown follows.
const protobufMagic = "k8s\x00"

// Fields of runtime.Unknown and of corev1.NodeList, from their generated.proto.
const (
	unknownRawField   protowire.Number = 2
	listMetadataField protowire.Number = 1
	listItemsField    protowire.Number = 2
)

// decodeNodeResponse decodes a NodeList, visits each of its items and returns its resource version.
func decodeNodeResponse(body io.Reader, visit func(*corev1.Node)) (version string, err error) {
	r := bufio.NewReader(body)
	begin := make([]byte, len(protobufMagic))
	if n, err := io.ReadFull(r, begin); err != nil || string(begin) != protobufMagic {
		return "", errors.Join(fmt.Errorf("the answer is no protobuf: it begins with %q", begin[:n]), err)
	}
	complete := false
	err = readMessageFields(r, func(field protowire.Number, part io.Reader) error {
		if field != unknownRawField {
			return nil
		}
		complete = true
		version, err = decodeNodeList(bufio.NewReader(part), visit)
		return err
	})
	if err == nil && !complete {
		err = errors.New("the answer is not a list")
	}
	return version, err
}

func decodeNodeList(r *bufio.Reader, visit func(*corev1.Node)) (version string, err error) {
	var buffer bytes.Buffer
	object := new(trimmedNode)
	err = readMessageFields(r, func(field protowire.Number, part io.Reader) error {
		buffer.Reset()
		if _, err := buffer.ReadFrom(part); err != nil {
			return err
		}
		if field == listMetadataField {
			var meta metav1.ListMeta
			err := meta.Unmarshal(buffer.Bytes())
			version = meta.ResourceVersion
			return err
		}
		if field != listItemsField {
			return nil
		}
		*object = trimmedNode{}
		err := object.Unmarshal(buffer.Bytes())
		if err == nil {
			visit(&object.Node)
		}
		return err
	})
	return version, err
}

// readMessageFields reads a message whose fields are all length-delimited. What read leaves of a field is discarded.
func readMessageFields(r *bufio.Reader, read func(field protowire.Number, part io.Reader) error) error {
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
