package docs

import (
	"regexp"
	"strings"
	"testing"
	"unicode"
)

// gap represents an omission in the quote of a page, and an argument of a format.
const gap = '\x00'

var verb = regexp.MustCompile(`%[-+# 0]*[0-9]*(?:\.[0-9]+)?[a-zA-Z]`)

// quotes reports whether the text quoted on a page may be a result of format. "..." on a page matches anything, a
// verb of a format matches one word. More than half of the letters of the quote must be in the format itself.
func quotes(quoted, format string) bool {
	page := []rune(strings.ReplaceAll(quoted, "...", string(gap)))
	code := []rune(strings.ReplaceAll(verb.ReplaceAllString(format, string(gap)), "%%", "%"))
	most := 0
	for from := range code {
		most = max(most, align(page, code[from:]))
	}
	return 2*most > len(letters(page))
}

// align returns how many letters of page match letters of code, when page is matched to its end and code from its
// beginning; 0 if they do not match.
func align(page, code []rune) int {
	const impossible = -1 << 20
	// most[j] is the result for page[i:] and code[j:].
	most, next := make([]int, len(code)+1), make([]int, len(code)+1)
	for i := len(page) - 1; i >= 0; i-- {
		for j := len(code); j >= 0; j-- {
			best := impossible
			if page[i] == gap {
				best = max(best, next[j])
				if j < len(code) {
					best = max(best, most[j+1])
				}
			}
			if j < len(code) && code[j] == gap {
				best = max(best, most[j+1])
				if !unicode.IsSpace(page[i]) {
					best = max(best, next[j])
				}
			}
			if j < len(code) && code[j] == page[i] {
				best = max(best, next[j+1]+len(letters(page[i:i+1])))
			}
			most[j] = best
		}
		most, next = next, most
	}
	return max(next[0], 0)
}

// letters returns a text without spaces and gaps.
func letters(text []rune) []rune {
	var out []rune
	for _, r := range text {
		if r != gap && !unicode.IsSpace(r) {
			out = append(out, r)
		}
	}
	return out
}

func TestPageQuotesFormat(t *testing.T) {
	for name, tc := range map[string]struct {
		page, format string
		want         bool
	}{
		"part of it":                {"has no free address", "%s has no free address: %d of %d are allocated", true},
		"left out":                  {"waiting for Cluster ..., which does not exist", "waiting for Cluster %s, which does not exist", true},
		"left out, more of it":      {"spec ... is invalid", "spec of GlobalNetworkPool %s is invalid: %v", true},
		"a word that is put in":     {"the requested address ... is held by", "the %s address %s is held by %s", true},
		"percent":                   {"utilization is 90%", "utilization is %d%%", true},
		"another word":              {"the address ... is now held by", "the %s address %s is held by %s", false},
		"another order":             {"address the", "the address", false},
		"a format that takes all":   {"does not exist", "%s %s %s", false},
		"words where one is put in": {"the very old address is held by", "the %s address is held by %s", false},
		"more than there is":        {"has no free address left", "%s has no free address", false},
	} {
		t.Run(name, func(t *testing.T) {
			if got := quotes(tc.page, tc.format); got != tc.want {
				t.Errorf("quotes(%q, %q) is %t", tc.page, tc.format, got)
			}
		})
	}
}
