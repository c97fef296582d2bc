// Package text makes what others wrote fit to be said by us. An API server refuses a status with a condition that is
// too long, and an event too: who can make a message long could keep the rest of the status from being written.
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
	// MaxMessage bounds the message of a condition, in bytes. The API takes 32768, and 10240 where claims have
	// conditions of Cluster API's v1beta1.
	MaxMessage = 4096
	// MaxNote bounds the note of an event, in bytes: as many as the API takes.
	MaxNote = 1024
)

// cut stands for what was left out.
const cut = "..."

// Message is a text as the message of a condition.
func Message(s string) string { return line(s, MaxMessage) }

// Note is a text as the note of an event.
func Note(s string) string { return line(s, MaxNote) }

// Count is a number and what it counts: one of them, or many.
func Count[N int | int32 | int64](n N, one, many string) string {
	if n == 1 {
		many = one
	}
	return fmt.Sprintf("%d %s", n, many)
}

// line is a text of at most limit bytes that does nothing to a terminal: a space stands for every rune that is not
// printable. It costs O(limit), whatever the length of the text.
func line(s string, limit int) string {
	printable := func(r rune) bool { return unicode.IsPrint(r) && r != utf8.RuneError }
	if len(s) <= limit && isPrintableASCII(s) { // most are, and it is found at once
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
		if b.Len()+utf8.RuneLen(r) > limit-len(cut) {
			b.WriteString(cut)
			break
		}
		b.WriteRune(r)
	}
	return b.String()
}

// Recorder records events whose notes the API server takes.
type Recorder struct{ events.EventRecorder }

// Eventf implements events.EventRecorder.
func (r Recorder) Eventf(regarding, related runtime.Object, kind, reason, action, note string, args ...any) {
	r.EventRecorder.Eventf(regarding, related, kind, reason, action, "%s", Note(fmt.Sprintf(note, args...)))
}

// isPrintableASCII reports whether a text has no bytes but those that ASCII prints.
func isPrintableASCII(s string) bool {
	for i := range len(s) {
		if s[i] < ' ' || s[i] > '~' {
			return false
		}
	}
	return true
}
