package cli

import (
	"bytes"
	"io"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// plain is a writer of text that does nothing to a terminal: much of what the plugin prints was written by tenants, who may
// write anything into an owner reference or a description. A space stands for every rune that is not printable, line
// breaks and tabs apart; where there is colour, for all but the codes of Env.paint.
type plain struct {
	to     io.Writer
	colour bool
	// begun is a rune of which the end is to come.
	begun []byte
}

// Write implements io.Writer.
func (w *plain) Write(p []byte) (int, error) {
	text := slices.Concat(w.begun, p)
	w.begun = nil
	var out bytes.Buffer
	for len(text) > 0 {
		if n := w.code(text); n > 0 {
			out.Write(text[:n])
			text = text[n:]
			continue
		}
		if !utf8.FullRune(text) {
			w.begun = slices.Clone(text)
			break
		}
		r, n := utf8.DecodeRune(text)
		text = text[n:]
		if r != '\n' && r != '\t' && (!unicode.IsPrint(r) || r == utf8.RuneError) {
			r = ' '
		}
		out.WriteRune(r)
	}
	if _, err := w.to.Write(out.Bytes()); err != nil {
		return 0, err
	}
	return len(p), nil
}

// code is the length of a code of ours that a text begins with; 0: it begins with none.
func (w *plain) code(text []byte) int {
	for _, code := range codes {
		if w.colour && bytes.HasPrefix(text, []byte(code)) {
			return len(code)
		}
	}
	return 0
}

// codes are those of Env.paint.
var codes = []string{escape(red), escape(green), escape(yellow), escape(bold), escape(reset)}

// The colours of Env.
const (
	red, green, yellow, bold, reset = "31", "32", "33", "1", "0"
)

func escape(code string) string { return "\x1b[" + code + "m" }

// word is a text of one line: who writes one must not be able to add lines to a table.
func word(text string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, text)
}
