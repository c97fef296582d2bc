// Quickstart demonstrates the provider with a real API server, on this machine alone: it starts etcd and kube-apiserver
// on loopback, runs the manager as a separate process, with its webhooks and with the rights of config/rbac, applies
// config/samples, and prints the address and the latency of every claim. It runs until Ctrl-C, so that the user can
// explore, and leaves nothing behind.
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

// logTailLines is the number of lines of the manager's log that are printed after an error.
const logTailLines = 20

type options struct {
	managerBinary string
	exitWhenDone  bool
	elastic       bool
	nodes         bool
	leases        bool
	hosts         bool
	timeout       time.Duration
}

func main() {
	var opts options
	flag.StringVar(&opts.managerBinary, "manager", "", "the manager to run (default: built from the current source)")
	flag.BoolVar(&opts.exitWhenDone, "exit", os.Getenv("CI") != "", "exit when everything has been shown (default where CI is set)")
	flag.BoolVar(&opts.elastic, "elastic", false, "show a workload cluster with MetalLB that grows and shrinks, instead of claims")
	flag.BoolVar(&opts.nodes, "nodes", false, "show Nodes that get their pod CIDRs, instead of claims")
	flag.BoolVar(&opts.leases, "leases", false, "show tenants that lease addresses for their Services, instead of claims")
	flag.BoolVar(&opts.hosts, "hosts", false, "show hosts that have the address of a Service, one after the other, instead of claims")
	flag.DurationVar(&opts.timeout, "timeout", 3*time.Minute, "how long all of it may take")
	flag.Parse()

	// The libraries log for developers; the output is for users.
	ctrl.SetLogger(logr.Discard())

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := runQuickstart(ctx, opts, os.Stdout)
	stop()
	if err != nil {
		fmt.Fprintf(os.Stderr, "\nquickstart: %v\n", err)
		os.Exit(1)
	}
}

// runQuickstart returns nil once everything was shown, whatever ends it after that.
func runQuickstart(ctx context.Context, opts options, out io.Writer) (err error) {
	fmt.Fprint(out, "Butler, an IPAM provider for Cluster API\n\n")
	steps := &stepPrinter{out: out}

	steps.beginStep("API server")
	cp, err := framework.StartControlPlane(framework.Options{Webhooks: !opts.nodes})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, cp.Stop()) }()
	with := ""
	if !opts.nodes {
		stopCore, startErr := coreapi.ServeWebhooks(ctx, cp) // else a poolRef could be changed, which Cluster API refuses
		if startErr != nil {
			return startErr
		}
		defer func() { err = errors.Join(err, stopCore()) }()
		with = ", webhooks of Cluster API"
	}
	steps.endStepf("etcd and kube-apiserver at %s, CRDs installed%s", strings.TrimSuffix(cp.Config.Host, "/"), with)

	s := newPoolsScenario(cp)
	switch {
	case opts.elastic:
		w, startErr := startWorkloadCluster(ctx, steps)
		if startErr != nil {
			return startErr
		}
		defer func() { err = errors.Join(err, w.stopAll()) }()
		s = newElasticScenario(cp, w)
	case opts.nodes:
		s = newNodesScenario(cp)
	case opts.leases:
		m, startErr := startMetalLB(ctx, cp, steps)
		if startErr != nil {
			return startErr
		}
		defer func() { _ = m.Kill() }() // it may have ended
		s = newLeasesScenario(cp)
	case opts.hosts:
		h, startErr := startHostNetwork(ctx, cp, findHostBinary(opts.managerBinary), steps)
		if startErr != nil {
			return startErr
		}
		defer func() { err = errors.Join(err, h.stopAll()) }()
		s = newHostsScenario(cp, h)
	}

	steps.beginStep("manager")
	kubeconfig, err := s.kubeconfig(ctx)
	if err != nil {
		return err
	}
	mgr, err := framework.StartManager(ctx, framework.ManagerOptions{
		Args:           s.args,
		Binary:         opts.managerBinary,
		Kubeconfig:     kubeconfig,
		LogFile:        filepath.Join(cp.Dir, "manager.log"),
		WebhookPort:    cp.WebhookPort,
		WebhookCertDir: cp.WebhookCertDir,
	})
	if err != nil {
		return err
	}
	ended := false // by itself or by a user; that was printed
	defer func() {
		log, stopped := mgr.LogTail(logTailLines), mgr.Stop()
		if ended {
			return
		}
		if err = errors.Join(err, stopped); err != nil {
			err = fmt.Errorf("%w\n\nthe manager's last words:\n%s", err, log)
		}
	}()
	steps.endStepf("process %d, %s, rights of config/rbac", mgr.Pid(), s.description)

	show, cancel := context.WithTimeout(ctx, opts.timeout)
	defer cancel()
	if err := s.run(show, cp, steps); err != nil {
		return err
	}
	if opts.exitWhenDone {
		return nil
	}
	page := ""
	if !opts.nodes {
		page = mgr.PageURL()
	}
	printHints(out, cp, s.hints, page)
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
`, mgr.LogTail(logTailLines), mgr.CommandLine())
	<-ctx.Done()
	fmt.Fprintln(out)
	return nil
}

// scenario is a demonstration, and the manager that it needs.
type scenario struct {
	run func(context.Context, *framework.ControlPlane, *stepPrinter) error
	// args are the flags of the manager, description describes them, and kubeconfig returns the path of its kubeconfig.
	args        []string
	description string
	kubeconfig  func(context.Context) (string, error)
	// hints are commands for the user to continue with.
	hints []string
}

func newPoolsScenario(cp *framework.ControlPlane) scenario {
	return scenario{run: showPools, args: framework.ComponentFlags(), description: "webhooks, load balancers and leases on (the last two are off by default)", kubeconfig: cp.ComponentsManagerKubeconfig, hints: []string{
		"kubectl get networkpools,globalnetworkpools", "kubectl get ipaddresses.ipam.cluster.x-k8s.io", "kubectl delete ipaddressclaim lab-worker-0",
	}}
}

func newNodesScenario(cp *framework.ControlPlane) scenario {
	return scenario{run: showNodes, args: []string{"--node-cidrs=only"}, description: "--node-cidrs=only", kubeconfig: cp.NodesManagerKubeconfig, hints: []string{
		"kubectl get clustercidrs -o wide", "kubectl get nodes -o custom-columns=NAME:.metadata.name,CIDRS:.spec.podCIDRs",
		`echo '{"apiVersion": "v1", "kind": "Node", "metadata": {"name": "worker-3"}}' | kubectl create -f -`,
		"kubectl delete clustercidr first --wait=false", "kubectl wait clustercidr first --for=condition=Ready=false",
		"kubectl get clustercidr first -o wide", "kubectl delete nodes worker-0 worker-1", "kubectl wait clustercidr first --for=delete",
	}}
}

func newElasticScenario(cp *framework.ControlPlane, w *workloadCluster) scenario {
	args := append(framework.ComponentFlags(), "--shrink-grace="+shrinkGrace.String())
	return scenario{run: w.showElasticPool, args: args, description: "webhooks and load balancers on", kubeconfig: cp.ComponentsManagerKubeconfig, hints: elasticHints(w.Kubeconfig)}
}

// elasticHints returns commands for a workload cluster and its management cluster.
func elasticHints(tenant string) []string {
	tenant = "kubectl --kubeconfig=" + tenant
	return []string{
		tenant + " create service loadbalancer more --tcp=443", tenant + " get services,ipaddresspools -A",
		"kubectl get ipallocations", "kubectl get events",
	}
}

// printHints prints how to continue. page is the URL of the manager's page of pools; "" if there is none.
func printHints(out io.Writer, cp *framework.ControlPlane, try []string, page string) {
	kubectl := "kubectl"
	if assets, err := framework.FindAssets(); err == nil {
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
