//go:build linux

// Command hostbench measures how hosts forward ports, compared with Debian's HAProxy (TCP) and nginx (UDP).
//
// It creates three network namespaces, of a client, a host and a backend, with a wire between each two, and starts the
// forwarder, as a process of its own, and the other programs on the host: as many threads each as there are CPUs. They
// are measured in turns, one after the other, in the same namespaces, with the same client and the same backend.
// Everything shares the CPUs of one machine, so figures of one run can be compared, and figures of two machines cannot.
// Nothing leaves the namespaces.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"
)

type options struct {
	rounds      int
	streams     int
	duration    time.Duration
	proxyDir    string
	onlyKind    string
	profilePath string
	spliceMode  string
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := dispatchRole(ctx, os.Args[1:])
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "hostbench:", err)
		os.Exit(1)
	}
}

// dispatchRole runs the role of a process of the benchmark: the first process starts the others.
func dispatchRole(ctx context.Context, args []string) error {
	if len(args) > 0 {
		switch args[0] {
		case roleForward:
			return serveForwarder(ctx, args[1:])
		case roleBackend:
			return serveBackend(ctx)
		case roleLoad:
			return runLoad(args[1:])
		}
	}
	var o options
	flags := flag.NewFlagSet("hostbench", flag.ContinueOnError)
	flags.IntVar(&o.rounds, "turns", 5, "how often each is measured")
	flags.DurationVar(&o.duration, "each", 3*time.Second, "how long each is measured")
	flags.IntVar(&o.streams, "streams", 8, "streams of TCP whose bytes are measured")
	flags.StringVar(&o.proxyDir, "proxies", "", "folder with haproxy, nginx and its modules, see hack/proxies.sh; without them ours is measured alone")
	flags.StringVar(&o.onlyKind, "only", "", "measure this alone: bytes, connections, udp or udp-kept")
	flags.StringVar(&o.profilePath, "profile", "", "write a CPU profile of the forwarder to this file")
	flags.StringVar(&o.spliceMode, "splice", "always", "how HAProxy splices: always, auto or never")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if o.rounds < 1 || o.streams < 1 {
		return errors.New("-turns, -streams: at least 1")
	}
	return run(ctx, o)
}

func run(ctx context.Context, o options) error {
	if os.Geteuid() != 0 {
		return errors.New("network namespaces need root")
	}
	dir, err := os.MkdirTemp("", "butler-hostbench-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	w, err := newTestbed()
	if err != nil {
		return fmt.Errorf("making the namespaces: %w", err)
	}
	defer w.stopProcesses()
	for _, path := range []*string{&o.profilePath, &o.proxyDir} { // nginx resolves relative paths in a directory of its own
		if *path == "" {
			continue
		}
		if *path, err = filepath.Abs(*path); err != nil {
			return err
		}
	}
	if err := w.startPrograms(ctx, o, dir); err != nil {
		return err
	}
	return runComparisons(ctx, o, w)
}
