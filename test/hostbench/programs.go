//go:build linux

package main

import (
	"bufio"
	"context"
	"flag"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"runtime/pprof"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/hostlb/forward"
)

const (
	roleForward = "forward"
	roleBackend = "backend"
	roleLoad    = "load"

	forwarderName = "ours"
	haproxyName   = "HAProxy"
	nginxName     = "nginx"
)

// Ports of the backend; each program listens on other ports of the host, see comparisons.
const (
	portBytes       = 9001
	portConnections = 9002
	portUDP         = 9003
)

// startPrograms starts the backend, and what is measured on the host.
func (w *testbed) startPrograms(ctx context.Context, o options, dir string) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	if _, err := w.launchProcess(ctx, w.backend, roleBackend, self, roleBackend); err != nil {
		return err
	}
	if w.proxies[forwarderName], err = w.launchProcess(ctx, w.host, forwarderName, self, roleForward, "-profile="+o.profilePath); err != nil {
		return err
	}
	cpus := runtime.NumCPU()
	if program := filepath.Join(o.proxyDir, "haproxy"); isExecutable(program) {
		config, err := writeFile(dir, "haproxy.cfg", haproxyConfig(cpus, o.spliceMode))
		if err != nil {
			return err
		}
		if w.proxies[haproxyName], err = w.launchProcess(ctx, w.host, haproxyName, program, "-db", "-q", "-f", config); err != nil {
			return err
		}
	}
	if program := filepath.Join(o.proxyDir, "nginx"); isExecutable(program) {
		config, err := writeFile(dir, "nginx.conf", nginxConfig(cpus, dir, filepath.Join(o.proxyDir, "modules")))
		if err != nil {
			return err
		}
		if w.proxies[nginxName], err = w.launchProcess(ctx, w.host, nginxName, program, "-c", config); err != nil {
			return err
		}
	}
	for name, port := range map[string]int{forwarderName: 7001, haproxyName: 8001} {
		if w.proxies[name] == nil {
			continue
		}
		if err := w.waitUntilServing(ctx, name, port); err != nil {
			return err
		}
	}
	return nil
}

func isExecutable(path string) bool {
	at, err := os.Stat(path)
	return err == nil && at.Mode()&0o111 != 0
}

func writeFile(dir, name, text string) (path string, err error) {
	path = filepath.Join(dir, name)
	return path, os.WriteFile(path, []byte(text), 0o600)
}

func haproxyConfig(threads int, splice string) string {
	option := map[string]string{
		"auto":   "option splice-auto",
		"always": "option splice-request\n\toption splice-response",
	}[splice]
	return fmt.Sprintf(`
global
	nbthread %d
	maxconn 3000
defaults
	mode tcp
	%s
	timeout connect 10s
	timeout client 1m
	timeout server 1m
listen bytes
	bind %s:8001
	server a %s:%d
listen connections
	bind %[3]s:8002
	server a %[4]s:%[6]d
`, threads, option, hostAddress, backendAddress, portBytes, portConnections)
}

func nginxConfig(workers int, dir, modules string) string {
	return fmt.Sprintf(`
daemon off;
user root;
pid %s/nginx.pid;
load_module %s/ngx_stream_module.so;
worker_processes %d;
events { worker_connections 8192; }
stream {
	server {
		listen %s:8003 udp reuseport;
		proxy_pass %s:%d;
		proxy_responses 1;
		proxy_timeout 30s;
	}
	server {
		listen %[4]s:8004 udp reuseport;
		proxy_pass %[5]s:%[6]d;
		proxy_timeout 30s;
	}
}
`, dir, modules, workers, hostAddress, backendAddress, portUDP)
}

// serveForwarder runs the forwarder until its input ends.
func serveForwarder(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet(roleForward, flag.ContinueOnError)
	profile := flags.String("profile", "", "")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if *profile != "" {
		out, err := os.Create(*profile)
		if err != nil {
			return err
		}
		defer func() { _ = out.Close() }()
		if err := pprof.StartCPUProfile(out); err != nil {
			return err
		}
		defer pprof.StopCPUProfile()
	}
	limit, err := forward.FileLimit()
	if err != nil {
		return err
	}
	host, backend := netip.MustParseAddr(hostAddress), netip.MustParseAddr(backendAddress)
	want := map[forward.Port]forward.Target{}
	for _, p := range []struct {
		protocol corev1.Protocol
		port, to uint16
	}{{corev1.ProtocolTCP, 7001, portBytes}, {corev1.ProtocolTCP, 7002, portConnections}, {corev1.ProtocolUDP, 7003, portUDP}} {
		want[forward.Port{Protocol: p.protocol, Address: netip.AddrPortFrom(host, p.port)}] = forward.Target{Backends: []netip.AddrPort{netip.AddrPortFrom(backend, p.to)}}
	}
	f := &forward.Forwarder{MaxFiles: limit}
	for _, err := range f.SetTargets(ctx, want) {
		return err
	}
	waitForEnd(ctx)
	f.SetTargets(ctx, nil)
	return nil
}

// waitForEnd waits until the program that has started this one ends, or signals it to end.
func waitForEnd(ctx context.Context) {
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGTERM)
	go func() {
		defer stop()
		_, _ = bufio.NewReader(os.Stdin).ReadString('\n')
	}()
	<-ctx.Done()
}

// waitUntilServing waits until the client gets a byte from a port: then the program behind it has started, and the
// wires carry packets.
func (w *testbed) waitUntilServing(ctx context.Context, name string, port int) error {
	const patience, again = 10 * time.Second, 20 * time.Millisecond
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		err := w.client.runInside(func() error { return readFirstByte(ctx, fmt.Sprintf("%s:%d", hostAddress, port)) })
		if err == nil {
			return nil
		}
		if ctx.Err() != nil {
			return fmt.Errorf("%s does not serve: %w", name, err)
		}
		time.Sleep(again)
	}
}

func readFirstByte(ctx context.Context, address string) error {
	c, err := new(net.Dialer).DialContext(ctx, "tcp", address)
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }()
	until, _ := ctx.Deadline()
	if err := c.SetDeadline(until); err != nil {
		return err
	}
	_, err = c.Read(make([]byte, 1))
	return err
}
