// Package options has the flags of the manager, and checks them.
package options

import (
	"fmt"
	"time"

	"github.com/spf13/pflag"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/flags"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
)

// Values of --node-cidrs.
const (
	NodeCIDRsOff  = "off"
	NodeCIDRsOn   = "on"
	NodeCIDRsOnly = "only"
	// NodeCIDRsOwn is on for the Nodes of the manager's own cluster, and not for those of workload clusters.
	NodeCIDRsOwn = "own"
	// NodeCIDRsFleet is on for the Nodes of workload clusters, and not for those of the manager's own.
	NodeCIDRsFleet = "fleet"
)

// Options are the flags of the manager, as docs/install.md lists them.
type Options struct {
	LeaderElectNamespace string
	BlockNamespace       string
	LeaderElect          bool
	LeaseDuration        time.Duration
	RenewDeadline        time.Duration
	RetryPeriod          time.Duration
	Namespace            string
	WatchFilter          string
	Shard                string
	WebhookPort          int
	WebhookCertDir       string
	HealthProbeAddress   string
	PoolConcurrency      int
	Writers              int
	AuditInterval        time.Duration
	OrphanGrace          time.Duration
	ShrinkGrace          time.Duration
	LoadBalancers        bool
	Leases               bool
	InClusterPools       bool
	FailureDomains       bool
	ServiceLeases        bool
	HostLoadBalancers    bool
	// ControlPlaneEndpoints reports whether Clusters of ClusterClasses get their endpoints from pools.
	ControlPlaneEndpoints bool
	// AddressAttempts is how many addresses a Service gets for which another machine answers.
	AddressAttempts int
	NodeCIDRs       string
	// FleetNodeCIDRs reports whether workload clusters are served, whatever NodeCIDRs is for the manager's own cluster.
	FleetNodeCIDRs bool
	ServiceCIDRs   []string
	// ClusterCIDRs and the mask sizes are those of kube-controller-manager.
	ClusterCIDRs                         []string
	NodeMask, NodeMaskIPv4, NodeMaskIPv6 int
	NetworkingX                          bool
	Diagnostics                          flags.ManagerOptions
}

// ServesOwnNodes reports whether the Nodes of the manager's own cluster get their pod CIDRs.
func (o *Options) ServesOwnNodes() bool {
	return o.NodeCIDRs == NodeCIDRsOn || o.NodeCIDRs == NodeCIDRsOwn || o.NodeCIDRs == NodeCIDRsOnly
}

// ServesFleetNodes reports whether the Nodes of workload clusters get their pod CIDRs.
func (o *Options) ServesFleetNodes() bool {
	return o.NodeCIDRs == NodeCIDRsOn || o.NodeCIDRs == NodeCIDRsFleet || o.FleetNodeCIDRs
}

// ServesLeases reports whether IPLeases are served.
func (o *Options) ServesLeases() bool { return o.Leases || o.ServiceLeases || o.HostLoadBalancers }

// AddFlags adds the flags to a set, with their defaults.
func (o *Options) AddFlags(fs *pflag.FlagSet) {
	fs.BoolVar(&o.LeaderElect, "leader-elect", false,
		"Elect a leader among several managers. It saves work; two active managers are safe without it.")
	fs.StringVar(&o.BlockNamespace, "block-namespace", "", "Namespace of new blocks of GlobalNetworkPools that are carved from another. A manager in a cluster uses its own.")
	fs.StringVar(&o.LeaderElectNamespace, "leader-elect-namespace", "", "Namespace of the lease. A manager in a cluster uses its own.")
	fs.DurationVar(&o.LeaseDuration, "leader-elect-lease-duration", 15*time.Second, "How long other managers wait, after a leader last renewed its lease, before one takes its place.")
	fs.DurationVar(&o.RenewDeadline, "leader-elect-renew-deadline", 10*time.Second, "How long a leader tries to renew its lease before it gives up.")
	fs.DurationVar(&o.RetryPeriod, "leader-elect-retry-period", 2*time.Second, "How often a manager tries to become, or to stay, the leader.")
	fs.StringVar(&o.Namespace, "namespace", "",
		"Serve only the claims of this namespace. Global pools are then not served, because the manager cannot see the other holders of their addresses.")
	fs.StringVar(&o.WatchFilter, "watch-filter", "",
		fmt.Sprintf("Serve only the IPAddressClaims, IPAllocations and Clusters whose label %s has this value.", clusterv1.WatchLabel))
	fs.StringVar(&o.Shard, "shard", "",
		"Serve only a part of all pools, Clusters and ProviderConfigs: 1/3 is the first of three. Run a manager for each part: what belongs to a part without one is not served.")
	fs.IntVar(&o.WebhookPort, "webhook-port", 9443, "Port of the validating webhooks; 0 turns them off.")
	fs.StringVar(&o.WebhookCertDir, "webhook-cert-dir", "/tmp/k8s-webhook-server/serving-certs", "Directory with tls.crt and tls.key of the webhooks.")
	fs.StringVar(&o.HealthProbeAddress, "health-probe-bind-address", ":9440", "Address of /healthz and /readyz; 0 turns them off.")
	fs.IntVar(&o.PoolConcurrency, "pool-concurrency", 10, "Number of pools that are worked on at once.")
	fs.IntVar(&o.Writers, "writers", 32, "Number of objects that are written at once, over all pools; when all are busy, a pool without one may still write one.")
	fs.DurationVar(&o.AuditInterval, "audit-interval", 5*time.Minute, "How often the manager checks, from the API server, that no address is held twice or lost; 0 turns this audit off.")
	fs.DurationVar(&o.ShrinkGrace, "shrink-grace", 10*time.Minute, "How long a block stays when nothing uses it: a load-balancer block that was added on demand, or a block of a carved pool.")
	fs.BoolVar(&o.LoadBalancers, "load-balancers", false,
		"Give Clusters blocks for their load balancers, as ProviderConfigs say, and show them to the MetalLB of the Cluster. It reads the Secrets with the kubeconfigs of workload clusters.")
	fs.BoolVar(&o.Leases, "leases", false,
		"Serve IPLeases. --service-leases and --host-load-balancers imply it.")
	fs.BoolVar(&o.InClusterPools, "serve-in-cluster-pools", false,
		"Take the place of the in-cluster IPAM provider: serve the claims on its pools. Its own manager must not run at the same time.")
	fs.BoolVar(&o.FailureDomains, "failure-domains", false,
		"Give claims addresses of the subnets that serve the failure domain of their Machine. It reads Machines, and the objects of infrastructure providers that lead from a claim to its Machine, of pools with such subnets.")
	fs.BoolVar(&o.ServiceLeases, "service-leases", false,
		"Give the Services of the manager's own cluster the addresses of the IPLeases that they name, and have the MetalLB of that cluster show them. It watches all Services.")
	fs.BoolVar(&o.HostLoadBalancers, "host-load-balancers", false,
		fmt.Sprintf("Give Services of class %s of the manager's own cluster addresses that hosts show which run butler-host-lb. It watches all Services.", v1alpha1.HostLoadBalancerClass))
	fs.BoolVar(&o.ControlPlaneEndpoints, "control-plane-endpoints", false,
		"Give Clusters whose ClusterClass asks for it the address of their control plane from a pool: serve the hooks of Cluster API's Runtime SDK, on the port of the webhooks.")
	fs.IntVar(&o.AddressAttempts, "address-attempts", 5,
		"How many addresses a Service of a load balancer class gets, one after another, while another machine answers for each on the wire.")
	fs.DurationVar(&o.OrphanGrace, "orphan-grace", 75*time.Second, "How long an IPAddress whose claim is gone, or an IPAllocation whose Cluster or carved pool is gone, is kept in case a restore brings the other back.")
	fs.StringVar(&o.NodeCIDRs, "node-cidrs", NodeCIDRsOff,
		"Give Nodes their pod CIDRs, from ClusterCIDRs: off, on, own, for the Nodes of the manager's own cluster, fleet, for those of workload clusters, or only, which is own and does nothing else, so that it needs no Cluster API. No other allocator may do so at the same time.")
	fs.BoolVar(&o.FleetNodeCIDRs, "fleet-node-cidrs", false,
		"Give the Nodes of workload clusters their pod CIDRs, independently of --node-cidrs, which is for the manager's own cluster.")
	fs.StringSliceVar(&o.ServiceCIDRs, "service-cluster-ip-range", nil, "CIDRs of Services, which no Node is given. Those of ServiceCIDRs are known.")
	fs.StringSliceVar(&o.ClusterCIDRs, clusterCIDRFlag, nil,
		"Range that the manager's own Nodes get their pod CIDRs from, or one of each family: the manager makes a ClusterCIDR of it at its start, and deletes the one that it made of other flags before. As in kube-controller-manager.")
	fs.IntVar(&o.NodeMask, maskFlag, 0, "Prefix length of what each Node gets of --cluster-cidr, where that is one CIDR. By default 24 for IPv4 and 64 for IPv6.")
	fs.IntVar(&o.NodeMaskIPv4, maskFlagIPv4, 0, "Prefix length of what each Node gets of the IPv4 in --cluster-cidr. By default 24.")
	fs.IntVar(&o.NodeMaskIPv6, maskFlagIPv6, 0, "Prefix length of what each Node gets of the IPv6 in --cluster-cidr. By default 64.")
	fs.BoolVar(&o.NetworkingX, networkingXFlag, false,
		"Take the place of node-ipam-controller: give the manager's own Nodes CIDRs from the ClusterCIDRs of networking.x-k8s.io/v1 too. It must not run at the same time.")
	flags.AddManagerOptions(fs, &o.Diagnostics)
}
