package text

import (
	"fmt"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"k8s.io/apimachinery/pkg/runtime"
)

func TestSanitizeLine(t *testing.T) {
	for name, c := range map[string]struct{ in, want string }{
		"as it is":        {"no address is free", "no address is free"},
		"other letters":   {"größer", "größer"},
		"as long as may":  {strings.Repeat("x", 20), strings.Repeat("x", 20)},
		"too long":        {strings.Repeat("x", 21), strings.Repeat("x", 17) + "..."},
		"between letters": {strings.Repeat("x", 16) + "üüüü", strings.Repeat("x", 16) + "..."},
		"terminal":        {"a\x1b[2Jb\nc\x00", "a [2Jb c "},
		"from the right":  {"a\u202eb", "a b"},
		"no UTF-8":        {"a\xff\xfeb", "a  b"},
		"nothing":         {"", ""},
	} {
		t.Run(name, func(t *testing.T) {
			if got := sanitizeLine(c.in, 20); got != c.want {
				t.Errorf("%q, want %q", got, c.want)
			}
		})
	}
}

func FuzzLine(f *testing.F) {
	f.Add("a\x1b\xff\u202e", 7)
	f.Fuzz(func(t *testing.T, s string, limit int) {
		limit = max(limit%64, -limit%64, len(ellipsis))
		got := sanitizeLine(s, limit)
		if len(got) > limit || !utf8.ValidString(got) || strings.ContainsFunc(got, func(r rune) bool { return !unicode.IsPrint(r) }) {
			t.Errorf("%q of %q, limit %d", got, s, limit)
		}
		if sanitizeLine(got, limit) != got {
			t.Errorf("%q becomes %q when it is said again", got, sanitizeLine(got, limit))
		}
	})
}

type recorded string

func (r *recorded) Eventf(_, _ runtime.Object, _, _, _, note string, args ...any) {
	*r = recorded(fmt.Sprintf(note, args...))
}

func TestEventsFit(t *testing.T) {
	var events recorded
	Recorder{&events}.Eventf(nil, nil, "", "", "", "%s: 100%%, %d", strings.Repeat("n", 2000), 1)
	if len(events) != MaxNoteLength {
		t.Errorf("a note of %d bytes", len(events))
	}
	Recorder{&events}.Eventf(nil, nil, "", "", "", "%s of %d", "90%d", 1)
	if events != "90%d of 1" {
		t.Errorf("%q", events)
	}
}

func TestFormatCount(t *testing.T) {
	for n, want := range map[int]string{0: "0 addresses", 1: "1 address", 2: "2 addresses"} {
		if got := FormatCount(n, "address", "addresses"); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
