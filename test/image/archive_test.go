package image

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// descriptor, index, manifest and config are the parts of the OCI image specification that this package reads.
type (
	descriptor struct {
		MediaType    string            `json:"mediaType"`
		ArtifactType string            `json:"artifactType"`
		Digest       string            `json:"digest"`
		Size         int               `json:"size"`
		Annotations  map[string]string `json:"annotations"`
		Platform     struct {
			OS           string `json:"os"`
			Architecture string `json:"architecture"`
		} `json:"platform"`
	}
	index struct {
		Manifests   []descriptor      `json:"manifests"`
		Annotations map[string]string `json:"annotations"`
	}
	manifest struct {
		Config descriptor   `json:"config"`
		Layers []descriptor `json:"layers"`
	}
	config struct {
		OS           string    `json:"os"`
		Architecture string    `json:"architecture"`
		Created      time.Time `json:"created"`
		Config       struct {
			Entrypoint []string
			Cmd        []string
			Env        []string
			User       string
			Labels     map[string]string
		} `json:"config"`
		RootFS struct {
			Type    string   `json:"type"`
			DiffIDs []string `json:"diff_ids"`
		} `json:"rootfs"`
	}
	// dockerImage is an entry of the manifest.json of docker save.
	dockerImage struct {
		Config   string
		RepoTags []string
		Layers   []string
	}
)

// archive maps the names of the files of an OCI archive to their content.
type archive map[string][]byte

func openArchive(t *testing.T, path string) archive {
	t.Helper()
	a := archive{}
	for _, f := range untar(t, contents(t, path)) {
		a[f.Name] = f.content
	}
	return a
}

func contents(t *testing.T, path string) []byte {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return content
}

// decode decodes a JSON file.
func decode[T any](t *testing.T, content []byte) T {
	t.Helper()
	var v T
	if err := json.Unmarshal(content, &v); err != nil {
		t.Fatalf("%v in %s", err, content)
	}
	return v
}

// blob returns the content that a descriptor points to, and checks its digest and size.
func (a archive) blob(t *testing.T, d descriptor) []byte {
	t.Helper()
	content, ok := a["blobs/"+strings.Replace(d.Digest, ":", "/", 1)]
	if !ok {
		t.Fatalf("no blob %s", d.Digest)
	}
	if got := digest(content); got != d.Digest || len(content) != d.Size {
		t.Errorf("%s of %d bytes is %s of %d", d.Digest, d.Size, got, len(content))
	}
	return content
}

// image returns the only index that the archive names, and its annotations.
func (a archive) image(t *testing.T) (index, map[string]string) {
	t.Helper()
	top := decode[index](t, a["index.json"])
	if len(top.Manifests) != 1 {
		t.Fatalf("index.json names %d images, not one", len(top.Manifests))
	}
	return decode[index](t, a.blob(t, top.Manifests[0])), top.Manifests[0].Annotations
}

// layers returns the files of all layers of an image, as one list.
func (a archive) layers(t *testing.T, m manifest, diffIDs []string) []file {
	t.Helper()
	if len(m.Layers) != len(diffIDs) {
		t.Fatalf("%d layers, %d diff IDs", len(m.Layers), len(diffIDs))
	}
	var files []file
	for i, layer := range m.Layers {
		r, err := gzip.NewReader(bytes.NewReader(a.blob(t, layer)))
		if err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		if got := digest(content); got != diffIDs[i] {
			t.Errorf("layer %d is %s, its diff ID %s", i, got, diffIDs[i])
		}
		files = append(files, untar(t, content)...)
	}
	return files
}

// file is an entry of a tar file.
type file struct {
	*tar.Header
	content []byte
}

func untar(t *testing.T, content []byte) []file {
	t.Helper()
	// Other readers of tar files require an end marker, which Go's does not need.
	if len(content)%512 != 0 || !bytes.HasSuffix(content, make([]byte, 1024)) {
		t.Error("a tar file that has no end")
	}
	r := tar.NewReader(bytes.NewReader(content))
	var files []file
	for {
		header, err := r.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, file{Header: header, content: content})
	}
}

// unpack writes files below a new directory, and returns the directory.
func unpack(t *testing.T, files []file) string {
	t.Helper()
	dir := t.TempDir()
	for _, f := range files {
		path := filepath.Join(dir, filepath.FromSlash(f.Name))
		var err error
		if f.Typeflag == tar.TypeDir {
			err = os.Mkdir(path, f.FileInfo().Mode())
		} else {
			err = os.WriteFile(path, f.content, f.FileInfo().Mode())
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func digest(content []byte) string {
	sum := sha256.Sum256(content)
	return "sha256:" + hex.EncodeToString(sum[:])
}
