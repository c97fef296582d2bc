package release

import (
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// publishing are the steps of release.yaml that a dry run cannot perform.
var publishing = []string{"make release-login", "make release-draft"}

// A tag triggers the same targets that the dry run tries, in the same order.
func TestDryRunRunsReleaseSteps(t *testing.T) {
	w := parse(t, read(t, ".github/workflows/release.yaml"))
	if names := slices.Sorted(maps.Keys(w.Jobs)); !slices.Equal(names, []string{"build", "publish"}) || w.Jobs["publish"].Needs != "build" {
		t.Fatalf("jobs %v, or publish does not wait for build", names)
	}
	var released, left, all []string
	for _, name := range []string{"build", "publish"} {
		for _, step := range w.Jobs[name].Steps {
			if step.Run != "" {
				all = append(all, step.Run)
			}
			switch target, ok := strings.CutPrefix(step.Run, "make "); {
			case step.Run == "":
			case slices.Contains(publishing, step.Run):
				left = append(left, step.Run)
			case ok:
				released = append(released, target)
			default:
				t.Errorf("%q is no target of the Makefile", step.Run)
			}
		}
	}
	tried := strings.Fields(command(t, "make", "--silent", "--no-print-directory", "release-steps"))
	if diff := cmp.Diff(released, tried); diff != "" {
		t.Errorf("steps (-release.yaml +release-dry-run):\n%s", diff)
	}
	if diff := cmp.Diff(publishing, left); diff != "" {
		t.Errorf("what only a release does (-here +release.yaml):\n%s", diff)
	}
	var documented []string
	for _, m := range regexp.MustCompile("(?m)^\\| `(make release-[a-z-]+)` \\|").FindAllStringSubmatch(read(t, "RELEASE.md"), -1) {
		documented = append(documented, m[1])
	}
	if diff := cmp.Diff(all, documented); diff != "" {
		t.Errorf("steps (-release.yaml +RELEASE.md):\n%s", diff)
	}
}

// The commands of the page verify what is released; the workflow runs the same commands.
func TestSigningIdentity(t *testing.T) {
	const identity = "/.github/workflows/release.yaml@refs/tags/"
	for _, path := range []string{"hack/release.sh", "docs/install.md"} {
		if !strings.Contains(read(t, path), identity) {
			t.Errorf("%s does not name the workflow that signs, %s", path, identity)
		}
	}
}
