package options

import (
	"cmp"
	"net/netip"
	"strings"

	"k8s.io/utils/ptr"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
)

// complainer takes what is wrong with the value of a flag.
type complainer = func(flag string, value any, format string, args ...any)

// The flags of kube-controller-manager that say what Nodes get.
const (
	clusterCIDRFlag = "cluster-cidr"
	maskFlag        = "node-cidr-mask-size"
	maskFlagIPv4    = "node-cidr-mask-size-ipv4"
	maskFlagIPv6    = "node-cidr-mask-size-ipv6"
)

const networkingXFlag = "serve-node-ipam-cluster-cidrs"

// shortest is the least prefix length that a Node can get, of either family.
const shortest = 4

// family is what differs between the families: how long an address is, and what a Node gets by default and at least.
type family struct {
	name, flag                   string
	bits, defaultLength, longest int
	length                       func(*Options) int
}

// families are IPv4 and IPv6, with the defaults of kube-controller-manager.
var families = [2]family{
	{name: "IPv4", flag: maskFlagIPv4, bits: 32, defaultLength: 24, longest: 28, length: func(o *Options) int { return o.NodeMaskIPv4 }},
	{name: "IPv6", flag: maskFlagIPv6, bits: 128, defaultLength: 64, longest: 124, length: func(o *Options) int { return o.NodeMaskIPv6 }},
}

// ClusterCIDR is what --cluster-cidr and the sizes stand for, as kube-controller-manager understands them; nil: they say
// nothing. Check has found nothing wrong with them.
func (o *Options) ClusterCIDR() *v1alpha1.ClusterCIDRSpec {
	return o.clusterCIDR(func(string, any, string, ...any) {})
}

// checkNodes looks at what says which Nodes get CIDRs, and from what.
func (o *Options) checkNodes(complain complainer) {
	o.clusterCIDR(complain)
	if len(o.ClusterCIDRs) > 0 && !o.OwnNodes() {
		complain(clusterCIDRFlag, strings.Join(o.ClusterCIDRs, ","), "is for the Nodes of the manager's own cluster, which get nothing with --node-cidrs=%s; set that to on, own or only, or write a ClusterCIDR with a clusterSelector", o.NodeCIDRs)
	}
	if o.NetworkingX && !o.OwnNodes() {
		complain(networkingXFlag, o.NetworkingX, "these are for the Nodes of the manager's own cluster, which get nothing with --node-cidrs=%s; set that to on, own or only", o.NodeCIDRs)
	}
}

func (o *Options) clusterCIDR(complain complainer) *v1alpha1.ClusterCIDRSpec {
	value := strings.Join(o.ClusterCIDRs, ",")
	wrong := false
	refuse := func(flag string, value any, format string, args ...any) {
		wrong = true
		complain(flag, value, format, args...)
	}
	cidrs, err := Prefixes(o.ClusterCIDRs)
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
	o.checkMasks(of, refuse)
	if wrong || len(cidrs) == 0 {
		return nil
	}
	var hostBits [2]int
	for f, p := range of {
		if p.IsValid() {
			hostBits[f] = families[f].bits - o.lengthOf(families[f], p, len(cidrs) > 1, refuse)
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

// checkMasks refuses the combinations of sizes that kube-controller-manager refuses.
func (o *Options) checkMasks(of [2]netip.Prefix, refuse complainer) {
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
	for f, is := range families {
		if n := is.length(o); n != 0 && !of[f].IsValid() {
			refuse(is.flag, n, "--%s has no CIDR of %s; set --%s", clusterCIDRFlag, is.name, families[1-f].flag)
		}
	}
}

// lengthOf is the prefix length of what each Node gets of a CIDR.
func (o *Options) lengthOf(f family, p netip.Prefix, both bool, refuse complainer) int {
	flag, n := f.flag, f.length(o)
	if n == 0 && !both && o.NodeMask != 0 {
		flag, n = maskFlag, o.NodeMask
	}
	least := max(p.Bits(), shortest)
	switch {
	case n == 0 && f.defaultLength < least:
		refuse(clusterCIDRFlag, p, "is smaller than the /%d that each Node gets; make it larger, or say with --%s what they get", f.defaultLength, f.flag)
	case n == 0:
		return f.defaultLength
	case n < least || n > f.longest:
		refuse(flag, n, "must be from %d to %d: no more than all of %s for a Node, and no less than 16 addresses", least, f.longest, p)
	}
	return n
}
