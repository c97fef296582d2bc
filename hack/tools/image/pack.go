package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"debug/elf"
	"encoding/pem"
	"fmt"
	"io"
	"os"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"golang.org/x/crypto/x509roots/fallback/bundle"
)

// user is the one that config/manager runs the manager as. A number: there is no /etc/passwd to look
// a name up in, and runAsNonRoot wants one.
const user = "65532:65532"

// architectures are the names that images use.
var architectures = map[elf.Machine]string{
	elf.EM_X86_64:  "amd64",
	elf.EM_AARCH64: "arm64",
}

// platformImage is the image for one architecture.
type platformImage struct {
	v1.Image
	platform v1.Platform
}

// ArtifactType is empty: the library would write into the index that this is an image, and tools that are
// older than the field (skopeo 1.9) drop it when they copy the index, which changes its digest.
func (platformImage) ArtifactType() (string, error) { return "", nil }

// pack makes the image of a program for the architecture that it is built for.
func pack(o *options, program string) (platformImage, error) {
	architecture, err := inspect(program)
	if err != nil {
		return platformImage{}, err
	}
	binary, err := os.ReadFile(program)
	if err != nil {
		return platformImage{}, err
	}
	files, err := filesystem(o.program, binary, o.created())
	if err != nil {
		return platformImage{}, err
	}
	layer, err := tarball.LayerFromOpener(
		func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(files)), nil },
		tarball.WithMediaType(types.OCILayer),
		tarball.WithCompressionLevel(gzip.DefaultCompression),
		tarball.WithCompressedCaching,
	)
	if err != nil {
		return platformImage{}, err
	}

	platform := v1.Platform{OS: "linux", Architecture: architecture}
	created := v1.Time{Time: o.created()}
	base := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	base, err = mutate.ConfigFile(base, &v1.ConfigFile{
		OS:           platform.OS,
		Architecture: platform.Architecture,
		Created:      created,
		RootFS:       v1.RootFS{Type: "layers"},
		Config: v1.Config{
			Entrypoint: []string{"/" + o.program},
			User:       o.user,
			WorkingDir: "/",
			Labels:     labels(o),
		},
	})
	if err != nil {
		return platformImage{}, err
	}
	image, err := mutate.Append(base, mutate.Addendum{
		Layer:   layer,
		History: v1.History{Created: created, CreatedBy: "make image"},
	})
	return platformImage{Image: image, platform: platform}, err
}

// inspect tells the architecture of a program, and that it runs where there is nothing but itself.
func inspect(program string) (string, error) {
	file, err := elf.Open(program)
	if err != nil {
		return "", err
	}
	defer file.Close()
	for _, segment := range file.Progs {
		if segment.Type == elf.PT_INTERP {
			return "", fmt.Errorf("it needs a dynamic linker: build it with CGO_ENABLED=0")
		}
	}
	architecture, ok := architectures[file.Machine]
	if !ok {
		return "", fmt.Errorf("no image for %s", file.Machine)
	}
	return architecture, nil
}

// filesystem is all that the image holds, as a tar file.
func filesystem(name string, program []byte, created time.Time) ([]byte, error) {
	out := &bytes.Buffer{}
	w := tar.NewWriter(out)
	for _, file := range []struct {
		tar.Header
		content []byte
	}{
		{Header: tar.Header{Name: "etc/", Mode: 0o755, Typeflag: tar.TypeDir}},
		{Header: tar.Header{Name: "etc/ssl/", Mode: 0o755, Typeflag: tar.TypeDir}},
		{Header: tar.Header{Name: "etc/ssl/certs/", Mode: 0o755, Typeflag: tar.TypeDir}},
		{Header: tar.Header{Name: "etc/ssl/certs/ca-certificates.crt", Mode: 0o644, Typeflag: tar.TypeReg}, content: roots()},
		{Header: tar.Header{Name: name, Mode: 0o755, Typeflag: tar.TypeReg}, content: program},
	} {
		file.ModTime, file.Size = created, int64(len(file.content))
		if err := w.WriteHeader(&file.Header); err != nil {
			return nil, err
		}
		if _, err := w.Write(file.content); err != nil {
			return nil, err
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}

// roots are the certificate authorities that browsers trust. Most kubeconfigs carry their own authority;
// those of hosted control planes with publicly signed API servers (ROSA) carry none.
func roots() []byte {
	out := &bytes.Buffer{}
	for root := range bundle.Roots() {
		// What a root is not trusted for any more cannot be said in a file.
		if root.Constraint == nil {
			out.Write(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: root.Certificate}))
		}
	}
	return out.Bytes()
}

func labels(o *options) map[string]string {
	const prefix = "org.opencontainers.image."
	return map[string]string{
		prefix + "title":       "cluster-api-ipam-provider-butler",
		prefix + "description": "A Cluster API IPAM provider",
		prefix + "source":      "https://github.com/butlerdotdev/cluster-api-ipam-provider-butler",
		prefix + "licenses":    "Apache-2.0",
		prefix + "version":     o.version,
		prefix + "revision":    o.revision,
	}
}
