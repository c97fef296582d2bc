// Package image tests the container image that `make image` builds: its content, and that it runs.
package image

import (
	"archive/tar"
	"bytes"
	"crypto/x509"
	"debug/elf"
	"encoding/pem"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

const (
	tag      = "v1-test"
	name     = "registry.example/butler:" + tag
	version  = "v1.2.3-test"
	revision = "0123456789abcdef0123456789abcdef01234567"
	epoch    = 1700000000
)

// architecture is that of this machine: the tests run the content of the image here.
var architecture = runtime.GOARCH

func TestImageContents(t *testing.T) {
	if testing.Short() {
		t.Skip("it compiles the manager for another architecture too, which takes minutes: make test-all")
	}
	if runtime.GOOS != "linux" || (architecture != "amd64" && architecture != "arm64") {
		t.Skipf("no image for %s/%s", runtime.GOOS, architecture)
	}
	a := openArchive(t, makeImage(t))
	idx, names := a.image(t)
	wantNames := map[string]string{
		"io.containerd.image.name":          name,
		"org.opencontainers.image.ref.name": tag,
	}
	if diff := cmp.Diff(wantNames, names); diff != "" {
		t.Errorf("names (-want +got):\n%s", diff)
	}
	if len(idx.Manifests) != 1 {
		t.Fatalf("%d images in the index, not one", len(idx.Manifests))
	}
	m := decode[manifest](t, a.blob(t, idx.Manifests[0]))
	c := decode[config](t, a.blob(t, m.Config))
	files := a.layers(t, m, c.RootFS.DiffIDs)
	root := unpack(t, files)
	checkAgreement(t, c)

	t.Run("says what it is", func(t *testing.T) {
		want := config{OS: "linux", Architecture: architecture, Created: time.Unix(epoch, 0).UTC(), RootFS: c.RootFS}
		want.RootFS.Type = "layers"
		want.Config.Entrypoint = []string{"/manager"}
		want.Config.User = "65532:65532"
		want.Config.Labels = map[string]string{
			"org.opencontainers.image.title":       "cluster-api-ipam-provider-butler",
			"org.opencontainers.image.description": "A Cluster API IPAM provider",
			"org.opencontainers.image.source":      "https://github.com/butlerdotdev/cluster-api-ipam-provider-butler",
			"org.opencontainers.image.licenses":    "Apache-2.0",
			"org.opencontainers.image.version":     version,
			"org.opencontainers.image.revision":    revision,
		}
		if diff := cmp.Diff(want, c); diff != "" {
			t.Errorf("config (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff(want.Config.Labels, idx.Annotations); diff != "" {
			t.Errorf("annotations of the index (-want +got):\n%s", diff)
		}
	})

	t.Run("holds the manager and root certificates, and nothing else", func(t *testing.T) {
		type entry struct {
			Name     string
			Mode     fs.FileMode
			UID, GID int
			Epoch    int64
		}
		want := []entry{
			{Name: "etc/", Mode: fs.ModeDir | 0o755, Epoch: epoch},
			{Name: "etc/ssl/", Mode: fs.ModeDir | 0o755, Epoch: epoch},
			{Name: "etc/ssl/certs/", Mode: fs.ModeDir | 0o755, Epoch: epoch},
			{Name: "etc/ssl/certs/ca-certificates.crt", Mode: 0o644, Epoch: epoch},
			{Name: "manager", Mode: 0o755, Epoch: epoch},
		}
		var got []entry
		for _, f := range files {
			if f.Typeflag != tar.TypeReg && f.Typeflag != tar.TypeDir {
				t.Errorf("%s is neither a file nor a directory", f.Name)
			}
			got = append(got, entry{Name: f.Name, Mode: f.FileInfo().Mode(), UID: f.Uid, GID: f.Gid, Epoch: f.ModTime.Unix()})
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("files (-want +got):\n%s", diff)
		}
	})

	t.Run("trusts public certificate authorities", func(t *testing.T) {
		count, rest := 0, contents(t, filepath.Join(root, "etc", "ssl", "certs", "ca-certificates.crt"))
		for block, rest := pem.Decode(rest); block != nil; block, rest = pem.Decode(rest) {
			certificate, err := x509.ParseCertificate(block.Bytes)
			if err != nil {
				t.Fatal(err)
			}
			if !certificate.IsCA {
				t.Errorf("%s is no authority", certificate.Subject)
			}
			count++
		}
		if count < 50 {
			t.Errorf("%d certificates: browsers trust more", count)
		}
	})

	t.Run("is static", func(t *testing.T) {
		program, err := elf.Open(filepath.Join(root, "manager"))
		if err != nil {
			t.Fatal(err)
		}
		defer program.Close()
		for _, segment := range program.Progs {
			if segment.Type == elf.PT_INTERP || segment.Type == elf.PT_DYNAMIC {
				t.Errorf("it has a segment %s", segment.Type)
			}
		}
	})

	t.Run("names no directory of the machine that built it", func(t *testing.T) {
		repository, err := framework.FindRepoRoot()
		if err != nil {
			t.Fatal(err)
		}
		env, err := exec.CommandContext(t.Context(), "go", "env", "GOROOT", "GOMODCACHE").Output()
		if err != nil {
			t.Fatal(err)
		}
		program := contents(t, filepath.Join(root, "manager"))
		for _, dir := range append(strings.Fields(string(env)), repository) {
			if bytes.Contains(program, []byte(dir+"/")) {
				t.Errorf("the manager names %s", dir)
			}
		}
	})

	t.Run("runs", func(t *testing.T) {
		for _, test := range []struct{ flag, want string }{
			{flag: "--version", want: "butler-ipam-manager " + version + "\n"},
			{flag: "--help", want: "--leader-elect"},
		} {
			cmd := exec.CommandContext(t.Context(), filepath.Join(root, c.Config.Entrypoint[0]), test.flag)
			cmd.Env, cmd.Dir = []string{}, root
			out, err := cmd.CombinedOutput()
			if err != nil || !strings.Contains(string(out), test.want) {
				t.Errorf("%s: %v, and no %q in\n%s", test.flag, err, test.want, out)
			}
		}
	})
}

// makeImage builds the image for the architecture of this machine, as users do, and returns the path of the archive.
func makeImage(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	run(t, "make", "image", "IMAGE_DIR="+dir, "IMAGE_ARCHITECTURES="+architecture, "IMAGE="+name,
		"VERSION="+version, "REVISION="+revision, fmt.Sprint("SOURCE_DATE_EPOCH=", epoch))
	return filepath.Join(dir, "butler-ipam-manager-"+version+".tar")
}

// run runs a command in the root of the repository.
func run(t *testing.T, command string, args ...string) {
	t.Helper()
	root, err := framework.FindRepoRoot()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), command, args...)
	cmd.Dir = root
	// The make that a test runs must not inherit the variables of the make that runs the tests.
	cmd.Env = slices.DeleteFunc(os.Environ(), func(v string) bool {
		return strings.HasPrefix(v, "MAKE") || strings.HasPrefix(v, "MFLAGS=")
	})
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", cmd, err, out)
	}
}
