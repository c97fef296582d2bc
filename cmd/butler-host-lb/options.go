//go:build linux

package main

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/hostlb"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/hostlb/agent"
)

// options are the flags.
type options struct {
	name, node, network string
	interfaces          []string
	lifetime            time.Duration
	forward, backends   string
	sessions            int
	idle                time.Duration
	files               int64
	metrics             string
	release             bool
}

// backends are where a host forwards to, by their names.
var backends = map[string]hostlb.Via{"nodeports": hostlb.NodePorts, "endpoints": hostlb.Endpoints, "clusterip": hostlb.ClusterIPs}

const (
	// longest is how long an address may stay on a host that is dead.
	shortest, longest = 3 * time.Second, 5 * time.Minute

	forwardNone, forwardProxy = "none", "proxy"
)

func (o *options) addFlags(fs *pflag.FlagSet) {
	hostname, err := os.Hostname()
	if err != nil {
		hostname = ""
	}
	fs.StringVar(&o.name, "host-name", strings.ToLower(hostname), "Name of this host, which no other host has.")
	fs.StringVar(&o.node, "node-name", os.Getenv("NODE_NAME"), "Name of the Node that this host is, for Services with externalTrafficPolicy Local; empty: it is none. By default the variable NODE_NAME.")
	fs.StringVar(&o.network, "network", "", "The layer-2 or routing domain that the interfaces are in: it shows the addresses of pools whose spec.network is this, and no others.")
	fs.StringSliceVar(&o.interfaces, "interface", nil, "Interfaces that addresses are put on. By default any that has an address of the network of the lease.")
	fs.DurationVar(&o.lifetime, "lease-duration", 10*time.Second, "How long an address stays on a host that does not refresh it, in whole seconds from 3s to 5m: a host that is dead is followed by another one about 3 s after that. The same on all hosts.")
	fs.StringVar(&o.forward, "forward", forwardNone, "What becomes of packets for an address: none, kube-proxy or what takes its place has them, or proxy, this program forwards TCP and UDP to --backends.")
	fs.StringVar(&o.backends, "backends", "nodeports", "Where --forward=proxy forwards to: nodeports of Nodes that are ready, endpoints, where the network of the Pods is routed, or clusterip, where that of the Services is.")
	fs.IntVar(&o.sessions, "udp-sessions", 4096, "How many clients a port of UDP has at once, with --forward=proxy. Of more, those end that are idle longest.")
	fs.DurationVar(&o.idle, "udp-idle", 90*time.Second, "How long a client of UDP is remembered that sends nothing and is sent nothing, with --forward=proxy. At most 30s where there was no answer, and 5s where one question was answered, or two.")
	fs.Int64Var(&o.files, "open-files", 0, "How many files --forward=proxy may use: six for a connection of TCP, one for a client of UDP. 0: 0.8 of what the process may open.")
	fs.StringVar(&o.metrics, "metrics-bind-address", "127.0.0.1:9442", "Address of /metrics, /healthz and /readyz, without authentication; 0 turns them off.")
	fs.BoolVar(&o.release, "release-on-exit", true, "Give the addresses to other hosts at the end. Otherwise they stay for --lease-duration, so that a restart is not seen.")
}

// check returns what the flags say, or everything that is wrong with them.
func (o *options) check() (agent.Options, error) {
	var errs []error
	complain := func(name string, value any, format string, args ...any) {
		errs = append(errs, fmt.Errorf("--%s=%v: %s", name, value, fmt.Sprintf(format, args...)))
	}
	if problems := validation.IsDNS1123Subdomain(o.name); len(problems) > 0 {
		complain("host-name", o.name, "must be a name of lower case letters, digits, dots and hyphens")
	}
	if problems := validation.IsDNS1123Label(o.network); o.network != "" && len(problems) > 0 {
		complain("network", o.network, "must be a name of lower case letters, digits and hyphens, as spec.network of a pool")
	}
	if o.lifetime < shortest || o.lifetime > longest || o.lifetime%time.Second != 0 {
		complain("lease-duration", o.lifetime, "must be whole seconds from %s to %s", shortest, longest)
	}
	if o.forward != forwardNone && o.forward != forwardProxy {
		complain("forward", o.forward, "must be %s or %s", forwardNone, forwardProxy)
	}
	if o.sessions < 1 {
		complain("udp-sessions", o.sessions, "must be at least 1")
	}
	if o.idle < time.Second {
		complain("udp-idle", o.idle, "must be at least 1s")
	}
	if o.files < 0 {
		complain("open-files", o.files, "must be 0 or more")
	}
	via, known := backends[o.backends]
	if !known {
		complain("backends", o.backends, "must be one of %s", strings.Join(slices.Sorted(maps.Keys(backends)), ", "))
	}
	return agent.Options{
		Name: o.name, Node: o.node, Network: o.network, Interfaces: o.interfaces, Timing: hostlb.TimingOf(o.lifetime),
		Forward: o.forward == forwardProxy, Via: via, MaxFiles: o.files, MaxSessions: o.sessions, Idle: o.idle, Release: o.release,
	}, errors.Join(errs...)
}
