package stream

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestDecodeList(t *testing.T) {
	type item struct {
		Name string `json:"name"`
	}
	tests := map[string]struct {
		body    string
		want    []string
		reason  string
		version string
		fails   bool
	}{
		"list":       {body: `{"kind":"L","a":[1],"items":[{"name":"a","x":{}},{"name":"b"}],"metadata":{"resourceVersion":"7"},"z":1}`, version: "7", want: []string{"a", "b"}, reason: "other fields are skipped"},
		"empty":      {body: `{"items":[]}`, reason: "nothing exists"},
		"broken off": {body: `{"items":[{"name":"a"},`, want: []string{"a"}, fails: true, reason: "half a list is none"},
		"open end":   {body: `{"items":[{"name":"a"}]`, want: []string{"a"}, fails: true, reason: "the end is missing"},
		"no items":   {body: `{"kind":"Status"}`, fails: true, reason: "not a list"},
		"null":       {body: `{"items":null}`, fails: true, reason: "the API server sends an empty list"},
		"text":       {body: `oops`, fails: true, reason: "not JSON"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			var got []string
			version, err := decodeList(newJSONDecoder(strings.NewReader(tt.body)), func(i *item) string { return i.Name }, func(name *string) { got = append(got, *name) })
			if (err != nil) != tt.fails {
				t.Errorf("%s: error %v", tt.reason, err)
			}
			if !tt.fails && version != tt.version {
				t.Errorf("%s: resource version %q, not %q", tt.reason, version, tt.version)
			}
			if d := cmp.Diff(tt.want, got); d != "" {
				t.Errorf("%s: %s", tt.reason, d)
			}
		})
	}
}
