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
	timeout time.Duration
}

func main() {
	var opts options
	flag.StringVar(&opts.manager, "manager", "", "the manager to run (default: built from the current source)")
	flag.BoolVar(&opts.exit, "exit", os.Getenv("CI") != "", "exit when everything has been shown (default where CI is set)")
	flag.BoolVar(&opts.elastic, "elastic", false, "show a workload cluster with MetalLB that grows and shrinks, instead of claims")
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
	cp, err := framework.Start(framework.Options{Webhooks: true})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, cp.Stop()) }()
	stopCore, err := coreapi.Serve(ctx, cp) // or a poolRef could be changed, which Cluster API refuses
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stopCore()) }()
	steps.endf("etcd and kube-apiserver at %s, CRDs installed, webhooks of Cluster API", strings.TrimSuffix(cp.Config.Host, "/"))

	story, args, tenant := demo, []string(nil), ""
	if opts.elastic {
		w, err := startWorkload(ctx, steps)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, w.stop()) }()
		story, args, tenant = w.elastic, []string{"--shrink-grace=" + shrinkGrace.String()}, w.Kubeconfig
	}

	steps.begin("manager")
	kubeconfig, err := cp.ManagerKubeconfig(ctx)
	if err != nil {
		return err
	}
	mgr, err := framework.StartManager(ctx, framework.ManagerOptions{
		Args:           args,
		Binary:         opts.manager,
		Kubeconfig:     kubeconfig,
		LogFile:        filepath.Join(cp.Dir, "manager.log"),
		WebhookPort:    cp.WebhookPort,
		WebhookCertDir: cp.WebhookCertDir,
	})
	if err != nil {
		return err
	}
	defer func() {
		log := mgr.LogTail(logLines)
		if err = errors.Join(err, mgr.Stop()); err != nil {
			err = fmt.Errorf("%w\n\nthe manager's last words:\n%s", err, log)
		}
	}()
	steps.endf("process %d, webhooks on, rights of config/rbac", mgr.Pid())

	show, cancel := context.WithTimeout(ctx, opts.timeout)
	defer cancel()
	if err := story(show, cp, steps); err != nil {
		return err
	}
	if opts.exit {
		return nil
	}
	hints(out, cp, tenant, mgr.PageURL())
	select {
	case <-ctx.Done():
		fmt.Fprintln(out)
		return nil
	case <-mgr.Done():
		return errors.New("the manager ended by itself")
	}
}

// hints say how to go on from here; tenant is the kubeconfig of the workload cluster, if there is one, page where the
// manager shows its pools.
func hints(out io.Writer, cp *framework.ControlPlane, tenant, page string) {
	kubectl := "kubectl"
	if assets, err := framework.Assets(); err == nil {
		if _, err := os.Stat(filepath.Join(assets, kubectl)); err == nil {
			kubectl = filepath.Join(assets, kubectl)
		}
	}
	try := []string{"kubectl get networkpools,globalnetworkpools", "kubectl get ipaddresses.ipam.cluster.x-k8s.io", "kubectl delete ipaddressclaim lab-worker-0"}
	if tenant != "" {
		tenant = "kubectl --kubeconfig=" + tenant
		try = []string{
			tenant + " create service loadbalancer more --tcp=443", tenant + " get services,ipaddresspools -A",
			"kubectl get ipallocations", "kubectl get events",
		}
	}
	fmt.Fprintf(out, `
The pools, their addresses and who has them: %s

All of it stays until Ctrl-C. In another terminal:

  export KUBECONFIG=%s
  alias kubectl=%s   # or: make plugin, and export PATH=$PWD/bin:$PATH for kubectl butler-ipam too
  %s
  tail -f %s
`, page, cp.Kubeconfig, kubectl, strings.Join(try, "\n  "), filepath.Join(cp.Dir, "manager.log"))
}
