package stream

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
)

// patchOnlyClient is a client on which only patches are called.
type patchOnlyClient struct{ client.Client }

var errOther = errors.New("the other client was asked")

func (o patchOnlyClient) Status() client.SubResourceWriter { return patchOnlyStatus{} }

type patchOnlyStatus struct{ client.SubResourceWriter }

func (patchOnlyStatus) Patch(context.Context, client.Object, client.Patch, ...client.SubResourcePatchOption) error {
	return errOther
}

func (patchOnlyClient) Patch(context.Context, client.Object, client.Patch, ...client.PatchOption) error {
	return errOther
}

func TestPatchesOfNodes(t *testing.T) {
	node := nodeListOf(1).Items[0]
	asked := ""
	proto, _ := runtime.SerializerInfoForMediaType(clientgoscheme.Codecs.SupportedMediaTypes(), runtime.ContentTypeProtobuf)
	answer := func(w http.ResponseWriter, code int, o runtime.Object) {
		raw, err := runtime.Encode(clientgoscheme.Codecs.EncoderForVersion(proto.Serializer, corev1.SchemeGroupVersion), o)
		if err != nil {
			t.Error(err)
		}
		w.Header().Set("Content-Type", runtime.ContentTypeProtobuf)
		w.WriteHeader(code)
		_, _ = w.Write(raw)
	}
	c := answering(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		asked = strings.Join([]string{r.Method, r.URL.Path, r.Header.Get("Content-Type"), string(body)}, " ")
		if strings.HasSuffix(r.URL.Path, "gone") {
			status := apierrors.NewNotFound(corev1.Resource("nodes"), "gone").Status()
			answer(w, http.StatusNotFound, &status)
			return
		}
		answer(w, http.StatusOK, &node)
	}).NewPatchingClient(patchOnlyClient{})
	patch := client.RawPatch(types.MergePatchType, []byte(`{"spec":{}}`))

	got := &corev1.Node{}
	got.Name = node.Name
	if err := c.Patch(t.Context(), got, patch); err != nil {
		t.Fatal(err)
	}
	if want := "PATCH /api/v1/nodes/w0 application/merge-patch+json " + `{"spec":{}}`; asked != want {
		t.Errorf("asked for %q, want %q", asked, want)
	}
	if d := cmp.Diff(shown(node), *got); d != "" {
		t.Errorf("-want +got:\n%s", d)
	}

	gone := &corev1.Node{}
	gone.Name = "gone"
	if err := c.Patch(t.Context(), gone, patch); !apierrors.IsNotFound(err) {
		t.Errorf("the reason is lost: %v", err)
	}
	if err := c.Patch(t.Context(), &corev1.Pod{}, patch); !errors.Is(err, errOther) {
		t.Errorf("another kind: %v", err)
	}
	if err := c.Patch(t.Context(), got, patch, client.DryRunAll); !errors.Is(err, errOther) {
		t.Errorf("with options: %v", err)
	}
}

func TestPatchesOfLeases(t *testing.T) {
	lease := &v1alpha1.IPLease{TypeMeta: metav1.TypeMeta{Kind: "IPLease", APIVersion: "x"}, ObjectMeta: meta(), Status: v1alpha1.IPLeaseStatus{Address: "10.0.0.1"}}
	asked := ""
	c := answering(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		asked = strings.Join([]string{r.Method, r.URL.Path, r.Header.Get("Content-Type"), string(body)}, " ")
		w.Header().Set("Content-Type", "application/json")
		if strings.Contains(r.URL.Path, "/late") {
			w.WriteHeader(http.StatusConflict)
			status := apierrors.NewConflict(schema.GroupResource{Resource: "ipleases"}, "late", errOther).Status()
			status.TypeMeta = metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}
			_, _ = io.WriteString(w, textOf(t, status))
			return
		}
		_, _ = io.WriteString(w, textOf(t, lease))
	}).NewPatchingClient(patchOnlyClient{})
	patch := client.RawPatch(types.MergePatchType, []byte(`{}`))
	const path = "/apis/butler.butlerlabs.dev/v1alpha1/namespaces/ns/ipleases/name"
	for want, do := range map[string]func(*v1alpha1.IPLease) error{
		path:             func(l *v1alpha1.IPLease) error { return c.Patch(t.Context(), l, patch) },
		path + "/status": func(l *v1alpha1.IPLease) error { return c.Status().Patch(t.Context(), l, patch) },
	} {
		got := &v1alpha1.IPLease{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "name"}}
		if err := do(got); err != nil {
			t.Fatal(err)
		}
		if want = "PATCH " + want + " application/merge-patch+json {}"; asked != want {
			t.Errorf("asked for %q, want %q", asked, want)
		}
		full := lease.DeepCopy()
		full.TypeMeta, full.ManagedFields = metav1.TypeMeta{}, nil
		if d := cmp.Diff(full, got); d != "" {
			t.Errorf("-want +got:\n%s", d)
		}
		got.Name = "late"
		if err := do(got); !apierrors.IsConflict(err) || !strings.Contains(err.Error(), errOther.Error()) {
			t.Errorf("the reason or the message is lost: %v", err)
		}
	}
	if err := c.Status().Patch(t.Context(), &corev1.Pod{}, patch); !errors.Is(err, errOther) {
		t.Errorf("another kind: %v", err)
	}
	if err := c.Status().Patch(t.Context(), lease, patch, client.FieldOwner("x")); !errors.Is(err, errOther) {
		t.Errorf("with options: %v", err)
	}
}
