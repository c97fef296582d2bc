package options

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/tools/leaderelection"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/shard"
)

// Validate returns what is wrong with the flags, one line for each: before anything is started, and before the API
// server is contacted. A value that makes no sense would otherwise be noticed much later, or never.
func (o *Options) Validate() error {
	var wrong []error
	reportFlag := func(flag string, value any, format string, args ...any) {
		wrong = append(wrong, fmt.Errorf("--%s=%v: %s", flag, value, fmt.Sprintf(format, args...)))
	}
	for flag, n := range map[string]int{"pool-concurrency": o.PoolConcurrency, "writers": o.Writers} {
		if n < 1 {
			reportFlag(flag, n, "at least 1 is needed, or nothing is served")
		}
	}
	if _, err := shard.Parse(o.Shard); err != nil {
		reportFlag("shard", o.Shard, "%v", err)
	}
	for flag, name := range map[string]string{"namespace": o.Namespace, "leader-elect-namespace": o.LeaderElectNamespace, "block-namespace": o.BlockNamespace} {
		if problems := validation.IsDNS1123Label(name); name != "" && len(problems) > 0 {
			reportFlag(flag, name, "is not the name of a namespace: %s", problems[0])
		}
	}
	if problems := validation.IsValidLabelValue(o.WatchFilter); len(problems) > 0 {
		reportFlag("watch-filter", o.WatchFilter, "no label can have this value: %s", problems[0])
	}
	for flag, d := range map[string]time.Duration{"audit-interval": o.AuditInterval, "shrink-grace": o.ShrinkGrace} {
		if d < 0 {
			reportFlag(flag, d, "must not be negative")
		}
	}
	if all := []string{NodeCIDRsOff, NodeCIDRsOn, NodeCIDRsOwn, NodeCIDRsFleet, NodeCIDRsOnly}; !slices.Contains(all, o.NodeCIDRs) {
		reportFlag("node-cidrs", o.NodeCIDRs, "is none of %s", strings.Join(all, ", "))
	}
	o.validateServices(reportFlag)
	if _, err := ParsePrefixes(o.ServiceCIDRs); err != nil {
		reportFlag("service-cluster-ip-range", strings.Join(o.ServiceCIDRs, ","), "%v", err)
	}
	if (o.ServesOwnNodes() || o.ServesFleetNodes()) && o.Namespace != "" {
		reportFlag("node-cidrs", o.NodeCIDRs, "Nodes and ClusterCIDRs are in no namespace; leave --namespace out, or give them with another manager")
	}
	if o.OrphanGrace <= 0 {
		reportFlag("orphan-grace", o.OrphanGrace, "must be longer than 0: a restore may bring a claim after its IPAddress")
	}
	o.validateNodeCIDRs(reportFlag)
	o.validateLeaderElection(reportFlag)
	o.validatePorts(reportFlag)
	return joinSorted(wrong)
}

// ParsePrefixes parses CIDRs.
func ParsePrefixes(texts []string) ([]netip.Prefix, error) {
	var out []netip.Prefix
	for _, text := range texts {
		p, err := netip.ParsePrefix(strings.TrimSpace(text))
		if err != nil {
			return nil, fmt.Errorf("%q is no CIDR", text)
		}
		out = append(out, p.Masked())
	}
	return out, nil
}

// validateServices checks the flags for Services.
func (o *Options) validateServices(reportFlag reportFlagFunc) {
	if o.AddressAttempts < 1 {
		reportFlag("address-attempts", o.AddressAttempts, "at least 1 is needed: the first address is one")
	}
	for _, option := range []struct {
		flag    string
		on      bool
		objects string
	}{{"service-leases", o.ServiceLeases, "objects of MetalLB"}, {"host-load-balancers", o.HostLoadBalancers, "coordination Leases of hosts"}} {
		if option.on && o.Namespace != "" {
			reportFlag(option.flag, true, "cannot be with --namespace: the %s are in a namespace of their own", option.objects)
		}
	}
	for flag, on := range map[string]bool{
		"load-balancers": o.LoadBalancers, "leases": o.Leases, "service-leases": o.ServiceLeases, "host-load-balancers": o.HostLoadBalancers,
		"control-plane-endpoints": o.ControlPlaneEndpoints, "fleet-node-cidrs": o.FleetNodeCIDRs,
	} {
		if on && o.NodeCIDRs == NodeCIDRsOnly {
			reportFlag(flag, true, "cannot be with --node-cidrs=%s, which serves nothing else", NodeCIDRsOnly)
		}
	}
}

// validateLeaderElection checks that a leader gives up before another manager takes its place.
func (o *Options) validateLeaderElection(reportFlag reportFlagFunc) {
	if !o.LeaderElect {
		return
	}
	if o.RetryPeriod <= 0 {
		reportFlag("leader-elect-retry-period", o.RetryPeriod, "must be longer than 0")
	}
	if least := time.Duration(leaderelection.JitterFactor * float64(o.RetryPeriod)); o.RenewDeadline <= least {
		reportFlag("leader-elect-renew-deadline", o.RenewDeadline, "must be longer than 1.2 times --leader-elect-retry-period: %s", least)
	}
	if o.LeaseDuration <= o.RenewDeadline {
		reportFlag("leader-elect-lease-duration", o.LeaseDuration, "must be longer than --leader-elect-renew-deadline: %s", o.RenewDeadline)
	}
}

// validatePorts checks the addresses and ports that the manager listens on.
func (o *Options) validatePorts(reportFlag reportFlagFunc) {
	if o.WebhookPort < 0 || o.WebhookPort > 65535 {
		reportFlag("webhook-port", o.WebhookPort, "must be from 0 to 65535; 0 turns the webhooks off")
	}
	if o.ControlPlaneEndpoints && o.WebhookPort == 0 && o.NodeCIDRs != NodeCIDRsOnly {
		reportFlag("control-plane-endpoints", true, "needs --webhook-port: Cluster API asks there for endpoints")
	}
	for flag, address := range map[string]string{"health-probe-bind-address": o.HealthProbeAddress, "diagnostics-address": o.Diagnostics.DiagnosticsAddress} {
		_, port, err := net.SplitHostPort(address)
		n, notNumber := strconv.Atoi(port)
		if off := address == "" || address == "0"; !off && (err != nil || notNumber != nil || n < 0 || n > 65535) {
			reportFlag(flag, address, "write host:port, or :port for every address of this machine; 0 turns it off")
		}
	}
}

// ValidateCertificate returns why the webhooks cannot be served. The server notices that too, but after the caches were
// started.
func (o *Options) ValidateCertificate() error {
	if o.WebhookPort == 0 {
		return nil
	}
	if _, err := tls.LoadX509KeyPair(filepath.Join(o.WebhookCertDir, "tls.crt"), filepath.Join(o.WebhookCertDir, "tls.key")); err != nil {
		return fmt.Errorf("--webhook-cert-dir=%s: %w; mount the certificate there, or turn the webhooks off with --webhook-port=0", o.WebhookCertDir, err)
	}
	return nil
}

// joinSorted joins errors in the order of their texts: the flags are checked in random order.
func joinSorted(errs []error) error {
	texts := make([]string, 0, len(errs))
	for _, err := range errs {
		texts = append(texts, err.Error())
	}
	if len(texts) == 0 {
		return nil
	}
	slices.Sort(texts)
	return errors.New(strings.Join(texts, "\n"))
}
