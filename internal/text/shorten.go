package text

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"
)

// MaxNameLength is the maximum length of the name of an object (RFC 1123 subdomain).
const MaxNameLength = 253

// hashLength is how many hexadecimal digits distinguish shortened texts: 40 bits.
const hashLength = 10

// ShortenText returns a text of at most limit characters: text itself where it fits, else its beginning and a hash of
// the whole. The result ends in a letter or a digit, as names and labels must, if text does.
func ShortenText(text string, limit int) string {
	if len(text) <= limit {
		return text
	}
	sum := sha256.Sum256([]byte(text))
	kept := strings.TrimRight(text[:limit-hashLength-1], "-._")
	return kept + "-" + hex.EncodeToString(sum[:])[:hashLength]
}
