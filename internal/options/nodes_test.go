package options

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"
	"k8s.io/utils/ptr"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
)

func parse(t *testing.T, args ...string) *Options {
	t.Helper()
	o, fs := &Options{}, pflag.NewFlagSet("manager", pflag.ContinueOnError)
	o.AddFlags(fs)
	if err := fs.Parse(args); err != nil {
		t.Fatal(err)
	}
	return o
}

// TestClusterCIDROfFlags checks that the flags that kube-controller-manager accepts mean the same here.
func TestClusterCIDROfFlags(t *testing.T) { // K24
	tests := map[string]struct {
		args []string
		want *v1alpha1.ClusterCIDRSpec
	}{
		"none":                    {},
		"an empty one":            {args: []string{"--cluster-cidr="}},
		"IPv4":                    {args: []string{"--cluster-cidr=10.244.0.0/16"}, want: &v1alpha1.ClusterCIDRSpec{IPv4: "10.244.0.0/16", PerNodeHostBits: 8}},
		"IPv6":                    {args: []string{"--cluster-cidr=fd00:1::/48"}, want: &v1alpha1.ClusterCIDRSpec{IPv6: "fd00:1::/48", PerNodeHostBits: 64}},
		"host bits are left out":  {args: []string{"--cluster-cidr=10.244.3.1/16"}, want: &v1alpha1.ClusterCIDRSpec{IPv4: "10.244.0.0/16", PerNodeHostBits: 8}},
		"the size of one":         {args: []string{"--cluster-cidr=10.244.0.0/16", "--node-cidr-mask-size=26"}, want: &v1alpha1.ClusterCIDRSpec{IPv4: "10.244.0.0/16", PerNodeHostBits: 6}},
		"the size of one of IPv6": {args: []string{"--cluster-cidr=fd00:1::/48", "--node-cidr-mask-size=80"}, want: &v1alpha1.ClusterCIDRSpec{IPv6: "fd00:1::/48", PerNodeHostBits: 48}},
		"its size by family":      {args: []string{"--cluster-cidr=10.244.0.0/16", "--node-cidr-mask-size-ipv4=25"}, want: &v1alpha1.ClusterCIDRSpec{IPv4: "10.244.0.0/16", PerNodeHostBits: 7}},
		"all of it for one Node":  {args: []string{"--cluster-cidr=10.244.0.0/28", "--node-cidr-mask-size=28"}, want: &v1alpha1.ClusterCIDRSpec{IPv4: "10.244.0.0/28", PerNodeHostBits: 4}},
		"both": {
			args: []string{"--cluster-cidr=10.244.0.0/16, fd00:1::/48"},
			want: &v1alpha1.ClusterCIDRSpec{IPv4: "10.244.0.0/16", IPv6: "fd00:1::/48", PerNodeHostBits: 8, PerNodeHostBitsIPv6: ptr.To[int32](64)},
		},
		"both, the other way round, with sizes": {
			args: []string{"--cluster-cidr=fd00:1::/48,10.244.0.0/16", "--node-cidr-mask-size-ipv4=26", "--node-cidr-mask-size-ipv6=112"},
			want: &v1alpha1.ClusterCIDRSpec{IPv4: "10.244.0.0/16", IPv6: "fd00:1::/48", PerNodeHostBits: 6, PerNodeHostBitsIPv6: ptr.To[int32](16)},
		},
		"both, with as many host bits": {
			args: []string{"--cluster-cidr=10.244.0.0/16,fd00:1::/48", "--node-cidr-mask-size-ipv6=120"},
			want: &v1alpha1.ClusterCIDRSpec{IPv4: "10.244.0.0/16", IPv6: "fd00:1::/48", PerNodeHostBits: 8},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			o := parse(t, append(tt.args, "--node-cidrs=on")...)
			if err := o.Validate(); err != nil {
				t.Error(err)
			}
			if diff := cmp.Diff(tt.want, o.ClusterCIDRSpec()); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// TestClusterCIDRFlagsRefused checks that flags that kube-controller-manager rejects, or that cannot be served, are
// rejected with a message that names the next step.
func TestClusterCIDRFlagsRefused(t *testing.T) { // K24
	const four, six, both = "--cluster-cidr=10.244.0.0/16", "--cluster-cidr=fd00:1::/48", "--cluster-cidr=10.244.0.0/16,fd00:1::/48"
	tests := map[string]struct {
		args []string
		want string
	}{
		"no CIDR":                         {[]string{"--cluster-cidr=10.244.0.0"}, `--cluster-cidr=10.244.0.0: "10.244.0.0" is no CIDR`},
		"two of a family":                 {[]string{"--cluster-cidr=10.1.0.0/16,10.2.0.0/16"}, "--cluster-cidr=10.1.0.0/16,10.2.0.0/16: takes one CIDR, or one of IPv4 and one of IPv6; write a ClusterCIDR for each further one"},
		"three":                           {[]string{both + ",fd00:2::/48"}, "--cluster-cidr=10.244.0.0/16,fd00:1::/48,fd00:2::/48: takes one CIDR, or"},
		"one size for both":               {[]string{both, "--node-cidr-mask-size=24"}, "--node-cidr-mask-size=24: is for one CIDR, and --cluster-cidr has one of each family; use --node-cidr-mask-size-ipv4 and --node-cidr-mask-size-ipv6"},
		"a size, and one of a family":     {[]string{four, "--node-cidr-mask-size=24", "--node-cidr-mask-size-ipv4=24"}, "--node-cidr-mask-size=24: cannot be set together with"},
		"a size of IPv6 for IPv4":         {[]string{four, "--node-cidr-mask-size-ipv6=64"}, "--node-cidr-mask-size-ipv6=64: --cluster-cidr has no CIDR of IPv6; set --node-cidr-mask-size-ipv4"},
		"a size of IPv4 for IPv6":         {[]string{six, "--node-cidr-mask-size-ipv4=24"}, "--node-cidr-mask-size-ipv4=24: --cluster-cidr has no CIDR of IPv4; set --node-cidr-mask-size-ipv6"},
		"a size of nothing":               {[]string{"--node-cidr-mask-size=24"}, "--node-cidr-mask-size=24: is how much of --cluster-cidr each Node gets, and that is not set"},
		"more than there is":              {[]string{four, "--node-cidr-mask-size=15"}, "--node-cidr-mask-size=15: must be from 16 to 28: no more than all of 10.244.0.0/16 for a Node"},
		"fewer than 16 addresses":         {[]string{both, "--node-cidr-mask-size-ipv6=125"}, "--node-cidr-mask-size-ipv6=125: must be from 48 to 124:"},
		"a size below nothing":            {[]string{four, "--node-cidr-mask-size=-1"}, "--node-cidr-mask-size=-1: must be from 16 to 28:"},
		"less than a Node has by default": {[]string{"--cluster-cidr=10.244.0.0/25"}, "--cluster-cidr=10.244.0.0/25: is smaller than the /24 that each Node gets; make it larger, or set --node-cidr-mask-size-ipv4"},
		"objects without Nodes":           {[]string{"--serve-node-ipam-cluster-cidrs", "--node-cidrs=off"}, "--serve-node-ipam-cluster-cidrs=true: these are for the Nodes of the manager's own cluster, which get nothing with --node-cidrs=off;"},
		"a range without Nodes":           {[]string{four, "--node-cidrs=fleet"}, "--cluster-cidr=10.244.0.0/16: is for the Nodes of the manager's own cluster, which get nothing with --node-cidrs=fleet;"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			o := parse(t, append([]string{"--node-cidrs=on"}, tt.args...)...)
			err := o.Validate()
			if err == nil || !strings.HasPrefix(err.Error(), tt.want) || strings.Contains(err.Error(), "\n") {
				t.Errorf("got %v, want %s", err, tt.want)
			}
		})
	}
}
