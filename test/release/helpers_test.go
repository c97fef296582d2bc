// Package release tests the release process: the workflows run targets that can be tried on any machine, and what the
// metadata of the repository names exists.
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
	text, err := os.ReadFile(filepath.Join(framework.RepoRootForTest(t), path))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// command runs a program in the root of the repository, and returns its output.
func command(t *testing.T, name string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), name, args...)
	cmd.Dir = framework.RepoRootForTest(t)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s %v: %v\n%s", name, args, err, out)
	}
	return string(out)
}
