package stream

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/apimachinery/pkg/watch"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

func nodeListOf(n int) *corev1.NodeList {
	out := &corev1.NodeList{ListMeta: metav1.ListMeta{ResourceVersion: "7"}}
	for i := range n {
		o := corev1.Node{ObjectMeta: meta(), Spec: corev1.NodeSpec{PodCIDR: "10.0.0.0/24", PodCIDRs: []string{"10.0.0.0/24", "fd00::/64"}}}
		o.Name = fmt.Sprint("w", i)
		o.Status.Images = []corev1.ContainerImage{{Names: []string{"registry/image:1"}, SizeBytes: 5}}
		out.Items = append(out.Items, o)
	}
	return out
}

// encoded returns an object as the API server sends it: at once, or one item after the other.
func encoded(tb testing.TB, o runtime.Object, streaming bool) []byte {
	tb.Helper()
	var out bytes.Buffer
	s := protobuf.NewSerializerWithOptions(clientgoscheme.Scheme, clientgoscheme.Scheme, protobuf.SerializerOptions{StreamingCollectionsEncoding: streaming})
	if err := s.Encode(o, &out); err != nil {
		tb.Fatal(err)
	}
	return out.Bytes()
}

// shown returns the part of a Node that the client returns.
func shown(o corev1.Node) corev1.Node {
	o.Status, o.ManagedFields = corev1.NodeStatus{}, nil
	return o
}

func TestNodeItems(t *testing.T) {
	for _, n := range []int{0, 1, 3, 600} {
		for _, streaming := range []bool{false, true} {
			want := nodeListOf(n)
			var got []corev1.Node
			version, err := decodeNodeResponse(bytes.NewReader(encoded(t, want, streaming)), func(o *corev1.Node) { got = append(got, *o) })
			if err != nil || version != "7" {
				t.Fatalf("%d Nodes: version %q, error %v", n, version, err)
			}
			for i := range want.Items {
				want.Items[i] = shown(want.Items[i])
			}
			if d := cmp.Diff(want.Items, got); d != "" {
				t.Errorf("%d Nodes: -want +got:\n%s", n, d)
			}
		}
	}
}

// TestIncompleteNodeItems checks that an incomplete list is an error, wherever it breaks off.
func TestIncompleteNodeItems(t *testing.T) {
	list := nodeListOf(2)
	whole := encoded(t, list, true)
	behind := len(whole) - 4 // two empty fields follow the list
	for n := range behind {
		if _, err := decodeNodeResponse(bytes.NewReader(whole[:n]), func(*corev1.Node) {}); err == nil {
			t.Fatalf("%d of %d bytes pass for a list", n, len(whole))
		}
	}
	if _, err := decodeNodeResponse(bytes.NewReader(whole[:behind]), func(*corev1.Node) {}); err != nil {
		t.Fatalf("the list itself is whole: %v", err)
	}
}

func TestInvalidNodeItems(t *testing.T) {
	text, err := json.Marshal(nodeListOf(1))
	if err != nil {
		t.Fatal(err)
	}
	for name, body := range map[string][]byte{
		"nothing":    nil,
		"JSON":       text,
		"no list":    []byte(protobufMagic),
		"other kind": append([]byte(protobufMagic), 0x08, 0x01), // a number
	} {
		if _, err := decodeNodeResponse(bytes.NewReader(body), func(*corev1.Node) {}); err == nil {
			t.Errorf("%s passes for a list", name)
		}
	}
}

func TestNodesAreRequestedAsProtobuf(t *testing.T) {
	asked := ""
	c := answering(t, func(w http.ResponseWriter, r *http.Request) {
		asked = r.Header.Get("Accept") + " " + r.URL.String()
		_, _ = w.Write(encoded(t, nodeListOf(2), true))
	})
	seen := 0
	version, err := c.List(t.Context(), &corev1.Node{}, "", func(client.Object) { seen++ })
	if err != nil || version != "7" || seen != 2 {
		t.Errorf("%d Nodes, version %q, error %v", seen, version, err)
	}
	if want := "application/vnd.kubernetes.protobuf /api/v1/nodes"; asked != want {
		t.Errorf("asked for %q, want %q", asked, want)
	}
}

func TestWatchShowsNodes(t *testing.T) {
	node := nodeListOf(1).Items[0]
	bookmark := &corev1.Node{ObjectMeta: metav1.ObjectMeta{ResourceVersion: "9"}}
	expired := apierrors.NewResourceExpired("too old").Status()
	sent := []watch.Event{
		{Type: watch.Added, Object: &node}, {Type: watch.Modified, Object: &node}, {Type: watch.Deleted, Object: &node},
		{Type: watch.Bookmark, Object: bookmark}, {Type: watch.Error, Object: &expired},
	}
	proto, _ := runtime.SerializerInfoForMediaType(clientgoscheme.Codecs.SupportedMediaTypes(), runtime.ContentTypeProtobuf)
	c := answering(t, func(w http.ResponseWriter, r *http.Request) {
		if got := r.Header.Get("Accept"); !strings.HasPrefix(got, runtime.ContentTypeProtobuf) {
			t.Errorf("asked for %s", got)
		}
		w.Header().Set("Content-Type", runtime.ContentTypeProtobuf+";stream=watch")
		frames, encoder := proto.StreamSerializer.NewFrameWriter(w), clientgoscheme.Codecs.EncoderForVersion(proto.Serializer, corev1.SchemeGroupVersion)
		for _, e := range sent {
			raw, err := runtime.Encode(encoder, e.Object)
			one := &metav1.WatchEvent{Type: string(e.Type), Object: runtime.RawExtension{Raw: raw}}
			if err := errors.Join(err, proto.StreamSerializer.Encode(one, frames)); err != nil {
				t.Error(err)
			}
		}
	})
	w, err := c.Watch(t.Context(), &corev1.Node{}, "", metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	var got []watch.Event
	for e := range w.ResultChan() {
		got = append(got, e)
	}
	for i := range sent {
		if o, ok := sent[i].Object.(*corev1.Node); ok {
			o := shown(*o)
			sent[i].Object = &o
		}
	}
	if d := cmp.Diff(sent, got); d != "" {
		t.Errorf("-want +got:\n%s", d)
	}
}

// TestStoppedWatchLeavesNothing checks that a watch that is stopped while unread events are pending leaves nothing
// behind: TestMain checks for leaked goroutines.
func TestStoppedWatchLeavesNothing(t *testing.T) {
	node := nodeListOf(1).Items[0]
	proto, _ := runtime.SerializerInfoForMediaType(clientgoscheme.Codecs.SupportedMediaTypes(), runtime.ContentTypeProtobuf)
	raw, err := runtime.Encode(clientgoscheme.Codecs.EncoderForVersion(proto.Serializer, corev1.SchemeGroupVersion), &node)
	if err != nil {
		t.Fatal(err)
	}
	c := answering(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", runtime.ContentTypeProtobuf+";stream=watch")
		frames := proto.StreamSerializer.NewFrameWriter(w)
		for range 3 {
			_ = proto.StreamSerializer.Encode(&metav1.WatchEvent{Type: string(watch.Added), Object: runtime.RawExtension{Raw: raw}}, frames)
		}
	})
	w, err := c.Watch(t.Context(), &corev1.Node{}, "", metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	<-w.ResultChan()
	w.Stop()
}

// TestBrokenNodes checks that data that breaks off, or is not a Node, is an error.
func TestBrokenNodes(t *testing.T) {
	node := nodeListOf(1).Items[0]
	whole, err := node.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	short := 0
	for n := range whole {
		if err := new(trimmedNode).Unmarshal(whole[:n]); err == nil {
			short++ // between two of its three fields
		}
	}
	if short != 3 {
		t.Errorf("%d beginnings of a Node pass for one, want those that end with a field", short)
	}
}

// BenchmarkNodes measures the cost of one Node of a list.
func BenchmarkNodes(b *testing.B) {
	body := encoded(b, nodeListOf(1000), true)
	b.SetBytes(int64(len(body)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := decodeNodeResponse(bytes.NewReader(body), func(*corev1.Node) {}); err != nil {
			b.Fatal(err)
		}
	}
}
