package stream

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
)

// answering returns a client of an API server that responds to every request with the same handler.
func answering(t *testing.T, with http.HandlerFunc) *Client {
	t.Helper()
	server := httptest.NewServer(with)
	t.Cleanup(server.Close)
	scheme := runtime.NewScheme()
	metav1.AddToGroupVersion(scheme, schema.GroupVersion{Version: "v1"})
	for _, add := range []func(*runtime.Scheme) error{ipamv1.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	c, err := New(&rest.Config{Host: server.URL}, server.Client(), scheme)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func textOf(t *testing.T, o any) string {
	t.Helper()
	text, err := json.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// seen returns the events of a watch of claims whose response is the given text.
func seen(t *testing.T, text string) []watch.Event {
	t.Helper()
	c := answering(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = fmt.Fprint(w, text) })
	w, err := c.Watch(t.Context(), &ipamv1.IPAddressClaim{}, "ns", metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	var out []watch.Event
	for e := range w.ResultChan() {
		out = append(out, e)
	}
	return out
}

func TestWatchShowsWhatIsSent(t *testing.T) {
	claim, gone := claimObject(), claimObject()
	gone.Name = "gone"
	expired := apierrors.NewResourceExpired("too old").Status()
	var text strings.Builder
	for _, e := range []struct {
		eventType watch.EventType
		obj       any
	}{
		{watch.Added, claim},
		{watch.Modified, claim},
		{watch.Deleted, gone},
		{watch.Bookmark, map[string]any{"kind": "IPAddressClaim", "metadata": map[string]any{"resourceVersion": "9", "creationTimestamp": nil}, "spec": map[string]any{}}},
		{watch.Error, expired},
	} {
		fmt.Fprintf(&text, "{\"type\":%q,\"object\":%s}\n", e.eventType, textOf(t, e.obj))
	}
	claim.ManagedFields, gone.ManagedFields = nil, nil
	want := []watch.Event{
		{Type: watch.Added, Object: claim},
		{Type: watch.Modified, Object: claim},
		{Type: watch.Deleted, Object: gone},
		{Type: watch.Bookmark, Object: &ipamv1.IPAddressClaim{ObjectMeta: metav1.ObjectMeta{ResourceVersion: "9"}}},
		{Type: watch.Error, Object: &expired},
	}
	if d := cmp.Diff(want, seen(t, text.String())); d != "" {
		t.Errorf("-want +got:\n%s", d)
	}
}

// TestBrokenWatchContinues checks that a watch that ends is continued from its last event, and that unexpected content
// is an error, after which everything is listed again.
func TestBrokenWatchContinues(t *testing.T) {
	whole := fmt.Sprintf(`{"type":"ADDED","object":%s}`, textOf(t, claimObject()))
	tests := map[string]struct {
		after  string
		fails  string
		reason string
	}{
		"ends":           {reason: "the API server ends every watch after some minutes"},
		"breaks off":     {after: whole[:len(whole)/2], reason: "half an event is none"},
		"no JSON":        {after: "oops", fails: "unable to decode", reason: "a proxy may answer"},
		"other type":     {after: `{"type":"RENAMED","object":{}}`, fails: "RENAMED", reason: "what it means is not known"},
		"no type before": {after: `{"object":{},"type":"ADDED"}`, fails: "event of type", reason: "it must be known what is decoded"},
		"no object":      {after: `{"type":"ADDED"}`, fails: "has no object", reason: "nothing could be done with it"},
		"other shape":    {after: `{"type":"ADDED","object":{"metadata":[]}}`, fails: "unable to decode", reason: "an object that cannot be read must not be passed over"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			got := seen(t, whole+"\n"+tt.after)
			if len(got) == 0 || got[0].Type != watch.Added {
				t.Fatalf("the event before is lost: %v", got)
			}
			switch {
			case tt.fails == "" && len(got) != 1:
				t.Errorf("%s: %v", tt.reason, got[1:])
			case tt.fails == "":
			case len(got) != 2 || got[1].Type != watch.Error || !strings.Contains(apierrors.FromObject(got[1].Object).Error(), tt.fails):
				t.Errorf("%s: %v, want an error with %q", tt.reason, got[1:], tt.fails)
			}
		})
	}
}

// TestWatchIsRefused checks that errors keep their kind, because the reflector decides on it whether it lists again
// or waits.
func TestWatchIsRefused(t *testing.T) {
	c := answering(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusGone)
		status := apierrors.NewResourceExpired("too old").Status()
		status.APIVersion, status.Kind = "v1", "Status"
		_, _ = fmt.Fprint(w, textOf(t, status))
	})
	if _, err := c.Watch(t.Context(), &ipamv1.IPAddress{}, "", metav1.ListOptions{}); !apierrors.IsResourceExpired(err) {
		t.Errorf("error %v, want one that says that the version is too old", err)
	}
}

func TestWatchRequestsReflectorOptions(t *testing.T) {
	asked := make(chan string, 1)
	c := answering(t, func(_ http.ResponseWriter, r *http.Request) { asked <- r.URL.String() })
	c.history.recordList("ipallocations", "7") // the watch begins where the list ended
	w, err := c.Watch(t.Context(), &v1alpha1.IPAllocation{}, "ns", metav1.ListOptions{ResourceVersion: "7", TimeoutSeconds: new(int64(300)), AllowWatchBookmarks: true})
	if err != nil {
		t.Fatal(err)
	}
	w.Stop()
	want := "/apis/butler.butlerlabs.dev/v1alpha1/namespaces/ns/ipallocations?allowWatchBookmarks=true&resourceVersion=7&timeoutSeconds=300&watch=true"
	if got := <-asked; got != want {
		t.Errorf("asked for\n%s, want\n%s", got, want)
	}
}
