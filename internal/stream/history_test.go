package stream

import (
	"errors"
	"fmt"
	"net/http"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// TestVersionRollback checks a reader of an API server whose etcd is restored, and which shows older resource versions
// than before: it gets an error, and no watch begins.
func TestVersionRollback(t *testing.T) {
	// The requests of a test case.
	const list, rewatch, patch = "list", "watch", "patch"
	tests := map[string]struct {
		first, then string
		at          int // the version at the second request; 7 at the first
		back        bool
		asked       int // expected lists with a limit
	}{
		"a later list":                      {first: list, then: list, at: 8},
		"a list of the same moment":         {first: list, then: list, at: 7},
		"an older list":                     {first: list, then: list, at: 6, back: true},
		"a list, older than what we wrote":  {first: patch, then: list, at: 6, back: true},
		"a watch that begins with its list": {first: list, then: "watch of the list", at: 6},
		"a watch that goes on":              {first: list, then: rewatch, at: 9, asked: 1},
		"a watch that would go on later":    {first: list, then: rewatch, at: 8, back: true, asked: 1},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			at, asked, watched := 7, 0, 0
			c := answering(t, func(w http.ResponseWriter, r *http.Request) {
				switch {
				case r.Method == http.MethodPatch:
					_, _ = fmt.Fprintf(w, `{"metadata":{"name":"a","resourceVersion":"%d"}}`, at)
					return
				case r.URL.Query().Get("watch") != "":
					watched++
					return
				case r.URL.Query().Get("limit") == "1":
					asked++
				}
				_, _ = fmt.Fprintf(w, `{"items":[],"metadata":{"resourceVersion":"%d"}}`, at)
			})
			var reported *VersionRollbackError
			c.OnRollback = func(err *VersionRollbackError) { reported = err }
			do := func(request string) (err error) {
				switch request {
				case list:
					_, err = c.List(t.Context(), &ipamv1.IPAddressClaim{}, "ns", func(client.Object) {})
				case patch:
					claim := &ipamv1.IPAddressClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "a"}}
					err = c.NewPatchingClient(nil).Patch(t.Context(), claim, client.RawPatch(types.MergePatchType, []byte(`{}`)))
				default:
					from := "7"
					if request == rewatch {
						from = "9" // the last event
					}
					w, failed := c.Watch(t.Context(), &ipamv1.IPAddressClaim{}, "ns", metav1.ListOptions{ResourceVersion: from})
					if failed == nil {
						w.Stop()
					}
					err = failed
				}
				return err
			}
			if err := do(tc.first); err != nil {
				t.Fatal(err)
			}
			at = tc.at
			err := do(tc.then)
			var back *VersionRollbackError
			if errors.As(err, &back) != tc.back || (reported != nil) != tc.back || (err != nil) != tc.back {
				t.Errorf("%v, said %v", err, reported)
			}
			if asked != tc.asked || (tc.back && watched > 0) {
				t.Errorf("asked %d times, watched %d times", asked, watched)
			}
		})
	}
}

// TestHistoryIsPerKind checks that the versions of one kind do not apply to another one, which may be in another
// storage.
func TestHistoryIsPerKind(t *testing.T) {
	h := &versionHistory{}
	h.recordVersion("a", "9")
	h.recordVersion("a", "x")
	h.recordVersion("a", "3")
	if h.newestVersion("a") != 9 || h.newestVersion("b") != 0 {
		t.Errorf("%d and %d", h.newestVersion("a"), h.newestVersion("b"))
	}
	if checkNotOlder("a", "x", 9) != nil || checkNotOlder("a", "9", 9) != nil || checkNotOlder("a", "8", 9) == nil {
		t.Error("8 alone is older than 9")
	}
}
