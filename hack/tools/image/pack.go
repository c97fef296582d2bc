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

// defaultUser is the user as which config/manager runs the manager. It is numeric: there is no /etc/passwd to look up a
// name, and runAsNonRoot requires a number.
const defaultUser = "65532:65532"

// architectures maps ELF machines to the names that images use.
var architectures = map[elf.Machine]string{
	elf.EM_X86_64:  "amd64",
	elf.EM_AARCH64: "arm64",
}

// platformImage is the image for one architecture.
type platformImage struct {
	v1.Image
	platform v1.Platform
}

// ArtifactType returns "": the library would otherwise record in the index that this is an image, and tools that are
// older than that field (skopeo 1.9) drop it when they copy the index, which changes its digest.
func (platformImage) ArtifactType() (string, error) { return "", nil }

// packProgram creates the image of a program for the architecture that it is built for.
func packProgram(o *options, program string) (platformImage, error) {
	architecture, err := programArchitecture(program)
	if err != nil {
		return platformImage{}, err
	}
	binary, err := os.ReadFile(program)
	if err != nil {
		return platformImage{}, err
	}
	files, err := buildFilesystem(o.program, binary, o.createdAt())
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
	created := v1.Time{Time: o.createdAt()}
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
			Labels:     imageLabels(o),
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

// programArchitecture returns the architecture of a program. It returns an error if the program is not statically
// linked, as the image has nothing else.
func programArchitecture(program string) (string, error) {
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

// buildFilesystem returns the whole content of the image, as a tar file.
func buildFilesystem(name string, program []byte, created time.Time) ([]byte, error) {
	out := &bytes.Buffer{}
	w := tar.NewWriter(out)
	for _, file := range []struct {
		tar.Header
		content []byte
	}{
		{Header: tar.Header{Name: "etc/", Mode: 0o755, Typeflag: tar.TypeDir}},
		{Header: tar.Header{Name: "etc/ssl/", Mode: 0o755, Typeflag: tar.TypeDir}},
		{Header: tar.Header{Name: "etc/ssl/certs/", Mode: 0o755, Typeflag: tar.TypeDir}},
		{Header: tar.Header{Name: "etc/ssl/certs/ca-certificates.crt", Mode: 0o644, Typeflag: tar.TypeReg}, content: rootCertificates()},
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

// rootCertificates returns the certificate authorities that browsers trust. Most kubeconfigs have their own authority;
// those of hosted control planes with publicly signed API servers (ROSA) have none.
func rootCertificates() []byte {
	out := &bytes.Buffer{}
	for root := range bundle.Roots() {
		// A PEM file cannot express the constraints of a root.
		if root.Constraint == nil {
			out.Write(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: root.Certificate}))
		}
	}
	return out.Bytes()
}

func imageLabels(o *options) map[string]string {
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
