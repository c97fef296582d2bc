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

// options has the values of the flags.
type options struct {
	hostName, nodeName, network string
	interfaces                  []string
	leaseDuration               time.Duration
	forwardMode, backendType    string
	maxUDPSessions              int
	udpIdleTimeout              time.Duration
	maxFiles                    int64
	metricsAddress              string
	releaseOnExit               bool
}

// backendTypes are the types of backends that a host forwards to, by name.
var backendTypes = map[string]hostlb.BackendType{"nodeports": hostlb.NodePortBackends, "endpoints": hostlb.EndpointBackends, "clusterip": hostlb.ClusterIPBackends}

const (
	// maxLeaseDuration limits how long an address may stay on a host that is dead.
	minLeaseDuration, maxLeaseDuration = 3 * time.Second, 5 * time.Minute

	forwardNone, forwardProxy = "none", "proxy"
)

func (o *options) addFlags(fs *pflag.FlagSet) {
	hostname, err := os.Hostname()
	if err != nil {
		hostname = ""
	}
	fs.StringVar(&o.hostName, "host-name", strings.ToLower(hostname), "Name of this host, which no other host has.")
	fs.StringVar(&o.nodeName, "node-name", os.Getenv("NODE_NAME"), "Name of the Node that this host is, for Services with externalTrafficPolicy Local; empty: it is none. By default the variable NODE_NAME.")
	fs.StringVar(&o.network, "network", "", "The layer-2 or routing domain that the interfaces are in: it shows the addresses of pools whose spec.network is this, and no others.")
	fs.StringSliceVar(&o.interfaces, "interface", nil, "Interfaces that addresses are put on. By default any that has an address of the network of the lease.")
	fs.DurationVar(&o.leaseDuration, "lease-duration", 10*time.Second, "Address lease duration (3s-5m, whole seconds). Failover takes about 3s longer. Use the same value on every host.")
	fs.StringVar(&o.forwardMode, "forward", forwardNone, "How traffic is handled: \"none\" leaves it to kube-proxy or its replacement; \"proxy\" forwards TCP and UDP to --backends.")
	fs.StringVar(&o.backendType, "backends", "nodeports", "Where --forward=proxy forwards to: nodeports of Nodes that are ready, endpoints, where the network of the Pods is routed, or clusterip, where that of the Services is.")
	fs.IntVar(&o.maxUDPSessions, "udp-sessions", 4096, "How many clients a port of UDP has at once, with --forward=proxy. Of more, those end that are idle longest.")
	fs.DurationVar(&o.udpIdleTimeout, "udp-idle", 90*time.Second, "How long a client of UDP is remembered that sends nothing and is sent nothing, with --forward=proxy. At most 30s where there was no answer, and 5s where one question was answered, or two.")
	fs.Int64Var(&o.maxFiles, "open-files", 0, "How many files --forward=proxy may use: six for a connection of TCP, one for a client of UDP. 0: 0.8 of what the process may open.")
	fs.StringVar(&o.metricsAddress, "metrics-bind-address", "127.0.0.1:9442", "Address of /metrics, /healthz and /readyz, without authentication; 0 turns them off.")
	fs.BoolVar(&o.releaseOnExit, "release-on-exit", true, "Give the addresses to other hosts at the end. Otherwise they stay for --lease-duration, so that a restart is not seen.")
}

// buildAgentOptions returns the options that the flags set, or an error with everything that is wrong with them.
func (o *options) buildAgentOptions() (agent.Options, error) {
	var errs []error
	addProblem := func(name string, value any, format string, args ...any) {
		errs = append(errs, fmt.Errorf("--%s=%v: %s", name, value, fmt.Sprintf(format, args...)))
	}
	if problems := validation.IsDNS1123Subdomain(o.hostName); len(problems) > 0 {
		addProblem("host-name", o.hostName, "must be a name of lower case letters, digits, dots and hyphens")
	}
	if problems := validation.IsDNS1123Label(o.network); o.network != "" && len(problems) > 0 {
		addProblem("network", o.network, "must be a name of lower case letters, digits and hyphens, as spec.network of a pool")
	}
	if o.leaseDuration < minLeaseDuration || o.leaseDuration > maxLeaseDuration || o.leaseDuration%time.Second != 0 {
		addProblem("lease-duration", o.leaseDuration, "must be whole seconds from %s to %s", minLeaseDuration, maxLeaseDuration)
	}
	if o.forwardMode != forwardNone && o.forwardMode != forwardProxy {
		addProblem("forward", o.forwardMode, "must be %s or %s", forwardNone, forwardProxy)
	}
	if o.maxUDPSessions < 1 {
		addProblem("udp-sessions", o.maxUDPSessions, "must be at least 1")
	}
	if o.udpIdleTimeout < time.Second {
		addProblem("udp-idle", o.udpIdleTimeout, "must be at least 1s")
	}
	if o.maxFiles < 0 {
		addProblem("open-files", o.maxFiles, "must be 0 or more")
	}
	via, known := backendTypes[o.backendType]
	if !known {
		addProblem("backends", o.backendType, "must be one of %s", strings.Join(slices.Sorted(maps.Keys(backendTypes)), ", "))
	}
	return agent.Options{
		Name: o.hostName, Node: o.nodeName, Network: o.network, Interfaces: o.interfaces, Timing: hostlb.NewTiming(o.leaseDuration),
		ForwardTraffic: o.forwardMode == forwardProxy, BackendType: via, MaxFiles: o.maxFiles, MaxUDPSessions: o.maxUDPSessions, UDPIdleTimeout: o.udpIdleTimeout, ReleaseOnExit: o.releaseOnExit,
	}, errors.Join(errs...)
}
