package text

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"
)

// MaxName is how long the name of an object may be (RFC 1123 subdomain).
const MaxName = 253

// hashLength is how many hexadecimal digits tell shortened texts apart: 40 bits.
const hashLength = 10

// Shorten returns a text of at most limit characters: the same one where it fits, else its beginning and a
// hash of the whole. It ends in a letter or a digit, as names and labels must, if text does.
func Shorten(text string, limit int) string {
	if len(text) <= limit {
		return text
	}
	sum := sha256.Sum256([]byte(text))
	kept := strings.TrimRight(text[:limit-hashLength-1], "-._")
	return kept + "-" + hex.EncodeToString(sum[:])[:hashLength]
}
