// Package release tests what makes a release: that the workflows do what can be tried on any machine, and that what is
// said of the repository is there.
package release

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(framework.Root(t), path))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// command runs a program in the root, and returns what it prints.
func command(t *testing.T, name string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), name, args...)
	cmd.Dir = framework.Root(t)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s %v: %v\n%s", name, args, err, out)
	}
	return string(out)
}
