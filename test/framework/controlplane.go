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

	"github.com/go-logr/logr"
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
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/cilium"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework/watchdog"
)

// A loaded machine with few cores starts an API server slowly; the timeouts allow for that.
const (
	startTimeout = 2 * time.Minute
	stopTimeout  = 30 * time.Second
)

// Options configure a control plane.
type Options struct {
	// Webhooks registers the validating webhooks of config/webhook at a port on loopback. A manager that is given
	// WebhookPort and WebhookCertDir of the ControlPlane serves them; until one does, pools cannot be written.
	Webhooks bool

	// NoCRDs installs no CRDs: the caller, or a tool under test, installs them.
	NoCRDs bool

	// APIServerArgs are flags of the kube-apiserver without their dashes. They are added to the flags that this
	// package sets, or replace them.
	APIServerArgs map[string]string
}

// ControlPlane is an etcd and a kube-apiserver on loopback, with the CRDs of this provider and the CRDs of Cluster
// API that it needs. No controller of Kubernetes runs: there is no garbage collection, and deleted namespaces stay.
type ControlPlane struct {
	// Config has the rights of an administrator and no client-side rate limit.
	Config *rest.Config
	// Kubeconfig is the path of a file with the same credentials.
	Kubeconfig string
	// Dir holds everything that the control plane writes, including its logs (apiserver.log, etcd.log). Stop removes
	// it.
	Dir string
	// WebhookPort and WebhookCertDir are the port at which the API server expects the webhooks and the directory of
	// their certificate. They are zero and empty without Options.Webhooks.
	WebhookPort    int
	WebhookCertDir string

	testEnv  *envtest.Environment
	logFiles []*os.File
}

// NewScheme returns a scheme with the kinds of Kubernetes, Cluster API, MetalLB, Metal3's IPAM, Cilium and this
// provider.
func NewScheme() (*runtime.Scheme, error) {
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

// StartControlPlane starts a control plane and installs the CRDs. It takes a few seconds. The caller ends the control
// plane with Stop.
func StartControlPlane(opts Options) (*ControlPlane, error) {
	assets, err := FindAssets()
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
	wrapped, err := writeBinaryWrappers(dir, assets)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("starting the control plane: %w", err), os.RemoveAll(dir))
	}
	cp := &ControlPlane{Dir: dir, testEnv: &envtest.Environment{
		BinaryAssetsDirectory:    wrapped,
		ControlPlaneStartTimeout: startTimeout,
		ControlPlaneStopTimeout:  stopTimeout,
		UseExistingCluster:       new(bool),
	}}
	if !opts.NoCRDs {
		cp.testEnv.CRDInstallOptions = envtest.CRDInstallOptions{Paths: crds, ErrorIfPathMissing: true, MaxTime: startTimeout}
	}
	if err := cp.startServers(opts); err != nil {
		return nil, errors.Join(fmt.Errorf("starting the control plane: %w", err), cp.Stop())
	}
	return cp, nil
}

func (c *ControlPlane) startServers(opts Options) error {
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
	log.SetLogger(logr.Discard()) // envtest prints a warning where none is set; a suite that sets one does so before
	cfg, err := c.testEnv.Start()
	if err := errors.Join(err, watchdog.WatchChildren("etcd", "kube-apiserver")); err != nil {
		return err
	}
	c.Config = withoutRateLimit(cfg)
	c.WebhookPort = c.testEnv.WebhookInstallOptions.LocalServingPort
	if opts.Webhooks {
		c.WebhookCertDir = c.testEnv.WebhookInstallOptions.LocalServingCertDir
	}
	c.Kubeconfig = filepath.Join(c.Dir, "kubeconfig")
	if err := os.WriteFile(c.Kubeconfig, c.testEnv.KubeConfig, 0o600); err != nil {
		return err
	}
	if opts.NoCRDs {
		return nil
	}
	return c.warmUpAPIServer()
}

// warmUpAPIServer sends the first write of a custom resource. A new API server spends two seconds on it, which would
// otherwise be counted as time of the manager. The write is a dry run of a kind without webhooks.
func (c *ControlPlane) warmUpAPIServer() error {
	admin, err := c.NewClient()
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
	log, err := c.createLogFile("etcd.log")
	if err != nil {
		return err
	}
	etcd := &envtest.Etcd{
		URL:     &url.URL{Scheme: "http", Host: loopbackAddress(port)},
		DataDir: filepath.Join(c.Dir, "etcd"),
		Out:     log,
		Err:     log,
	}
	etcd.Configure().Set("listen-peer-urls", "http://"+loopbackAddress(peerPort))
	c.testEnv.ControlPlane.Etcd = etcd
	return os.Mkdir(etcd.DataDir, 0o700)
}

func (c *ControlPlane) configureAPIServer(opts Options) error {
	port, err := FreePort()
	if err != nil {
		return err
	}
	log, err := c.createLogFile("apiserver.log")
	if err != nil {
		return err
	}
	server := c.testEnv.ControlPlane.GetAPIServer()
	server.Address = "127.0.0.1"
	server.Port = strconv.Itoa(port)
	// The directory has a fixed name so that a restart finds the same certificates.
	server.CertDir = filepath.Join(c.Dir, "apiserver")
	server.Out, server.Err = log, log

	args := server.Configure()
	// Measurements are of the manager, so the API server's own limits on requests are raised.
	args.Set("max-requests-inflight", "4000")
	args.Set("max-mutating-requests-inflight", "2000")
	// The range has room for more Services than the default of the test environment.
	args.Set("service-cluster-ip-range", "10.0.0.0/16")
	for flag, value := range opts.APIServerArgs {
		args.Set(flag, value)
	}
	return os.Mkdir(server.CertDir, 0o700)
}

func (c *ControlPlane) configureWebhooks() error {
	root, err := FindRepoRoot()
	if err != nil {
		return err
	}
	port, err := FreePort()
	if err != nil {
		return err
	}
	c.testEnv.WebhookInstallOptions = envtest.WebhookInstallOptions{
		Paths:            []string{filepath.Join(root, "config", "webhook", "manifests.yaml")},
		LocalServingHost: "127.0.0.1",
		LocalServingPort: port,
		MaxTime:          startTimeout,
	}
	return nil
}

func (c *ControlPlane) createLogFile(name string) (*os.File, error) {
	file, err := os.Create(filepath.Join(c.Dir, name))
	if err == nil {
		c.logFiles = append(c.logFiles, file)
	}
	return file, err
}

// NewClient returns a new client with the rights of an administrator.
func (c *ControlPlane) NewClient() (client.WithWatch, error) {
	scheme, err := NewScheme()
	if err != nil {
		return nil, err
	}
	return client.NewWithWatch(c.Config, client.Options{Scheme: scheme})
}

// EtcdURL returns the URL that etcd serves at.
func (c *ControlPlane) EtcdURL() string { return c.testEnv.ControlPlane.Etcd.URL.String() }

// StopAPIServer stops the API server and leaves etcd running; StartAPIServer starts it again, at the same address and
// with the same certificates.
func (c *ControlPlane) StopAPIServer() error {
	return c.testEnv.ControlPlane.GetAPIServer().Stop()
}

// StartAPIServer starts the API server again after StopAPIServer and waits until it is healthy.
func (c *ControlPlane) StartAPIServer() error {
	return errors.Join(c.testEnv.ControlPlane.GetAPIServer().Start(), watchdog.WatchChildren("kube-apiserver"))
}

// Stop ends both processes and removes the files that they wrote. Callers stop their managers first. The API server is
// killed: it would end a second later, or half a minute if a watch is open, and no test reads what it stores then.
func (c *ControlPlane) Stop() error {
	var errs []error
	if _, err := findProcessByArg(c.apiServerArg()); err == nil {
		errs = append(errs, c.KillAPIServer())
	}
	errs = append(errs, c.testEnv.Stop())
	for _, log := range c.logFiles {
		errs = append(errs, log.Close())
	}
	return errors.Join(append(errs, os.RemoveAll(c.Dir))...)
}

func withoutRateLimit(cfg *rest.Config) *rest.Config {
	cfg = rest.CopyConfig(cfg)
	cfg.QPS, cfg.Burst = -1, 0
	cfg.DisableCompression = true
	return cfg
}
