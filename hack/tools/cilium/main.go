// Cilium-lbipam runs the LB IPAM of Cilium's operator, and nothing else of it, against the API server that
// --k8s-kubeconfig-path names. Tests give it blocks. The whole operator needs much more than a workload cluster of the
// tests has.
package main

import (
	"fmt"
	"log/slog"
	"os"

	"github.com/cilium/hive/cell"
	"github.com/spf13/pflag"
	"k8s.io/client-go/util/workqueue"

	"github.com/cilium/cilium/operator/pkg/lbipam"
	"github.com/cilium/cilium/pkg/hive"
	ciliumv2 "github.com/cilium/cilium/pkg/k8s/apis/cilium.io/v2"
	k8s "github.com/cilium/cilium/pkg/k8s/client"
	"github.com/cilium/cilium/pkg/k8s/resource"
	corev1 "github.com/cilium/cilium/pkg/k8s/slim/k8s/api/core/v1"
	"github.com/cilium/cilium/pkg/k8s/utils"
	"github.com/cilium/cilium/pkg/option"
)

func main() {
	option.Config.EnableIPv4, option.Config.EnableIPv6 = true, true
	option.Config.EnableBGPControlPlane, option.Config.EnableL2Announcements = true, true // needed to serve their classes
	h := hive.New(k8s.Cell, lbipam.Cell, cell.Provide(
		func() *option.DaemonConfig { return option.Config },
		func(lc cell.Lifecycle, cs k8s.Clientset, mp workqueue.MetricsProvider) resource.Resource[*ciliumv2.CiliumLoadBalancerIPPool] {
			return resource.New[*ciliumv2.CiliumLoadBalancerIPPool](lc, utils.ListerWatcherFromTyped(cs.CiliumV2().CiliumLoadBalancerIPPools()), mp)
		},
		func(lc cell.Lifecycle, cs k8s.Clientset, mp workqueue.MetricsProvider) resource.Resource[*corev1.Service] {
			return resource.New[*corev1.Service](lc, utils.ListerWatcherFromTyped(cs.Slim().CoreV1().Services("")), mp)
		},
	))
	flags := pflag.NewFlagSet("cilium-lbipam", pflag.ExitOnError)
	h.RegisterFlags(flags)
	err := flags.Parse(os.Args[1:])
	if err == nil {
		err = h.Run(slog.Default())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
