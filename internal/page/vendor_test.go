package page

import (
	"crypto/sha256"
	"encoding/hex"
	"testing"
)

// TestVendoredFileChecksums checks that the third-party files of the page are the published ones: uPlot 1.6.32, MIT.
// `make page-test` compares them with the npm package, `make page-vendor` copies them from there.
func TestVendoredFileChecksums(t *testing.T) {
	for name, want := range map[string]string{
		"uPlot.iife.min.js": "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f",
		"uPlot.min.css":     "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04",
		"LICENSE":           "8f989229699b4fe2f1a0432d0e9edc338a8a911e250e2d1b01ecd770a5f5b1bd",
	} {
		text, err := embeddedFiles.ReadFile("static/vendor/" + name)
		if err != nil {
			t.Error(err)
			continue
		}
		sum := sha256.Sum256(text)
		if got := hex.EncodeToString(sum[:]); got != want {
			t.Errorf("static/vendor/%s has the SHA-256 sum %s, not %s", name, got, want)
		}
	}
}
