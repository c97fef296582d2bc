package carve

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

// key is the name of a pool.
type key string

func (k key) String() string { return "NetworkPool " + string(k) }

func TestAncestors(t *testing.T) {
	tests := map[string]struct {
		parents map[key]key
		above   []key
		problem string
	}{
		"NotCarved": {parents: map[key]key{"x": ""}},
		"Parent":    {parents: map[key]key{"x": "a", "a": ""}, above: []key{"a"}},
		"FourAbove": {parents: map[key]key{"x": "a", "a": "b", "b": "c", "c": "d", "d": ""}, above: []key{"a", "b", "c", "d"}},
		"TooDeep": {
			parents: map[key]key{"x": "a", "a": "b", "b": "c", "c": "d", "d": "e", "e": ""},
			problem: "it is carved more than 4 levels below NetworkPool e; carve it from one that is further up",
		},
		"NoParent": {parents: map[key]key{"x": "a"}, problem: "NetworkPool a, which it is carved from, does not exist"},
		// A missing grandparent concerns the parent only: what the parent has can be carved.
		"NoGrandparent": {parents: map[key]key{"x": "a", "a": "b"}, above: []key{"a"}},
		"Itself":        {parents: map[key]key{"x": "x"}, problem: "it is carved from itself, by way of NetworkPool x; one of these pools needs addresses of its own"},
		"Circle": {
			parents: map[key]key{"x": "a", "a": "x"},
			problem: "it is carved from itself, by way of NetworkPool x; one of these pools needs addresses of its own",
		},
		"BelowACircle": {
			parents: map[key]key{"x": "a", "a": "b", "b": "a"},
			problem: "it is carved from itself, by way of NetworkPool a; one of these pools needs addresses of its own",
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			above, problem := Ancestors("x", func(k key) (key, bool) {
				parent, exists := tt.parents[k]
				return parent, exists
			})
			if diff := cmp.Diff(tt.above, above); diff != "" || problem != tt.problem {
				t.Errorf("above (-want +got):\n%s\nproblem %q", diff, problem)
			}
		})
	}
}
