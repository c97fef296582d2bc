// Package coreapi serves in a test what Cluster API's core manager serves for IPAddressClaims and
// IPAddresses: its own admission, and its own conversion between the versions of its API. A control plane
// has the CRDs alone without it, takes what Cluster API would refuse, and does not show readers of v1beta1
// what Cluster API would.
package coreapi

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/util/wait"
	ipamv1alpha1 "sigs.k8s.io/cluster-api/api/ipam/v1alpha1"
	ipamv1beta1 "sigs.k8s.io/cluster-api/api/ipam/v1beta1"
	"sigs.k8s.io/cluster-api/core/webhooks/admission"
	ctrl "sigs.k8s.io/controller-runtime"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/webhook"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

// startTimeout bounds a start on a machine that is busy with other things.
const startTimeout = 2 * time.Minute

// Serve starts the webhooks in this process and returns when the API server asks them. The caller ends
// them, before the control plane, with the function that is returned.
func Serve(ctx context.Context, cp *framework.ControlPlane) (stop func() error, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("serving the webhooks of Cluster API: %w", err)
		}
	}()
	at, err := newEndpoint(cp)
	if err != nil {
		return nil, err
	}
	mgr, err := newManager(cp, at)
	if err != nil {
		return nil, err
	}
	running, end := context.WithCancel(context.Background()) // it outlives the step that starts it
	ended := make(chan error, 1)
	go func() { ended <- mgr.Start(running) }()
	stop = func() error { end(); return <-ended }

	serving := mgr.GetWebhookServer().StartedChecker()
	err = until(ctx, func(context.Context) (bool, error) { return serving(&http.Request{}) == nil, nil })
	if err == nil {
		err = register(ctx, cp, at)
	}
	if err != nil {
		return nil, errors.Join(err, stop())
	}
	return stop, nil
}

func newManager(cp *framework.ControlPlane, at *endpoint) (ctrl.Manager, error) {
	scheme, err := framework.Scheme()
	if err != nil {
		return nil, err
	}
	if err := errors.Join(ipamv1alpha1.AddToScheme(scheme), ipamv1beta1.AddToScheme(scheme)); err != nil {
		return nil, err
	}
	mgr, err := ctrl.NewManager(cp.Config, ctrl.Options{
		Scheme:        scheme,
		Logger:        logr.Discard(),
		Metrics:       metricsserver.Options{BindAddress: "0"},
		WebhookServer: webhook.NewServer(webhook.Options{Host: at.host, Port: at.port, CertDir: at.dir}),
	})
	if err != nil {
		return nil, err
	}
	return mgr, errors.Join(
		(&admission.IPAddress{Client: mgr.GetAPIReader()}).SetupWebhookWithManager(mgr), // as its own main does
		(&admission.IPAddressClaim{}).SetupWebhookWithManager(mgr),
	)
}

// endpoint is where the webhooks are served, and with which certificate.
type endpoint struct {
	host string
	port int
	dir  string
	ca   []byte
}

func newEndpoint(cp *framework.ControlPlane) (*endpoint, error) {
	port, err := framework.FreePort()
	if err != nil {
		return nil, err
	}
	at := &endpoint{host: "127.0.0.1", port: port, dir: filepath.Join(cp.Dir, "coreapi")}
	if err := os.MkdirAll(at.dir, 0o700); err != nil {
		return nil, err
	}
	at.ca, err = framework.ServingCerts(at.dir)
	return at, err
}

func (e *endpoint) url(path string) *string {
	url := "https://" + net.JoinHostPort(e.host, strconv.Itoa(e.port)) + path
	return &url
}

// until asks again and again until the answer is yes or an error.
func until(ctx context.Context, yes wait.ConditionWithContextFunc) error {
	return wait.PollUntilContextTimeout(ctx, 20*time.Millisecond, startTimeout, true, yes)
}
