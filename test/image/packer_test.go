package image

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

func TestPackImages(t *testing.T) {
	packer := buildPacker(t)
	dir := t.TempDir()
	amd64 := program(t, dir, "amd64", header(elf.EM_X86_64))
	arm64 := program(t, dir, "arm64", header(elf.EM_AARCH64))
	both := filepath.Join(dir, "both.tar")
	pack := func(t *testing.T, out string, managers ...string) (string, error) {
		t.Helper()
		args := append([]string{"-out", out, "-image", name, "-version", version, "-epoch", "1700000000"}, managers...)
		got, err := exec.CommandContext(t.Context(), packer, args...).CombinedOutput()
		return string(got), err
	}
	printed, err := pack(t, both, amd64, arm64)
	if err != nil {
		t.Fatalf("%v\n%s", err, printed)
	}
	a := openArchive(t, both)
	idx, _ := a.image(t)

	t.Run("puts each architecture into the index", func(t *testing.T) {
		var platforms []string
		for _, d := range idx.Manifests {
			m := decode[manifest](t, a.blob(t, d))
			c := decode[config](t, a.blob(t, m.Config))
			files := a.layers(t, m, c.RootFS.DiffIDs)
			program, err := elf.NewFile(bytes.NewReader(files[len(files)-1].content))
			if err != nil {
				t.Fatal(err)
			}
			platform := d.Platform.OS + "/" + d.Platform.Architecture
			if platform != c.OS+"/"+c.Architecture {
				t.Errorf("%s in the index is %s/%s in its config", platform, c.OS, c.Architecture)
			}
			if d.MediaType != "application/vnd.oci.image.manifest.v1+json" || d.ArtifactType != "" {
				t.Errorf("the index says it is a %q, artifact type %q", d.MediaType, d.ArtifactType)
			}
			platforms = append(platforms, platform+" "+program.Machine.String())
		}
		want := []string{"linux/amd64 EM_X86_64", "linux/arm64 EM_AARCH64"}
		if diff := cmp.Diff(want, platforms); diff != "" {
			t.Errorf("platforms (-want +got):\n%s", diff)
		}
	})

	t.Run("lists the same images for an older Docker", func(t *testing.T) {
		blob := func(d descriptor) string { return "blobs/" + strings.Replace(d.Digest, ":", "/", 1) }
		var want []dockerImage
		for _, d := range idx.Manifests {
			m := decode[manifest](t, a.blob(t, d))
			tag := name + "-" + d.Platform.Architecture
			want = append(want, dockerImage{Config: blob(m.Config), RepoTags: []string{tag}, Layers: []string{blob(m.Layers[0])}})
		}
		if diff := cmp.Diff(want, decode[[]dockerImage](t, a["manifest.json"])); diff != "" {
			t.Errorf("manifest.json (-want +got):\n%s", diff)
		}
	})

	t.Run("shows the digest", func(t *testing.T) {
		want := name + "@" + decode[index](t, a["index.json"]).Manifests[0].Digest
		if !strings.Contains(printed, want) {
			t.Errorf("no %s in %s", want, printed)
		}
	})

	t.Run("makes the same of the same", func(t *testing.T) {
		elsewhere := t.TempDir()
		again := filepath.Join(elsewhere, "again.tar")
		t.Setenv("TZ", "Asia/Tokyo")
		t.Setenv("TMPDIR", elsewhere)
		out, err := pack(t, again, program(t, elsewhere, "x", header(elf.EM_X86_64)), program(t, elsewhere, "a", header(elf.EM_AARCH64)))
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		if !bytes.Equal(contents(t, both), contents(t, again)) {
			t.Error("a second archive differs")
		}
	})

	t.Run("packs another program, and who runs it", func(t *testing.T) {
		out := filepath.Join(t.TempDir(), "host.tar")
		printed, err := pack(t, out, "-program", "butler-host-lb", "-user", "0:0", amd64)
		if err != nil {
			t.Fatalf("%v\n%s", err, printed)
		}
		a := openArchive(t, out)
		idx, _ := a.image(t)
		m := decode[manifest](t, a.blob(t, idx.Manifests[0]))
		c := decode[config](t, a.blob(t, m.Config))
		if diff := cmp.Diff([]string{"/butler-host-lb"}, c.Config.Entrypoint); diff != "" || c.Config.User != "0:0" {
			t.Errorf("it is run by %s: %s", c.Config.User, diff)
		}
		if files := a.layers(t, m, c.RootFS.DiffIDs); files[len(files)-1].Name != "butler-host-lb" {
			t.Errorf("it holds %s", files[len(files)-1].Name)
		}
	})

	t.Run("refuses", func(t *testing.T) {
		interpreted := header(elf.EM_X86_64)
		binary.LittleEndian.PutUint32(interpreted[headerSize:], uint32(elf.PT_INTERP))
		for name, test := range map[string]struct {
			content []byte
			want    string
		}{
			"a manager that is not static":       {content: interpreted, want: "CGO_ENABLED=0"},
			"an architecture it has no name for": {content: header(elf.EM_SPARCV9), want: "EM_SPARCV9"},
			"what is no program":                 {content: []byte("#!/bin/sh\n" + strings.Repeat("#", headerSize)), want: "magic"},
		} {
			t.Run(name, func(t *testing.T) {
				out := filepath.Join(t.TempDir(), "image.tar")
				printed, err := pack(t, out, program(t, t.TempDir(), "manager", test.content))
				if err == nil || !strings.Contains(printed, test.want) {
					t.Errorf("%v, and no %q in %s", err, test.want, printed)
				}
				if _, err := os.Stat(out); err == nil {
					t.Error("it wrote an archive")
				}
			})
		}
	})
}

// buildPacker builds the packer from its current source, and returns its path.
func buildPacker(t *testing.T) string {
	t.Helper()
	root, err := framework.FindRepoRoot()
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "image")
	run(t, "go", "build", "-C", filepath.Join(root, "hack", "tools", "image"), "-buildvcs=false", "-trimpath", "-ldflags=-s -w", "-o", path, ".")
	return path
}

// headerSize is the offset of the first program header in a 64-bit ELF file.
const headerSize = 64

// header returns the parts of a program that the packer reads: its ELF header, and one program header.
func header(machine elf.Machine) []byte {
	const programHeaderSize = 56
	out := make([]byte, headerSize+programHeaderSize)
	copy(out, elf.ELFMAG)
	out[elf.EI_CLASS], out[elf.EI_DATA], out[elf.EI_VERSION] = byte(elf.ELFCLASS64), byte(elf.ELFDATA2LSB), byte(elf.EV_CURRENT)
	le := binary.LittleEndian
	le.PutUint16(out[16:], uint16(elf.ET_EXEC))
	le.PutUint16(out[18:], uint16(machine))
	le.PutUint32(out[20:], uint32(elf.EV_CURRENT))
	le.PutUint64(out[32:], headerSize)
	le.PutUint16(out[52:], headerSize)
	le.PutUint16(out[54:], programHeaderSize)
	le.PutUint16(out[56:], 1)
	le.PutUint32(out[headerSize:], uint32(elf.PT_LOAD))
	return out
}

func program(t *testing.T, dir, file string, content []byte) string {
	t.Helper()
	path := filepath.Join(dir, file)
	if err := os.WriteFile(path, content, 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}
