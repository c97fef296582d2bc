package page

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
)

// npm is the directory of the packages of package.json that `make page-test` installs, each checked against
// package-lock.json.
const npm = "../../bin/npm/node_modules"

// fromNPM returns a file of an npm package.
func fromNPM(t *testing.T, name string) []byte {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(npm, name))
	if os.IsNotExist(err) {
		t.Skipf("no npm packages here: install npm, and run `make page-test`")
	}
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// The files of uPlot that the page ships are those of the npm package, byte for byte.
func TestVendoredFilesMatchNPM(t *testing.T) {
	for _, name := range []string{"dist/uPlot.iife.min.js", "dist/uPlot.min.css", "LICENSE"} {
		want := fromNPM(t, filepath.Join("uplot", name))
		got, err := os.ReadFile("../../internal/page/static/vendor/" + filepath.Base(name))
		if err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s of the page is not that of the npm package: `make page-vendor` copies it; %v", name, err)
		}
	}
}
