// Quickstart shows the provider at work on a real API server, on this machine alone: it starts etcd
// and kube-apiserver on loopback, runs the manager as a process of its own, with its webhooks and
// with the rights of config/rbac, applies config/samples, and shows what every claim was given and
// how fast. It stays for a look around until Ctrl-C, and leaves nothing behind.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/go-logr/logr"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework/coreapi"
)

// logLines of the manager are shown when something went wrong.
const logLines = 20

type options struct {
	manager string
	exit    bool
	elastic bool
	nodes   bool
	leases  bool
	hosts   bool
	timeout time.Duration
}

func main() {
	var opts options
	flag.StringVar(&opts.manager, "manager", "", "the manager to run (default: built from the current source)")
	flag.BoolVar(&opts.exit, "exit", os.Getenv("CI") != "", "exit when everything has been shown (default where CI is set)")
	flag.BoolVar(&opts.elastic, "elastic", false, "show a workload cluster with MetalLB that grows and shrinks, instead of claims")
	flag.BoolVar(&opts.nodes, "nodes", false, "show Nodes that get their pod CIDRs, instead of claims")
	flag.BoolVar(&opts.leases, "leases", false, "show tenants that lease addresses for their Services, instead of claims")
	flag.BoolVar(&opts.hosts, "hosts", false, "show hosts that have the address of a Service, one after the other, instead of claims")
	flag.DurationVar(&opts.timeout, "timeout", 3*time.Minute, "how long all of it may take")
	flag.Parse()

	// The libraries log for developers; what is said here is for users.
	ctrl.SetLogger(logr.Discard())

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, opts, os.Stdout)
	stop()
	if err != nil {
		fmt.Fprintf(os.Stderr, "\nquickstart: %v\n", err)
		os.Exit(1)
	}
}

// run returns nil when everything was shown, whatever ended it then.
func run(ctx context.Context, opts options, out io.Writer) (err error) {
	fmt.Fprint(out, "Butler, an IPAM provider for Cluster API\n\n")
	steps := &steps{out: out}

	steps.begin("API server")
	cp, err := framework.Start(framework.Options{Webhooks: !opts.nodes})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, cp.Stop()) }()
	with := ""
	if !opts.nodes {
		stopCore, startErr := coreapi.Serve(ctx, cp) // or a poolRef could be changed, which Cluster API refuses
		if startErr != nil {
			return startErr
		}
		defer func() { err = errors.Join(err, stopCore()) }()
		with = ", webhooks of Cluster API"
	}
	steps.endf("etcd and kube-apiserver at %s, CRDs installed%s", strings.TrimSuffix(cp.Config.Host, "/"), with)

	s := aboutPools(cp)
	switch {
	case opts.elastic:
		w, startErr := startWorkload(ctx, steps)
		if startErr != nil {
			return startErr
		}
		defer func() { err = errors.Join(err, w.stop()) }()
		s = aboutElastic(cp, w)
	case opts.nodes:
		s = aboutNodes(cp)
	case opts.leases:
		m, startErr := startMetalLB(ctx, cp, steps)
		if startErr != nil {
			return startErr
		}
		defer func() { _ = m.Kill() }() // it may have ended
		s = aboutLeases(cp)
	case opts.hosts:
		h, startErr := startHosts(ctx, cp, hostBinary(opts.manager), steps)
		if startErr != nil {
			return startErr
		}
		defer func() { err = errors.Join(err, h.end()) }()
		s = aboutHosts(cp, h)
	}

	steps.begin("manager")
	kubeconfig, err := s.kubeconfig(ctx)
	if err != nil {
		return err
	}
	mgr, err := framework.StartManager(ctx, framework.ManagerOptions{
		Args:           s.args,
		Binary:         opts.manager,
		Kubeconfig:     kubeconfig,
		LogFile:        filepath.Join(cp.Dir, "manager.log"),
		WebhookPort:    cp.WebhookPort,
		WebhookCertDir: cp.WebhookCertDir,
	})
	if err != nil {
		return err
	}
	ended := false // by itself, or by somebody: that was told
	defer func() {
		log, stopped := mgr.LogTail(logLines), mgr.Stop()
		if ended {
			return
		}
		if err = errors.Join(err, stopped); err != nil {
			err = fmt.Errorf("%w\n\nthe manager's last words:\n%s", err, log)
		}
	}()
	steps.endf("process %d, %s, rights of config/rbac", mgr.Pid(), s.mode)

	show, cancel := context.WithTimeout(ctx, opts.timeout)
	defer cancel()
	if err := s.tell(show, cp, steps); err != nil {
		return err
	}
	if opts.exit {
		return nil
	}
	page := ""
	if !opts.nodes {
		page = mgr.PageURL()
	}
	hints(out, cp, s.hints, page)
	select {
	case <-ctx.Done():
		fmt.Fprintln(out)
		return nil
	case <-mgr.Done():
	}
	ended = true
	fmt.Fprintf(out, `
The manager has ended. Its last words:

%s
The API server stays until Ctrl-C, with all that is in it. To start the manager again, in another terminal:

  %s
`, mgr.LogTail(logLines), mgr.CommandLine())
	<-ctx.Done()
	fmt.Fprintln(out)
	return nil
}

// story is what is shown, and with which manager.
type story struct {
	tell func(context.Context, *framework.ControlPlane, *steps) error
	// args are flags of the manager, mode is what is said of them, and kubeconfig is what it works with.
	args       []string
	mode       string
	kubeconfig func(context.Context) (string, error)
	// hints are commands to go on with.
	hints []string
}

func aboutPools(cp *framework.ControlPlane) story {
	return story{tell: demo, args: framework.Components(), mode: "webhooks, load balancers and leases on (the last two are off by default)", kubeconfig: cp.ComponentsManagerKubeconfig, hints: []string{
		"kubectl get networkpools,globalnetworkpools", "kubectl get ipaddresses.ipam.cluster.x-k8s.io", "kubectl delete ipaddressclaim lab-worker-0",
	}}
}

func aboutNodes(cp *framework.ControlPlane) story {
	return story{tell: nodes, args: []string{"--node-cidrs=only"}, mode: "--node-cidrs=only", kubeconfig: cp.NodesManagerKubeconfig, hints: []string{
		"kubectl get clustercidrs -o wide", "kubectl get nodes -o custom-columns=NAME:.metadata.name,CIDRS:.spec.podCIDRs",
		`echo '{"apiVersion": "v1", "kind": "Node", "metadata": {"name": "worker-3"}}' | kubectl create -f -`,
		"kubectl delete clustercidr first --wait=false", "kubectl wait clustercidr first --for=condition=Ready=false",
		"kubectl get clustercidr first -o wide", "kubectl delete nodes worker-0 worker-1", "kubectl wait clustercidr first --for=delete",
	}}
}

func aboutElastic(cp *framework.ControlPlane, w *workload) story {
	args := append(framework.Components(), "--shrink-grace="+shrinkGrace.String())
	return story{tell: w.elastic, args: args, mode: "webhooks and load balancers on", kubeconfig: cp.ComponentsManagerKubeconfig, hints: hintsOnElastic(w.Kubeconfig)}
}

// hintsOnElastic are commands for a workload cluster and its management cluster.
func hintsOnElastic(tenant string) []string {
	tenant = "kubectl --kubeconfig=" + tenant
	return []string{
		tenant + " create service loadbalancer more --tcp=443", tenant + " get services,ipaddresspools -A",
		"kubectl get ipallocations", "kubectl get events",
	}
}

// hints say how to go on from here; page is where the manager shows its pools, empty: it has none.
func hints(out io.Writer, cp *framework.ControlPlane, try []string, page string) {
	kubectl := "kubectl"
	if assets, err := framework.Assets(); err == nil {
		if _, err := os.Stat(filepath.Join(assets, kubectl)); err == nil {
			kubectl = filepath.Join(assets, kubectl)
		}
	}
	if page != "" {
		fmt.Fprintf(out, "\nThe pools, their addresses and who has them: %s\n", page)
	}
	fmt.Fprintf(out, `
All of it stays until Ctrl-C. In another terminal:

  export KUBECONFIG=%s
  alias kubectl=%s   # or: make plugin, and export PATH=$PWD/bin:$PATH for kubectl butler-ipam too
  %s
  tail -f %s
`, cp.Kubeconfig, kubectl, strings.Join(try, "\n  "), filepath.Join(cp.Dir, "manager.log"))
}
