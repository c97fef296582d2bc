package cli

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
)

// TestTerminalEscapes checks that text which tenants wrote cannot control the user's terminal, nor add a line to the
// output.
func TestTerminalEscapes(t *testing.T) { // W38
	evil := "\x1b]0;title\x07\x1b[2J\x1b[8mhidden\u202e\u009b2J\xff\nfree"
	for _, colour := range []bool{false, true} {
		var out bytes.Buffer
		p := &plugin{Env: Env{Colour: colour}}
		w := &sanitizingWriter{out: &out, allowColour: colour}
		t1 := &table{}
		t1.addRow(evil, tableCell{text: evil, colourText: p.red})
		fmt.Fprint(w, p.bold("pool")+" "+t1.String())
		fmt.Fprintf(w, "%s\t%s", "Zürich", "[##--]")
		text := out.String()
		for _, code := range colourCodes {
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

// TestRuneInTwoParts checks that a rune that arrives in two writes is printed as one.
func TestRuneInTwoParts(t *testing.T) {
	var out bytes.Buffer
	w := &sanitizingWriter{out: &out}
	for _, b := range []byte("ü█") {
		if n, err := w.Write([]byte{b}); n != 1 || err != nil {
			t.Fatal(n, err)
		}
	}
	if out.String() != "ü█" {
		t.Errorf("got %q", out.String())
	}
}
