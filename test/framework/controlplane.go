package framework

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"time"

	m3ipamv1 "github.com/metal3-io/ip-address-manager/api/v1alpha1"
	metallbv1beta1 "go.universe.tf/metallb/api/v1beta1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/cilium"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework/watchdog"
)

// A loaded machine with few cores is slow to start an API server; it is not broken.
const (
	startTimeout = 2 * time.Minute
	stopTimeout  = 30 * time.Second
)

// Options say what a control plane is started with.
type Options struct {
	// Webhooks registers the validating webhooks of config/webhook at a port on loopback. A manager
	// serves them if it is given WebhookPort and WebhookCertDir of the ControlPlane; until one does,
	// pools cannot be written.
	Webhooks bool

	// NoCRDs leaves the API server as it comes: something else installs the CRDs.
	NoCRDs bool

	// APIServerArgs are flags of the kube-apiserver without their dashes, added to or in place of
	// those this package sets.
	APIServerArgs map[string]string
}

// ControlPlane is an etcd and a kube-apiserver on loopback, with the CRDs of this provider and those
// of Cluster API that it needs. No controller of Kubernetes runs: no garbage collection, and
// namespaces that are deleted stay.
type ControlPlane struct {
	// Config is an administrator's, without any limit on the client's side.
	Config *rest.Config
	// Kubeconfig is the path of a file with the same credentials.
	Kubeconfig string
	// Dir holds everything the control plane writes, its logs (apiserver.log, etcd.log) too. It is
	// removed by Stop.
	Dir string
	// WebhookPort and WebhookCertDir are where the API server expects the webhooks to be served, and
	// with which certificate. Zero and empty without Options.Webhooks.
	WebhookPort    int
	WebhookCertDir string

	env  *envtest.Environment
	logs []*os.File
}

// Scheme knows the kinds of Kubernetes, of Cluster API, of MetalLB and of this provider.
func Scheme() (*runtime.Scheme, error) {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		clientgoscheme.AddToScheme, apiextensionsv1.AddToScheme, clusterv1.AddToScheme, ipamv1.AddToScheme, metallbv1beta1.AddToScheme,
		m3ipamv1.AddToScheme, cilium.AddToScheme, v1alpha1.AddToScheme,
	} {
		if err := add(scheme); err != nil {
			return nil, fmt.Errorf("building the scheme: %w", err)
		}
	}
	return scheme, nil
}

// Start starts a control plane and installs the CRDs. It takes a few seconds. The caller ends it
// with Stop.
func Start(opts Options) (*ControlPlane, error) {
	assets, err := Assets()
	if err != nil {
		return nil, err
	}
	crds, err := CRDPaths(context.Background())
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "butler-ipam-")
	if err != nil {
		return nil, fmt.Errorf("starting the control plane: %w", err)
	}
	wrapped, err := wrapBinaries(dir, assets)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("starting the control plane: %w", err), os.RemoveAll(dir))
	}
	cp := &ControlPlane{Dir: dir, env: &envtest.Environment{
		BinaryAssetsDirectory:    wrapped,
		ControlPlaneStartTimeout: startTimeout,
		ControlPlaneStopTimeout:  stopTimeout,
		UseExistingCluster:       new(bool),
	}}
	if !opts.NoCRDs {
		cp.env.CRDInstallOptions = envtest.CRDInstallOptions{Paths: crds, ErrorIfPathMissing: true, MaxTime: startTimeout}
	}
	if err := cp.start(opts); err != nil {
		return nil, errors.Join(fmt.Errorf("starting the control plane: %w", err), cp.Stop())
	}
	return cp, nil
}

func (c *ControlPlane) start(opts Options) error {
	if err := c.configureEtcd(); err != nil {
		return err
	}
	if err := c.configureAPIServer(opts); err != nil {
		return err
	}
	if opts.Webhooks {
		if err := c.configureWebhooks(); err != nil {
			return err
		}
	}
	cfg, err := c.env.Start()
	if err := errors.Join(err, watchdog.Children("etcd", "kube-apiserver")); err != nil {
		return err
	}
	c.Config = unlimited(cfg)
	c.WebhookPort = c.env.WebhookInstallOptions.LocalServingPort
	if opts.Webhooks {
		c.WebhookCertDir = c.env.WebhookInstallOptions.LocalServingCertDir
	}
	c.Kubeconfig = filepath.Join(c.Dir, "kubeconfig")
	if err := os.WriteFile(c.Kubeconfig, c.env.KubeConfig, 0o600); err != nil {
		return err
	}
	if opts.NoCRDs {
		return nil
	}
	return c.warmUp()
}

// warmUp makes the first write of a custom resource, on which a fresh API server spends two seconds
// that would else be counted as the manager's. It is a dry run of a kind without webhooks.
func (c *ControlPlane) warmUp() error {
	admin, err := c.Client()
	if err != nil {
		return err
	}
	return admin.Create(context.Background(), MakeClaim("", "warm-up").Pool("none").Obj(), client.DryRunAll)
}

func (c *ControlPlane) configureEtcd() error {
	port, err := FreePort()
	if err != nil {
		return err
	}
	peerPort, err := FreePort()
	if err != nil {
		return err
	}
	log, err := c.logFile("etcd.log")
	if err != nil {
		return err
	}
	etcd := &envtest.Etcd{
		URL:     &url.URL{Scheme: "http", Host: loopback(port)},
		DataDir: filepath.Join(c.Dir, "etcd"),
		Out:     log,
		Err:     log,
	}
	etcd.Configure().Set("listen-peer-urls", "http://"+loopback(peerPort))
	c.env.ControlPlane.Etcd = etcd
	return os.Mkdir(etcd.DataDir, 0o700)
}

func (c *ControlPlane) configureAPIServer(opts Options) error {
	port, err := FreePort()
	if err != nil {
		return err
	}
	log, err := c.logFile("apiserver.log")
	if err != nil {
		return err
	}
	server := c.env.ControlPlane.GetAPIServer()
	server.Address = "127.0.0.1"
	server.Port = strconv.Itoa(port)
	// Named, so that a restart finds the same certificates again.
	server.CertDir = filepath.Join(c.Dir, "apiserver")
	server.Out, server.Err = log, log

	args := server.Configure()
	// What is measured is the manager: the server's own brakes stay out of the way.
	args.Set("max-requests-inflight", "4000")
	args.Set("max-mutating-requests-inflight", "2000")
	// Room for more Services than the test environment has by default.
	args.Set("service-cluster-ip-range", "10.0.0.0/16")
	for flag, value := range opts.APIServerArgs {
		args.Set(flag, value)
	}
	return os.Mkdir(server.CertDir, 0o700)
}

func (c *ControlPlane) configureWebhooks() error {
	root, err := RepoRoot()
	if err != nil {
		return err
	}
	port, err := FreePort()
	if err != nil {
		return err
	}
	c.env.WebhookInstallOptions = envtest.WebhookInstallOptions{
		Paths:            []string{filepath.Join(root, "config", "webhook", "manifests.yaml")},
		LocalServingHost: "127.0.0.1",
		LocalServingPort: port,
		MaxTime:          startTimeout,
	}
	return nil
}

func (c *ControlPlane) logFile(name string) (*os.File, error) {
	file, err := os.Create(filepath.Join(c.Dir, name))
	if err == nil {
		c.logs = append(c.logs, file)
	}
	return file, err
}

// Client returns a new client with the administrator's rights.
func (c *ControlPlane) Client() (client.WithWatch, error) {
	scheme, err := Scheme()
	if err != nil {
		return nil, err
	}
	return client.NewWithWatch(c.Config, client.Options{Scheme: scheme})
}

// EtcdURL is where etcd serves.
func (c *ControlPlane) EtcdURL() string { return c.env.ControlPlane.Etcd.URL.String() }

// StopAPIServer stops the API server and leaves etcd as it is; StartAPIServer starts it again, at
// the same address and with the same certificates.
func (c *ControlPlane) StopAPIServer() error {
	return c.env.ControlPlane.GetAPIServer().Stop()
}

// StartAPIServer starts the API server again after StopAPIServer and waits until it is healthy.
func (c *ControlPlane) StartAPIServer() error {
	return errors.Join(c.env.ControlPlane.GetAPIServer().Start(), watchdog.Children("kube-apiserver"))
}

// Stop ends both processes and removes what they wrote. Managers are stopped first, by their owner.
func (c *ControlPlane) Stop() error {
	errs := []error{c.env.Stop()}
	for _, log := range c.logs {
		errs = append(errs, log.Close())
	}
	return errors.Join(append(errs, os.RemoveAll(c.Dir))...)
}

func unlimited(cfg *rest.Config) *rest.Config {
	cfg = rest.CopyConfig(cfg)
	cfg.QPS, cfg.Burst = -1, 0
	cfg.DisableCompression = true
	return cfg
}
