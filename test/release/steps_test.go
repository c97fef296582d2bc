package release

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

// step runs a step of hack/release.sh for a version in a directory that holds the release files.
func step(t *testing.T, dir, version string, args ...string) (string, error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), filepath.Join(framework.RepoRootForTest(t), "hack", "release.sh"), args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "VERSION="+version, "RELEASE="+filepath.Join(dir, "release"), "RELEASE_NOTES="+filepath.Join(dir, "notes.md"), "PUSHED="+filepath.Join(dir, "pushed.txt"))
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func TestReleaseNotes(t *testing.T) {
	const changes = "# Changelog\n\n## [Unreleased]\n\n- Coming.\n\n## [0.2.0] - 2026-12-01\n\n### Added\n\n- Second.\n\n## [0.1.0]\n\n- First.\n\n## [0.0.1]\n\n"
	for name, tc := range map[string]struct{ version, want string }{
		"a release":            {"v0.2.0", "\n### Added\n\n- Second.\n\n"},
		"an older one":         {"v0.1.0", "\n- First.\n\n"},
		"a candidate":          {"v0.3.0-rc.1", "\n- Coming.\n\n"},
		"none of that version": {"v0.3.0", ""},
		"an empty section":     {"v0.0.1", ""},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			write(t, filepath.Join(dir, "CHANGELOG.md"), changes)
			out, err := step(t, dir, tc.version, "notes")
			if tc.want == "" {
				if err == nil || !strings.Contains(out, "says nothing of ["+strings.TrimPrefix(tc.version, "v")+"]") {
					t.Errorf("%v: %s", err, out)
				}
				return
			}
			if err != nil {
				t.Fatal(err, out)
			}
			notes, err := os.ReadFile(filepath.Join(dir, "notes.md"))
			if err != nil || string(notes) != tc.want {
				t.Errorf("%q, %v", notes, err)
			}
		})
	}
}

// A file without an entry in checksums.txt could have been replaced.
func TestChecksumsCoverAllFiles(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "release", "b.yaml"), "b")
	write(t, filepath.Join(dir, "release", "a.tar.gz"), "a")
	write(t, filepath.Join(dir, "release", "checksums.txt.sigstore.json"), "of before")
	for range 2 {
		if out, err := step(t, dir, "v0.1.0", "checksums"); err != nil {
			t.Fatal(err, out)
		}
	}
	sums, err := os.ReadFile(filepath.Join(dir, "release", "checksums.txt"))
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, line := range strings.Split(strings.TrimSpace(string(sums)), "\n") {
		names = append(names, strings.Fields(line)[1])
	}
	if !slices.Equal(names, []string{"a.tar.gz", "b.yaml"}) {
		t.Errorf("checksums of %v", names)
	}
	write(t, filepath.Join(dir, "release", "b.yaml"), "c")
	if out, err := step(t, dir, "v0.1.0", "verify"); err == nil || !strings.Contains(out, "b.yaml: FAILED") {
		t.Errorf("a file that was changed is verified: %v: %s", err, out)
	}
}

// krew downloads the archives that `make plugin-archives` builds.
func TestKrewManifestNamesArchives(t *testing.T) {
	var built []string
	platforms := regexp.MustCompile(`(?m)^PLUGIN_PLATFORMS := (.*)$`).FindStringSubmatch(read(t, "hack/release.mk"))[1]
	for _, p := range strings.Fields(platforms) {
		built = append(built, "kubectl-butler_ipam_"+strings.ReplaceAll(p, "/", "_")+".tar.gz")
	}
	named := regexp.MustCompile(`kubectl-butler_ipam_\w+\.tar\.gz`).FindAllString(read(t, ".krew.yaml"), -1)
	slices.Sort(built)
	slices.Sort(named)
	if !slices.Equal(built, named) {
		t.Errorf("built are %v, .krew.yaml names %v", built, named)
	}
}

// A file that a page installs from a release is in the release.
func TestDocumentedFiles(t *testing.T) {
	released := map[string]bool{}
	manifests := command(t, "make", "--silent", "--eval=list: ; @echo $(RELEASE_MANIFESTS)", "list")
	for _, m := range strings.Fields(manifests) {
		_, file, named := strings.Cut(m, ":")
		if !named {
			file = m
		}
		released[file+".yaml"] = true
	}
	pages, err := filepath.Glob(filepath.Join(framework.RepoRootForTest(t), "docs", "*.md"))
	if err != nil {
		t.Fatal(err)
	}
	asset := regexp.MustCompile(`/releases/latest/(?:download/)?([\w-]+\.yaml)`)
	for _, page := range pages {
		for _, m := range asset.FindAllStringSubmatch(read(t, "docs/"+filepath.Base(page)), -1) {
			if !released[m[1]] {
				t.Errorf("%s installs %s, which no release has", filepath.Base(page), m[1])
			}
		}
	}
	if len(released) < 5 {
		t.Errorf("RELEASE_MANIFESTS has %v", released)
	}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// A program that is built without a tag prints its commit; one that is built from a tag prints the tag alone.
func TestLinkedVersion(t *testing.T) {
	for version, want := range map[string]string{"v0.1.0-dev": "v0.1.0-dev+0123456789ab-dirty", "v0.1.0": "v0.1.0", "v0.1.0-rc.1": "v0.1.0-rc.1"} {
		got := strings.TrimSpace(command(t, "make", "--silent", "--eval=linked: ; @echo $(LINKED)", "linked", "VERSION="+version, "COMMIT=0123456789ab-dirty"))
		if got != want {
			t.Errorf("%s is %s, not %s", version, got, want)
		}
	}
}
