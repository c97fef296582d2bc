// Package text makes texts from other sources fit for conditions and events. The API server rejects a status with a
// condition that is too long, and an event too: a user who can make a message long could keep the rest of the status
// from being written.
package text

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/events"
)

const (
	// MaxMessageLength limits the message of a condition, in bytes. The API accepts 32768, and 10240 where claims have
	// conditions of Cluster API's v1beta1.
	MaxMessageLength = 4096
	// MaxNoteLength limits the note of an event, in bytes: as many as the API accepts.
	MaxNoteLength = 1024
)

// ellipsis replaces what was cut off.
const ellipsis = "..."

// SanitizeMessage returns a text as the message of a condition.
func SanitizeMessage(s string) string { return sanitizeLine(s, MaxMessageLength) }

// SanitizeNote returns a text as the note of an event.
func SanitizeNote(s string) string { return sanitizeLine(s, MaxNoteLength) }

// FormatCount returns a number and the name of what it counts, in the singular or the plural.
func FormatCount[N int | int32 | int64](n N, one, many string) string {
	if n == 1 {
		many = one
	}
	return fmt.Sprintf("%d %s", n, many)
}

// sanitizeLine returns a text of at most limit bytes that does nothing to a terminal: each rune that is not printable
// is replaced by a space. It costs O(limit), whatever the length of the text.
func sanitizeLine(s string, limit int) string {
	printable := func(r rune) bool { return unicode.IsPrint(r) && r != utf8.RuneError }
	if len(s) <= limit && isPrintableASCII(s) { // most are, and this check is fast
		return s
	}
	if len(s) <= limit && !strings.ContainsFunc(s, func(r rune) bool { return !printable(r) }) {
		return s
	}
	var b strings.Builder
	for _, r := range s {
		if !printable(r) {
			r = ' '
		}
		if b.Len()+utf8.RuneLen(r) > limit-len(ellipsis) {
			b.WriteString(ellipsis)
			break
		}
		b.WriteRune(r)
	}
	return b.String()
}

// Recorder records events whose notes the API server accepts.
type Recorder struct{ events.EventRecorder }

// Eventf implements events.EventRecorder.
func (r Recorder) Eventf(regarding, related runtime.Object, kind, reason, action, note string, args ...any) {
	r.EventRecorder.Eventf(regarding, related, kind, reason, action, "%s", SanitizeNote(fmt.Sprintf(note, args...)))
}

// isPrintableASCII reports whether all bytes of a text are printable ASCII.
func isPrintableASCII(s string) bool {
	for i := range len(s) {
		if s[i] < ' ' || s[i] > '~' {
			return false
		}
	}
	return true
}
