package options

import (
	"cmp"
	"net/netip"
	"strings"

	"k8s.io/utils/ptr"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
)

// reportFlagFunc records what is wrong with the value of a flag.
type reportFlagFunc = func(flag string, value any, format string, args ...any)

// The flags of kube-controller-manager for the pod CIDRs of Nodes.
const (
	clusterCIDRFlag = "cluster-cidr"
	maskFlag        = "node-cidr-mask-size"
	maskFlagIPv4    = "node-cidr-mask-size-ipv4"
	maskFlagIPv6    = "node-cidr-mask-size-ipv6"
)

const networkingXFlag = "serve-node-ipam-cluster-cidrs"

// minPrefixLength is the shortest prefix length that a Node can get, of either family.
const minPrefixLength = 4

// ipFamily has what differs between the families: the length of an address, and how much a Node gets by default and at
// least.
type ipFamily struct {
	name, flag                     string
	bits, defaultLength, maxLength int
	configuredLength               func(*Options) int
}

// ipFamilies are IPv4 and IPv6, with the defaults of kube-controller-manager.
var ipFamilies = [2]ipFamily{
	{name: "IPv4", flag: maskFlagIPv4, bits: 32, defaultLength: 24, maxLength: 28, configuredLength: func(o *Options) int { return o.NodeMaskIPv4 }},
	{name: "IPv6", flag: maskFlagIPv6, bits: 128, defaultLength: 64, maxLength: 124, configuredLength: func(o *Options) int { return o.NodeMaskIPv6 }},
}

// ClusterCIDRSpec returns the spec of --cluster-cidr and the mask sizes, as kube-controller-manager understands them,
// or nil if they are not set. Validate must have found nothing wrong with them.
func (o *Options) ClusterCIDRSpec() *v1alpha1.ClusterCIDRSpec {
	return o.buildClusterCIDR(func(string, any, string, ...any) {})
}

// validateNodeCIDRs checks the flags for which Nodes get CIDRs, and from which ranges.
func (o *Options) validateNodeCIDRs(reportFlag reportFlagFunc) {
	o.buildClusterCIDR(reportFlag)
	if len(o.ClusterCIDRs) > 0 && !o.ServesOwnNodes() {
		reportFlag(clusterCIDRFlag, strings.Join(o.ClusterCIDRs, ","), "is for the Nodes of the manager's own cluster, which get nothing with --node-cidrs=%s; set that to on, own or only, or write a ClusterCIDR with a clusterSelector", o.NodeCIDRs)
	}
	if o.NetworkingX && !o.ServesOwnNodes() {
		reportFlag(networkingXFlag, o.NetworkingX, "these are for the Nodes of the manager's own cluster, which get nothing with --node-cidrs=%s; set that to on, own or only", o.NodeCIDRs)
	}
}

func (o *Options) buildClusterCIDR(reportFlag reportFlagFunc) *v1alpha1.ClusterCIDRSpec {
	value := strings.Join(o.ClusterCIDRs, ",")
	wrong := false
	refuse := func(flag string, value any, format string, args ...any) {
		wrong = true
		reportFlag(flag, value, format, args...)
	}
	cidrs, err := ParsePrefixes(o.ClusterCIDRs)
	if err != nil {
		refuse(clusterCIDRFlag, value, "%v", err)
		return nil
	}
	var of [2]netip.Prefix
	for _, p := range cidrs {
		f := 0
		if p.Addr().Is6() {
			f = 1
		}
		if of[f].IsValid() {
			refuse(clusterCIDRFlag, value, "takes one CIDR, or one of IPv4 and one of IPv6; write a ClusterCIDR for each further one")
			return nil
		}
		of[f] = p
	}
	o.validateMaskSizes(of, refuse)
	if wrong || len(cidrs) == 0 {
		return nil
	}
	var hostBits [2]int
	for f, p := range of {
		if p.IsValid() {
			hostBits[f] = ipFamilies[f].bits - o.nodePrefixLength(ipFamilies[f], p, len(cidrs) > 1, refuse)
		}
	}
	if wrong {
		return nil
	}
	out := &v1alpha1.ClusterCIDRSpec{PerNodeHostBits: int32(cmp.Or(hostBits[0], hostBits[1]))}
	if of[0].IsValid() {
		out.IPv4 = of[0].String()
	}
	if of[1].IsValid() {
		out.IPv6 = of[1].String()
	}
	if len(cidrs) > 1 && hostBits[0] != hostBits[1] {
		out.PerNodeHostBitsIPv6 = ptr.To(int32(hostBits[1]))
	}
	return out
}

// validateMaskSizes rejects the combinations of mask sizes that kube-controller-manager rejects.
func (o *Options) validateMaskSizes(of [2]netip.Prefix, refuse reportFlagFunc) {
	both := of[0].IsValid() && of[1].IsValid()
	if !of[0].IsValid() && !of[1].IsValid() {
		for flag, n := range map[string]int{maskFlag: o.NodeMask, maskFlagIPv4: o.NodeMaskIPv4, maskFlagIPv6: o.NodeMaskIPv6} {
			if n != 0 {
				refuse(flag, n, "is how much of --%s each Node gets, and that is not set; a ClusterCIDR has perNodeHostBits", clusterCIDRFlag)
			}
		}
		return
	}
	switch {
	case o.NodeMask == 0:
	case both:
		refuse(maskFlag, o.NodeMask, "is for one CIDR, and --%s has one of each family; use --%s and --%s", clusterCIDRFlag, maskFlagIPv4, maskFlagIPv6)
	case o.NodeMaskIPv4 != 0 || o.NodeMaskIPv6 != 0:
		refuse(maskFlag, o.NodeMask, "cannot be set together with --%s or --%s; set either it, or the one of the family", maskFlagIPv4, maskFlagIPv6)
	}
	for f, family := range ipFamilies {
		if n := family.configuredLength(o); n != 0 && !of[f].IsValid() {
			refuse(family.flag, n, "--%s has no CIDR of %s; set --%s", clusterCIDRFlag, family.name, ipFamilies[1-f].flag)
		}
	}
}

// nodePrefixLength returns the prefix length of the part of a CIDR that each Node gets.
func (o *Options) nodePrefixLength(f ipFamily, p netip.Prefix, both bool, refuse reportFlagFunc) int {
	flag, n := f.flag, f.configuredLength(o)
	if n == 0 && !both && o.NodeMask != 0 {
		flag, n = maskFlag, o.NodeMask
	}
	least := max(p.Bits(), minPrefixLength)
	switch {
	case n == 0 && f.defaultLength < least:
		refuse(clusterCIDRFlag, p, "is smaller than the /%d that each Node gets; make it larger, or set --%s", f.defaultLength, f.flag)
	case n == 0:
		return f.defaultLength
	case n < least || n > f.maxLength:
		refuse(flag, n, "must be from %d to %d: no more than all of %s for a Node, and no less than 16 addresses", least, f.maxLength, p)
	}
	return n
}
