package stream

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"google.golang.org/protobuf/encoding/protowire"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// nodes reads Nodes, as protobuf, which the kinds of Kubernetes itself have: JSON costs the API server and us several
// times as much. It is decoded once, so the watch is client-go's.
type nodes struct{ api rest.Interface }

func (n *nodes) watch(ctx context.Context, _ string, o metav1.ListOptions) (watch.Interface, error) {
	o.Watch = true
	return n.api.Get().Resource("nodes").SpecificallyVersionedParams(&o, metav1.ParameterCodec, schema.GroupVersion{Version: "v1"}).Watch(ctx)
}

// list asks as the lists of other kinds do.
func (n *nodes) list(ctx context.Context, _ string, visit func(client.Object)) (version string, err error) {
	body, err := n.api.Get().Resource("nodes").SetHeader("Accept", runtime.ContentTypeProtobuf).Stream(ctx)
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
	object := new(corev1.Node)
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
		*object = corev1.Node{}
		err := object.Unmarshal(buffer.Bytes())
		if err == nil {
			visit(object)
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
