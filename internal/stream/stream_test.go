package stream

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestItems(t *testing.T) {
	type item struct{ Name string }
	tests := map[string]struct {
		body   string
		want   []string
		reason string
		fails  bool
	}{
		"list":       {body: `{"kind":"L","metadata":{"a":[1]},"items":[{"name":"a","x":{}},{"name":"b"}],"z":1}`, want: []string{"a", "b"}, reason: "other fields are skipped"},
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
			err := items(json.NewDecoder(strings.NewReader(tt.body)), func(i *item) { got = append(got, i.Name) })
			if (err != nil) != tt.fails {
				t.Errorf("%s: error %v", tt.reason, err)
			}
			if d := cmp.Diff(tt.want, got); d != "" {
				t.Errorf("%s: %s", tt.reason, d)
			}
		})
	}
}
