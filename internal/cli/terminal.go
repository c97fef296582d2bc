package cli

import (
	"bytes"
	"io"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// sanitizingWriter writes text that cannot control a terminal: tenants wrote much of what the plugin prints, and may
// write anything into an owner reference or a description. It replaces every rune that is not printable with a space,
// except line breaks, tabs and, if allowColour is set, the codes of Env.colourText.
type sanitizingWriter struct {
	out         io.Writer
	allowColour bool
	// partialRune holds the first bytes of a rune whose other bytes have not been written yet.
	partialRune []byte
}

// Write implements io.Writer.
func (w *sanitizingWriter) Write(p []byte) (int, error) {
	text := slices.Concat(w.partialRune, p)
	w.partialRune = nil
	var out bytes.Buffer
	for len(text) > 0 {
		if n := w.colourCodeLength(text); n > 0 {
			out.Write(text[:n])
			text = text[n:]
			continue
		}
		if !utf8.FullRune(text) {
			w.partialRune = slices.Clone(text)
			break
		}
		r, n := utf8.DecodeRune(text)
		text = text[n:]
		if r != '\n' && r != '\t' && (!unicode.IsPrint(r) || r == utf8.RuneError) {
			r = ' '
		}
		out.WriteRune(r)
	}
	if _, err := w.out.Write(out.Bytes()); err != nil {
		return 0, err
	}
	return len(p), nil
}

// colourCodeLength returns the length of the colour code of ours at the start of a text; 0 where the text begins with
// none.
func (w *sanitizingWriter) colourCodeLength(text []byte) int {
	for _, code := range colourCodes {
		if w.allowColour && bytes.HasPrefix(text, []byte(code)) {
			return len(code)
		}
	}
	return 0
}

// colourCodes lists the codes that Env.colourText writes.
var colourCodes = []string{escapeSequence(codeRed), escapeSequence(codeGreen), escapeSequence(codeYellow), escapeSequence(codeBold), escapeSequence(codeReset)}

// The colours of Env.
const (
	codeRed, codeGreen, codeYellow, codeBold, codeReset = "31", "32", "33", "1", "0"
)

func escapeSequence(code string) string { return "\x1b[" + code + "m" }

// sanitizeLine replaces every rune that is not printable with a space: the author of a text must not be able to add
// lines to a table.
func sanitizeLine(text string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, text)
}
