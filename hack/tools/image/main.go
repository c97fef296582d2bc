// The command image packs builds of a program, such as the manager, into one container image for several architectures.
// The image is a file; no registry and no daemon is needed to create it.
//
// The file is an archive of an OCI image layout. Podman, skopeo (oci-archive:), containerd, kind, and Docker with the
// containerd image store load it as it is; crane push accepts the directory that it unpacks to. Docker without that
// store, its default before version 29, supports no image for several architectures: for it the file has a
// manifest.json in the format of docker save, with one image for each architecture, whose tag ends in its name.
//
// The same builds and flags create the same file, byte for byte.
package main

import (
	"flag"
	"fmt"
	"os"
	"time"
)

// options are the flags.
type options struct {
	outFile  string
	image    string
	version  string
	revision string
	epoch    int64
	// program is the name of the file in the image; user is the user that runs it.
	program, user string
}

// createdAt returns the time of everything in the image.
func (o *options) createdAt() time.Time { return time.Unix(o.epoch, 0).UTC() }

func main() {
	o := &options{}
	flag.StringVar(&o.outFile, "out", "", "File to write.")
	flag.StringVar(&o.image, "image", "", "Name and tag of the image.")
	flag.StringVar(&o.version, "version", "", "Version of the program.")
	flag.StringVar(&o.revision, "revision", "", "Commit that it is built from.")
	flag.Int64Var(&o.epoch, "epoch", 0, "Time of everything in the image, in seconds since 1970.")
	flag.StringVar(&o.program, "program", "manager", "Name of the program in the image.")
	flag.StringVar(&o.user, "user", defaultUser, "Who runs it, by number.")
	flag.Usage = func() {
		fmt.Fprintln(flag.CommandLine.Output(), "usage: image -out FILE -image NAME:TAG -version VERSION [flags] FILE...")
		flag.PrintDefaults()
	}
	flag.Parse()
	if o.outFile == "" || o.image == "" || o.version == "" || flag.NArg() == 0 {
		flag.Usage()
		os.Exit(2)
	}
	if err := packImages(o, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "image:", err)
		os.Exit(1)
	}
}

func packImages(o *options, files []string) error {
	images := make([]platformImage, 0, len(files))
	for _, file := range files {
		image, err := packProgram(o, file)
		if err != nil {
			return fmt.Errorf("packing %s: %w", file, err)
		}
		images = append(images, image)
	}
	digest, err := writeImage(o, images)
	if err != nil {
		return fmt.Errorf("writing %s: %w", o.outFile, err)
	}
	fmt.Printf("%s: %s@%s\n", o.outFile, o.image, digest)
	return nil
}
