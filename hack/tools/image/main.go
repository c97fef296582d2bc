// The command image packs builds of a program, such as the manager, into one container image for several architectures, as a file that
// needs no registry and no daemon to make.
//
// The file is an archive of an OCI image layout. Podman, skopeo (oci-archive:), containerd, kind, and Docker
// with the containerd image store take it as it is; crane push takes the directory that it unpacks to. Docker
// without that store, its default before version 29, knows no image for several architectures: for it the file
// holds a manifest.json as docker save writes it, with one image each, whose tags end in the architecture.
//
// The same builds and flags make the same file, byte for byte.
package main

import (
	"flag"
	"fmt"
	"os"
	"time"
)

// options are the flags.
type options struct {
	out      string
	image    string
	version  string
	revision string
	epoch    int64
	// program is what the file is called in the image, user who runs it.
	program, user string
}

// created is the time of everything in the image.
func (o *options) created() time.Time { return time.Unix(o.epoch, 0).UTC() }

func main() {
	o := &options{}
	flag.StringVar(&o.out, "out", "", "File to write.")
	flag.StringVar(&o.image, "image", "", "Name and tag of the image.")
	flag.StringVar(&o.version, "version", "", "Version of the program.")
	flag.StringVar(&o.revision, "revision", "", "Commit that it is built from.")
	flag.Int64Var(&o.epoch, "epoch", 0, "Time of everything in the image, in seconds since 1970.")
	flag.StringVar(&o.program, "program", "manager", "Name of the program in the image.")
	flag.StringVar(&o.user, "user", user, "Who runs it, by number.")
	flag.Usage = func() {
		fmt.Fprintln(flag.CommandLine.Output(), "usage: image -out FILE -image NAME:TAG -version VERSION [flags] FILE...")
		flag.PrintDefaults()
	}
	flag.Parse()
	if o.out == "" || o.image == "" || o.version == "" || flag.NArg() == 0 {
		flag.Usage()
		os.Exit(2)
	}
	if err := run(o, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "image:", err)
		os.Exit(1)
	}
}

func run(o *options, files []string) error {
	images := make([]platformImage, 0, len(files))
	for _, file := range files {
		image, err := pack(o, file)
		if err != nil {
			return fmt.Errorf("packing %s: %w", file, err)
		}
		images = append(images, image)
	}
	digest, err := write(o, images)
	if err != nil {
		return fmt.Errorf("writing %s: %w", o.out, err)
	}
	fmt.Printf("%s: %s@%s\n", o.out, o.image, digest)
	return nil
}
