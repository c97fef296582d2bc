package main

import (
	"archive/tar"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// writeImage writes the archive and returns the digest of its index, by which a registry will identify the image.
func writeImage(o *options, images []platformImage) (v1.Hash, error) {
	// A kubelet requests the whole name from containerd, including registry and tag.
	tag, err := name.NewTag(o.image, name.StrictValidation)
	if err != nil {
		return v1.Hash{}, err
	}
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, image := range images {
		index = mutate.AppendManifests(index, mutate.IndexAddendum{
			Add: image, Descriptor: v1.Descriptor{Platform: &image.platform},
		})
	}
	index = mutate.Annotations(index, imageLabels(o)).(v1.ImageIndex)

	dir, err := os.MkdirTemp("", "image-")
	if err != nil {
		return v1.Hash{}, err
	}
	defer os.RemoveAll(dir)
	path, err := layout.Write(dir, empty.Index)
	if err != nil {
		return v1.Hash{}, err
	}
	// containerd and podman name the image by the first annotation, skopeo and the specification by the second.
	err = path.AppendIndex(index, layout.WithAnnotations(map[string]string{
		"io.containerd.image.name":          o.image,
		"org.opencontainers.image.ref.name": tag.TagStr(),
	}))
	if err != nil {
		return v1.Hash{}, err
	}
	if err := writeDockerManifest(o, dir, images); err != nil {
		return v1.Hash{}, err
	}
	if err := writeArchive(o, dir); err != nil {
		return v1.Hash{}, err
	}
	return index.Digest()
}

// writeDockerManifest lists the same blobs in the older format of docker save.
func writeDockerManifest(o *options, dir string, images []platformImage) error {
	blob := func(digest v1.Hash) string { return "blobs/" + digest.Algorithm + "/" + digest.Hex }
	manifest := make(tarball.Manifest, 0, len(images))
	for _, image := range images {
		m, err := image.Manifest()
		if err != nil {
			return err
		}
		tag := o.image
		if len(images) > 1 {
			tag += "-" + image.platform.Architecture
		}
		entry := tarball.Descriptor{Config: blob(m.Config.Digest), RepoTags: []string{tag}}
		for _, layer := range m.Layers {
			entry.Layers = append(entry.Layers, blob(layer.Digest))
		}
		manifest = append(manifest, entry)
	}
	content, err := json.Marshal(manifest)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "manifest.json"), content, 0o644)
}

// writeArchive writes the files of dir in the order of their names, without metadata of this machine.
func writeArchive(o *options, dir string) (err error) {
	out, err := os.Create(o.outFile)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	w := tar.NewWriter(out)
	err = filepath.WalkDir(dir, func(path string, entry os.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		name, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		header := &tar.Header{Name: filepath.ToSlash(name), Size: int64(len(content)), Mode: 0o644, ModTime: o.createdAt()}
		if err := w.WriteHeader(header); err != nil {
			return err
		}
		_, err = w.Write(content)
		return err
	})
	return errors.Join(err, w.Close())
}
