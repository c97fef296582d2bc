package cli

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
)

// What tenants write does nothing to the terminal of who looks, and adds no line to what is printed.
func TestTerminalEscapes(t *testing.T) { // W38
	evil := "\x1b]0;title\x07\x1b[2J\x1b[8mhidden\u202e\u009b2J\xff\nfree"
	for _, colour := range []bool{false, true} {
		var out bytes.Buffer
		p := &plugin{Env: Env{Colour: colour}}
		w := &plain{to: &out, colour: colour}
		t1 := &table{}
		t1.add(evil, cell{text: evil, paint: p.red})
		fmt.Fprint(w, p.bold("pool")+" "+t1.String())
		fmt.Fprintf(w, "%s\t%s", "Zürich", "[##--]")
		text := out.String()
		for _, code := range codes {
			text = strings.ReplaceAll(text, code, "")
		}
		if strings.ContainsAny(text, "\x1b\x07\u202e\u009b") || strings.Count(text, "\n") != 1 || !strings.HasSuffix(text, "Zürich\t[##--]") {
			t.Errorf("colour %t: %q", colour, out.String())
		}
		if painted := strings.Contains(out.String(), "\x1b[1mpool\x1b[0m"); painted != colour {
			t.Errorf("painted=%t, colour %t", painted, colour)
		}
	}
}

// A rune that is written in two parts is one.
func TestRuneInTwoParts(t *testing.T) {
	var out bytes.Buffer
	w := &plain{to: &out}
	for _, b := range []byte("ü█") {
		if n, err := w.Write([]byte{b}); n != 1 || err != nil {
			t.Fatal(n, err)
		}
	}
	if out.String() != "ü█" {
		t.Errorf("got %q", out.String())
	}
}
